"""The examples of the pipeline's pages run: the guide in an empty folder, in its order, and all settings."""

import contextlib
import io
import json
import re
import shlex
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from gnsq import Producer
from gnsq.spark.pipeline import load_settings
from gnsq.spark.pipeline.__main__ import main as job_command
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from tests.docs import prose
from tests.docs.pages import example
from tests.kit.commands import invoke
from tests.spark.helpers import publish, wait_for

# Each block of these pages runs, in its order.
PAGES = ("pipeline/guide.md",)


@pytest.mark.spark
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="for AvailableNow, PySpark 4.1 needs the option drain")
def test_spark_example_writes_what_was_published(spark, fakensqd, tmp_path):
    with Producer(fakensqd.tcp_address) as producer:
        producer.multipublish("clicks", [b'{"page": "/", "user": "ann"}', b'{"page": "/a", "user": "bob"}'])
    names = {}
    exec(example("pipeline/source.md", "Source and sink"), names)

    query = names["start"](spark, fakensqd.tcp_address, fakensqd.http_address, str(tmp_path))
    query.awaitTermination()

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.click.page, row.click.user) for row in rows) == [("/", "ann"), ("/a", "bob")]


@pytest.mark.spark
def test_spark_example_publishes_changed_counts(spark, fakensqd, tmp_path):
    names = {}
    exec(example("pipeline/source.md", "Publish counts"), names)
    publish(fakensqd, "clicks", [b'{"at": "2025-06-01T10:00:01Z", "page": "/a"}'] * 3)

    query = names["publish_counts"](spark, fakensqd.tcp_address, str(tmp_path))
    wait_for(lambda: query.exception() or fakensqd.depth("page-counts"))
    assert query.exception() is None
    query.stop()

    [count] = map(json.loads, fakensqd.messages("page-counts"))
    assert (count["page"], count["count"], count["window"]["start"]) == ("/a", 3, "2025-06-01T10:00:00.000Z")


SETTINGS = {
    "README": example("README.md", "Pipeline", language="toml"),
    "settings": example("pipeline/settings.md", "The job", language="toml"),
    "raw bodies": example("pipeline/formats.md", "Raw bodies", language="toml"),
    "CSV": example("pipeline/formats.md", "Other formats: parse", language="toml"),
    "functions": example("pipeline/formats.md", "Other formats: parse", 1, language="toml"),
    "Avro": example("pipeline/formats.md", "Other formats: parse", 2, language="toml"),
    "masks": example("pipeline/deletion.md", "Keep names out", language="toml"),
    "Postgres": example("pipeline/stores.md", "Postgres: a key for each row", language="toml"),
    "Iceberg": example("pipeline/stores.md", "Iceberg, Unity, Glue: the tables of a catalog", language="toml"),
    "object store": example("pipeline/operations.md", "Object stores", language="toml"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_pages_are_accepted(tmp_path, name):
    (tmp_path / "job.toml").write_text(SETTINGS[name])

    assert load_settings(str(tmp_path / "job.toml")).queries


def test_forgotten_user_is_in_no_file_of_any_table(tmp_path, monkeypatch):
    users = ("ann", "anna", "o'hara", "andré")
    ids = [{"_nsqd": "127.0.0.1:4150", "_message_id": f"{number:016}"} for number in range(len(users))]
    bodies = [json.dumps({"user": user}).encode() + b"\xff" for user in users]
    lake = str(tmp_path / "lake")
    write_deltalake(f"{lake}/clicks", pa.Table.from_pylist([{"user": user} for user in users]))
    dead = [{**row, "_body": body} for row, body in zip(ids, bodies, strict=True)]
    write_deltalake(f"{lake}/clicks_dead", pa.Table.from_pylist(dead))
    write_deltalake(f"{lake}/pages", pa.table({"page": ["/"]}))

    for user in ("ann", "o'hara", "andré"):
        monkeypatch.setattr(sys, "argv", ["forget.py", lake, user])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(example("pipeline/deletion.md", "Delete a person"), {"__name__": "__main__"})
        assert out.getvalue() == "clicks: 1 deleted\nclicks_dead: 1 deleted\n"

    assert DeltaTable(f"{lake}/clicks").to_pyarrow_table().to_pylist() == [{"user": "anna"}]
    assert DeltaTable(f"{lake}/clicks_dead").to_pyarrow_table()["_body"].to_pylist() == [bodies[1]]
    assert len(list(tmp_path.glob("lake/clicks*/*.parquet"))) == 2


class Reader:
    """Does what a page says, in an empty folder, with an emulator and the session of all tests."""

    def __init__(self, folder, nsqd, open_session):
        self._folder = folder
        self._open_session = open_session
        self._addresses = {"127.0.0.1:4150": nsqd.tcp_address, "127.0.0.1:4151": nsqd.http_address}
        self._spark_files = set()
        self.printed = ""

    def follow(self, page):
        for block in prose.blocks(page):
            if "not run" in block.notes:
                continue
            if block.title:
                self._write(block)
            elif block.language == "toml":
                path = self._folder / "other.toml"
                path.write_text(block.code)
                assert load_settings(str(path)).queries
            elif block.language == "sh":
                for line in block.code.splitlines():
                    self._run(shlex.split(self._localized(line), comments=True))
                prose.check_printed(block, self.printed)

    def _write(self, block):
        """Write a file; "continued" is added to its end, "corrected" takes the place of one section."""
        name, _, way = block.title.partition(", ")
        path, code = self._folder / name, self._localized(block.code)
        if way == "continued":
            code = path.read_text() + code
        elif way == "corrected":
            section = re.escape(code.splitlines()[0].split("#")[0].strip())
            code, changed = re.subn(rf"^{section}.*?(?=^\[|\Z)", code + "\n", path.read_text(), flags=re.M | re.S)
            assert changed == 1
        path.write_text(code)

    def _run(self, words):
        program, *arguments = words
        if program == "gnsq-pipeline":
            done = CliRunner().invoke(job_command, arguments, obj=self._open_session)
            assert done.exit_code == 0, done.output
            self.printed = done.output
        elif program == "gnsq":
            done = invoke(*arguments)
            assert done.exit_code == 0, done.output
        else:
            # In this process, which has a Spark; Java knows no current directory but its own.
            code = (self._folder / arguments[0]).read_text().replace('"lake', f'"{self._folder}/lake')
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, arguments[0], "exec"), {})
            self.printed = out.getvalue()

    def _localized(self, text):
        return prose.replaced(text, self._addresses)


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_page_can_be_followed_from_an_empty_folder(page, fakensqd, shared_session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    Reader(tmp_path, fakensqd, shared_session).follow(page)

    assert {path.name for path in Path("lake").iterdir()} == {"clicks", "clicks_dead", "orders", "orders_dead", "pages"}


@pytest.mark.spark
def test_notebook_example_runs_the_job_until_it_is_stopped(fakensqd, spark, tmp_path):
    publish(fakensqd, "clicks", [b'{"user": "ann", "page": "/"}'])
    settings = example("pipeline/settings.md", "The job", language="toml").partition("[nsq]")[0]
    settings += '[tables.clicks]\nschema = "user STRING, page STRING"\n'
    settings = settings.replace("/var/lib/clicks", str(tmp_path / "work")).replace("/data/lake", str(tmp_path / "lake"))
    nsqds = f'nsqd_tcp_addresses = ["{fakensqd.tcp_address}"]\nnsqd_http_addresses = ["{fakensqd.http_address}"]'
    settings = settings.replace('lookupd_http_addresses = ["127.0.0.1:4161"]', nsqds)
    (tmp_path / "job.toml").write_text(settings)
    names = {}
    exec(example("pipeline/deployment.md", "In a Spark that runs"), names)
    stop = threading.Event()

    with ThreadPoolExecutor() as pool:
        result = pool.submit(names["archive"], spark, str(tmp_path / "job.toml"), stop)
        wait_for(lambda: result.done() or DeltaTable.is_deltatable(str(tmp_path / "lake/clicks")))
        stop.set()

        assert not result.result(60).finished
