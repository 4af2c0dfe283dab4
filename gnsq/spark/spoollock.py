"""SpoolLock: whose spool it is. A query deletes what it has read: two on one spool would lose each other's messages."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO

from gnsq.spark.errors import SpoolInUse
from gnsq.spark.store import LocalStore, Store

__all__ = ["SpoolLock"]

_OWNER = "owner.json"


class SpoolLock:
    """Ownership of a spool. Released by release(), or by the death of the process.

    On object stores there is no lock: the owner's name is compared, and two runs of one query are not kept apart.
    """

    def __init__(self, store: Store, location: str, claim: dict[str, str], patience: float) -> None:
        self._file: IO[str] | None = None
        self._location = location
        if isinstance(store, LocalStore):
            self._file = self._acquire(store.root / _OWNER, patience)
            self._check(self._file.read(), claim)
            self._file.seek(0)
            self._file.truncate()
            json.dump({**claim, "pid": os.getpid()}, self._file)
            self._file.flush()
            os.fsync(self._file.fileno())
            return
        with contextlib.suppress(FileNotFoundError), store.open(_OWNER) as file:
            self._check(file.read().decode(), claim)
        store.put(_OWNER, json.dumps(claim).encode())

    def release(self) -> None:
        """Let others have the spool; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _acquire(self, path: Path, patience: float) -> IO[str]:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  # kept open: the lock lives as long as the file
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
                file.seek(0)
                return file

    def _check(self, text: str, claim: dict[str, str]) -> None:
        try:
            found = json.loads(text) if text else {}
        except ValueError:
            found = {}
        if not isinstance(found, dict):
            found = {}
        for name, value in claim.items():
            before = found.get(name)
            if before and value and before != value:
                self.release()
                raise SpoolInUse(
                    f"spool {self._location} belongs to {name} {before!r}, not to {value!r}: give this query a spool "
                    "of its own, or delete the spool if nothing in it is needed"
                )
