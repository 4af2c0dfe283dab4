"""The task of ExecutorReceivers: one receiver in a worker of Spark, until the control file ends its run.

Spark can end a task only by killing its process. Then messages in flight wait for nsqd's msg_timeout. So a file in the
spool, which all executors see, tells receivers to end. Workers import this module by name: gnsq must be installed
there. Knows no driver.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterable

from gnsq.concurrency.hub_thread import HubThread
from gnsq.localfiles import PRIVATE
from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import Receiver
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import redact_uri

__all__ = ["ReceiverLease", "receive"]

logger = logging.getLogger(__name__)

# Names the run whose receivers may go on.
_FILE = "receivers.json"
# Seconds between checks of the file.
CHECK_INTERVAL = 1.0


class ReceiverLease:
    """The file ``receivers.json`` of one spool, for the driver and for tasks. Its methods raise OSError.

    Raises:
        ValueError: If the location is empty or its scheme is unknown.
    """

    def __init__(self, location: str, mode: int = PRIVATE) -> None:
        self._location = redact_uri(location)
        self._store = open_store(location, mode=mode)
        self._has_warned = False

    def grant(self, run: str) -> None:
        """Let the receivers of a run go on, and those of all others end."""
        self._store.make_directory("")
        self._write(run)

    def revoke(self, run: str) -> None:
        """Let the receivers of a run end. Does nothing if another run has the lease.

        The file stays: without it, an executor could not tell this from a spool that it does not see.
        """
        if self.current() == run:
            self._write(None)

    def _write(self, run: str | None) -> None:
        self._store.put(_FILE, json.dumps({"run": run}).encode())

    def current(self) -> str | None:
        """Return the run whose receivers may go on; None if there is none, "" if the file is damaged."""
        try:
            with self._store.open(_FILE) as file:
                run = json.loads(file.read())["run"]
                return run if run is None else str(run)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return ""

    def check_visible(self) -> None:
        """Check that this machine sees the file; SpoolError if not: the query would not see its segments either."""
        if not self._store.exists(_FILE):
            raise SpoolError(
                f"spool {self._location} has no {_FILE} here: does this executor see the spool? Give a directory that "
                "driver and executors share"
            )

    def is_allowed(self, run: str) -> bool:
        """Whether the receivers of a run may go on. While the file can't be read, they may; that is logged once."""
        try:
            allowed = self.current() == run
        except OSError as error:
            if not self._has_warned:
                logger.warning("spool %s: %s can't be read: %s; going on", self._location, _FILE, error)
            self._has_warned = True
            return True
        self._has_warned = False
        return allowed


def receive(options: ReadOptions, run: str, _: Iterable[int]) -> None:
    """Receive while a run may go on, then shut down. The body of a task.

    Raises:
        SpoolError: If this executor does not see the spool.
        OSError: If the spool can't be written at the start.
        RuntimeError: If the receiver has failed.
    """
    # A worker has no logging of its own. Its stderr is the executor's.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lease = ReceiverLease(options.spool)
    lease.check_visible()
    if not lease.is_allowed(run):
        return
    hung_up = threading.Event()
    # Workers get it when their executor ends, even if that was killed. There is time to requeue messages.
    previous = signal.signal(signal.SIGHUP, lambda number, frame: hung_up.set())
    try:
        with HubThread("gnsq-receiver") as hub:
            receiver = hub.call(_start_receiver, options)
            try:
                while receiver.error is None and lease.is_allowed(run) and not hung_up.wait(CHECK_INTERVAL):
                    pass
            finally:
                hub.call(receiver.close)
    finally:
        signal.signal(signal.SIGHUP, previous)
    if hung_up.is_set():
        os.kill(os.getpid(), signal.SIGHUP)
    if receiver.error is not None:
        raise RuntimeError(f"receiver {receiver.id} has failed: {receiver.error!r}") from receiver.error


def _start_receiver(options: ReadOptions) -> Receiver:
    receiver = Receiver(options, Spool(options.spool, options.spool_permissions))
    receiver.start()
    return receiver
