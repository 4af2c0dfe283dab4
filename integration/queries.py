"""Queries as processes that tests kill parts of: run them, publish meanwhile, and read their output."""

import contextlib
import functools
import os
import signal
import subprocess
import threading
from pathlib import Path

import pyarrow.parquet as pq

from gnsq import Producer
from gnsq.errors import NSQException
from tests.kit import child
from tests.spark.helpers import descendants, named, wait_for

LIMIT = 150
# Options of an nsqd that writes each message to the disk before it confirms it: some hundred messages per second.
DURABLE = ("--mem-queue-size=0", "--sync-every=1", "--msg-timeout=3s")
# Of each process of a query or of the job, a part of its command line.
PROCESSES = {
    "worker": "pyspark.daemon",
    "source": "python_streaming_source_runner",
    "jvm": "pyspark-shell",
    "maintenance": "gnsq.spark.pipeline.maintenance",
}


@contextlib.contextmanager
def running_query(arguments, log):
    """Run a program that ends with its standard input as child() does; what it writes is added to a file."""
    with (
        open(log, "ab") as output,
        child(*arguments, limit=3600, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        yield process


def kill(*pids):
    """Kill processes; those that are gone are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def restart(nsqd, topic, channel):
    """Restart nsqd in order, with SIGTERM, since a message in flight is only in its memory.

    nsqd 1.3.0 loses a message that it takes from a channel after it has written those in flight to the disk, which a
    pause prevents. Source: nsqd channel.go, exit(), and protocol_v2.go, messagePump(), for which nothing waits.
    """
    nsqd.request("POST", "/channel/pause", topic=topic, channel=channel)
    nsqd.stop()
    nsqd.start()
    nsqd.request("POST", "/channel/unpause", topic=topic, channel=channel)


def kill_group(process):
    """Kill a process and all of its group; Spark's Python workers end with their JVM."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


class Restarted:
    """A program that is started again when it has ended, and of which processes are killed.

    Attributes:
        starts: How often it was started.
    """

    def __init__(self, stack, command, folder):
        self.command = command
        self.starts = 0
        self._stack = stack
        self._folder = folder
        self._start()

    def _start(self):
        self.starts += 1
        log = self._folder / f"log{self.starts}"
        self.process = self._stack.enter_context(running_query(self.command, log))

    def start_again(self):
        """Start the program if it has ended."""
        if self.process.poll() is not None:
            self._start()

    def wait(self, condition):
        """Wait until a condition holds, up to the limit of the test; start the program if it has ended."""

        def holds():
            self.start_again()
            # Seldom: the program needs the processor.
            threading.Event().wait(0.5)
            return condition()

        wait_for(holds)

    def kill(self, victim):
        """Kill one kind of PROCESSES, or all; return how many."""
        if victim == "group":
            pids = [*descendants(self.process.pid), self.process.pid]
        else:
            pids = named(self.process.pid, PROCESSES[victim])
        kill(*pids)
        if victim == "group":
            self.process.wait(30)
        return len(pids)


class Publisher:
    """A thread that publishes numbered bodies until stop(); each is published again until nsqd has confirmed it.

    Args:
        body: Makes the body of a number.
        size: How many are published at once.

    Attributes:
        count: Bodies that are confirmed; their numbers are those below it.
        repeated: Numbers that were published more than once, and so may be there more than once.
    """

    def __init__(self, nsqd, body=b"%08d".__mod__, *, size=10, pause=0.1):
        self.count = 0
        self.repeated = set()
        self._arguments = nsqd.tcp_address, body, size, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        self._stop.set()
        self._thread.join(60)

    def _run(self):
        address, body, size, pause = self._arguments
        with Producer(address, reconnect_initial=0.1, reconnect_maximum=0.5) as producer:
            while not self._stop.wait(pause):
                numbers = range(self.count, self.count + size)
                try:
                    producer.multipublish("clicks", list(map(body, numbers)))
                    self.count += size
                except NSQException:
                    self.repeated.update(numbers)


def written(folder):
    """The bodies in all whole batches that query.py wrote."""
    found = []
    for mark in sorted((Path(folder) / "out").glob("batch=*/_SUCCESS")):
        # One that is being overwritten is read the next time; its directory is gone for a moment, too.
        with contextlib.suppress(OSError):
            for path in mark.parent.glob("*.parquet"):
                found += bodies_in(path)
    return found


@functools.cache
def bodies_in(path):
    """The bodies in a file of Spark's, which has a name of its own and is never written again."""
    return pq.ParquetFile(path).read(["body"]).column("body").to_pylist()
