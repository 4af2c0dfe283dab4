"""The example for Avro of docs/pages/pipeline/formats.md, with Spark's package from Maven; skipped if it can't be had.

That for Protobuf does not run: Maven Central has no spark-protobuf for these releases of Spark, or is not reached.
"""

import re
import shutil
import sys

import pytest
from deltalake import DeltaTable

from tests.docs.pages import example
from tests.kit import run
from tests.spark.helpers import publish

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def package(tmp_path):
    """The jar of spark-avro that the page names."""
    text = example("pipeline/formats.md", "Other formats: parse", 2, language="toml")
    coordinates = re.findall(r"org\.apache\.spark:spark-avro[\w.:]*[\w]", text)[0]
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    command = ["mvn", "-q", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={tmp_path}"]
    done = run(*command, cwd=tmp_path, limit=300)
    if done.returncode:
        pytest.skip(f"Maven does not get {coordinates}: {done.stdout.splitlines()[:1]}")
    (jar,) = tmp_path.glob("*.jar")
    return jar


def test_avro_is_read_and_other_bodies_are_dead_letters(package, fakensqd, tmp_path):
    text = example("pipeline/formats.md", "Other formats: parse", 2, language="toml").partition("[tables.protobuf]")[0]
    text = re.sub('"spark.jars.packages" = """.*?"""', f'"spark.jars" = "{package}"', text, flags=re.DOTALL)
    nsqd = f'nsqd_tcp_addresses = ["{fakensqd.tcp_address}"]\nnsqd_http_addresses = ["{fakensqd.http_address}"]'
    (tmp_path / "job.toml").write_text(text.replace('nsqd_tcp_addresses = ["127.0.0.1:4150"]', nsqd))
    publish(fakensqd, "avro", [b"\x06ann", b"\x06bob", b"\xff"])

    command = [sys.executable, "-m", "gnsq.spark.pipeline", "--config", "job.toml", "--once"]
    done = run(*command, cwd=tmp_path, limit=300)

    assert done.returncode == 0, done.stdout + done.stderr
    users = DeltaTable(tmp_path / "lake/avro").to_pyarrow_table()["user"].to_pylist()
    dead = DeltaTable(tmp_path / "lake/avro_dead").to_pyarrow_table()["_body"].to_pylist()
    assert (sorted(users), dead) == (["ann", "bob"], [b"\xff"])
