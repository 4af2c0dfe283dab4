"""Measure gnsq.spark on two cores, and a Python source that never waits.

- NSQ to Parquet: a stream with AvailableNow over messages of 200 bytes that wait in a channel; wall time from start()
  to the end of the query. Synthetic: a source that yields record batches of such rows from memory to the same sink; the
  ceiling for any Python source. They take turns after one round to warm up; the median counts.
- Micro-batch: one row at a time, what Spark says a trigger took.
- Memory: of a receiver that is a process of its own, while it receives all messages.

Every count is checked. The environment shortens it: BENCH_SPARK_COUNT (messages, 1,000,000) and BENCH_SPARK_ROUNDS (3).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from gnsq import Producer
from gnsq.spark import register
from gnsq.spark.datasource import COLUMNS
from gnsq.spark.pipeline.spark_session import open_session
from gnsq.spark.spool.segments import SCHEMA
from gnsq.spark.spool.spool import Spool
from integration.bench.curves import memory
from integration.bench.figures import RATE, Figure, Results
from integration.bench.servers import BODY, Nsqd
from tests.spark.helpers import wait_for

COUNT = int(os.environ.get("BENCH_SPARK_COUNT", "1000000"))
ROUNDS = int(os.environ.get("BENCH_SPARK_ROUNDS", "3"))
WARM_UP = 20_000
NOW = datetime.now(UTC)
ROW = {
    "body": BODY,
    "message_id": "0123456789abcdef",
    "attempts": 1,
    "published_at": NOW,
    "received_at": NOW,
    "nsqd": "127.0.0.1:4150",
    "topic": "bench-01234567",
}
SYNTHETIC_BATCH = 10_000
TASKS = 2
MICRO_BATCHES = 20
LIMIT = 180.0


class Synthetic(DataSource):
    """Returns a number of rows from memory, with the columns of NsqDataSource."""

    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> StructType:
        return StructType([StructField(name, kind) for name, kind in COLUMNS.items()])

    def streamReader(self, schema: Any) -> SyntheticReader:
        return SyntheticReader(int(self.options["rows"]))


class SyntheticReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has all rows from the start."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((end["rows"] - start["rows"]) // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_pylist([ROW] * SYNTHETIC_BATCH, schema=SCHEMA)
        for first in range(0, partition.value, SYNTHETIC_BATCH):
            yield batch.slice(0, min(SYNTHETIC_BATCH, partition.value - first))


@dataclass
class Bench:
    """Servers, Spark session and directories of all measurements."""

    spark: SparkSession
    nsqd: Nsqd
    folder: Path
    results: Results

    def add(self, setting: str, client: str, quantity: str, unit: str, *values: float) -> None:
        self.results.add(Figure("spark", setting, client, quantity, unit), *values)

    def waiting(self, topic: str) -> int:
        """Return the number of unfinished messages of a topic's channel."""
        depth = self.nsqd.client.stats(topic)["topics"][0]["depth"]
        channel = self.nsqd.channel(topic)
        return int(depth + channel["depth"] + channel["in_flight_count"])

    def source(self, topic: str) -> Any:
        options = {
            "topic": topic,
            "channel": "bench",
            "nsqdTcpAddresses": self.nsqd.tcp,
            "nsqdHttpAddresses": self.nsqd.http,
            "spool": str(self.new_folder()),
        }
        return self.spark.readStream.format("nsq").options(**options).load()

    def new_folder(self) -> Path:
        return self.folder / uuid.uuid4().hex


# --- throughput


def to_parquet(bench: Bench, messages: Any, count: int) -> float:
    """Run a query until all messages are read; returns rows per second."""
    out, checkpoint = str(bench.new_folder()), str(bench.new_folder())
    started = time.perf_counter()
    query = messages.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    query = query.trigger(availableNow=True).start()
    assert query.awaitTermination(int(LIMIT))
    seconds = time.perf_counter() - started
    written = bench.spark.read.parquet(out).count()
    assert written == count, f"{written} rows of {count}"
    return count / seconds


def from_nsq(bench: Bench, count: int) -> float:
    with bench.nsqd.topic() as topic:
        bench.nsqd.fill(topic, count)
        return to_parquet(bench, bench.source(topic), count)


def from_memory(bench: Bench, count: int) -> float:
    return to_parquet(bench, bench.spark.readStream.format("synthetic").option("rows", count).load(), count)


def measure_throughput(bench: Bench) -> None:
    from_nsq(bench, WARM_UP)
    from_memory(bench, WARM_UP)
    for _ in range(ROUNDS):
        bench.add("to Parquet", "synthetic source", RATE, "rows/s", from_memory(bench, COUNT))
        bench.add("to Parquet", "NSQ", RATE, "rows/s", from_nsq(bench, COUNT))


# --- time


def measure_micro_batch(bench: Bench) -> None:
    for sink in ("noop", "parquet"):
        with bench.nsqd.topic() as topic:
            out, checkpoint = str(bench.new_folder()), str(bench.new_folder())
            writer = bench.source(topic).writeStream.format(sink).option("path", out)
            query = writer.option("checkpointLocation", checkpoint).start()
            with Producer(bench.nsqd.tcp, threaded=True) as producer:
                for number in range(1, MICRO_BATCHES + 1):
                    producer.publish(topic, BODY)
                    wait_for(lambda query=query, number=number: len(_of_rows(query)) >= number, LIMIT)
            query.stop()
        # The first batch is slow.
        times = [progress["durationMs"]["triggerExecution"] for progress in _of_rows(query)[1:]]
        bench.add("a micro-batch of one row", f"to {sink}", "time", "ms", *times)


def _of_rows(query: Any) -> list[Any]:
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


# --- memory


def measure_memory(bench: Bench) -> None:
    with bench.nsqd.topic() as topic:
        bench.nsqd.fill(topic, COUNT)
        command = [sys.executable, "-m", "gnsq.spark.receiver", "--topic", topic, "--channel", "bench"]
        command += ["--spool", str(bench.new_folder()), "--nsqd-tcp-address", bench.nsqd.tcp]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started = time.perf_counter()
        mib = []
        try:
            for tenth in range(1, 11):
                wait_for(lambda tenth=tenth: bench.waiting(topic) <= COUNT - COUNT * tenth // 10, LIMIT)
                mib.append(memory(process.pid) / 1024)
            seconds = time.perf_counter() - started
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        assert f" {COUNT} rows" in said, said
    setting = "a receiver that is a process of its own"
    bench.add(setting, "NSQ", RATE, "rows/s", COUNT / seconds)
    bench.add(setting, "NSQ", "memory after 20 %", "MiB", mib[1])
    bench.add(setting, "NSQ", "memory after 100 %", "MiB", mib[9])


# --- all measurements


def measure(results: Results, nsqd: Nsqd) -> None:
    """Measure everything."""
    print(f"spark, local[2], {COUNT:,} messages", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            with open_session("bench", settings={"spark.master": "local[2]"}, log=folder / "spark.log") as spark:
                register(spark)
                spark.dataSource.register(Synthetic)
                bench = Bench(spark, nsqd, folder, results)
                measure_throughput(bench)
                measure_micro_batch(bench)
                measure_memory(bench)
        finally:
            # The processes of sources that were stopped still write there.
            for owner in folder.rglob("owner.json"):
                Spool(str(owner.parent)).wait_for_end()
