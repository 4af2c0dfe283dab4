"""Metrics of the job for Prometheus."""

import socket
from dataclasses import replace
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gnsq.spark.pipeline.exporter import FAMILIES, PipelineCollector, serving
from gnsq.spark.pipeline.status import Counts, MetricStatus, QueryStatus
from tests.kit import refused_port

COUNTERS = [each.name.removeprefix("pipeline_") + "_total" for each in FAMILIES.values() if each.kind == "counter"]
RECORD = QueryStatus(
    name="clicks",
    is_running=True,
    restarts=2,
    total=Counts(1000, 900, 8, 5, 6),
    batches=2,
    seconds=2.0,
    rate=250.0,
    waiting=70,
    spooled=20,
    lag=1.5,
    state_rows=9,
    state_bytes=900,
    progress_at=1010.0,
)
NEW = QueryStatus(name="pages", progress_at=1000.0)


def shown(record):
    """The values of a query, by their names after gnsq_pipeline_."""
    samples = [sample for family in PipelineCollector(lambda: [record]).collect() for sample in family.samples]
    assert {sample.labels["query"] for sample in samples} == {record.name}
    return {sample.name.removeprefix("gnsq_pipeline_"): sample.value for sample in samples}


def test_record_is_shown_and_of_a_query_that_has_just_started_counters_and_its_start():
    assert {name for name, value in shown(NEW).items() if value == 0} == {
        *COUNTERS,
        *("running", "trouble", "state_rows", "state_bytes"),
    }
    assert shown(NEW).keys() ^ shown(RECORD).keys() == {
        *("rows_per_second", "last_batch_seconds", "messages_waiting", "messages_spooled", "lag_seconds"),
    }
    assert shown(RECORD) == {
        "rows_total": 1000.0,
        "batches_total": 2.0,
        "entered_total": 900.0,
        "malformed_total": 8.0,
        "rescued_total": 5.0,
        "duplicates_total": 6.0,
        "restarts_total": 2.0,
        "running": 1.0,
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


def test_record_of_a_metric_is_shown():
    record = MetricStatus(name="pages", version=3, counted_at=1000.0, seconds=0.5, failure="no space")
    families = PipelineCollector(lambda: [record]).collect()

    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples == {
        "gnsq_pipeline_counted_timestamp_seconds": 1000.0,
        "gnsq_pipeline_count_seconds": 0.5,
        "gnsq_pipeline_count_trouble": 1.0,
    }


@pytest.mark.parametrize("kind", ["failure", "trouble"])
def test_trouble_is_1_until_it_is_over(kind):
    assert shown(replace(RECORD, **{kind: "no nsqd answers"}))["trouble"] == 1


def test_metrics_are_served_until_the_end_of_the_block():
    port, collector = refused_port(), PipelineCollector(lambda: [RECORD, NEW])

    with serving(f"127.0.0.1:{port}", collector) as url, urlopen(url, timeout=10) as answer:
        text = answer.read().decode()

    assert url == f"http://127.0.0.1:{port}/metrics"
    assert 'gnsq_pipeline_rows_total{query="clicks"} 1000.0\n' in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(f"gnsq_{each.name}", each.kind) for each in FAMILIES.values()] == [
        (name, family.type) for name, family in families.items()
    ]
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free
