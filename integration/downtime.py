"""Measure how the job catches up after a down-time: messages wait in the spools of external receivers, then it starts.

``python -m integration.downtime [--count N] [--seconds S] [--query archive] [-- FLAGS]``, with nsqd on PATH; the flags
are gnsq-pipeline's. It prints the spools, and every 10 s rows, rows/s, spools, CPU seconds and memory. CPU seconds
hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from fakensqd.real import RealNsqd
from gnsq import NsqdHTTPClient, Producer
from gnsq.spark.spool.spool import Spool
from integration.servers import running
from tests.spark.helpers import descendants, is_empty

TOPIC = "clicks"
QUERIES = ("archive", "frames")
BODY_BYTES = 200
REPORT_INTERVAL, SAMPLE_INTERVAL = 10.0, 2.0
# Bytes; more than the messages of a run take.
MAX_SPOOL_BYTES = 40_000_000_000
MIB = 1024 * 1024
SETTINGS = """
output = "{folder}/out"
work = "{folder}/work"
nsqd_tcp_addresses = ["{nsqd.tcp_address}"]
nsqd_http_addresses = ["{nsqd.http_address}"]
receivers = "external"
[tables.archive]
topics = ["clicks"]
schema = "user STRING, page STRING, pad STRING"
[tables.frames]
topics = ["clicks"]
format = "raw"
[spark]
"spark.master" = "local[2]"
"""
# Of each process of the job, a part of its command line.
PROCESSES = {"JVM": "pyspark-shell", "sources": "python_streaming_source_runner", "workers": "pyspark.daemon"}


class Usage:
    """CPU seconds and memory of a process and those below it. The CPU seconds of those that have ended still count."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seconds: dict[int, float] = {}
        self.memory: dict[str, int] = {}

    def sample(self) -> None:
        lines = {self._pid: "", **descendants(self._pid)}
        for pid in lines:
            with contextlib.suppress(OSError):
                self._seconds[pid] = cpu_seconds(pid)
        self.memory = {"driver's Python": memory_mib(self._pid)}
        for name, text in PROCESSES.items():
            self.memory[name] = sum(memory_mib(pid) for pid, line in lines.items() if text in line)

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> int:
    """Return the resident memory; 0 if the process has ended. Pages that processes share count for each of them."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) // 1024 if found else 0
    return 0


def bodies(first: int, count: int, total: int) -> list[bytes]:
    """Events of one hour, 100,000 users and 50 pages."""
    made = []
    for number in range(first, first + count):
        minute, second = divmod(number * 3600 // total, 60)
        text = f'{{"user":"u{number % 100_000}","page":"/{number % 50}","time":"2026-01-01T10:{minute:02}:{second:02}Z"'
        made.append(f'{text},"pad":"{"x" * (BODY_BYTES - len(text) - 10)}"}}'.encode())
    return made


def publish(nsqd: RealNsqd, total: int) -> None:
    with Producer(nsqd.tcp_address) as producer:
        for first in range(0, total, 2000):
            producer.multipublish(TOPIC, bodies(first, min(2000, total - first), total))


def fill_spools(nsqd: RealNsqd, folder: Path, receivers: dict[str, subprocess.Popen[bytes]], total: int) -> None:
    """Publish, and wait until all is in the spools."""
    began = time.monotonic()
    thread = threading.Thread(target=publish, args=[nsqd, total])
    thread.start()
    while thread.is_alive() or not all(is_empty(nsqd, TOPIC, query) for query in receivers):
        time.sleep(0.5)
    took = time.monotonic() - began
    for query, receiver in receivers.items():
        listing = Spool(str(folder / "work" / query / "spool")).listing()
        print(
            f"{query}: {total:,} messages of {BODY_BYTES} bytes in {took:.0f} s, {total / took:,.0f} a second and "
            f"{total / cpu_seconds(receiver.pid):,.0f} a CPU second of the receiver; spool {listing.size:,} bytes, "
            f"{listing.size / total:.0f} for a message, {len(listing.segments):,} segments; "
            f"receiver {memory_mib(receiver.pid)} MiB",
            flush=True,
        )


def rows_read(log: Path, query: str) -> int:
    """Add up the rows in the job's lines of batches."""
    found = re.findall(rf"^{query} +batch +\d+: +([\d,]+) rows", log.read_text(errors="replace"), re.MULTILINE)
    return sum(int(number.replace(",", "")) for number in found)


def catch_up(command: list[str], folder: Path, queries: tuple[str, ...], limit: float) -> None:
    """Run the job until it has read all, or for some seconds; print how far it is."""
    log = folder / "job.log"
    with open(log, "wb") as output:
        job = subprocess.Popen(command, stdout=output, stderr=output)
    usage, began, reported = Usage(job.pid), time.monotonic(), time.monotonic()
    before = dict.fromkeys(queries, 0)
    # Rows and CPU seconds of the first report with rows: what came before is mostly Spark's start.
    start = None
    while time.monotonic() - began < limit:
        time.sleep(SAMPLE_INTERVAL)
        usage.sample()
        has_ended = job.poll() is not None
        now = time.monotonic()
        if not has_ended and now - reported < REPORT_INTERVAL:
            continue
        rows = {query: rows_read(log, query) for query in queries}
        parts = [f"{now - began:.0f} s"]
        for query in queries:
            size = Spool(str(folder / "work" / query / "spool")).listing().size // MIB
            rate = (rows[query] - before[query]) / (now - reported)
            parts.append(f"{query} {rows[query]:,} rows, {rate:,.0f} a second, spool {size:,} MiB")
        total = sum(rows.values())
        if start is None and total:
            start = total, usage.seconds
        elif start is not None and usage.seconds > start[1]:
            parts.append(f"{(total - start[0]) / (usage.seconds - start[1]):,.0f} rows a CPU second")
        parts.append(", ".join(f"{name} {size} MiB" for name, size in usage.memory.items()))
        print("; ".join(parts), flush=True)
        if has_ended:
            break
        before, reported = rows, now
    if job.poll() is None:
        job.send_signal(signal.SIGTERM)
    print(f"status {job.wait(120)}; {usage.seconds:.0f} CPU seconds in all")
    print("\n".join(log.read_text(errors="replace").splitlines()[-16:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="messages to publish")
    parser.add_argument("--seconds", type=float, default=600, help="longest time that the job may run")
    parser.add_argument("--query", choices=QUERIES, help="only this query has messages to read")
    parser.add_argument("flags", nargs="*", help="flags of gnsq-pipeline")
    given = parser.parse_args()
    queries = (given.query,) if given.query else QUERIES
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gnsq-downtime-")))
        nsqd = stack.enter_context(running("nsqd", "--mem-queue-size=200000"))
        client = NsqdHTTPClient.from_url(nsqd.http_address)
        client.create_topic(TOPIC)
        for query in QUERIES:
            client.create_channel(TOPIC, query)
        receivers = {}
        for query in queries:
            command = [sys.executable, "-m", "gnsq.spark.receiver", f"--topic={TOPIC}", f"--channel={query}"]
            command += [f"--spool={folder}/work/{query}/spool", f"--nsqd-tcp-address={nsqd.tcp_address}"]
            receivers[query] = subprocess.Popen([*command, f"--max-spool-bytes={MAX_SPOOL_BYTES}"])
            stack.callback(receivers[query].wait, 60)
            stack.callback(receivers[query].terminate)
        fill_spools(nsqd, folder, receivers, given.count)
        for query in set(QUERIES) - set(queries):
            client.empty_channel(TOPIC, query)
        path = folder / "job.toml"
        path.write_text(SETTINGS.format(folder=folder, nsqd=nsqd))
        command = [sys.executable, "-m", "gnsq.spark.pipeline", "--config", str(path), "--once", *given.flags]
        catch_up(command, folder, queries, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
