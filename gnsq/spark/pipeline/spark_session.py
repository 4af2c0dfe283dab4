"""The job's Spark session, with the settings that the job needs.

open_session() starts Spark, with Spark's messages in a file instead of on the terminal. borrow_session() uses a Spark
that runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import py4j.java_gateway  # type: ignore[import-untyped]  # py4j has no types
import py4j.protocol  # type: ignore[import-untyped]  # py4j has no types
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gnsq.spark.errors import JobFailed, root_cause, startup_error
from gnsq.spark.java import prepare_environment
from gnsq.spark.pipeline.expressions import KnownClass
from gnsq.spark.pipeline.settings import LEGACY, SESSION
from gnsq.spark.scratch import scratch_directory
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS

__all__ = [
    "OpenSession",
    "borrow_session",
    "check_classic",
    "is_submitted",
    "kill_java",
    "open_session",
    "restore_stderr",
    "session_settings",
]

logger = logging.getLogger(__name__)

# Seconds to wait for the JVM to end.
JVM_PATIENCE = 10.0
# Limit of the memory that RocksDB takes outside of Java's heap, for all states of a process together.
STATE_MEMORY_MB = 256
_STATE = "spark.sql.streaming.stateStore"
_MASTER = "spark.master"
_SETTINGS = {
    **SESSION,
    # Tasks of the queries take turns. Otherwise those of one query's large batch would hold up all others. Each query
    # runs in a pool of its name, which is a property of the thread that starts it.
    "spark.scheduler.mode": "FAIR",
    # Every reader of Parquet reads this type as a time with a zone; the default, INT96, is read as one without a zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Spark sends rows to Python in parts of up to 10,000 rows. Limit the bytes of a part, too, since a body may have
    # 5 MiB. Spark before 4.1 does not have this setting.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # PySpark would tell Java with each call where in Python it was made: three of five calls that plan a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # No batches without rows: they would only remove old state, which the next batch with rows does, too.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # For PySpark 4.1, whose Python sources do not support AvailableNow: first run a batch that was not committed, then
    # the next one. Without this setting, the query would end after one batch.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    # A stop waits no longer for a batch that hangs; by default it waits for ever.
    "spark.sql.streaming.stopTimeout": "60s",
    # Keep state on disk instead of in the heap. An existing checkpoint keeps the provider that it was made with.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.boundedMemoryUsage": "true",
    f"{_STATE}.rocksdb.maxMemoryUsageMB": str(STATE_MEMORY_MB),
}
# Classes that PySpark asks Java for with each call of its functions, by these names. Where a name has no package, Java
# looks in all jars for a class of this name in each package that PySpark imports.
_CLASSES = (
    *("PythonUtils", "PythonSQLUtils", "SimplePythonFunction", "functions", "org.apache.spark.sql.functions"),
    *("org.apache.spark.sql.classic.SparkSession", "org.apache.spark.sql.internal.SQLConf"),
    "org.apache.spark.util.Utils",
)
_TYPE_UTIL = "py4j.reflection.TypeUtil"
# Only for a local master: the administrator of a cluster decides about the UI and adaptive execution.
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Adaptive execution costs more than it gains if there are only as many partitions as cores.
    "spark.sql.adaptive.enabled": "false",
}
_LOCAL_MASTER = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


# Type of open_session(), and of a function that may be given to a job instead, such as one that shares a session.
OpenSession = Callable[..., AbstractContextManager[SparkSession]]


def is_submitted() -> bool:
    """Return True if spark-submit has started this process. Then spark-submit chooses Java, master and log."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session_settings(master: str) -> dict[str, str]:
    """Build the settings of Spark that the job needs; on a local master, also those for a single machine."""
    local = _LOCAL_MASTER.fullmatch(master)
    if local is None:
        return dict(_SETTINGS)
    cores = os.cpu_count() if local[1] == "*" else int(local[1] or 1)
    return {**_SETTINGS, **_LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(cores)}


def check_classic(spark: object) -> None:
    """Check that a session is one that a job can run in.

    Raises:
        JobFailed: If it is a session of Spark Connect, is no session, or was stopped.
    """
    if not isinstance(spark, SparkSession):
        kind = f"{type(spark).__module__}.{type(spark).__name__}"
        what = "a session of Spark Connect" if ".connect." in kind else "no Spark session"
        raise JobFailed(
            f"the job needs a classic Spark session, and {kind} is {what}: run the job in the driver's own process, "
            "such as by spark-submit"
        )
    if spark.sparkContext._jsc is None:
        raise JobFailed("the Spark session was stopped: give one that runs")


@contextlib.contextmanager
def borrow_session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Make a new session in a Spark that runs, with the job's settings. At the end, stop the queries of that session.

    A setting that Spark takes only at its start is logged as a WARNING, unless Spark has that value.

    Raises:
        JobFailed: If Spark refuses the value of a setting.
    """
    try:
        session = spark.newSession()
        own = session_settings(session.sparkContext.master)
        sql = {key: value for key, value in own.items() if key.startswith("spark.sql.")}
        _forget_legacy(session)
        for key, value in {**sql, **settings}.items():
            _set(session, key, value)
    except (PySparkException, Py4JError) as error:
        raise JobFailed(f"this Spark session can't be used: {root_cause(str(error))}") from error
    try:
        yield session
    finally:
        # A new session has only the queries that were started in it.
        _stop_queries(session)


def _forget_legacy(session: SparkSession) -> None:
    """Remove the settings that bring back what an earlier release of Spark did."""
    for name in session.conf.getAll:
        if name.startswith(LEGACY):
            with contextlib.suppress(PySparkException):  # those that Spark takes only at its start
                session.conf.unset(name)


def _set(session: SparkSession, key: str, value: str) -> None:
    try:
        if key != _MASTER:  # Spark would take it without an effect
            session.conf.set(key, value)
            return
    except PySparkException as error:
        if not (error.getCondition() or "").startswith("CANNOT_MODIFY"):
            raise
    found = session.conf.get(key, None)
    if found != value:
        logger.warning(
            "setting spark: %s can only be given when Spark starts: the job runs with %s, not with %r",
            *(key, "Spark's default" if found is None else repr(found), value),
        )


@contextlib.contextmanager
def open_session(
    name: str, *, settings: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[SparkSession]:
    """Start Spark, in the JVM of spark-submit if there is one. At the end, stop the queries and Spark.

    Args:
        settings: Settings of Spark; they win over those of session_settings(). Default of spark.master: spark-submit's,
            else local[*].
        log: File for Spark's messages; None leaves them on stderr.

    Raises:
        JavaNotFound: If there is no Java that Spark supports.
        JobFailed: If Spark does not start, or the block ends by an exception of Java's that is none of PySpark's.
        OSError: If there is no place for Java's temporary files.
    """
    given = dict(settings or {})
    if is_submitted():
        SparkContext._ensure_initialized()  # connects to the JVM of spark-submit, whose properties SparkConf reads
        given.setdefault(_MASTER, str(SparkConf().get(_MASTER, "")))
    else:
        prepare_environment(given.setdefault(_MASTER, "local[*]"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_in_utc())
        if given[_MASTER].startswith("local"):
            # Nothing of a local master needs to be reached from outside.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            scratch = stack.enter_context(scratch_directory("spark-"))
            stack.enter_context(_temporary_files_of_java(scratch))
            # Nothing is written there, but Spark makes the directory, by default in the current one.
            given.setdefault("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        yield from _opened(name, given, log)


@contextlib.contextmanager
def _in_utc() -> Iterator[None]:
    """Give this process, and those that it starts in the block, the time zone UTC.

    PySpark gives Python a TIMESTAMP as a time of the process's zone: to sinks, and to functions of setup. In a zone, an
    hour of each year is twice there.
    """
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@contextlib.contextmanager
def _temporary_files_of_java(directory: Path) -> Iterator[None]:
    """Let a Java that is started in the block write its temporary files into a directory, unless told another one.

    Each JVM unpacks libraries there, and leaves 25 MB if it is killed.
    """
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    # In the locale C, Java does not understand other characters.
    if "-Djava.io.tmpdir" in options or not str(directory).isascii():
        yield
        return
    # Spark's launcher divides the text at blanks outside of quotes.
    quoted = str(directory).replace("\\", r"\\").replace('"', r"\"")
    os.environ["SPARK_SUBMIT_OPTS"] = f'{options} -Djava.io.tmpdir="{quoted}"'
    try:
        yield
    finally:
        os.environ["SPARK_SUBMIT_OPTS"] = options


def _opened(name: str, given: dict[str, str], log: Path | None) -> Iterator[SparkSession]:
    builder = SparkSession.builder.appName(name)
    for key, value in {**session_settings(given[_MASTER]), **given}.items():
        builder = builder.config(key, value)
    written = log.stat().st_size if log is not None and log.exists() else 0
    try:
        with _stderr_to(log), _same_interrupt():
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise JobFailed(f"Spark does not start: {_reason(error, log, written)}") from error
    is_usable = False
    try:
        try:
            _prepare(spark)
        except (PySparkException, Py4JError) as error:
            raise JobFailed(f"Spark does not start: {_reason(error, log, written)}") from error
        is_usable = True
        yield spark
    except Py4JJavaError as error:
        # PySpark has no exception for it, such as for want of memory. Its text is asked of Java, which still runs.
        raise JobFailed(root_cause(str(error))) from error
    finally:
        # After a bad setting there are no queries, and to ask Spark for them takes seconds.
        _stop(spark, log, has_queries=is_usable)


@contextlib.contextmanager
def _same_interrupt() -> Iterator[None]:
    """Keep the handler of SIGINT: SparkContext sets one of its own, which raises KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _prepare(spark: SparkSession) -> None:
    jvm = spark._jvm
    for name in _CLASSES:
        setattr(jvm, name, KnownClass(getattr(jvm, name)._fqn, jvm._gateway_client))
    # For each exception PySpark asks up to 14 times for each part of this name, and for those of its causes, too.
    jvm.py4j = SimpleNamespace(reflection=SimpleNamespace(TypeUtil=KnownClass(_TYPE_UTIL, jvm._gateway_client)))
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They write each error of an expression to stderr, with the whole plan. The job tells it in one line.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    spark.sparkContext.setLogLevel("WARN")
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        # This server would print a traceback when the JVM is killed; the job reports that in one line.
        server.handle_error = lambda request, client: None
    with _unconverted_errors() if not HAS_READ_LIMITS else contextlib.nullcontext():
        # Spark reads its settings now.
        spark._jsparkSession.sessionState()
    _forget_legacy(spark)


@contextlib.contextmanager
def _unconverted_errors() -> Iterator[None]:
    """Let errors of Java be raised as py4j has them.

    To convert an error, PySpark 4.1 asks the session for a setting. If a bad setting is the error, that fails with the
    same error, which is converted, and so on without end.
    """
    converting = py4j.java_gateway.get_return_value
    py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
    try:
        yield
    finally:
        py4j.java_gateway.get_return_value = converting


def _reason(error: BaseException, log: Path | None, written: int) -> str:
    """Describe why Spark does not start: the root cause, or what Java wrote to the log after ``written`` bytes."""
    if isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED" and log is not None:
        words = startup_error(log.read_bytes()[written:].decode(errors="replace"))
        return f"Java has ended at once: {words or 'it did not say why'}: see the settings spark and master"
    # Spark's errors keep Java's cause in _cause.
    while (cause := getattr(error, "_cause", None)) is not None:
        error = cause
    # str() of such an error asks the session for a setting: this is slow, and fails if a bad setting is the cause.
    return root_cause(getattr(error, "_desc", None) or str(error))


def _stop(spark: SparkSession, log: Path | None, *, has_queries: bool) -> None:
    # A batch that is interrupted writes errors to stderr, in this process too: send them to the log.
    with _stderr_to(log):
        if has_queries:
            _stop_queries(spark)
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()
        gateway = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if gateway is None or process is None:
            return  # spark-submit's
        # pyspark would let the JVM end by itself, some time after this process. End the JVM here, so that its files and
        # ports are free when this function returns. The processes of sources may still write: the job waits for them.
        gateway.shutdown()
        process.stdin.close()
        try:
            process.wait(JVM_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(JVM_PATIENCE)
        SparkContext._gateway = SparkContext._jvm = None


def _stop_queries(spark: SparkSession) -> None:
    """Stop all queries of a session at the same time. Leaves those whose batch hangs for longer than stopTimeout."""
    # If the caller has stopped Spark, or the JVM was killed, there is nothing to stop.
    with contextlib.suppress(PySparkException, Py4JError, ConnectionError):
        stops = [threading.Thread(target=_stop_query, args=[query], daemon=True) for query in spark.streams.active]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()


def _stop_query(query: StreamingQuery) -> None:
    try:
        query.stop()
    except (Py4JNetworkError, ConnectionError):
        pass  # the JVM has ended
    except (PySparkException, Py4JError) as error:
        logger.warning("a query did not stop, its batch hangs: %s", root_cause(str(error)))


def kill_java() -> None:
    """Kill the JVM, which may hang, if it was started here. Receivers then see their input's end, and shut down."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


# The program's own stderr, in blocks of _stderr_to().
_own_stderr: list[int] = []


def restore_stderr() -> None:
    """Let what the program writes before it ends at once come to its own stderr."""
    if _own_stderr:
        os.dup2(_own_stderr[0], 2)


@contextlib.contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Redirect stderr to a file during the block. A process that is started in the block writes there until it ends."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    _own_stderr.append(kept)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        _own_stderr.remove(kept)
        os.close(kept)
