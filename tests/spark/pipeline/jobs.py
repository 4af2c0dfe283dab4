"""Settings of jobs for tests."""

import json

from gnsq.spark.pipeline.settings import JobSettings
from gnsq.spark.pipeline.tables import MetricSettings, TableSettings

SCHEMA = "user STRING NOT NULL, page STRING NOT NULL, ms INT"


def setup(spark):
    """A function for the setting setup."""
    spark.udf.register("halved", lambda number: 10 // number, "INT")


def parsed(columns):
    """A setting that gives columns as a schema does, and is planned in less time. What does not fit is malformed."""
    return f"from_json(CAST(body AS STRING), '{columns}', map('mode', 'FAILFAST'))"


def table(name="clicks", **settings):
    given = {} if {"schema", "schema_file", "parse", "format"} & set(settings) else {"schema": SCHEMA}
    return TableSettings(name=name, **given, **settings)


def metric(name="pages", **settings):
    return MetricSettings(name=name, **{"table": "clicks", "keys": ("page",), **settings})


def addresses(nsqd):
    """The settings with the addresses of an nsqd."""
    return {"nsqd_tcp_addresses": (nsqd.tcp_address,), "nsqd_http_addresses": (nsqd.http_address,)}


def job(path, *queries, **settings):
    """A job of these tables and metrics; default: the table clicks."""
    if not {"nsqd_tcp_addresses", "lookupd_http_addresses"} & set(settings):
        settings["nsqd_tcp_addresses"] = ("127.0.0.1:1",)
    return JobSettings(
        **{"work": str(path / "work"), "output": str(path / "output"), **settings},
        tables={each.name: each for each in queries or (table(),) if isinstance(each, TableSettings)},
        metrics={each.name: each for each in queries if isinstance(each, MetricSettings)},
    )


OPERATOR = {
    "numRowsTotal": 1200,
    "memoryUsedBytes": 2**20,
    "numRowsDroppedByWatermark": 0,
    "customMetrics": {"numDroppedDuplicateRows": 1, "rocksdbSstFileSize": 2**21},
}


def progress(source=None, **changes):
    """A progress as Spark tells it: of batch 3, with 10 rows, which ended at 00:00:01.5.

    Args:
        source: What the nsq source tells of its backlog.
    """
    backlog = {"waiting": 7, "in_flight": 2, "spool_rows": 4} if source is None else source
    return {
        "batchId": 3,
        "numInputRows": 10,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "durationMs": {"triggerExecution": 1500},
        "sources": [{"startOffset": None, "endOffset": '{"v": 1}', "latestOffset": json.dumps(backlog)}],
        "observedMetrics": {
            "gnsq": {"malformed": 1, "rescued": 2, "entered": 8, "latest": 1_767_225_590_000_000},
        },
        "stateOperators": [],
        **changes,
    }
