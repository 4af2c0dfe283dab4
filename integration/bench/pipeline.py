"""Measure gnsq-pipeline beside plain Spark, in CPU seconds of all processes, with their start.

Each run is a process of its own. The messages are published before it begins.

- plain Spark: JSON lines in a file to Parquet.
- archive: the same lines, as messages that wait in a channel, to a table, with --once.
- archive and metric: the table is also counted by minute and page.

They take turns. Other processes of the machine change CPU seconds little, and wall times much, so these are not told.
The environment shortens it: BENCH_PIPELINE_COUNT (events, 1,000,000) and BENCH_PIPELINE_ROUNDS (3).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from integration.bench.figures import CPU, Figure, Results
from integration.bench.servers import Nsqd

COUNT = int(os.environ.get("BENCH_PIPELINE_COUNT", "1000000"))
ROUNDS = int(os.environ.get("BENCH_PIPELINE_ROUNDS", "3"))
# Few events: what is left is the start.
FEW = 1000
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
SCHEMA = "time TIMESTAMP, user STRING, page STRING, ms INT, status INT, agent STRING, country STRING, price DOUBLE"
LIMIT = 900.0
_PR_SET_CHILD_SUBREAPER = 36


def event(number: int) -> bytes:
    """Make an event of 177 bytes; the events come in the order of their times."""
    at = (BEGIN + timedelta(milliseconds=number * 40)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    columns = {
        "time": at,
        "user": f"user-{number * 7919 % 100_000:06d}",
        "page": f"/p/{number * 31 % 50:02d}",
        "ms": 1000 + number * 37 % 4000,
        "status": 404 if number % 4 == 0 else 200,
        "agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko/2010",
        "country": ("de", "fr", "pl", "us")[number % 4],
        "price": 100 + number * 13 % 800 + 0.25,
    }
    return json.dumps(columns, separators=(",", ":")).encode()


def cpu_of(command: list[str]) -> float:
    """Run a command in a process that sees all processes of it end, and return the CPU seconds of all."""
    watched = [sys.executable, "-m", __name__, "watch", *command]
    done = subprocess.run(watched, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return float(done.stdout.splitlines()[-1])


def watch(command: list[str]) -> int:
    """Run a command, wait for all processes that it has left behind, and print their CPU seconds."""
    # Processes whose parent has ended become children of this one.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    status = subprocess.run(command, check=False).returncode
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime)
    return status


def plain_spark(lines: str, folder: str) -> None:
    """Write JSON lines as Parquet, as a user of Spark does."""
    from pyspark.sql import SparkSession

    from gnsq.spark.java import prepare_environment

    prepare_environment()
    spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
    spark.read.schema(SCHEMA).json(lines).write.parquet(f"{folder}/out")
    spark.stop()


def job(server: Nsqd, topic: str, folder: str, *, has_metric: bool) -> list[str]:
    """Write the settings of a job; returns its command."""
    settings = f"""
work = "{folder}/work"
output = "{folder}/out"
nsqd_tcp_addresses = ["{server.tcp}"]
nsqd_http_addresses = ["{server.http.removeprefix("http://")}"]
[tables.clicks]
topics = ["{topic}"]
schema = "{SCHEMA}"
time = "time"
"""
    if has_metric:
        settings += '[metrics.pages]\ntable = "clicks"\nkeys = ["page"]\naggregates = ["count(*)", "sum(ms)"]\n'
    file = Path(folder, "job.toml")
    file.write_text(settings)
    return [sys.executable, "-m", "gnsq.spark.pipeline", "--config", str(file), "--once"]


def measure(results: Results, server: Nsqd) -> None:
    """Measure the pipeline."""
    for count in (FEW, COUNT):
        for _ in range(ROUNDS):
            for client, run in _RUNS.items():
                with tempfile.TemporaryDirectory() as folder:
                    figure = Figure("pipeline", f"{count:,} events", client, CPU, "s")
                    results.add(figure, run(server, count, folder))


def _plain(server: Nsqd, count: int, folder: str) -> float:
    lines = Path(folder, "events.jsonl")
    lines.write_bytes(b"\n".join(map(event, range(count))))
    return cpu_of([sys.executable, "-m", __name__, "plain", str(lines), folder])


def _piped(server: Nsqd, count: int, folder: str, *, has_metric: bool) -> float:
    with server.topic() as topic:
        server.client.create_channel(topic, "clicks")
        server.client.delete_channel(topic, "bench")
        server.fill(topic, count, event)
        return cpu_of(job(server, topic, folder, has_metric=has_metric))


_RUNS: dict[str, Callable[[Nsqd, int, str], float]] = {
    "plain Spark": _plain,
    "archive": lambda server, count, folder: _piped(server, count, folder, has_metric=False),
    "archive and metric": lambda server, count, folder: _piped(server, count, folder, has_metric=True),
}


def main(action: str, *arguments: str) -> int:
    """Do what a process of a run does."""
    if action == "watch":
        return watch([*arguments])
    plain_spark(*arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
