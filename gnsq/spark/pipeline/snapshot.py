"""A version of a table: its files, their rows, and commits that add or replace files, but are of no batch.

Maintenance, metrics and replays make such commits, which change neither which batches the table has nor whom it belongs
to.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.checkpoint import hash_of
from gnsq.spark.pipeline.delta import TableFile, delta_location, log_entry, store_errors, write_entry
from gnsq.spark.pipeline.durable import sync_log
from gnsq.spark.pipeline.parquet import DERIVED, DataFile, partition_text
from gnsq.spark.spool.storage import Store, open_store
from gnsq.spark.uris import redact_uri

__all__ = ["PATH", "COUNTED", "Changes", "FileTimes", "Snapshot", "existing_snapshot", "open_snapshot", "read_rows"]

# Limit of the bytes of the rows that read_rows() reads at a time, about.
READ_BYTES = 16 * 2**20
# Application in the log of a metric's table: the version of the table of events that is counted.
COUNTED = "gnsq:counted"
# Column of Snapshot.listing with the path of a file: the blank tells it from columns of the table.
PATH = "the path"
# Limit of the log entries that changes_since() reads: each is a request.
MAX_ENTRIES = 20_000


class FileTimes(NamedTuple):
    """A file, and the lowest and the highest _time of its events, or (None, None) if the log does not have them."""

    path: str
    lowest: dt.datetime | None
    highest: dt.datetime | None


class Changes(NamedTuple):
    """Files whose rows have come or gone between two versions, whether a version in between had them or not.

    Attributes:
        changed: Files that were added, or were removed and have left others of their time in the table.
        dropped: Files that were removed with all files of their day, hour and month.
    """

    changed: list[FileTimes]
    dropped: list[FileTimes]


class Snapshot:
    """A version of a table: that of a DeltaTable when this is made. Methods raise JobFailed if the store fails.

    Attributes:
        version: Its number.
        table_id: Delta's id of the table. A table that is made anew at the same place has another one.
        schema: pyarrow's, of all columns.
        partition_columns: Names of those that are not in the files.
    """

    def __init__(self, location: str, delta: DeltaTable) -> None:
        self.location = location
        self.version = delta.version()
        self.table_id = str(delta.metadata().id)
        self.schema = pa.schema(delta.schema().to_arrow())
        self.partition_columns = delta.metadata().partition_columns
        self._delta = delta
        self._actions = pa.table(delta.get_add_actions(flatten=True))

    @property
    def rows(self) -> int:
        """Number of rows. A file for which another writer has left the number out counts as one row."""
        return sum(1 if number is None else number for number in self._actions.column("num_records").to_pylist())

    @property
    def files(self) -> list[TableFile]:
        """The files, in no order."""
        names = ["path", "size_bytes", "modification_time", *(f"partition.{name}" for name in self.partition_columns)]
        found = zip(*(self._actions.column(name).to_pylist() for name in names), strict=True)
        return [
            TableFile(unquote(path), size, tuple(map(partition_text, values)), at / 1000)
            for path, size, at, *values in found
        ]

    @property
    def listing(self) -> Any:  # Any: pyarrow has no types
        """A pyarrow.Table with the path of each file, in the column PATH, and the values of its partition."""
        paths = pa.array([file.path for file in self.files], pa.string())
        values = {name: self._actions.column(f"partition.{name}") for name in self.partition_columns}
        return pa.table({PATH: paths, **values})

    def bounds(self, column: str) -> tuple[Any, Any]:
        """Return the lowest and the highest value of a column; None if the log does not have those of each file."""
        names = {"min": f"min.{column}", "max": f"max.{column}"}
        if not set(names.values()) <= set(self._actions.column_names):
            return None, None
        lowest, highest = (self._actions.column(name) for name in names.values())
        if lowest.null_count or highest.null_count:
            return None, None
        return pc.min(lowest).as_py(), pc.max(highest).as_py()

    def where(self, column: str, may_have: Callable[[Any, Any], bool]) -> Snapshot:
        """Return the version without files for whose lowest and highest value of a column, as the log has them,
        may_have() returns False. Files of which the log has none stay."""
        names = (f"min.{column}", f"max.{column}")
        if not set(names) <= set(self._actions.column_names):
            return self
        bounds = zip(*(self._actions.column(name).to_pylist() for name in names), strict=True)
        found = copy.copy(self)
        found._actions = self._actions.filter(
            pa.array([None in each or may_have(*each) for each in bounds], pa.bool_())
        )
        return found

    def entry_hash(self, version: int) -> int:
        """Return the hash of a log entry, which tells versions of the same number apart; 0 if the log lacks it."""
        try:
            return hash_of(json.dumps(log_entry(open_store(self.location, "output"), version)).encode())
        except FileNotFoundError:
            return 0

    def changes_since(self, version: int) -> Changes | None:
        """Read from the log which files have changed the rows since an older version. Merges change none.

        On a local disk these entries are on it afterwards.

        Returns:
            None if the log does not have all that is needed any more, or has too many entries.
        """
        numbers = range(version + 1, self.version + 1)
        if len(numbers) > MAX_ENTRIES:
            return None
        store = open_store(self.location, "output")
        try:
            entries = [log_entry(store, number) for number in numbers]
        except FileNotFoundError:
            return None
        sync_log(self.location, *(f"{number:020}.json" for number in numbers))
        by_time = [place for place, name in enumerate(self.partition_columns) if name in DERIVED]
        # Part of time -> number of its files, after the entry that is looked at.
        left = Counter(tuple(file.partition[place] for place in by_time) for file in self.files)
        added: list[FileTimes] = []
        removed: list[tuple[str, bool]] = []
        # Of the files that entries add, also by a merge.
        times: dict[str, FileTimes] = {}
        for entry in reversed(entries):
            removals = [action["remove"] for action in entry if "remove" in action]
            for file in removals:
                if file.get("partitionValues") is None:
                    return None
                if file["dataChange"]:
                    removed.append((unquote(file["path"]), bool(by_time) and not left[self._part(file, by_time)]))
            left.update(self._part(file, by_time) for file in removals)
            additions = [action["add"] for action in entry if "add" in action]
            left.subtract(self._part(file, by_time) for file in additions)
            times |= {file.path: file for file in map(_times_of, additions)}
            added += [_times_of(file) for file in additions if file["dataChange"]]
        if not removed:
            return Changes(added, [])
        try:
            times |= self._at(version).times
        except JobFailed:
            return None
        found = [(times.get(path, FileTimes(path, None, None)), is_dropped) for path, is_dropped in removed]
        changed = [file for file, is_dropped in found if not is_dropped]
        return Changes(added + changed, [file for file, is_dropped in found if is_dropped])

    def _part(self, file: dict[str, Any], by_time: list[int]) -> tuple[str | None, ...]:  # Any: JSON
        return tuple(file["partitionValues"].get(self.partition_columns[place]) for place in by_time)

    def _at(self, version: int) -> Snapshot:
        uri, options = delta_location(self.location)
        with store_errors(self.location):
            return Snapshot(self.location, DeltaTable(uri, version=version, storage_options=options))

    @property
    def times(self) -> dict[str, FileTimes]:
        """The files of a table of events by their paths."""
        names = [name if name in self._actions.column_names else None for name in ("min._time", "max._time")]
        paths = [file.path for file in self.files]
        none = [None] * len(paths)
        lowest, highest = (none if name is None else self._actions.column(name).to_pylist() for name in names)
        return {file.path: file for file in map(FileTimes, paths, lowest, highest)}

    def application(self, name: str) -> int | None:
        """Return the version of an application, as the newest commit with a transaction of it has it."""
        return self._delta.transaction_version(name)

    def commit(
        self,
        added: Collection[DataFile],
        removed: Collection[TableFile] = (),
        *,
        transactions: Collection[tuple[str, int]] = (),
        is_merge: bool = False,
    ) -> bool:
        """Add and remove files, all or none; the removed ones are this version's.

        Args:
            transactions: Applications and their versions.
            is_merge: The rows stay the same.

        Returns:
            False if nothing was done: with removed, if there is a newer version; else if, since this version, one of
            these applications has committed, or the columns or properties have changed.
        """
        # A batch may have written an entry and not synced it. No start mends a torn entry that others follow.
        sync_log(self.location, f"{self.version:020}.json")
        applications = [Transaction(*each) for each in transactions]
        # By itself delta-rs would try again on a newer version, without a check that the old files are there.
        retries = 0 if removed else None
        try:
            write_entry(self._delta, self.location, added, removed, applications, retries=retries, is_merge=is_merge)
        except JobFailed as error:
            if isinstance(error.__cause__, CommitFailedError):
                return False
            raise
        with store_errors(self.location):
            self._delta.update_incremental()
        # Others may have committed meanwhile, so this commit is not always the newest entry.
        written = range(self.version + 1, self._delta.version() + 1)
        sync_log(self.location, *(f"{version:020}.json" for version in written))
        return True


def _times_of(added: dict[str, Any]) -> FileTimes:  # Any: JSON
    stats = json.loads(added.get("stats") or "{}")
    texts = [stats.get(kind, {}).get("_time") for kind in ("minValues", "maxValues")]
    lowest, highest = (dt.datetime.fromisoformat(text) if all(texts) else None for text in texts)
    return FileTimes(unquote(added["path"]), lowest, highest)


def open_snapshot(location: str) -> Snapshot | None:
    """Return the newest version of a table; None if there is no table.

    Raises:
        JobFailed: If the store fails.
    """
    uri, options = delta_location(location)
    with store_errors(location):
        try:
            return Snapshot(location, DeltaTable(uri, storage_options=options))
        except TableNotFoundError:
            return None


def existing_snapshot(location: str) -> Snapshot:
    """Return the newest version of a table.

    Raises:
        JobFailed: If there is no table, or the store fails.
    """
    found = open_snapshot(location)
    if found is None:
        raise JobFailed(f"table {redact_uri(location)} was deleted meanwhile")
    return found


def read_rows(store: Store, path: str, columns: list[str] | None = None) -> Iterator[Any]:  # Any: pyarrow has no types
    """Read a file; yield record batches of bounded size.

    Args:
        columns: Default: all. The file may lack some.
    """
    with store.open(path) as opened, pq.ParquetFile(opened) as parquet:
        metadata = parquet.metadata
        size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        rows = max(READ_BYTES * metadata.num_rows // max(size, 1), 1)
        yield from parquet.iter_batches(rows, columns=columns, use_threads=False)
