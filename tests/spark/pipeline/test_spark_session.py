"""Spark's settings: those of a single machine, the store of state, and those with which Spark does not start."""

import datetime
import os
import shlex
import sys
import threading
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from gnsq.spark.errors import JobFailed
from gnsq.spark.java import find_java
from gnsq.spark.pipeline import spark_session
from gnsq.spark.pipeline.settings import SESSION
from gnsq.spark.pipeline.spark_session import borrow_session, open_session, session_settings
from tests.kit import run
from tests.spark.helpers import LEGACY_SETTINGS, OTHER_SETTINGS

PROGRAM = """
import sys
from pathlib import Path
from gnsq.errors import NSQException
from gnsq.spark.pipeline.spark_session import open_session
try:
    with open_session("x", settings={"spark.driver.memory": "lots"}, log=Path(sys.argv[1])):
        pass
except NSQException as error:
    print(error)
"""


UI, PARTITIONS, ADAPTIVE = "spark.ui.enabled", "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def test_local_master_has_the_settings_of_a_single_machine_and_a_cluster_keeps_its_own():
    for master, cores in {"local": 1, "local[3]": 3, "local[3,2]": 3, "local[*]": os.cpu_count()}.items():
        settings = session_settings(master)
        assert (settings[UI], settings[ADAPTIVE], settings[PARTITIONS]) == ("false", "false", str(cores))

    for master in ("spark://h:7077", "yarn", "k8s://https://h:6443", "local-cluster[2,1,1024]", ""):
        settings = session_settings(master)
        assert not {UI, ADAPTIVE, PARTITIONS, "spark.ui.showConsoleProgress"} & set(settings)
        assert settings["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.spark
def test_session_of_a_job_has_the_settings_on_which_events_rest_whatever_the_defaults_are(spark):
    assert {*OTHER_SETTINGS} > {*SESSION}
    assert {name: value for name, value in SESSION.items() if value == OTHER_SETTINGS[name]} == {}
    with borrow_session(spark, {}) as borrowed:
        for session in (spark, borrowed):
            assert {name: session.conf.get(name) for name in SESSION} == SESSION
            assert [name for name, value in LEGACY_SETTINGS.items() if session.conf.get(name) == value] == []
            # The file with the defaults was read.
            assert session.conf.get("spark.sql.repl.eagerEval.maxNumRows") == "7"


@pytest.mark.spark
def test_functions_and_sinks_get_times_in_utc_wherever_the_machine_is(spark):
    # It is in Kathmandu, as the fixture says.
    spark.udf.register("shown", lambda time: f"{time} {datetime.datetime.fromtimestamp(0)}")
    texts = ["0001-01-02 00:00:00", "2026-07-01 12:30:00", "9999-12-31 23:59:59"]
    rows = spark.createDataFrame([(text,) for text in texts], "text STRING")
    rows = rows.selectExpr("CAST(text AS TIMESTAMP) AS time")

    in_tasks = [row[0] for row in rows.selectExpr("shown(time)").collect()]

    assert in_tasks == [f"{text} 1970-01-01 00:00:00" for text in texts]
    assert [str(row.time) for row in rows.collect()] == texts
    assert [row["time"].year for row in rows.toArrow().to_pylist()] == [1, 2026, 9999]


@pytest.mark.parametrize("failure", [None, Py4JError("TimeoutException"), ConnectionRefusedError()])
def test_queries_are_stopped_at_the_same_time(caplog, failure):
    # The batch of one hangs, and the others must not wait for it.
    together, stopped = threading.Barrier(3), []

    def stop():
        together.wait(30)
        stopped.append(True)
        if failure is not None:
            raise failure

    active = [SimpleNamespace(stop=stop)] * 3
    spark_session._stop_queries(SimpleNamespace(streams=SimpleNamespace(active=active)))

    assert len(stopped) == 3
    assert ("did not stop" in caplog.text) is isinstance(failure, Py4JError)


@pytest.mark.spark
def test_checkpoint_keeps_the_store_of_state_that_it_was_made_with(spark, tmp_path):
    (tmp_path / "in").mkdir()

    def run(number):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n{number % 2}\n")
        rows = spark.readStream.text(str(tmp_path / "in")).dropDuplicates(["value"])
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp"))
        query.trigger(availableNow=True).start().awaitTermination()

    usual = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, f"{usual.rpartition('.')[0]}.HDFSBackedStateStoreProvider")
    try:
        run(1)
    finally:
        spark.conf.set(PROVIDER, usual)
    run(2)

    states = {path.suffix for path in (tmp_path / "cp" / "state").rglob("[!._]*")}
    assert usual.endswith(".RocksDBStateStoreProvider")
    assert ".delta" in states
    assert ".changelog" not in states
    assert len(list((tmp_path / "cp" / "commits").glob("[0-9]*"))) == 2


@pytest.mark.spark
@pytest.mark.subprocess
def test_java_has_a_temporary_directory_that_is_deleted_and_why_it_does_not_start_is_told_in_one_line(
    tmp_path, monkeypatch
):
    (tmp_path / "log").write_text("of an earlier run\n")
    folder, home = tmp_path / "with blanks", tmp_path / "home"
    folder.mkdir()
    (home / "bin").mkdir(parents=True)
    # Notes Java's arguments, unless it runs what finds these.
    (home / "bin" / "java").write_text(
        "#!/bin/sh\n"
        f'case "$*" in *launcher.Main*|*-version) ;; *) printf \'%s\\n\' "$@" '
        f">{shlex.quote(str(tmp_path))}/arguments ;; esac\n"
        f'exec {shlex.quote(find_java().home.as_posix())}/bin/java "$@"\n'
    )
    (home / "bin" / "java").chmod(0o700)
    for name, value in {"TMPDIR": folder, "JAVA_HOME": home, "SPARK_SUBMIT_OPTS": "-Da=b"}.items():
        monkeypatch.setenv(name, str(value))

    done = run(sys.executable, "-c", PROGRAM, str(tmp_path / "log"), limit=110)

    # PySpark 4.1 says what it could not make before the cause.
    assert done.stdout.startswith("Spark does not start: "), done.stderr
    assert done.stdout.endswith(
        "Java has ended at once: Invalid maximum heap size: -Xmxlots: see the settings spark and master\n"
    )
    assert done.stdout.count("\n") == 1
    arguments = (tmp_path / "arguments").read_text().splitlines()
    [found] = [each for each in arguments if each.startswith("-Djava.io.tmpdir=")]
    assert found.startswith(f"-Djava.io.tmpdir={folder}/gnsq-{os.getuid()}/spark-")
    assert "-Da=b" in arguments
    assert list(folder.glob("*/*")) == []


@pytest.mark.spark
def test_setting_that_spark_refuses_and_an_exception_of_java_are_told_in_one_line(spark, monkeypatch):
    words = r"^Spark does not start: .*The value 'many' in the config .*spark.sql.shuffle.partitions.* is invalid\. "

    # Spark runs already, and takes the settings as at its start.
    with pytest.raises(JobFailed, match=words), open_session("x", settings={PARTITIONS: "many"}):
        pytest.fail("started")
    assert spark.conf.get(PARTITIONS) == "1"

    monkeypatch.setattr(spark_session, "_stop", lambda *given, **named: None)
    words = r"^java.util.NoSuchElementException: No value present$"
    with pytest.raises(JobFailed, match=words), open_session("x") as found:
        found._jvm.java.util.Optional.empty().orElseThrow()


@pytest.mark.spark
def test_queries_share_the_cores_and_an_expression_that_can_not_be_computed_is_null(spark):
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
    assert spark.sql("SELECT CAST('x' AS INT) AS a, 1 / 0 AS b, array(1)[5] AS c").first() == (None, None, None)
    # Java is asked once for what each expression needs.
    functions = spark._jvm.functions
    assert spark._jvm.functions is functions
    assert functions.lit is functions.lit
