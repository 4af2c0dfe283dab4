"""SpoolLock: whose spool it is. A query deletes what it has read: two on one spool would lose each other's messages."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from typing import IO

from gnsq.spark.errors import SpoolInUse
from gnsq.spark.spool.storage import LocalStore, Store

__all__ = ["SpoolLock", "read_owner"]

_OWNER = "owner.json"


class SpoolLock:
    """Ownership of a spool. Released by release(), or by the death of the process.

    A lock on a local file keeps two runs of one query apart. Where there are no locks the last one wins: each run
    writes its id, and the first one learns from check() that it has lost the spool.
    """

    def __init__(self, store: Store, location: str, claim: dict[str, str], patience: float) -> None:
        self._file: IO[str] | None = None
        self._store = store
        self._location = location
        self._run = uuid.uuid4().hex
        text = json.dumps({**claim, "run": self._run, "host": socket.gethostname(), "pid": os.getpid()})
        if isinstance(store, LocalStore):
            self._file = self._acquire(store.open_or_create(_OWNER), patience)
            self._compare(claim)
            self._file.seek(0)
            self._file.truncate()
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())
        else:
            self._compare(claim)
            store.put(_OWNER, text.encode())

    def check(self) -> None:
        """Find out whether the spool is still this run's.

        Raises:
            SpoolInUse: If another run has taken it.
            OSError: If nobody can tell.
        """
        found = read_owner(self._store)
        if found.get("run", self._run) != self._run:
            raise SpoolInUse(
                f"spool {self._location} was taken over by another run of this query (process {found.get('pid')} on "
                f"{found.get('host')}) and this one ends, so that neither deletes what the other reads: run it once"
            )

    def release(self) -> None:
        """Let others have the spool; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _acquire(self, descriptor: int, patience: float) -> IO[str]:
        file = open(descriptor, "a+", encoding="utf-8")  # noqa: SIM115  # kept open: the lock lives as long as the file
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.seek(0)
                    holder = file.read()
                    file.close()
                    raise SpoolInUse(
                        f"spool {self._location} is in use by another query ({holder}): each query needs a spool of "
                        "its own; give this one another directory, or stop the other one"
                    ) from None
                time.sleep(0.02)
            else:
                return file

    def _compare(self, claim: dict[str, str]) -> None:
        found = read_owner(self._store)
        for name, value in claim.items():
            before = found.get(name)
            if before and value and before != value:
                self.release()
                raise SpoolInUse(
                    f"spool {self._location} belongs to {name} {before!r}, not to {value!r}: give this query a spool "
                    "of its own, or delete the spool if nothing in it is needed"
                )


def read_owner(store: Store) -> dict[str, object]:
    """Read the owner's file; nothing if it is not there, or not one of ours."""
    try:
        with store.open(_OWNER) as file:
            found = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
