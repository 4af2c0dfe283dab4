"""Spool: segments of messages on disk, between those who write them and the one query that reads them.

Layout, below the spool's directory:

    owner.json                         whose query reads this spool; locked while it runs (local file systems)
    RECEIVER/000000000042-10000.arrow  one segment, its number and rows; RECEIVER is its only writer, never comes back
    RECEIVER/000000000041-9000.arrow.corrupt  one that could not be read, set aside
    RECEIVER/closed.json               the receiver ended in order: nothing more will come

Knows nothing of NSQ connections and of Spark. Safe across processes by names alone: a segment appears whole, and only
the query's planner deletes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnsq.localfiles import PRIVATE
from gnsq.spark.errors import SegmentCorrupt, SpoolError, SpoolIncomplete, SpoolInUse
from gnsq.spark.offsets import Segment, Vector
from gnsq.spark.spool.ownership import SpoolLock, read_owner
from gnsq.spark.spool.segments import decode_segment, encode_segment
from gnsq.spark.spool.storage import LocalStore, Store, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = ["SpoolListing", "Spool", "SpoolWriter"]

logger = logging.getLogger(__name__)

_CLOSED = "closed.json"
_CORRUPT = ".corrupt"
_SEGMENT = re.compile(r"(?P<receiver>[^/]+)/(?P<number>\d{12})(?:-(?P<rows>\d+))?\.arrow(?P<corrupt>\.corrupt)?")


@dataclass(slots=True)
class SpoolListing:
    """What a listing found.

    Attributes:
        segments: Those that can be read.
        quarantined: Those that could not be.
        receivers: All that have a file in the spool.
    """

    segments: list[Segment] = field(default_factory=list)
    quarantined: list[Segment] = field(default_factory=list)
    receivers: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes, of those that can be read."""
        return sum(segment.size for segment in self.segments)

    @property
    def rows_quarantined(self) -> int:
        """Messages that are missing in the query's results."""
        return sum(segment.rows for segment in self.quarantined)

    def present(self) -> list[tuple[str, int]]:
        """List (receiver, number) of all segments that were not pruned."""
        return [(segment.receiver, segment.number) for segment in (*self.segments, *self.quarantined)]


class Spool:
    """The reader's side of a spool, and the way to its writers and its lock.

    Args:
        location: A path or a URI of any file system that pyarrow knows.
        mode: Permissions of the directories that are made, and without x of the files; on local file systems. A
            directory that exists keeps its own.

    Pickles as its arguments alone. All methods raise OSError if the file system fails.

    Attributes:
        location: For people: without the credentials of a URI.

    Raises:
        ValueError: If the location is empty or its scheme unknown.
    """

    def __init__(self, location: str, mode: int = PRIVATE) -> None:
        self.location = redact_uri(location)
        self._uri = location
        self._mode = mode
        self._store = open_store(location, mode=mode)
        self._is_checked = False

    def __reduce__(self) -> tuple[type[Spool], tuple[str, int]]:
        return (Spool, (self._uri, self._mode))

    def __repr__(self) -> str:
        return f"Spool({self.location!r})"

    @property
    def is_local(self) -> bool:
        """Whether listing costs nothing."""
        return self._store.local

    def prepare(self) -> None:
        """Make the directory. Warns if others than mode says may write there."""
        self._store.make_directory("")
        if isinstance(self._store, LocalStore) and not self._is_checked:
            self._is_checked = True
            access = self._store.others_access()
            if access:
                logger.warning(
                    "spool %s %s: others may delete and replace messages there. Change that with chmod or chown, or "
                    "give the option spoolMode, such as 2770, if it is meant so",
                    self.location,
                    access,
                )

    def writer(self, receiver: str) -> SpoolWriter:
        """Make the directory of a receiver, which must be new, and the writer for it."""
        with self._advising():
            return SpoolWriter(self._store, receiver)

    def lock(self, owner: str, source: str, patience: float = 0.0) -> SpoolLock:
        """Take the spool for one query.

        Args:
            owner: What tells this query from others, such as its checkpoint's URI; may be empty.
            source: What it reads.
            patience: Seconds to wait for another process that is about to end.

        Raises:
            SpoolInUse: If it is another query's, or another process holds it.
        """
        self.prepare()
        with self._advising():
            return SpoolLock(self._store, self.location, {"owner": redact_uri(owner), "source": source}, patience)

    def check_source(self, source: str) -> None:
        """Find out whether a receiver of this source may write here; it may where there is no owner yet.

        Raises:
            SpoolInUse: If the spool is that of a query which reads something else.
        """
        with self._advising():
            owner = read_owner(self._store).get("source", source)
        if owner != source:
            raise SpoolInUse(
                f"spool {self.location} belongs to a query that reads {owner}, not {source}: give the receiver that "
                "query's topics and channel, or another spool"
            )

    def listing(self) -> SpoolListing:
        """List all segments; opens none of them.

        Raises:
            SpoolError: If there are segments of an older layout.
        """
        contents = SpoolListing()
        for path, size in self._list():
            if "/" in path:
                contents.receivers.add(path.partition("/")[0])
            match = _SEGMENT.fullmatch(path)
            if match is None:
                continue
            if match["rows"] is None:
                raise SpoolError(
                    f"spool {self.location} holds {path}, of an older layout: read it to its end with the gnsq that "
                    "wrote it, or give another directory"
                )
            segment = Segment(match["receiver"], int(match["number"]), size, int(match["rows"]))
            if match["corrupt"]:
                contents.quarantined.append(segment)
                continue
            contents.segments.append(segment)
        return contents

    def size(self) -> int:
        """Add up the bytes of all segments."""
        return sum(
            size
            for path, size in self._list()
            if (match := _SEGMENT.fullmatch(path)) is not None and not match["corrupt"]
        )

    def read(self, segment: Segment) -> list[Any]:
        """Read a segment's record batches, with SCHEMA; none of one that is damaged, which is set aside.

        Safe to do again, and for several at once: who comes later finds it set aside, and reads the same.

        Raises:
            SpoolIncomplete: If it is gone.
            SpoolError: If a later version of gnsq wrote it.
        """
        try:
            with self._advising(), self._store.open(segment.path) as file:
                data = file.read_buffer()
        except FileNotFoundError:
            if self._store.exists(segment.path + _CORRUPT):
                return []
            raise SpoolIncomplete(
                f"spool {self.location}: segment {segment.path} is gone: bring it back, or start with a new checkpoint"
            ) from None
        try:
            return decode_segment(data, segment.rows, segment.path)
        except SegmentCorrupt as error:
            self._quarantine(segment, error)
            return []

    def _quarantine(self, segment: Segment, error: SegmentCorrupt) -> None:
        """Rename a segment that can't be read, so that it is kept but asked for no more."""
        if self._store.rename(segment.path, segment.path + _CORRUPT):
            logger.error(
                "spool %s: %s; set aside as %s. Its %s finished at nsqd and will be missing in the "
                "query's results: rescue what can be read, then delete the file",
                self.location,
                error,
                segment.path + _CORRUPT,
                counted(segment.rows, "message was", "messages were"),
            )

    def _list(self) -> list[tuple[str, int]]:
        with self._advising():
            return self._store.list()

    @contextlib.contextmanager
    def _advising(self) -> Iterator[None]:
        """Let an error of permissions say what lets several users share a spool."""
        try:
            yield
        except PermissionError as error:
            advice = (
                f"{error.strerror}. Receivers, driver and executors that are several users need one group and the "
                "option spoolMode, such as 2770"
            )
            raise PermissionError(error.errno, advice, error.filename) from error

    def prune(self, end: Vector) -> None:
        """Delete what is at or below end, then the directories of receivers that ended in order and have no more."""
        read: list[str] = []
        left: set[str] = set()
        closed: set[str] = set()
        for path, _ in self._list():
            receiver, _, name = path.rpartition("/")
            match = _SEGMENT.fullmatch(path)
            if name == _CLOSED:
                closed.add(receiver)
            elif match is not None and not match["corrupt"] and int(match["number"]) <= end.get(receiver, 0):
                read.append(path)
            elif receiver:
                left.add(receiver)
        self._store.remove(*read)
        for receiver in closed - left:
            self._store.remove(f"{receiver}/{_CLOSED}")
            self._store.remove_directory(receiver)

    def remove_leftovers(self, older_than: float = 600.0) -> None:
        """Delete temporary files and empty directories of receivers that were killed (seconds; local file systems
        only: others know no directories). One that lives makes its directory again."""
        if isinstance(self._store, LocalStore):
            self._store.remove_abandoned(time.time() - older_than)


class SpoolWriter:
    """The directory of one receiver, which is its only writer. Blocks while it writes."""

    def __init__(self, store: Store, receiver: str) -> None:
        self.receiver = receiver
        self._store = store
        store.make_directory(receiver)

    def write(self, number: int, columns: Sequence[Any]) -> int:
        """Write a segment durably; when this returns it will be read, whatever crashes.

        Args:
            number: From 1, each one more than the last. A write that raised may have succeeded: it must be tried
                again with the same rows, or its messages are delivered twice.
            columns: Arrow arrays, in the order of SCHEMA.

        Returns:
            The size in bytes.
        """
        data = encode_segment(columns)
        size = int(data.size)
        self._store.put(Segment(self.receiver, number, size, len(columns[0])).path, data)
        return size

    def close(self, segments: int) -> None:
        """Say that nothing more will come; a directory in which nothing is goes."""
        if not segments:
            self._store.remove_directory(self.receiver)
            return
        self._store.put(f"{self.receiver}/{_CLOSED}", json.dumps({"segments": segments}).encode())
