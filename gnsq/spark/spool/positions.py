"""Positions of queries in a spool, as files of the spool.

The query that owns a spool deletes segments. Further queries may read the same spool. They are called readers, and have
names. Files below the spool's directory:

    position.json             the owner's position, if the spool keeps segments that the owner has read
    readers/NAME.json         the reader's position, and when it last ran
    readers/NAME.owner.json   the query that is this reader; locked while it runs (local file systems)
    readers/NAME.removed.json segments that the reader had not read are deleted, or will be soon

A position is written after Spark's commit of the batch, so it is never ahead of what the query has read.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gnsq.spark.offsets import Vector, positions_of, slowest
from gnsq.spark.spool.listing import READERS
from gnsq.spark.spool.storage import Store

__all__ = ["GONE_AFTER", "ReaderRegistration", "ReaderState", "SpoolPositions"]

logger = logging.getLogger(__name__)

VERSION = 1
_OWNER = "position.json"
_READER_FILE = re.compile(r"([A-Za-z0-9_-]+)\.json")
# Seconds between two signs of life of a reader, and without one until it counts as gone, at least: hosts may have
# different clocks, and a query that is restarted must not lose its segments.
REFRESH_INTERVAL, GONE_AFTER = 60.0, 600.0


def _reader_path(name: str) -> str:
    return f"{READERS}/{name}.json"


def _removed_path(name: str) -> str:
    return f"{READERS}/{name}.removed.json"


@dataclass(frozen=True, slots=True)
class ReaderState:
    """Contents of the file of a reader.

    Attributes:
        position: Empty if the file is damaged: then the reader may need all segments.
        ran_at: Last sign of life, in seconds since 1970; None if the file is damaged.
    """

    name: str
    position: Vector
    ran_at: float | None

    @property
    def path(self) -> str:
        """Path of the file in the spool."""
        return _reader_path(self.name)

    def is_gone(self, now: float, timeout: float) -> bool:
        """Return True if the reader has given no sign of life for timeout seconds."""
        return self.ran_at is not None and now - self.ran_at > timeout


class SpoolPositions:
    """The positions in one spool. All methods may raise OSError.

    Args:
        location: For log lines, without credentials.
        clock: Returns seconds since 1970.
    """

    def __init__(self, store: Store, location: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._location = location
        self._clock = clock
        # Paths of damaged files that a warning was logged about.
        self._damaged: set[str] = set()

    def owner(self) -> dict[str, int]:
        """Read the owner's position. Empty if there is none, or its file is damaged: then all segments are unread."""
        found = self._read(_OWNER)
        return found[0] if found is not None else {}

    def write_owner(self, position: Vector) -> None:
        """Write the owner's position durably."""
        self._write(_OWNER, position)

    def readers(self) -> list[ReaderState]:
        """Read the files of all readers."""
        states: list[ReaderState] = []
        for file in sorted(self._store.names(READERS)):
            match = _READER_FILE.fullmatch(file)
            if match and (found := self._read(f"{READERS}/{file}")):
                states.append(ReaderState(match[1], *found))
        return states

    def remove_reader(self, reader: ReaderState) -> None:
        """Delete the position of a reader: nothing is kept for it any more. It learns of that by a further file, since
        it may write its position again at this moment."""
        self._write(_removed_path(reader.name), reader.position)
        self._store.remove(reader.path)

    # --- one reader

    def reader(self, name: str) -> ReaderState | None:
        """Read the file of one reader; None if it has none."""
        found = self._read(_reader_path(name))
        return None if found is None else ReaderState(name, *found)

    def is_removed(self, name: str) -> bool:
        """Return True if a reader has no position, or if remove_reader() was called since forget_removal()."""
        return self._store.exists(_removed_path(name)) or not self._store.exists(_reader_path(name))

    def forget_removal(self, name: str) -> None:
        """Delete what remove_reader() has written, since the reader knows it. Call this before write_reader()."""
        self._store.remove(_removed_path(name))

    def write_reader(self, name: str, position: Vector) -> None:
        """Write the position of a reader durably, and that it runs now."""
        self._store.make_directory(READERS)
        self._write(_reader_path(name), position)

    # --- files

    def _read(self, path: str) -> tuple[dict[str, int], float | None] | None:
        """Read a position and its time; None if there is no such file, ({}, None) if it is damaged."""
        try:
            document = json.loads(self._store.read(path).to_pybytes())
            if document["v"] != VERSION:
                raise ValueError(f"its version {document['v']!r} is not {VERSION}")
            position = {str(receiver): int(number) for receiver, number in document["r"].items()}
            return position, float(document["at"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if path not in self._damaged:
                self._damaged.add(path)
                logger.warning(
                    "spool %s: %s is damaged (%r), so segments are kept until its query writes it again; delete it if "
                    "that query is not used any more",
                    *(self._location, path, error),
                )
            return {}, None

    def _write(self, path: str, position: Vector) -> None:
        document = {"v": VERSION, "at": round(self._clock(), 3), "r": dict(sorted(positions_of(position).items()))}
        self._store.put(path, json.dumps(document).encode())


class ReaderRegistration:
    """Keeps the position of one reader in the spool, with a sign of life each minute, from register() to close().

    Attributes:
        is_removed: True if the owner has removed the position: it then has deleted segments that were not read.
    """

    def __init__(self, positions: SpoolPositions, name: str, interval: float = REFRESH_INTERVAL) -> None:
        self.is_removed = False
        self._positions = positions
        self._name = name
        self._interval = interval
        self._position: Vector = {}
        self._closing = threading.Event()
        # Held while the file is written, since the position has two writers: the planner's thread and _refresh().
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_registered(self) -> bool:
        """True after register()."""
        return self._thread is not None

    def register(self, start: Vector) -> bool:
        """Write the position: that of the last run, or start if this is earlier for a receiver.

        Call this before the spool is listed. The checkpoint of start may be a new one. Or it may be ahead of what is
        surely committed, since Spark does not sync its commit log.

        Returns:
            True if the reader had a position before, of the last run.

        Raises:
            OSError: If the spool can't be written.
        """
        with self._lock:
            before = self._positions.reader(self._name)
            self._positions.forget_removal(self._name)
            self.is_removed = False
            self._write(start if before is None else slowest([before.position, start]))
        if self._thread is None:
            self._thread = threading.Thread(target=self._refresh, name=f"gnsq-spool-reader-{self._name}", daemon=True)
            self._thread.start()
        return before is not None

    def advance(self, position: Vector | None = None) -> None:
        """Write a new position, or the present one with a new time, and find out if the owner has removed the position.
        Does nothing if it has.

        Raises:
            OSError: If the spool can't be written. An earlier position then remains, which does no harm.
        """
        with self._lock:
            self.is_removed = self.is_removed or self._positions.is_removed(self._name)
            if not self.is_removed:
                self._write(self._position if position is None else position)
                # The owner may have removed it between these calls. So a removal is seen here or by the next call.
                self.is_removed = self._positions.is_removed(self._name)

    def close(self) -> None:
        """End the signs of life. The position remains in the spool."""
        self._closing.set()

    def _write(self, position: Vector) -> None:
        self._positions.write_reader(self._name, position)
        self._position = position

    def _refresh(self) -> None:
        while not self._closing.wait(self._interval):
            try:
                self.advance()
            except OSError as error:
                logger.warning("reader %s of a spool has written no sign of life: %s", self._name, error)
