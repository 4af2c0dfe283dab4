"""The job on executors whose Python has a packed environment and nothing else.

The test does what docs/pages/pipeline/deployment.md tells, on a local-cluster: it packs an environment by venv-pack,
and the executors unpack it. It takes some minutes and downloads packages, so it runs only if PACKED_PYTHON=1 is in the
environment.
"""

import json
import os
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from fakensqd import FakeNsqd
from gnsq import Producer
from tests.kit import run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.subprocess,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("PACKED_PYTHON"), reason="makes an environment of 200 MB: set PACKED_PYTHON=1"
    ),
]

ROOT = Path(__file__).parent.parent
EVENTS = 10_000
EVENT = b'{"time": "2026-01-01T10:%02d:01Z", "user": "u%d", "page": "/"}'

# The driver, which runs with this program's Python. The planners of its queries run with ./environment/bin/python.
DRIVER = """
import json, os, sys
from gnsq.spark.pipeline import JobSettings, TableSettings, run
from gnsq.spark.pipeline.spark_session import open_session

tcp, http = sys.argv[1:]
places = {"output": os.path.abspath("output"), "work": os.path.abspath("work")}
schema = "time TIMESTAMP NOT NULL, user STRING NOT NULL, page STRING NOT NULL"
tables = {"clicks": TableSettings(name="clicks", schema=schema, time="time")}
job = JobSettings(tables=tables, nsqd_tcp_addresses=(tcp,), nsqd_http_addresses=(http,), **places)

def used(number):
    import gnsq
    return sys.executable, gnsq.__file__

settings = {"spark.archives": "environment.tar.gz#environment", "spark.ui.showConsoleProgress": "false"}
with open_session("packed", settings={"spark.master": "local-cluster[2,1,1024]", **settings}) as spark:
    found = spark.sparkContext.parallelize(range(8), 4).map(used).distinct().collect()
    finished = run(spark, job, once=True).finished
print(json.dumps([found, finished]))
"""


def run_in(folder, *command, **variables):
    """Run a command in a folder, without variables by which executors would find other packages than those packed."""
    others = ("PYTHON", "VIRTUAL_ENV", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    done = run(*command, cwd=folder, env=kept | variables, limit=600)
    done.check_returncode()
    return done.stdout


def pack(folder):
    """Make environment.tar.gz, and unpack it for the planners, which run on the driver."""
    run_in(folder, sys.executable, "-m", "venv", "packed")
    run_in(folder, "packed/bin/pip", "install", "--quiet", f"{ROOT}[spark]", "venv-pack")
    run_in(folder, "packed/bin/pip", "uninstall", "--quiet", "--yes", "pyspark", "py4j")
    run_in(folder, "packed/bin/venv-pack", "--quiet", "--prefix", "packed", "--output", "environment.tar.gz")
    (folder / "environment").mkdir()
    run_in(folder, "tar", "-xzf", "environment.tar.gz", "-C", "environment")


def test_the_job_archives_each_event_once(tmp_path):
    pack(tmp_path)
    # The directories of executors are below SPARK_HOME.
    home = tmp_path / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    variables = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    variables["SPARK_HOME"] = str(home)
    with FakeNsqd().in_thread() as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.multipublish("clicks", [EVENT % (number % 60, number) for number in range(EVENTS)])

        printed = run_in(tmp_path, sys.executable, "-c", DRIVER, nsqd.tcp_address, nsqd.http_address, **variables)

    found, is_finished = json.loads(printed.splitlines()[-1])
    assert is_finished
    assert len(found) == 2
    assert all(path.startswith(f"{home}/work/") and "/environment/" in path for paths in found for path in paths)
    users = DeltaTable(tmp_path / "output" / "clicks").to_pyarrow_table(columns=["user"])["user"].to_pylist()
    assert len(users) == len(set(users)) == EVENTS
