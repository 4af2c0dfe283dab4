"""Metrics of the job for Prometheus."""

import socket
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.exporter import METRICS, PipelineCollector, serving
from gnsq.spark.pipeline.report import Batch
from tests.helpers import refused_port


class Clock:
    """Unix time that a test sets."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def collector(clock):
    return PipelineCollector(["archive", "metrics"], clock)


def shown(collector, query="archive"):
    """The values of a query, by their names after gnsq_pipeline_."""
    samples = [sample for family in collector.collect() for sample in family.samples]
    return {
        sample.name.removeprefix("gnsq_pipeline_"): sample.value
        for sample in samples
        if sample.labels == {"query": query}
    }


COUNTERS = ("rows_total", "batches_total", "duplicates_total", "malformed_total", "late_total")
BACKLOG = {"waiting": 70, "spooled": 20, "lag": 1.5}
STATE = {"state_rows": 9, "state_bytes": 900}
BATCH = Batch("archive", 3, 500, 2.0, malformed=4, duplicates=3, dropped=1, **BACKLOG, **STATE)


def test_query_that_has_just_started_has_counters_and_its_start(collector):
    assert shown(collector) == {
        **dict.fromkeys(COUNTERS, 0.0),
        "trouble": 0.0,
        "last_progress_timestamp_seconds": 1000.0,
    }


def test_batch_changes_counters_and_gauges_of_its_query_alone(collector, clock):
    before = shown(collector, "metrics")
    clock.now = 1010.0

    collector.record(BATCH)
    collector.record(BATCH)

    assert [shown(collector)[name] for name in COUNTERS] == [1000, 2, 6, 8, 2]
    assert {name: value for name, value in shown(collector).items() if name not in COUNTERS} == {
        "rows_per_second": 250.0,
        "last_batch_seconds": 2.0,
        "messages_waiting": 70.0,
        "messages_spooled": 20.0,
        "lag_seconds": 1.5,
        "state_rows": 9.0,
        "state_bytes": 900.0,
        "last_progress_timestamp_seconds": 1010.0,
        "trouble": 0.0,
    }
    assert shown(collector, "metrics") == before


def test_idle_query_changes_gauges_and_no_counter(collector, clock):
    collector.record(BATCH)
    before, clock.now = shown(collector), 1020.0

    collector.record(Batch("archive", 4, 0, 0.1, waiting=0, spooled=0, dropped=1, duplicates=3, state_rows=9))

    now = shown(collector)
    assert {name: now[name] for name in COUNTERS} == {name: before[name] for name in COUNTERS}
    assert (now["rows_per_second"], now["last_batch_seconds"], now["lag_seconds"]) == (0, 2, 0)
    assert (now["messages_waiting"], now["last_progress_timestamp_seconds"]) == (0, 1020)


@pytest.mark.parametrize(
    "left",
    [
        pytest.param({"waiting": 5, "spooled": 0}, id="at nsqd"),
        pytest.param({"spooled": 5}, id="in the spool"),
        pytest.param({"trouble": "no nsqd answers"}, id="unknown"),
    ],
)
def test_lag_stays_while_something_may_be_left(collector, left):
    collector.record(BATCH)

    collector.record(Batch("archive", 4, 0, 0.1, **left))

    assert shown(collector)["lag_seconds"] == 1.5


def test_trouble_is_1_until_it_is_over(collector):
    collector.record(Batch("archive", 0, 0, 0.1, trouble="no nsqd answers"))
    during = shown(collector)["trouble"]
    collector.record(Batch("archive", 0, 0, 0.1))

    assert (during, shown(collector)["trouble"]) == (1, 0)


def test_unknown_backlog_is_missing(collector):
    collector.record(BATCH)

    collector.record(Batch("archive", 4, 10, 0.1))

    assert not {"messages_waiting", "messages_spooled", "lag_seconds"} & set(shown(collector))


def test_metrics_are_served_until_the_end_of_the_block(collector):
    port = refused_port()
    collector.record(BATCH)

    with serving(f"127.0.0.1:{port}", collector) as url, urlopen(url, timeout=10) as answer:
        text = answer.read().decode()

    assert url == f"http://127.0.0.1:{port}/metrics"
    assert 'gnsq_pipeline_rows_total{query="archive"} 500.0\n' in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(f"gnsq_pipeline_{name}", kind) for name, kind, _ in METRICS] == [
        (name, family.type) for name, family in families.items()
    ]
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free


def test_address_in_use_is_named(collector):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1:{1}".format(*server.getsockname())

        with (
            pytest.raises(JobFailed, match=f"setting metrics_address {address}: Address already in use: give a free"),
            serving(address, collector),
        ):
            pass
