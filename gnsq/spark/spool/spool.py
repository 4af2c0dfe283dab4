"""Spool: segments of messages on disk, between receivers, which write them, and the query that reads them.

Layout, below the spool's directory:

    owner.json                         the query that reads this spool; locked while it runs (local file systems)
    RECEIVER/000000000042-10000-730000.arrow  one segment: NUMBER-ROWS-BYTES
    RECEIVER/000000000041-9000-657000.arrow.corrupt  a segment that can't be decoded
    RECEIVER/closed.json               the receiver has ended and writes no more

Only RECEIVER writes to its directory. Knows no NSQ connections and no Spark. Processes need no lock for segments: a
segment appears whole, and only the planner of the query that owns the spool deletes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gnsq.localfiles import PRIVATE
from gnsq.spark.errors import SegmentCorrupt, SpoolIncomplete, SpoolInUse
from gnsq.spark.offsets import Segment, Vector, may_follow
from gnsq.spark.spool.listing import CLOSED, CORRUPT, SpoolListing
from gnsq.spark.spool.ownership import END_TIMEOUT, SpoolLock, read_owner, wait_for_end
from gnsq.spark.spool.segments import decode_segment, encode_segment
from gnsq.spark.spool.storage import LocalStore, Store, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted, reason_of

__all__ = ["Spool", "SpoolWriter"]

logger = logging.getLogger(__name__)

# Between two listings of all names, if an object store lists only new ones in between: seconds, and this many times the
# duration of such a listing.
WHOLE_INTERVAL, WHOLE_PAUSE = 60.0, 100.0


class Spool:
    """A spool: its segments, its lock, and its writers.

    All methods raise OSError if the file system fails.

    Args:
        location: A path or the URI of an object store.
        mode: Permissions of new directories, and, without the x bits, of files. Local file systems only.

    Attributes:
        location: The location without credentials, for log lines and errors.

    Raises:
        ValueError: If the location is empty, or is a URI that can't be used.
    """

    def __init__(self, location: str, mode: int = PRIVATE) -> None:
        self.location = redact_uri(location)
        self._store = open_store(location, mode=mode)
        self._is_access_checked = False

    def __repr__(self) -> str:
        return f"Spool({self.location!r})"

    @property
    def is_local(self) -> bool:
        """True on a local file system, where a listing costs no request."""
        return isinstance(self._store, LocalStore)

    # --- owner and receivers

    def prepare(self) -> None:
        """Make the spool's directory. Log a warning if users that mode excludes can write there."""
        self._store.make_directory("")
        if isinstance(self._store, LocalStore) and not self._is_access_checked:
            self._is_access_checked = True
            if access := self._store.others_access():
                logger.warning(
                    "spool %s %s: others may delete and replace messages there. Change that with chmod or chown, or "
                    "give the option spoolMode, such as 2770, if it is meant so",
                    self.location,
                    access,
                )

    def lock(self, owner: str, source: str, timeout: float = 0.0) -> SpoolLock:
        """Lock the spool for the query that owns it.

        Args:
            owner: Name of the query, such as the URI of its checkpoint; may be empty.
            source: Topics and channel that the query reads, as ReadOptions.source.
            timeout: Seconds to wait while another process, which may be ending, has the lock.

        Raises:
            SpoolInUse: If the spool belongs to another query, or another process has locked it.
        """
        self.prepare()
        claim = {"owner": redact_uri(owner), "source": source}
        with self._with_hint():
            return SpoolLock(self._store, self.location, claim, timeout)

    def wait_for_end(self, timeout: float = END_TIMEOUT) -> bool:
        """Wait until the query that owns the spool has ended, and writes no more. False if not in time."""
        with self._with_hint():
            return wait_for_end(self._store, timeout)

    def check_source(self, source: str) -> None:
        """Check that a receiver of this source may write to the spool. If no query owns the spool, any may.

        Raises:
            SpoolInUse: If the spool belongs to a query with another channel, or with other topics alone.
        """
        with self._with_hint():
            owner = read_owner(self._store).get("source", source)
        if not may_follow(str(owner), source):
            raise SpoolInUse(
                f"spool {self.location} belongs to a query that reads {owner}, not {source}: give that query's topics "
                "and channel, or another spool"
            )

    def writer(self, receiver: str) -> SpoolWriter:
        """Make the directory of a new receiver; return the writer of its segments."""
        with self._with_hint():
            return SpoolWriter(self._store, receiver)

    # --- segments

    def listing(self) -> SpoolListing:
        """List all segments, without opening any."""
        listing = SpoolListing()
        self.update(listing)
        return listing

    def update(self, listing: SpoolListing, *, is_whole: bool = False, sees_deletions: bool = False) -> None:
        """Bring a listing up to date, as SpoolListing.update() does, and from time to time as a whole."""
        began = time.monotonic()
        is_whole = is_whole or began >= listing.whole_due
        with self._with_hint():
            listing.update(self._store, is_whole=is_whole, sees_deletions=sees_deletions)
        if is_whole:
            now = time.monotonic()
            listing.whole_due = now + max(WHOLE_INTERVAL, WHOLE_PAUSE * (now - began))

    def read(self, segment: Segment) -> list[Any]:
        """Read the record batches of a segment, with SCHEMA. A damaged segment is quarantined; the list is empty then.

        A segment may be read several times, by several processes, too: all get the same rows.

        Raises:
            SpoolIncomplete: If the segment does not exist any more.
            SpoolError: If a later version of gnsq wrote the segment.
        """
        try:
            with self._with_hint():
                data = self._store.read(segment.path)
        except FileNotFoundError:
            if self._store.size(segment.path + CORRUPT) is not None:
                return []
            raise SpoolIncomplete(
                f"spool {self.location}: segment {segment.path} is gone, with "
                f"{counted(segment.rows, 'message')}: bring it back, or go on without it, with a new checkpoint"
            ) from None
        try:
            return decode_segment(data, segment.rows, segment.path)
        except SegmentCorrupt as error:
            self._quarantine(segment, error)
            return []

    def _quarantine(self, segment: Segment, error: SegmentCorrupt) -> None:
        """Rename a damaged segment, so that the file is kept but not read again."""
        if self._store.rename(segment.path, segment.path + CORRUPT):
            logger.error(
                "spool %s: %s; renamed to %s. Its %s finished at nsqd and will be missing in the "
                "query's results: rescue what can be read, then delete the file",
                self.location,
                error,
                segment.path + CORRUPT,
                counted(segment.rows, "message was", "messages were"),
            )

    def prune(self, listing: SpoolListing, end: Vector) -> None:
        """Delete the segments up to end, and directories of receivers that have ended and have no segment left.

        Args:
            listing: The segments that exist. The deleted segments are removed from this listing, too.
        """
        self._store.remove(*(segment.path for segment in listing.segments.up_to(end)))
        listing.remove_up_to(end)
        for receiver in listing.ended:
            # Another process may have quarantined a segment after the listing.
            listing.update_receiver(self._store, receiver)
            if receiver in listing.ended:
                self._store.remove(f"{receiver}/{CLOSED}")
                self._store.remove_directory(receiver)
                listing.remove_receiver(receiver)

    def remove_leftovers(self, older_than: float = 600.0) -> None:
        """Delete temporary files and empty directories of killed receivers, older than some seconds.

        Local file systems only: object stores have no directories. A running receiver makes a deleted directory again.
        """
        if isinstance(self._store, LocalStore):
            self._store.remove_abandoned(time.time() - older_than)

    @contextlib.contextmanager
    def _with_hint(self) -> Iterator[None]:
        """Add a hint to the text of a PermissionError: it says how several users share a spool."""
        try:
            yield
        except PermissionError as error:
            hint = (
                f"{reason_of(error)}. Receivers, driver and executors that are several users need one group and the "
                "option spoolMode, such as 2770"
            )
            raise PermissionError(error.errno or errno.EACCES, hint, error.filename) from error


class SpoolWriter:
    """Writes the segments of one receiver, by calls that block. No other process writes to the receiver's directory."""

    def __init__(self, store: Store, receiver: str) -> None:
        self.receiver = receiver
        self._store = store
        store.make_directory(receiver)

    def write(self, number: int, columns: Sequence[Any]) -> int:
        """Write a segment. After write() returns, no crash loses the segment.

        Args:
            number: 1 for the first segment, 2 for the second, and so on. If write() raises, the file may still exist.
                Then write the same rows again with the same number; otherwise the query reads them twice.
            columns: Arrow arrays, in the order of SCHEMA.

        Returns:
            The size in bytes.
        """
        data = encode_segment(columns)
        size = int(data.size)
        self._store.put(Segment(self.receiver, number, size, len(columns[0])).path, data)
        return size

    def close(self, segments: int) -> None:
        """Record that the receiver writes no more. If it has written no segment, delete its directory instead."""
        if segments:
            self._store.put(f"{self.receiver}/{CLOSED}", json.dumps({"segments": segments}).encode())
        else:
            self._store.remove_directory(self.receiver)
