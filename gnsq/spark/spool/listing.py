"""Listing of a spool: the files that are known, brought up to date by few requests.

A query lists its spool several times a second, and the spool may hold 300,000 segments that wait. So a listing reads
names alone, which have all that is to be known of a segment. An object store lists names in their order: a listing goes
on after the last known name. Now and then, a listing of all names shows which of the others are gone.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field

from gnsq.spark.offsets import Segment, Vector
from gnsq.spark.spool.index import SegmentIndex
from gnsq.spark.spool.storage import Store

__all__ = ["CLOSED", "CORRUPT", "PAGE", "SpoolListing"]

# Names of files in the directory of a receiver. An object store lists CLOSED after all segments.
CLOSED = "closed.json"
CORRUPT = ".corrupt"
_SEGMENT = re.compile(r"(?P<number>\d{12})-(?P<rows>\d+)-(?P<size>\d+)\.arrow(?P<corrupt>\.corrupt)?")
# Number of names in one response of an object store. Fewer names are listed from the first by the same single request.
PAGE = 1000


@dataclass(slots=True)
class _Directory:
    """State of one receiver's directory: its files (None: not a segment), and the highest number ever seen."""

    files: dict[str, Segment | None] = field(default_factory=dict)
    highest: int = 0


class SpoolListing:
    """The files of a spool, as the updates so far have found them. An update may raise OSError.

    Attributes:
        segments: Segments that are not known to be damaged.
        quarantined: Segments that could not be decoded.
        closed: Ids of receivers that have ended, and write no more.
        whole_due: Time, by the clock of the owner, when all names must be listed again.
    """

    def __init__(self) -> None:
        self.segments = SegmentIndex()
        self.quarantined: set[Segment] = set()
        self.closed: set[str] = set()
        self.whole_due = 0.0
        self._directories: dict[str, _Directory] = {}

    @property
    def receivers(self) -> set[str]:
        """Ids of receivers that have any file."""
        return {receiver for receiver, directory in self._directories.items() if directory.files}

    @property
    def size(self) -> int:
        """Bytes of all segments that are not quarantined."""
        return self.segments.totals({}).size

    @property
    def rows_quarantined(self) -> int:
        """Messages in quarantined segments: they are missing in the results of the query."""
        return sum(segment.rows for segment in self.quarantined)

    def update(self, store: Store, *, is_whole: bool = True, sees_deletions: bool = False) -> None:
        """List the spool.

        Args:
            is_whole: List all names. If False, an object store lists only new names where many are known; then this
                listing keeps files that other processes have deleted or quarantined.
            sees_deletions: Remove at least the first segments of each receiver if a query has deleted them.
        """
        present = set(store.directories())
        for receiver in self._directories.keys() - present:
            self._forget(receiver, set(self._directories[receiver].files))
        for receiver in present:
            is_small = len(self._directory(receiver).files) < PAGE
            if is_whole or is_small or not store.lists_in_order or self._list_new(store, receiver):
                self.update_receiver(store, receiver)
            elif sees_deletions:
                self._forget_first(store, receiver)

    def update_receiver(self, store: Store, receiver: str) -> None:
        """List all names in the directory of one receiver."""
        if self._list(store, receiver):
            # A listing may miss a segment that appears meanwhile, and find a later one. The next listing finds both.
            self._list(store, receiver)

    @property
    def ended(self) -> set[str]:
        """Ids of receivers that have ended, and have no segment left, not even a quarantined one."""
        return self.closed - self.segments.last().keys() - {segment.receiver for segment in self.quarantined}

    def remove_up_to(self, end: Vector) -> None:
        """Remove the segments up to an offset, since they were deleted."""
        for segment in self.segments.up_to(end):
            del self._directories[segment.receiver].files[segment.name]
        self.segments.remove_up_to(end)

    def remove_receiver(self, receiver: str) -> None:
        """Remove a receiver that has ended, since its directory was deleted."""
        self.closed.discard(receiver)
        self._directories.pop(receiver, None)

    # --- one directory

    def _directory(self, receiver: str) -> _Directory:
        return self._directories.setdefault(receiver, _Directory())

    def _list(self, store: Store, receiver: str) -> bool:
        names = store.names(receiver)
        self._forget(receiver, self._directory(receiver).files.keys() - names)
        return self._add(receiver, names)

    def _list_new(self, store: Store, receiver: str) -> bool:
        # No name has only digits. So this is after all names with the highest number, and before all later ones.
        return self._add(receiver, store.names(receiver, f"{self._directory(receiver).highest + 1:012d}"))

    def _forget_first(self, store: Store, receiver: str) -> None:
        first = _SEGMENT.fullmatch(store.first_name(receiver) or "")
        if first is not None and not first["corrupt"]:
            # A query deletes segments in the order of their numbers.
            self.remove_up_to({receiver: int(first["number"]) - 1})
        else:
            # A quarantined segment stays when the others are deleted, and so does closed.json.
            self.update_receiver(store, receiver)

    def _add(self, receiver: str, names: Set[str]) -> bool:
        """Add files that are not known yet. Return True if numbers between the known segments and these are missing."""
        directory = self._directory(receiver)
        found = {name: _segment(receiver, name) for name in names - directory.files.keys()}
        directory.files |= found
        if CLOSED in found:
            self.closed.add(receiver)
        self.segments.add(each for name, each in found.items() if each and not name.endswith(CORRUPT))
        self.quarantined |= {each for name, each in found.items() if each and name.endswith(CORRUPT)}
        later = {each.number for each in found.values() if each and each.number > directory.highest}
        before, directory.highest = directory.highest, max(later, default=directory.highest)
        return directory.highest - before != len(later)

    def _forget(self, receiver: str, names: Set[str]) -> None:
        files = self._directory(receiver).files
        gone = {name: files.pop(name) for name in names}
        if CLOSED in gone:
            self.closed.discard(receiver)
        self.segments.discard({each for name, each in gone.items() if each and not name.endswith(CORRUPT)})
        self.quarantined -= {each for name, each in gone.items() if each and name.endswith(CORRUPT)}


def _segment(receiver: str, name: str) -> Segment | None:
    match = _SEGMENT.fullmatch(name)
    return match and Segment(receiver, int(match["number"]), int(match["size"]), int(match["rows"]))
