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


class SparkDaemon:
    """A master or a worker, which may be killed and started again. It leads a process group; its executors are in it.

    Args:
        name: Its class below org.apache.spark.deploy.
        log: File for its output; emptied at each start.
        is_up: Found in its log when it is up.
    """

    def __init__(self, name: str, log: Path, is_up: re.Pattern[str]) -> None:
        self._name = name
        self._log = log
        self._is_up = is_up
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *flags: str) -> None:
        """Start it, without waiting until it is up."""
        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{self._name}", "--host", "127.0.0.1"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            # A master that is started again still knows its workers and applications.
            "SPARK_DAEMON_JAVA_OPTS": f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', '')} "
            f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._log.parent / 'recovery'}",
        }
        with open(self._log, "wb") as output:
            self._process = subprocess.Popen(
                [*command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def wait(self) -> re.Match[str]:
        """Wait until it is up. RuntimeError if it is not within START_LIMIT seconds."""
        deadline = time.monotonic() + START_LIMIT
        while True:
            text = self._log.read_text(errors="replace")
            if match := self._is_up.search(text):
                return match
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"Spark's {self._name} is not up within {START_LIMIT} s: {text[-2000:]}")
            time.sleep(0.05)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to all processes of the group, like the failure of a machine. Nothing if they have ended."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)


class Cluster:
    """A cluster. start_again() starts those of its daemons that have ended.

    Args:
        folder: Where logs and work directories go.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.url = ""
        self.master = SparkDaemon("master.Master", folder / "master.log", _MASTER)
        self.workers = [
            SparkDaemon("worker.Worker", folder / f"worker{number}.log", _REGISTERED) for number in range(workers)
        ]
        self._folder = folder

    def start(self) -> None:
        """Start all daemons. RuntimeError if one is not up within START_LIMIT seconds."""
        self.master.start("--port", "0", "--webui-port", "0")
        self.url = self.master.wait()[1]
        self.start_again()
        for worker in self.workers:
            worker.wait()

    def start_again(self) -> None:
        """Start the daemons that do not run, without waiting until they are up. The master keeps its port."""
        if not self.master.is_running:
            self.master.start("--port", self.url.rpartition(":")[2], "--webui-port", "0")
        for number, worker in enumerate(self.workers):
            if not worker.is_running:
                flags = ["--webui-port", "0", "--cores", str(CORES), "--memory", MEMORY]
                worker.start(*flags, "--work-dir", str(self._folder / f"work{number}"), self.url)

    def stop(self) -> None:
        """Stop all daemons, with their executors."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for daemon in (*self.workers, self.master):
                daemon.kill(number)


@contextlib.contextmanager
def cluster(folder: Path, workers: int = WORKERS) -> Iterator[Cluster]:
    """Start a cluster, and stop it at the end of the block."""
    prepare_environment()
    running = Cluster(folder, workers)
    try:
        running.start()
        yield running
    finally:
        running.stop()


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
