"""A standalone Spark cluster on this machine: a master, and two workers with two cores each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from gnsq.spark.java import prepare_environment
from tests.spark.helpers import wait_for

START_LIMIT = 60.0
WORKERS = 2
# Of a worker for its executors.
CORES, MEMORY = 2, "1g"
_IS_UP = re.compile(r"Starting Spark master at (spark://\S+)|Successfully registered with master")


class SparkDaemon:
    """A master or a worker, which may be killed and started again. It leads a process group; its executors are in it.

    Args:
        name: Its class below org.apache.spark.deploy.
        log: File for its output; emptied at each start.
    """

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._log = log
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
            "SPARK_DAEMON_MEMORY": "256m",
            # A master that is started again still knows its workers and applications.
            "SPARK_DAEMON_JAVA_OPTS": f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', '')} "
            f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._log.parent / 'recovery'}",
        }
        with open(self._log, "wb") as output:
            self._process = subprocess.Popen(
                [*command, "--webui-port", "0", *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def wait(self) -> re.Match[str]:
        """Wait until it is up."""

        def found() -> re.Match[str] | None:
            assert self.is_running, self._log.read_text(errors="replace")[-2000:]
            return _IS_UP.search(self._log.read_text(errors="replace"))

        return wait_for(found, START_LIMIT)

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

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self.master = SparkDaemon("master.Master", folder / "master.log")
        self.workers = [SparkDaemon("worker.Worker", folder / f"worker{number}.log") for number in range(WORKERS)]
        self._folder = folder

    def start(self) -> None:
        """Start all daemons."""
        self.master.start("--port", "0")
        self.url = self.master.wait()[1]
        self.start_again()
        for worker in self.workers:
            worker.wait()

    def start_again(self) -> None:
        """Start the daemons that do not run, without waiting until they are up. The master keeps its port."""
        if not self.master.is_running:
            self.master.start("--port", self.url.rpartition(":")[2])
        for number, worker in enumerate(self.workers):
            if not worker.is_running:
                flags = ["--cores", str(CORES), "--memory", MEMORY]
                worker.start(*flags, "--work-dir", str(self._folder / f"work{number}"), self.url)

    def stop(self) -> None:
        """Stop all daemons, with their executors."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for daemon in (*self.workers, self.master):
                daemon.kill(number)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster, and stop it at the end of the block."""
    prepare_environment()
    running = Cluster(folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()
