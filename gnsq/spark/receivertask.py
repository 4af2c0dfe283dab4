"""What a task of ExecutorReceivers does: one receiver in a worker of Spark's, until the control file ends its run.

Runs on executors, where it is imported by its name: gnsq has to be installed there. Knows nothing of the driver.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType

from gnsq.concurrency.hub_thread import HubThread
from gnsq.spark.control import ReceiverControl
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import Receiver
from gnsq.spark.spool import Spool

__all__ = ["receive"]

# Seconds between looks at the control file.
LOOK = 1.0
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
    control = ReceiverControl(options.spool)
    control.check_seen()
    if not control.allows(run):
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
                while receiver.error is None and control.allows(run) and not hung_up.wait(LOOK):
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
