"""Run a standalone Spark cluster on this machine: a master, and workers with two cores each.

``python -m integration.spark_cluster`` starts one, prints its address, and stops it when standard input ends or SIGINT
or SIGTERM comes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark

from gnsq.spark.java import prepare_environment

START_LIMIT = 60.0
WORKERS = 2
CORES = 2
# Memory of a worker for its executors; Java heap of the master and of a worker.
MEMORY, DAEMON_MEMORY = "1g", "256m"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Each process is the leader of a process group, which has its executors, too."""

    url: str
    master: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


@contextlib.contextmanager
def cluster(folder: Path, workers: int = WORKERS) -> Iterator[Cluster]:
    """Start a cluster, and stop it at the end of the block.

    Args:
        folder: Where logs and work directories go.

    Raises:
        RuntimeError: If it is not up within START_LIMIT seconds.
    """
    prepare_environment()
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        master = stack.enter_context(_running(log, "master.Master", "--port", "0", "--webui-port", "0"))
        url = _wait_for(_MASTER, log, master)[1]
        started = []
        for number in range(workers):
            log = folder / f"worker{number}.log"
            flags = ["--webui-port", "0", "--cores", str(CORES), "--memory", MEMORY]
            flags += ["--work-dir", str(folder / f"work{number}"), url]
            started.append((stack.enter_context(_running(log, "worker.Worker", *flags)), log))
        for worker, log in started:
            _wait_for(_REGISTERED, log, worker)
        yield Cluster(url, master, [worker for worker, _ in started])


def kill(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to all processes of a group, like the failure of a machine. Does nothing if they have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _running(log: Path, name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *flags]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
    }
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        kill(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        kill(process)
        process.wait(10)


def _wait_for(pattern: re.Pattern[str], log: Path, process: subprocess.Popen[bytes]) -> re.Match[str]:
    deadline = time.monotonic() + START_LIMIT
    while True:
        text = log.read_text(errors="replace")
        if match := pattern.search(text):
            return match
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} is not up within {START_LIMIT} s: {text[-2000:]}")
        time.sleep(0.05)


def main() -> int:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as running:
        print(running.url, flush=True)
        print(f"logs in {folder}; ends with standard input, or by Ctrl-C", file=sys.stderr)
        while not ended.wait(1):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
