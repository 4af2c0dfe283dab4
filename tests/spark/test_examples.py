"""The examples for Spark and for the job's settings and tables run."""

import datetime as dt
import re
import shlex
import subprocess
import sys

import pyarrow as pa
import pytest

from gnsq import Producer
from gnsq.spark.pipeline.__main__ import main as job_command
from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.loading import load_config
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.parquet import write
from gnsq.spark.pipeline.schema import plain_type
from gnsq.spark.pipeline.windows import Metric, version_of
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from tests.docs.pages import example


@pytest.mark.spark
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="for AvailableNow, PySpark 4.1 needs the option drain")
def test_spark_example_writes_what_was_published(spark, fakensqd, tmp_path):
    with Producer(fakensqd.tcp_address) as producer:
        producer.multipublish("clicks", [b'{"page": "/", "user": "ann"}', b'{"page": "/a", "user": "bob"}'])
    names = {}
    exec(example("pipeline/guide.md", "Source and sink"), names)

    query = names["start"](spark, fakensqd.tcp_address, fakensqd.http_address, str(tmp_path))
    assert query.awaitTermination(60)

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.click.page, row.click.user) for row in rows) == [("/", "ann"), ("/a", "bob")]


FIELDS = {
    "": "",
    "sql": example("pipeline/guide.md", "Fields", language="sql"),
    "json": example("pipeline/guide.md", "Fields", language="json"),
}


@pytest.mark.parametrize("language", FIELDS)
def test_settings_of_the_job_are_accepted_with_fields_of_each_form(tmp_path, language):
    text = example("pipeline/guide.md", "The job", language="toml")
    if language:
        (tmp_path / "click").write_text(FIELDS[language])
        head, rest = re.split(r"\[fields\].*?(?=\[\[metrics)", text, flags=re.DOTALL)
        text = f'{head}fields_file = "{tmp_path}/click"\n{rest}'
    (tmp_path / "job.toml").write_text(text)

    config = load_config(str(tmp_path / "job.toml"), {})

    assert {name: plain_type(kind) for name, kind in config.fields.items()} == {
        "user": "string",
        "page": "string",
        "ms": "bigint" if language == "json" else "int",
    }
    assert set(config.schema_of("clicks").required) == {"user", "page", *(() if language else ("ms",))}


def test_settings_of_the_readme_are_accepted(tmp_path):
    (tmp_path / "job.toml").write_text(example("README.md", "Pipeline", language="toml"))

    assert load_config(str(tmp_path / "job.toml"), {}).queries == ("archive", "metrics")


def test_command_lines_of_the_job_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(example("pipeline/guide.md", "The job", language="toml"))
    lines = example("pipeline/guide.md", "The job", language="sh").splitlines()

    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "gnsq-pipeline"
        assert job_command.make_context(program, arguments).params["config_file"] == "job.toml"


def test_settings_of_a_job_with_raw_bodies_are_accepted(tmp_path):
    (tmp_path / "job.toml").write_text(example("pipeline/guide.md", "Raw bodies", language="toml"))

    assert load_config(str(tmp_path / "job.toml"), {}).queries == ("archive",)


def test_settings_of_a_job_on_an_object_store_are_accepted(tmp_path):
    (tmp_path / "job.toml").write_text(example("pipeline/guide.md", "Object stores", language="toml"))

    config = load_config(str(tmp_path / "job.toml"), {})

    assert config.spool_of("archive") == "s3://bucket/clicks-work/archive/spool"
    assert config.checkpoint_of("archive") == "s3a://bucket/clicks-checkpoint/archive"
    assert config.log.is_absolute()


def test_settings_of_a_job_with_several_topics_are_accepted(tmp_path):
    (tmp_path / "job.toml").write_text(example("pipeline/guide.md", "Several topics", language="toml"))

    config = load_config(str(tmp_path / "job.toml"))

    assert [entry.name for entry in config.entries] == ["clicks", "orders", "frames", r"sensor\..+"]
    assert config.queries == ("archive", "metrics.clicks.pages", "metrics.orders.countries")
    assert config.schema_of("sensor.attic").fields == {"celsius": "double"}
    assert re.fullmatch(config.topic_pattern, "sensor.attic")
    assert not re.fullmatch(config.topic_pattern, "sensor.attic-dead")


@pytest.mark.subprocess
def test_readers_example_reads_a_table_after_a_merge(tmp_path):
    schema = pa.schema([("event_time", pa.timestamp("us", tz="UTC")), ("page", pa.string())])
    table = Table("archive", str(tmp_path), schema, ["_day"], time="event_time")
    table.claim("q", take_over=False)
    for batch_id in range(3):
        target = table.target(batch_id)
        batch = pa.record_batch([[dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 2, ["/", "/a"]], schema=schema)
        table.commit(BatchIdentity("q", batch_id, 1, 1), write([batch], lambda rows, target=target: [(target, rows)]))
    maintain_table(str(tmp_path), retention=None, quiet=0)
    code = example("pipeline/guide.md", "Read the archive").replace("/data/clicks/archive", str(tmp_path))
    code += "\nprint([len(frame), sorted(pages.rows()), sorted(rows)])"

    # DuckDB complains at the end of each process that has loaded it.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "[6, [('/', 3), ('/a', 3)], [('/', 3), ('/a', 3)]]\n", done.stderr


def test_counts_example_adds_the_valid_rows_of_all_epochs(tmp_path):
    metric = Metric.parse({"name": "pages", "window": 300, "slide": 60, "keys": ["page"], "aggregates": ["sum(ms)"]})
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    schema = metric.schema({"page": "string", "ms": "int"})
    table = Table("metrics", str(tmp_path), schema, ["_day"], time="window_start")
    for owner, batch_id, count in (("old", 0, 1), ("old", 1, 3), ("new", 0, 2)):
        epoch = table.claim(owner, take_over=True)
        values = (start, start + dt.timedelta(minutes=5), "/", count, 10 * count, epoch, version_of(epoch, batch_id))
        batch = pa.record_batch([[value] for value in values], schema=schema)
        target = table.target(batch_id)
        table.commit(BatchIdentity(owner, batch_id, 1, 1), write([batch], lambda rows, target=target: [(target, rows)]))
    names = {}

    exec(example("pipeline/guide.md", "Read the counts").replace("/data/clicks/metrics/pages", str(tmp_path)), names)

    [row] = names["counts"].to_pylist()
    assert (row["page"], row["count"], row["sum_ms"]) == ("/", 5, 50)
    assert names["view"].startswith("SELECT ")
