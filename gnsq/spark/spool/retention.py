"""Retention of a spool: which segments its owner may delete, and their deletion. `Retention` is pure."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Set
from dataclasses import dataclass

from gnsq.spark.offsets import Segment, Vector, slowest
from gnsq.spark.spool.index import SegmentIndex, Totals
from gnsq.spark.spool.listing import SpoolListing
from gnsq.spark.spool.positions import GONE_AFTER, ReaderState
from gnsq.spark.spool.spool import Spool
from gnsq.texts import counted

__all__ = ["Retention", "SpoolPruner"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits for segments that stay in a spool after all queries have read them. Without any limit they do not stay.

    Attributes:
        seconds: Limit of the time since a segment was received.
        size: Limit of the bytes of all these segments together.
    """

    seconds: float | None = None
    size: int | None = None

    def deletable(self, segments: SegmentIndex, read: Vector, now: float) -> dict[str, int]:
        """Compute the vector up to which segments may be deleted. The oldest segments are deleted first.

        Args:
            segments: The segments of the spool.
            read: The vector up to which all queries have read.
            now: Seconds since 1970.
        """
        if self.seconds is None and self.size is None:
            return dict(read)
        kept = segments.totals({}, read).size
        waiting = segments.waiting({}, read)
        # The oldest segment of each receiver. A receiver numbers its segments in the order in which it writes them.
        oldest: list[tuple[int, str, Segment]] = []
        for receiver, queue in waiting.items():
            segment = next(queue)
            oldest.append((segment.received_ms or 0, receiver, segment))
        heapq.heapify(oldest)
        end: dict[str, int] = {}
        while oldest and (self._is_over(oldest[0][0], now) or (self.size is not None and kept > self.size)):
            _, receiver, segment = heapq.heappop(oldest)
            end[receiver] = segment.number
            kept -= segment.size
            later = next(waiting[receiver], None)
            if later is not None:
                heapq.heappush(oldest, (later.received_ms or 0, receiver, later))
        return end

    def _is_over(self, received_ms: int, now: float) -> bool:
        return self.seconds is not None and received_ms <= (now - self.seconds) * 1000


class SpoolPruner:
    """Deletes segments of a spool for the query that owns it, except those that readers need or that are retained.

    Args:
        retention: How long segments stay after all queries have read them.
        max_held: Bytes of unread segments of a reader above which a warning is logged.

    Attributes:
        owner_position: The vector up to which segments were read by the owner, and may still be in the spool. Empty if
            the spool has never kept any: then each segment that was read is deleted.
    """

    def __init__(self, spool: Spool, retention: Retention, max_held: int) -> None:
        self.owner_position = spool.positions.owner()
        self._spool = spool
        self._retention = retention
        self._max_held = max_held
        # Names of readers that were warned about, until they have caught up.
        self._warned: set[str] = set()

    def prune(self, listing: SpoolListing, committed: Vector, now: float) -> None:
        """Delete the segments up to committed that no reader needs and that are not retained.

        Args:
            listing: The segments that exist. The deleted segments are removed from it, too.
            committed: The vector up to which the owner's batches are committed.
            now: Seconds since 1970.

        Raises:
            OSError: If the file system fails.
        """
        segments, timeout = listing.segments, max(self._retention.seconds or 0.0, GONE_AFTER)
        states = self._spool.positions.readers()
        readers = [reader for reader in states if not reader.is_gone(now, timeout)]
        read = slowest([committed, *(reader.position for reader in readers)])
        end = self._retention.deletable(segments, read, now)
        for reader in states:
            if reader not in readers and (lost := segments.totals(reader.position, end)).segments:
                self._remove(reader, timeout, lost)
        for reader in readers:
            self._warn_if_slow(reader, segments.totals(reader.position, committed).size)
        # Delete first: on a full disk, the position can be written only after that.
        self._spool.prune(listing, end)
        if segments.totals({}, committed).segments:
            self._write_position(committed, listing.receivers)

    def _remove(self, reader: ReaderState, timeout: float, lost: Totals) -> None:
        """Remove the position of a reader, so that it learns that it has lost segments, if it ever runs again."""
        self._spool.positions.remove_reader(reader)
        logger.warning(
            "spool %s: reader %s has not run for %.0f s: %s that it has not read are deleted",
            *(self._spool.location, reader.name, timeout, counted(lost.segments, "segment")),
        )

    def _write_position(self, committed: Vector, receivers: Set[str]) -> None:
        # A query with a new checkpoint reads retained segments again. They do not count as unread a second time, since
        # receivers would wait for it.
        position = {
            receiver: max(committed.get(receiver, 0), self.owner_position.get(receiver, 0)) for receiver in receivers
        }
        if position != self.owner_position:
            self._spool.positions.write_owner(position)
            self.owner_position = position

    def _warn_if_slow(self, reader: ReaderState, size: int) -> None:
        if size <= self._max_held:
            self._warned.discard(reader.name)
        elif reader.name not in self._warned:
            self._warned.add(reader.name)
            logger.warning(
                "spool %s: reader %s holds back %d bytes of segments that the owner has read. It runs too slowly, or "
                "does not run; to give it up, delete %s",
                *(self._spool.location, reader.name, size, reader.path),
            )
