"""The job's Spark session: settings that it needs, and Spark's own messages in a file instead of on the terminal."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from gnsq.spark import register
from gnsq.spark.errors import JobFailed, root_cause, startup_error
from gnsq.spark.java import prepare_environment

__all__ = ["OpenSession", "is_submitted", "open_session", "session_settings"]

# Seconds to wait for the JVM to end.
JVM_PATIENCE = 10.0
# Limit of the memory that RocksDB takes outside of Java's heap, for all states of a process together.
STATE_MEMORY_MB = 256
_STATE = "spark.sql.streaming.stateStore"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # What every reader of Parquet takes for a time with a zone; the default, INT96, is read without one.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows go to Python in parts of so many bytes, not only of 10,000 rows: bodies may have 5 MiB. Spark before 4.1 has
    # no such setting.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # No batches without rows: they would only remove old state, which the next batch with rows does, too.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # State on disk instead of in the heap. Of a checkpoint that exists Spark takes the provider that it was made with.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.boundedMemoryUsage": "true",
    f"{_STATE}.rocksdb.maxMemoryUsageMB": str(STATE_MEMORY_MB),
}
# A cluster has its own: an administrator's UI, and partitions for its cores.
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Adaptive execution costs more than it gains if there are only as many partitions as cores.
    "spark.sql.adaptive.enabled": "false",
}
_LOCAL_MASTER = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


# With the parameters of open_session(): a job may be given another function, such as one that shares a session.
OpenSession = Callable[..., AbstractContextManager[SparkSession]]


def is_submitted() -> bool:
    """Whether spark-submit has started this process: it has its own Java, master and log."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session_settings(master: str) -> dict[str, str]:
    """Build the settings of Spark that the job needs; on a local master, also those for a single machine."""
    local = _LOCAL_MASTER.fullmatch(master)
    if local is None:
        return dict(_SETTINGS)
    cores = os.cpu_count() if local[1] == "*" else int(local[1] or 1)
    return {**_SETTINGS, **_LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(cores)}


def _submitted_master() -> str:
    SparkContext._ensure_initialized()  # connects to the JVM of spark-submit, whose properties SparkConf reads
    return str(SparkConf().get("spark.master", ""))


@contextlib.contextmanager
def open_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[SparkSession]:
    """Start Spark, or take the session that spark-submit has made; stop its queries and itself at the end. A
    KeyboardInterrupt, also one during the stop, ends it at once.

    Args:
        master: Such as local[2]; default: spark-submit's, else local[*].
        settings: Spark's; they win over the job's.
        log: Where Spark writes its messages to; None leaves them on stderr.

    Raises:
        JavaNotFound: If there is no Java that Spark supports.
        JobFailed: If Spark does not start.
    """
    builder = SparkSession.builder.appName(name)
    if not is_submitted():
        prepare_environment()
        master = master or "local[*]"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Nothing of a local master needs to be reached from outside.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in {**session_settings(master or _submitted_master()), **(settings or {})}.items():
        builder = builder.config(key, value)
    written = log.stat().st_size if log is not None and log.exists() else 0
    with _stderr_to(log):
        try:
            spark = builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            raise JobFailed(f"Spark does not start: {_reason(error, log, written)}") from error
    is_usable = True
    try:
        try:
            try:
                _prepare(spark)
            except (PySparkException, Py4JError) as error:
                # A session with a bad setting has no queries; each question to it costs seconds.
                is_usable = False
                raise JobFailed(f"Spark does not start: {_reason(error, log, written)}") from error
            yield spark
        except KeyboardInterrupt:
            raise
        except BaseException:
            _stop(spark, log, has_queries=is_usable)
            raise
        else:
            _stop(spark, log)
    except KeyboardInterrupt:
        _kill()
        raise


def _prepare(spark: SparkSession) -> None:
    spark.sparkContext.setLogLevel("WARN")
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        # This server would print a traceback when the JVM is killed; the job reports that in one line.
        server.handle_error = lambda request, client: None
    register(spark)


def _reason(error: BaseException, log: Path | None, written: int) -> str:
    """Say why Spark does not start: the first of all causes, or what Java wrote behind so many bytes of its log."""
    if isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED" and log is not None:
        words = startup_error(log.read_bytes()[written:].decode(errors="replace"))
        return f"Java has ended at once: {words or 'it did not say why'}: see the settings spark and master"
    # Spark's errors keep Java's cause in _cause.
    while (cause := getattr(error, "_cause", None)) is not None:
        error = cause
    # With str() such an error asks the session for a setting, which takes seconds and fails if a bad one is the cause.
    return root_cause(getattr(error, "_desc", None) or str(error))


def _stop(spark: SparkSession, log: Path | None, *, has_queries: bool = True) -> None:
    # A batch that is interrupted writes errors to stderr, in this process too: send them to the log.
    with _stderr_to(log):
        # If the JVM was killed, there is nothing to stop.
        with contextlib.suppress(PySparkException, Py4JError, ConnectionError):
            for query in spark.streams.active if has_queries else ():
                query.stop()
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()
        gateway = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if gateway is None or process is None:
            return  # spark-submit's
        # pyspark leaves the JVM to end by itself, some time after this process; what it holds is to be gone when this
        # returns.
        gateway.shutdown()
        process.stdin.close()
        try:
            process.wait(JVM_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(JVM_PATIENCE)
        SparkContext._gateway = SparkContext._jvm = None


def _kill() -> None:
    """End the JVM, which may hang; receivers see the end of their input, and end in order."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


@contextlib.contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Let processes that are started meanwhile write their stderr to a file; this process keeps its own."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
