"""Ownership of a spool: a query deletes the segments that it has read, so a second query would lose messages."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
import uuid
from pathlib import Path
from typing import IO

from gnsq.spark.errors import SpoolInUse
from gnsq.spark.offsets import may_follow
from gnsq.spark.spool.storage import LocalStore, Store

__all__ = [
    "END_TIMEOUT",
    "SpoolLock",
    "read_owner",
    "read_record",
    "try_lock",
    "wait_for_end",
    "wait_for_lock",
    "write_text",
]

logger = logging.getLogger(__name__)

# Seconds that a query that was stopped may take until it has written what it has received. Mostly it takes less than 1.
END_TIMEOUT = 20.0

_OWNER = "owner.json"


class SpoolLock:
    """Lock of a spool, until release() or the death of the process.

    A lock on a local file keeps two runs of one query apart. On file systems without locks, the later run gets the
    spool: each run writes its id into owner.json, and check() raises in the earlier run.

    Args:
        claim: Names and values that identify the query. Refused if one differs from the last owner's (unless empty). A
            source may have other topics, as offsets.may_follow() says.
        timeout: Seconds to wait while another process has the lock.
    """

    def __init__(self, store: Store, location: str, claim: dict[str, str], timeout: float) -> None:
        self._file: IO[str] | None = None
        self._store = store
        self._subject = f"spool {location}"
        self._run = uuid.uuid4().hex
        text = json.dumps({**claim, "run": self._run, "host": socket.gethostname(), "pid": os.getpid()})
        if isinstance(store, LocalStore):
            self._file = self._acquire(store.open_or_create(_OWNER), timeout)
            self._check_claim(claim)
            write_text(self._file, text)
        else:
            self._check_claim(claim)
            store.put(_OWNER, text.encode())

    def check(self) -> None:
        """Check that no other run has taken the spool.

        Raises:
            SpoolInUse: If another run has taken the spool.
            OSError: If the owner's file can't be read.
        """
        owner = read_owner(self._store)
        if owner.get("run", self._run) != self._run:
            raise SpoolInUse(
                f"{self._subject} was taken over by another run of this query (process {owner.get('pid')} on "
                f"{owner.get('host')}) and this one ends, so that neither deletes what the other reads: run it once"
            )

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _acquire(self, descriptor: int, timeout: float) -> IO[str]:
        file = open(descriptor, "a+", encoding="utf-8")  # noqa: SIM115  # the lock ends when the file is closed
        if wait_for_lock(file, timeout):
            return file
        with file:
            file.seek(0)
            raise SpoolInUse(
                f"{self._subject} is in use by another query ({file.read()}): each query needs a spool of its own; "
                "give this one another, or stop the other query"
            )

    def _check_claim(self, claim: dict[str, str]) -> None:
        owner = read_owner(self._store)
        for name, value in claim.items():
            before = owner.get(name)
            if not before or not value or before == value:
                continue
            if name == "source" and may_follow(str(before), value):
                logger.info("%s: its query reads %s now, it has read %s", self._subject, value, before)
            else:
                self.release()
                raise SpoolInUse(
                    f"{self._subject} belongs to {name} {before!r}, not to {value!r}: give this query a spool of "
                    "its own, or delete the spool if nothing in it is needed"
                )


def wait_for_end(store: Store, timeout: float) -> bool:
    """Wait until the query that owns a spool has ended, and writes no more; False if that takes more than timeout
    seconds. Spark's stop() of a query only sends a signal to the process of its source."""
    deadline = time.monotonic() + timeout
    while _is_owned(store):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_owned(store: Store) -> bool:
    if isinstance(store, LocalStore):
        try:
            with open(store.root / _OWNER, encoding="utf-8") as file:
                return not try_lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False
    owner = read_owner(store)
    if owner.get("host") != socket.gethostname() or owner.get("pid") == os.getpid():
        return False
    try:
        # After the name of the program, which may have blanks.
        state = Path(f"/proc/{owner.get('pid')}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def try_lock(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file, or return False if another process has locked it. The lock ends when the file is closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: IO[str], timeout: float) -> bool:
    """Lock a file as try_lock() does, but wait up to timeout seconds while another process has locked it."""
    deadline = time.monotonic() + timeout
    while not try_lock(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def write_text(file: IO[str], text: str) -> None:
    """Replace the text of a locked file, durably. The file must be open in append mode."""
    file.truncate(0)
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def read_owner(store: Store) -> dict[str, object]:
    """Read the owner's file, as read_record() does."""
    return read_record(store, _OWNER)


def read_record(store: Store, name: str) -> dict[str, object]:
    """Read a small JSON object; return an empty dict if the file does not exist or is damaged."""
    try:
        record = json.loads(store.read(name).to_pybytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
