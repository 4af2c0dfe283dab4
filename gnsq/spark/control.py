"""ReceiverControl: whose receivers may run: ``receivers.json`` in the spool names the run that may, all others end.

Ending a task is not in Spark's hands: it kills the process, and what that had in flight waits for nsqd's timeout. A
file reaches every executor that reaches the spool. Knows no Spark.
"""

from __future__ import annotations

import json
import logging

from gnsq.localfiles import PRIVATE
from gnsq.spark.errors import SpoolError
from gnsq.spark.locations import redacted
from gnsq.spark.store import open_store

__all__ = ["ReceiverControl"]

logger = logging.getLogger(__name__)

_FILE = "receivers.json"


class ReceiverControl:
    """The control file of one spool, from the side of who starts receivers, and from theirs.

    Args:
        location: The spool's.
        mode: As Spool's.

    Raises:
        ValueError: If the location is empty or its scheme unknown.
    """

    def __init__(self, location: str, mode: int = PRIVATE) -> None:
        self._location = redacted(location)
        self._store = open_store(location, mode=mode)
        self._unreadable = False

    def name(self, run: str) -> None:
        """Let a run's receivers go on; those of any other end.

        Raises:
            OSError: If the spool can't be written.
        """
        self._store.make_directory("")
        self._store.put(_FILE, json.dumps({"run": run}).encode())

    def clear(self, run: str) -> None:
        """Let a run's receivers end; no-op if another is named. The file stays: without it, an executor that does not
        see the spool would look like one that is to end.

        Raises:
            OSError: If the spool can't be written.
        """
        if self.named() == run:
            self._store.put(_FILE, json.dumps({"run": None}).encode())

    def named(self) -> str | None:
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

    def check_seen(self) -> None:
        """Find out whether this machine sees the file at all.

        Raises:
            SpoolError: If not: receivers here would write where nobody reads.
        """
        if not self._store.exists(_FILE):
            raise SpoolError(
                f"spool {self._location} has no {_FILE} here: does this executor see the spool? Give a directory that "
                "driver and executors share"
            )

    def allows(self, run: str) -> bool:
        """Whether a run's receivers may go on. They may as long as the spool can't be read, which is logged once."""
        try:
            allowed = self.named() == run
        except OSError as error:
            if not self._unreadable:
                logger.warning("spool %s: %s can't be read: %s; going on", self._location, _FILE, error)
            self._unreadable = True
            return True
        self._unreadable = False
        return allowed
