"""A version of a table: its files, their rows, and commits that add or replace files, for maintenance and replays.

Such a commit is of no batch: it changes neither which batches the table has nor whom it belongs to.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.delta import TableFile, delta_location, store_errors, write_entry
from gnsq.spark.pipeline.durable import sync_log
from gnsq.spark.pipeline.parquet import DataFile, partition_text
from gnsq.spark.spool.storage import Store

__all__ = ["PATH", "Snapshot", "open_snapshot", "read_rows"]

# Limit of the bytes of the rows that read_rows() reads at a time, about.
READ_BYTES = 16 * 2**20
# Column of Snapshot.listing with the path of a file: the blank tells it from columns of the table.
PATH = "the path"


class Snapshot:
    """A version of a table: that of a DeltaTable when this is made. Methods raise JobFailed if the store fails.

    Attributes:
        version: Its number.
        schema: pyarrow's, of all columns.
        partition_columns: Names of those that are not in the files.
    """

    def __init__(self, location: str, delta: DeltaTable) -> None:
        self.location = location
        self.version = delta.version()
        self.schema = pa.schema(delta.schema().to_arrow())
        self.partition_columns = delta.metadata().partition_columns
        self._delta = delta
        self._actions = pa.table(delta.get_add_actions(flatten=True))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(self._actions.column("num_records").to_pylist())

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
        """Return the lowest and the highest value of a column; None for one that the log does not have."""
        names = {"min": f"min.{column}", "max": f"max.{column}"}
        if not set(names.values()) <= set(self._actions.column_names):
            return None, None
        lowest, highest = (self._actions.column(name) for name in names.values())
        return pc.min(lowest).as_py(), pc.max(highest).as_py()

    def between(self, column: str, lowest: Any, highest: Any) -> Snapshot:
        """Return the version without files in which all values of a column are lower or higher, as the log says."""
        if lowest is None or highest is None or f"max.{column}" not in self._actions.column_names:
            return self
        least, most = (pc.field(f"{kind}.{column}") for kind in ("min", "max"))
        is_other = (least > pa.scalar(highest)) | (most < pa.scalar(lowest))
        found = copy.copy(self)
        found._actions = self._actions.filter(is_other.is_null() | ~is_other)
        return found

    def commit(
        self,
        added: Collection[DataFile],
        removed: Collection[TableFile] = (),
        *,
        transaction: tuple[str, int] | None = None,
        is_merge: bool = False,
    ) -> bool:
        """Add and remove files, all or none; the removed ones are this version's.

        Args:
            transaction: An application and its version.
            is_merge: The rows stay the same.

        Returns:
            False if nothing was done: with removed, if there is a newer version; else if, since this version, the same
            application has committed, or the columns or properties have changed.
        """
        # A batch may have written an entry and not synced it. No start mends a torn entry that others follow.
        sync_log(self.location, f"{self.version:020}.json")
        transactions = [] if transaction is None else [Transaction(*transaction)]
        # By itself delta-rs would try again on a newer version, without a check that the old files are there.
        retries = 0 if removed else None
        try:
            write_entry(self._delta, self.location, added, removed, transactions, retries=retries, is_merge=is_merge)
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
