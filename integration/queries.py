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
from tests.spark.helpers import numbered


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


class Publisher:
    """A thread that publishes numbered bodies until stop(); each is published again until nsqd has confirmed it."""

    def __init__(self, tcp_address, topic="clicks", size=100, pause=0.02):
        self.bodies = []
        self._stop = threading.Event()
        self._arguments = tcp_address, topic, size, pause
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        """End; return all published bodies."""
        self._stop.set()
        self._thread.join(60)
        return self.bodies

    def _run(self):
        address, topic, size, pause = self._arguments
        with Producer(address, reconnect_initial=0.1, reconnect_maximum=0.5, allow_duplicates=True) as producer:
            while not self._stop.wait(pause):
                batch = numbered(size, first=len(self.bodies))
                with contextlib.suppress(NSQException):
                    producer.multipublish(topic, batch)
                    self.bodies.extend(batch)


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
