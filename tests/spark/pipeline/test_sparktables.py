"""A job whose tables Spark writes, without Spark. integration/test_pipeline_writers.py has the tests with Spark."""

import datetime as dt
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gnsq.spark.pipeline.__main__ import main
from gnsq.spark.pipeline.layout import archive_tables, metrics_table
from gnsq.spark.pipeline.preflight import check_places
from gnsq.spark.pipeline.sparktables import catalog_table, may_have_expired, path_table
from gnsq.spark.pipeline.status import status_lines
from tests.spark.pipeline.helpers import config_for

ICEBERG = {"table_writer": "spark-iceberg", "catalog": "lake.clicks", "output": ""}
COMMITTED = {"committed_at": "2026-01-01T00:00:00+00:00", "entered": 1234}
NOW = dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("catalog", "path", "name"),
    [
        pytest.param("main.events", "archive", "`main`.`events`.`archive`", id="catalog"),
        pytest.param("a.b.c", "metrics/by-page", "`a`.`b`.`c`.`metrics_by_page`", id="path"),
    ],
)
def test_table_in_a_catalog_has_the_name_of_its_path(catalog, path, name):
    assert catalog_table(catalog, path) == name


@pytest.mark.parametrize(
    ("location", "name"),
    [
        pytest.param("/data/my clicks/archive", "delta.`file:///data/my clicks/archive`", id="path"),
        pytest.param("hdfs://nn/a`b", "delta.`hdfs://nn/a``b`", id="URI"),
    ],
)
def test_table_in_a_directory_has_the_name_of_its_location(location, name):
    assert path_table(location) == name


@pytest.mark.parametrize(
    ("parent", "made_at", "planned_at", "is_so"),
    [
        pytest.param(1, 1000.0, 2000.0, False, id="older ones are left"),
        pytest.param(1, 2000.0, 1000.0, True, id="younger ones have expired"),
        pytest.param(1, 1000.0, 1030.0, True, id="clocks may differ"),
        pytest.param(None, 2000.0, 1000.0, False, id="none has expired"),
        pytest.param(1, 2000.0, 0.0, False, id="only Spark can read the checkpoint"),
    ],
)
def test_snapshots_that_may_have_had_a_batch_are_missed(parent, made_at, planned_at, is_so):
    assert may_have_expired(parent, made_at, planned_at) is is_so


def test_rows_of_a_batch_are_staged_beside_the_spool(tmp_path):
    in_work = config_for(tmp_path, **ICEBERG)
    elsewhere = config_for(tmp_path, **ICEBERG, spool="/mnt/spool")

    assert archive_tables(in_work, "clicks")[1].target(3).location == str(tmp_path / "work/archive/staged/dead")
    assert metrics_table(elsewhere, "metrics").target(3).location == "/mnt/spool/metrics-staged/metrics/counts"


def test_checks_before_spark_starts_make_no_table(tmp_path):
    config = config_for(tmp_path, table_writer="spark-delta")
    Path(config.work).mkdir()

    check_places(config)

    assert not Path(config.output).exists()


def test_last_commits_are_told_without_spark(tmp_path):
    config = config_for(tmp_path, **ICEBERG)
    note = Path(config.work, "metrics", "table-metrics.counts.json")
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps(COMMITTED))

    lines = [line.strip() for line in status_lines(config, NOW) if " table " in line]

    assert lines == [
        "table metrics/counts written by Spark, of 1,234 events, committed 2026-01-01 00:00:00 UTC (1:00:00 ago)"
    ]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        pytest.param("maintain", "the job maintains no tables: let the cluster do it", id="maintain"),
    ],
)
def test_what_only_delta_rs_can_do_is_refused(action, words, tmp_path):
    given = ["--topic=clicks", "--table-writer=spark-delta", "--nsqd-tcp-address=127.0.0.1:1", "--partition-by=hour"]

    done = CliRunner().invoke(main, [*given, f"--output={tmp_path}/out", f"--work={tmp_path}/work", action])

    assert done.exit_code == 1
    assert f"setting table_writer spark-delta: {words}" in done.output
