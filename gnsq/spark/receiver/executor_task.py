"""What a task of ExecutorReceivers does: one receiver in a worker of Spark's, until the lease file ends its run.

Runs on executors, where it is imported by its name: gnsq has to be installed there. Knows nothing of the driver.

ReceiverLease: whose receivers may run: ``receivers.json`` in the spool names the run that may, all others end.

Ending a task is not in Spark's hands: it kills the process, and what that had in flight waits for nsqd's timeout. A
file reaches every executor that reaches the spool. Knows no Spark.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType

from gnsq.concurrency.hub_thread import HubThread
from gnsq.localfiles import PRIVATE
from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import Receiver
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import redact_uri

__all__ = [
    "ReceiverLease",
    "receive",
]

logger = logging.getLogger(__name__)


_FILE = "receivers.json"


class ReceiverLease:
    """The lease file of one spool, from the side of who starts receivers, and from theirs.

    Args:
        location: The spool's.
        mode: As Spool's.

    Raises:
        ValueError: If the location is empty or its scheme unknown.
    """

    def __init__(self, location: str, mode: int = PRIVATE) -> None:
        self._location = redact_uri(location)
        self._store = open_store(location, mode=mode)
        self._unreadable = False

    def grant(self, run: str) -> None:
        """Let a run's receivers go on; those of any other end.

        Raises:
            OSError: If the spool can't be written.
        """
        self._store.make_directory("")
        self._store.put(_FILE, json.dumps({"run": run}).encode())

    def revoke(self, run: str) -> None:
        """Let a run's receivers end; no-op if another is named. The file stays: without it, an executor that does not
        see the spool would look like one that is to end.

        Raises:
            OSError: If the spool can't be written.
        """
        if self.current() == run:
            self._store.put(_FILE, json.dumps({"run": None}).encode())

    def current(self) -> str | None:
        """Say whose receivers may run; None if nobody's are named, "" if the file is damaged.

        Raises:
            OSError: If the spool can't be read.
        """
        try:
            with self._store.open(_FILE) as file:
                run = json.loads(file.read())["run"]
                return run if run is None else str(run)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return ""

    def check_visible(self) -> None:
        """Find out whether this machine sees the file at all.

        Raises:
            SpoolError: If not: receivers here would write where nobody reads.
        """
        if not self._store.exists(_FILE):
            raise SpoolError(
                f"spool {self._location} has no {_FILE} here: does this executor see the spool? Give a directory that "
                "driver and executors share"
            )

    def is_allowed(self, run: str) -> bool:
        """Whether a run's receivers may go on. They may as long as the spool can't be read, which is logged once."""
        try:
            allowed = self.current() == run
        except OSError as error:
            if not self._unreadable:
                logger.warning("spool %s: %s can't be read: %s; going on", self._location, _FILE, error)
            self._unreadable = True
            return True
        self._unreadable = False
        return allowed


# Seconds between looks at the lease file.
POLL_INTERVAL = 1.0
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def receive(options: ReadOptions, run: str, _: Iterable[int]) -> None:
    """Receive for as long as a run may go on, then end in order. The body of a task.

    Raises:
        SpoolError: If this executor does not see the spool.
        OSError: If the spool can't be written at the start.
        RuntimeError: If the receiver has failed for good.
    """
    # Nobody else sets up logging in a worker; its stderr is the executor's.
    logging.basicConfig(format=_FORMAT)
    lease = ReceiverLease(options.spool)
    lease.check_visible()
    if not lease.is_allowed(run):
        return
    hung_up = threading.Event()

    def hang_up(number: int, frame: FrameType | None) -> None:
        hung_up.set()

    # What workers get when their executor goes, even if that was killed: time enough to give messages back.
    previous = signal.signal(signal.SIGHUP, hang_up)
    try:
        with HubThread("gnsq-receiver") as hub:
            receiver = hub.call(_started, options)
            try:
                while receiver.error is None and lease.is_allowed(run) and not hung_up.wait(POLL_INTERVAL):
                    pass
            finally:
                hub.call(receiver.close)
    finally:
        signal.signal(signal.SIGHUP, previous)
    if hung_up.is_set():
        os.kill(os.getpid(), signal.SIGHUP)
    if receiver.error is not None:
        raise RuntimeError(f"receiver {receiver.id} has failed for good: {receiver.error!r}") from receiver.error


def _started(options: ReadOptions) -> Receiver:
    receiver = Receiver(options, Spool(options.spool, options.spool_permissions))
    receiver.start()
    return receiver
