"""A job whose tables the cluster's own Delta or Iceberg writes: it is killed, and each event is in the tables once.

PIPELINE_DELTA_PYTHON and PIPELINE_ICEBERG_PYTHON name a Python with gnsq's dependencies and a PySpark that Delta or
Iceberg supports. PIPELINE_DELTA_JARS and PIPELINE_ICEBERG_JARS name jars with commas; without them, Spark gets the
packages from its repositories.
"""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from gnsq import Producer
from integration.servers import program, running
from tests.spark.helpers import is_empty, wait_for
from tests.spark.helpers import running as process
from tests.spark.queries import kill_group, running_query

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(program("nsqd") is None, reason="no nsqd on PATH, none named in NSQD"),
]

ROOT = Path(__file__).parent.parent
LIMIT = 600
EVENTS, MALFORMED, MORE = 2000, 60, 100
PACKAGES = {
    "delta": "io.delta:delta-spark_{}_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{}_2.13:1.12.0",
}
SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": "{folder}/lake",
    },
}
PLACES = {"delta": 'output = "{folder}/out put"', "iceberg": 'catalog = "lake.clicks"'}
NAMES = {"delta": "delta.`file://{folder}/out put/{path}`", "iceberg": "lake.clicks.`{name}`"}
JOB = """
topic = "clicks"
table_writer = "spark-{form}"
{place}
work = "{work}"
nsqd_tcp_addresses = ["{nsqd.tcp_address}"]
nsqd_http_addresses = ["{nsqd.http_address}"]
max_rows_per_batch = 300
keep_windows = 864000
deduplicate = 3600
master = "local[2]"
[fields]
id = "long"
page = "string"
[nsq]
msgTimeout = 2
[spark]
{spark}
"""
# Runs statements of SQL, and prints the rows of the last one as JSON.
SQL = """
import json, os, sys
from pyspark.sql import SparkSession
settings, statements = json.load(sys.stdin)
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for statement in statements:
    rows = spark.sql(statement).collect()
print("ROWS", json.dumps([list(row) for row in rows]))
"""


class Writer:
    """Delta or Iceberg, with a Spark of its own."""

    def __init__(self, form, folder):
        self.form, self.folder = form, folder
        self.python = os.environ.get(f"PIPELINE_{form.upper()}_PYTHON")
        if not self.python:
            pytest.skip(f"PIPELINE_{form.upper()}_PYTHON names no Python with a PySpark that {form} supports")
        code = "import pyspark; print(pyspark.__version__, pyspark.__path__[0])"
        said = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout
        version, home = said.strip().split(" ", 1)
        self.environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": self.python, "SPARK_LOCAL_IP": "127.0.0.1"}
        # The tests' own Spark is another release.
        self.environment |= {"SPARK_HOME": home, "SPARK_SUBMIT_OPTS": ""}
        jars = os.environ.get(f"PIPELINE_{form.upper()}_JARS")
        self.settings = {name: value.format(folder=folder) for name, value in SETTINGS[form].items()}
        self.settings |= (
            {"spark.jars": jars}
            if jars
            else {"spark.jars.packages": PACKAGES[form].format(re.match(r"\d+\.\d+", version)[0])}
        )

    def write_settings(self, name, nsqd):
        """Write the settings of a job with a work directory of this name; return the command that runs the job."""
        spark = "\n".join(f'"{key}" = "{value}"' for key, value in self.settings.items())
        place = PLACES[self.form].format(folder=self.folder)
        path = self.folder / f"{name}.toml"
        path.write_text(
            JOB.format(form=self.form, place=place, work=self.folder / name, nsqd=nsqd, spark=spark), encoding="utf-8"
        )
        environment = [f"{key}={value}" for key, value in self.environment.items()]
        return ["env", *environment, self.python, "-m", "gnsq.spark.pipeline", "--config", str(path)]

    def table(self, path):
        """Name a table in SQL."""
        return NAMES[self.form].format(folder=self.folder, path=path, name=path.replace("/", "_"))

    def sql(self, *statements):
        """Run statements; return the rows of the last one."""
        done = subprocess.run(
            [self.python, "-c", SQL],
            input=json.dumps([self.settings, statements]),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env={**os.environ, **self.environment},
        )
        found = re.search("^ROWS (.*)$", done.stdout, re.MULTILINE)
        assert found is not None, done.stderr[-3000:]
        return json.loads(found[1])


@pytest.fixture(params=["delta", "iceberg"])
def writer(request, tmp_path):
    return Writer(request.param, tmp_path)


def publish(nsqd, first, count, malformed=0):
    bodies = [
        json.dumps({"id": number, "page": f"/{number % 7}", "time": f"2026-01-0{number % 3 + 1}T10:00:00Z"}).encode()
        for number in range(first, first + count)
    ]
    bodies += [b"not json %d" % number for number in range(malformed)]
    with Producer(nsqd.tcp_address) as producer:
        for start in range(0, len(bodies), 500):
            producer.multipublish("clicks", bodies[start : start + 500])


def run_once(command, *options):
    with process([*command, "--once", *options]) as job:
        output, _ = job.communicate(timeout=LIMIT)
    return job.returncode, output


def kill_when(command, log, condition):
    """Start the job, and kill it when the condition holds."""
    with running_query(command, log) as job:
        wait_for(lambda: condition() or job.poll() is not None, LIMIT)
        assert job.poll() is None
        kill_group(job)


def test_job_that_is_killed_twice_accounts_for_everything(writer, tmp_path):
    work = tmp_path / "work"

    def has_committed(query, table, since):
        note = work / query / f"table-{table}.json"
        return note.exists() and note.stat().st_mtime > since

    def staged(query):
        return [path for path in (work / query / "staged").rglob("part-*") if path.is_file()]

    with running("nsqd", "--msg-timeout=3s") as nsqd:
        publish(nsqd, 0, EVENTS, MALFORMED)
        if writer.form == "iceberg":
            writer.sql("CREATE NAMESPACE lake.clicks")
        command = writer.write_settings("work", nsqd)

        started = time.time()
        # A batch of archive is in its table, and its staged files or those of the next one are there.
        kill_when(
            command, tmp_path / "1.log", lambda: has_committed("archive", "archive", started) and staged("archive")
        )
        started = time.time()
        # When a batch of metrics is in its table, and has not ended.
        kill_when(command, tmp_path / "2.log", lambda: has_committed("metrics", "metrics.counts", started))
        # Batches of 300 rows could take longer than the limit.
        status, output = run_once(command, "--max-rows-per-batch=20000")
        assert (status, output.rpartition("\n")[0].rpartition("\n")[2]) == (0, "drained")
        assert all(is_empty(nsqd, "clicks", channel) for channel in ("archive", "metrics"))
        assert staged("archive") == staged("metrics") == []

        publish(nsqd, EVENTS, MORE)
        other = writer.write_settings("other", nsqd)
        status, output = run_once(other)
        assert status == 1
        assert "belongs to the checkpoint" in output
        assert run_once(other, "--take-over")[0] == 0

        with process([*other, "--status"]) as job:
            output, _ = job.communicate(timeout=LIMIT)
        [entered] = re.findall(r"table metrics/counts written by Spark, of ([\d,]+) events, committed", output)
        archive, dead, counts = map(writer.table, ("archive", "dead", "metrics/counts"))
        [[rows, ids, lowest, highest, letters, counted]] = writer.sql(
            f"""
            WITH valid AS (SELECT max_by(count, version) AS n FROM {counts} GROUP BY window_start, page, epoch)
            SELECT count(*), count(DISTINCT id), min(id), max(id), (SELECT count(*) FROM {dead}),
                (SELECT sum(n) FROM valid)
            FROM {archive}
            """
        )
    assert (rows, ids, lowest, highest) == (EVENTS + MORE, EVENTS + MORE, 0, EVENTS + MORE - 1)
    assert letters == MALFORMED
    assert counted == int(entered.replace(",", "")) == EVENTS + MORE
