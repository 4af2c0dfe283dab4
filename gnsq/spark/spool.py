"""Spool: segments of messages on disk, between those who write them and the one query that reads them.

Layout, below the spool's directory:

    owner.json                   whose query reads this spool; locked while it runs (local file systems)
    RECEIVER/000000000042.arrow  one segment, Arrow IPC; RECEIVER is its only writer and never comes back
    RECEIVER/closed.json         the receiver ended in order: nothing more will come

Knows nothing of NSQ connections and of Spark. Safe across processes by names alone: a segment appears whole, and only
the query's planner deletes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from gnsq.spark.errors import SegmentCorrupt
from gnsq.spark.offsets import Segment, Vector
from gnsq.spark.segments import SCHEMA
from gnsq.spark.spoollock import SpoolLock
from gnsq.spark.store import TEMPORARY, LocalStore, Store, open_store

__all__ = ["Contents", "Spool", "SpoolWriter"]

logger = logging.getLogger(__name__)

_CLOSED = "closed.json"
_CORRUPT = ".corrupt"
_SEGMENT = re.compile(r"(?P<receiver>[^/]+)/(?P<number>\d{12})\.arrow(?P<corrupt>\.corrupt)?")
_ROWS = b"gnsq.rows"


def _path(receiver: str, number: int) -> str:
    return f"{receiver}/{number:012d}.arrow"


@dataclass(slots=True)
class Contents:
    """What a listing found.

    Attributes:
        segments: Those that can be read.
        corrupt: (receiver, number) of those set aside.
        receivers: All that have a file in the spool.
        size: Bytes, of segments only.
    """

    segments: list[Segment] = field(default_factory=list)
    corrupt: list[tuple[str, int]] = field(default_factory=list)
    receivers: set[str] = field(default_factory=set)
    size: int = 0

    def present(self) -> list[tuple[str, int]]:
        """List (receiver, number) of all segments that were not pruned."""
        return [(segment.receiver, segment.number) for segment in self.segments] + self.corrupt


class Spool:
    """The reader's side of a spool, and the way to its writers and its lock.

    Args:
        location: A path or a URI of any file system that pyarrow knows.

    Pickles as its location alone. All methods raise OSError if the file system fails.

    Raises:
        ValueError: If the location is empty or its scheme unknown.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._store = open_store(location)
        # Rows by path, so that each segment's footer is read once.
        self._rows: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[Spool], tuple[str]]:
        return (Spool, (self.location,))

    @property
    def is_local(self) -> bool:
        """Whether listing costs nothing."""
        return self._store.local

    def prepare(self) -> None:
        """Make the directory."""
        self._store.make_directory("")

    def writer(self, receiver: str) -> SpoolWriter:
        """Make the directory of a receiver, which must be new, and the writer for it."""
        return SpoolWriter(self._store, receiver)

    def lock(self, owner: str, topic: str, channel: str, patience: float = 0.0) -> SpoolLock:
        """Take the spool for one query.

        Args:
            owner: What tells this query from others, such as its checkpoint's URI; may be empty.
            patience: Seconds to wait for another process that is about to end.

        Raises:
            SpoolInUse: If it is another query's, or another process holds it.
        """
        self.prepare()
        return SpoolLock(self._store, self.location, {"owner": owner, "topic": topic, "channel": channel}, patience)

    def contents(self) -> Contents:
        """List all segments. One that can't be read is set aside, with an ERROR in the log, and the rest goes on."""
        contents = Contents()
        seen: set[str] = set()
        for path, size in self._store.list():
            if "/" in path:
                contents.receivers.add(path.partition("/")[0])
            match = _SEGMENT.fullmatch(path)
            if match is None:
                continue
            receiver, number = match["receiver"], int(match["number"])
            if match["corrupt"]:
                contents.corrupt.append((receiver, number))
                continue
            try:
                rows = self._count(path)
            except SegmentCorrupt as error:
                self.set_aside(receiver, number, error)
                contents.corrupt.append((receiver, number))
                continue
            except FileNotFoundError:
                continue
            seen.add(path)
            contents.size += size
            contents.segments.append(Segment(receiver, number, size, rows))
        self._rows = {path: rows for path, rows in self._rows.items() if path in seen}
        return contents

    def size(self) -> int:
        """Add up the bytes of all segments; reads none of them."""
        return sum(size for path, size in self._store.list() if _SEGMENT.fullmatch(path))

    def read(self, receiver: str, number: int) -> Iterator[Any]:
        """Yield a segment's record batches, with SCHEMA.

        Raises:
            SegmentCorrupt: If it is no Arrow file.
            FileNotFoundError: If it was pruned or set aside.
        """
        path = _path(receiver, number)
        try:
            with self._store.open(path) as source:
                reader = ipc.open_file(source)
                batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except pa.ArrowInvalid as error:
            raise SegmentCorrupt(f"{self.location}: segment {path}: {error}") from error
        for batch in batches:
            yield batch.replace_schema_metadata(None)

    def set_aside(self, receiver: str, number: int, error: SegmentCorrupt) -> None:
        """Rename a segment that can't be read, so that it is kept but asked for no more."""
        path = _path(receiver, number)
        self._store.rename(path, path + _CORRUPT)
        logger.error(
            "%s; set aside as %s. Its messages were finished at nsqd and are missing in the query's results: "
            "rescue what can be read, then delete the file",
            error,
            path + _CORRUPT,
        )

    def prune(self, end: Vector) -> None:
        """Delete what is at or below end, then the directories of receivers that ended in order and have no more."""
        left: dict[str, int] = {}
        closed: set[str] = set()
        for path, _ in self._store.list():
            receiver, _, name = path.rpartition("/")
            match = _SEGMENT.fullmatch(path)
            if name == _CLOSED:
                closed.add(receiver)
            elif match is not None and not match["corrupt"] and int(match["number"]) <= end.get(receiver, 0):
                self._store.remove(path)
                self._rows.pop(path, None)
            elif receiver:
                left[receiver] = left.get(receiver, 0) + 1
        for receiver in closed - set(left):
            self._store.remove(f"{receiver}/{_CLOSED}")
            self._store.remove_directory(receiver)

    def remove_leftovers(self, older_than: float = 600.0) -> None:
        """Delete temporary files of receivers that were killed while writing (seconds; local file systems only)."""
        if not isinstance(self._store, LocalStore):
            return
        for path, _ in self._store.list():
            if path.rpartition("/")[2].startswith(TEMPORARY):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - (self._store.root / path).stat().st_mtime > older_than:
                        self._store.remove(path)

    def _count(self, path: str) -> int:
        rows = self._rows.get(path)
        if rows is None:
            try:
                with self._store.open(path) as source:
                    metadata = ipc.open_file(source).schema.metadata or {}
                rows = int(metadata[_ROWS])
            except (pa.ArrowInvalid, KeyError, ValueError) as error:
                raise SegmentCorrupt(f"{self.location}: segment {path} is not one of ours: {error}") from error
            self._rows[path] = rows
        return rows


class SpoolWriter:
    """The directory of one receiver, which is its only writer. Blocks while it writes."""

    def __init__(self, store: Store, receiver: str) -> None:
        self.receiver = receiver
        self._store = store
        store.make_directory(receiver)

    def write(self, number: int, columns: list[Any]) -> int:
        """Write a segment durably; when this returns it will be read, whatever crashes.

        Args:
            number: From 1, each one more than the last. A write that raised may have succeeded: it must be tried
                again with the same rows, or its messages are delivered twice.
            columns: Arrow arrays, in the order of SCHEMA.

        Returns:
            The size in bytes.
        """
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        sink = pa.BufferOutputStream()
        with ipc.new_file(sink, SCHEMA.with_metadata({_ROWS: str(batch.num_rows)})) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()
        self._store.put(_path(self.receiver, number), data)
        return int(data.size)

    def close(self, segments: int) -> None:
        """Say that nothing more will come; a directory in which nothing is goes."""
        if not segments:
            self._store.remove_directory(self.receiver)
            return
        self._store.put(f"{self.receiver}/{_CLOSED}", json.dumps({"segments": segments}).encode())
