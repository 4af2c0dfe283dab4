"""Batches, and what the job leaves: files as the queries name them, checkpoints as Spark writes them."""

import datetime as dt
import json

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from gnsq.spark.options import ReadOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import delta_location
from gnsq.spark.pipeline.progress import Notebook, batch_of
from gnsq.spark.source.planner import drain_channel
from gnsq.spark.spool.spool import Spool
from tests.spark.helpers import bodies_of

UTC = dt.UTC


def config_for(path, **changes):
    given = {"topic": "clicks", "output": str(path / "output"), "work": str(path / "work")}
    if not {"nsqd_tcp_addresses", "lookupd_http_addresses"} & set(changes):
        changes["nsqd_tcp_addresses"] = ("127.0.0.1:1",)
    return PipelineConfig(**{**given, **changes})


def put_checkpoint(location):
    """Write what tells that a checkpoint is there, as Spark 4 does."""
    location.mkdir(parents=True, exist_ok=True)
    (location / "metadata").write_text('{"id":"a"}')


def put_batch(location, number, offsets):
    """Write what tells that a batch has begun and the one before is done, as Spark does."""
    for log, batch_id, text in (("offsets", number, offsets), ("commits", number - 1, "")):
        (location / log).mkdir(parents=True, exist_ok=True)
        (location / log / f"{batch_id}").write_text(text)
        (location / log / f".{batch_id}.crc").write_text(text)


OPERATOR = {
    "numRowsTotal": 1200,
    "memoryUsedBytes": 2**20,
    "numRowsDroppedByWatermark": 0,
    "customMetrics": {"numDroppedDuplicateRows": 1, "rocksdbSstFileSize": 2**21},
}


def progress(**changes):
    """A progress as Spark tells it."""
    return {
        "batchId": 3,
        "numInputRows": 10,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "durationMs": {"triggerExecution": 1500},
        "sources": [
            {
                "startOffset": None,
                "endOffset": None,
                "latestOffset": '{"waiting": 7, "in_flight": 2, "spool_rows": 4, "trouble": "full"}',
            }
        ],
        "observedMetrics": {"gnsq": {"malformed": 1, "latest": 1_767_225_590_000_000}},
        "stateOperators": [],
        **changes,
    }


def put_note(config, query="archive", offset=None, **changes):
    """Note a batch that Spark has committed."""
    told = progress(**changes)
    told["sources"][0]["endOffset"] = offset
    Notebook(config, query).finish(told, batch_of(query, told))


def messages(spark, bodies, topic="clicks"):
    """Rows as the source gives them, for these bodies."""
    published_at = dt.datetime(2026, 6, 1, tzinfo=UTC)
    rows = [
        (bytearray(body), f"{number:016}", published_at, "127.0.0.1:4150", topic) for number, body in enumerate(bodies)
    ]
    columns = "body binary, message_id string, published_at timestamp, nsqd string, topic string"
    return spark.createDataFrame(rows, columns)


def event(time, page="/", user="u"):
    return json.dumps({"time": time.isoformat(), "user": user, "page": page}).encode()


def delta_table(location):
    """A reader of a table."""
    uri, options = delta_location(str(location))
    return DeltaTable(uri, storage_options=options)


def table_rows(location):
    """All rows of a table; none if there is no table."""
    try:
        return delta_table(location).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []


def sum_of_counts(rows):
    """Add up the published counts that are valid: those with the highest version of a window, its keys and an epoch."""
    valid = {}
    for row in sorted(rows, key=lambda row: row["version"]):
        valid[tuple(value for name, value in row.items() if name not in ("count", "version"))] = row["count"]
    return sum(valid.values())


def published(nsqd, topic, tmp_path):
    """Bodies in a topic."""
    options = ReadOptions(
        topic=topic,
        channel="test",
        nsqd_tcp_addresses=(nsqd.tcp_address,),
        nsqd_http_addresses=(nsqd.http_address,),
        spool=str(tmp_path / f"{topic}-spool"),
    )
    drain_channel(options)
    return [json.loads(body) for body in bodies_of(Spool(options.spool))]
