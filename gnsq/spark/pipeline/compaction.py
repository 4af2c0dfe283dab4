"""Compaction: the many small files of a closed hour become one, by exchange of the hour's directory.

Steps, of which each may be the last before a crash:

    merge     write one file of all rows into _compacting/HOUR
    link      with the lock that BatchFiles takes, link all other files of the hour into it
    exchange  HOUR and _compacting/HOUR
    remove    _compacting/HOUR, which is the old one now

At any time HOUR has every row once; what is below _compacting can go at the next start. Only files of committed
batches are merged: a batch that was not committed may run again, and overwrites its files by their names.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gnsq.spark.pipeline.files import batch_of, sync
from gnsq.texts import counted

__all__ = [
    "Compaction",
    "Compactor",
    "closed_hours",
    "exchange",
    "finish_exchange",
    "mergeable",
]

logger = logging.getLogger(__name__)


# Linux <fcntl.h>, <linux/fs.h>.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The system or the file system (such as NFS) can't.
_CANNOT = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def exchange(directory: Path, other: Path, aside: Path) -> None:
    """Give each of two directories the other's name.

    Args:
        aside: A name that is free, on the same file system; used where the system can't do it in one step. After a
            crash in between it holds what was in directory: finish_exchange() puts it back.

    Raises:
        OSError: If that fails.
    """
    try:
        _rename_exchange(directory, other)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        directory.rename(aside)
        other.rename(directory)
        aside.rename(other)


def finish_exchange(directory: Path, aside: Path) -> None:
    """After a crash: put back what was set aside, if nothing is in its place."""
    if aside.is_dir() and not directory.exists():
        aside.rename(directory)


def _rename_exchange(directory: Path, other: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_AT_FDCWD, os.fsencode(directory), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))


_HOUR = dt.timedelta(hours=1)


def closed_hours(directories: Iterable[str], watermark_delay: float) -> list[str]:
    """List the directories ``hour=2026-01-01T10`` into which only late events still come.

    Args:
        directories: Names; others are left out.
        watermark_delay: Seconds; an hour is closed when it ended so long before the latest hour began.
    """
    hours = {name: hour for name in directories if (hour := _hour_of(name)) is not None}
    if not hours:
        return []
    latest, delay = max(hours.values()), dt.timedelta(seconds=watermark_delay)
    return sorted(name for name, hour in hours.items() if latest - hour >= _HOUR + delay)


def mergeable(files: Iterable[tuple[str, int | None]], committed: int, least: int) -> list[str]:
    """List the files to merge into one: all, but those of a batch that may run again and would write them again.

    Args:
        files: (name, batch that wrote it, or None for a merged one).
        committed: Last batch that is in the query's commit log.
        least: Fewer are not worth it.
    """
    names = sorted(name for name, batch in files if batch is None or batch <= committed)
    return names if len(names) >= max(least, 2) else []


def _hour_of(directory: str) -> dt.datetime | None:
    try:
        return dt.datetime.strptime(directory, "hour=%Y-%m-%dT%H")
    except ValueError:
        return None


_NEW, _OLD = "_compacting", "_replaced"
# Up to so many bytes in memory rows are sorted by event time; more are copied as they come.
SORTED_BYTES = 64 * 1024 * 1024
ROWS = 20_000


class _Stopped(Exception):
    """Somebody asked to stop."""


class Compaction:
    """Merges files below one directory of hours.

    Args:
        root: Has the directories ``hour=...``.
        lock: BatchFiles'.
        watermark_delay: Seconds, for which hours are closed.
        least: Files that an hour must have.
    """

    def __init__(self, root: Path, lock: threading.Lock, watermark_delay: float, least: int) -> None:
        self.files = 0
        self.times = 0
        self._root = root
        self._lock = lock
        self._delay = watermark_delay
        self._least = least
        # Hours that need no look before their directory changes, with its modification time.
        self._settled: dict[str, int] = {}
        self._warned: set[str] = set()

    def recover(self) -> None:
        """Remove what a crash has left. Nothing else may write below the root meanwhile.

        Raises:
            OSError: If that fails.
        """
        for aside in (self._root / _OLD).glob("hour=*"):
            finish_exchange(self._root / aside.name, aside)
        for leftover in (_NEW, _OLD):
            if (self._root / leftover).exists():
                shutil.rmtree(self._root / leftover)

    def run(self, committed: int, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Compact all closed hours that are worth it. An hour that can't be is left as it is, with a WARNING.

        Args:
            committed: Last batch in the query's commit log.
        """
        if not self._least or not self._root.is_dir():
            return
        for hour in closed_hours([path.name for path in self._root.glob("hour=*")], self._delay):
            if is_stopping():
                return
            if self._settled.get(hour) == self._modified(hour):
                continue
            try:
                self._compact(hour, committed, is_stopping)
            except _Stopped:
                shutil.rmtree(self._root / _NEW / hour)
                return
            except (OSError, pa.ArrowException, ValueError) as error:
                level = logging.DEBUG if hour in self._warned else logging.WARNING
                logger.log(level, "%s/%s not compacted: %s", self._root, hour, error)
                self._warned.add(hour)
                shutil.rmtree(self._root / _NEW / hour, ignore_errors=True)

    def _modified(self, hour: str) -> int:
        return (self._root / hour).stat().st_mtime_ns

    def _compact(self, hour: str, committed: int, is_stopping: Callable[[], bool]) -> None:
        modified = self._modified(hour)
        found = self._names(hour)
        names = mergeable(found, committed, self._least)
        if not names:
            if all(batch is None or batch <= committed for _, batch in found):
                self._settled[hour] = modified
            return
        new = self.merge(hour, names, is_stopping)
        with self._lock:
            self.link(hour, names)
            self.exchange(hour)
        shutil.rmtree(new)
        self.times += 1
        self.files += len(names)

    def _names(self, hour: str) -> list[tuple[str, int | None]]:
        return [(path.name, batch_of(path.name)) for path in (self._root / hour).glob("*.parquet")]

    def merge(self, hour: str, names: list[str], is_stopping: Callable[[], bool] = lambda: False) -> Path:
        """Write one file of many, with the same rows; returns its directory."""
        new = self._root / _NEW / hour
        new.mkdir(parents=True)
        sources = [_source(self._root / hour / name) for name in names]
        schema = pa.unify_schemas([source.schema for source in sources])
        # Names are never used again: a merged file may be merged in its turn.
        target = new / f"merged-{_next_number(names):06d}.parquet"
        with pq.ParquetWriter(target, schema) as writer:
            for table in _tables(sources, schema):
                if is_stopping():
                    raise _Stopped
                writer.write_table(table)
        expected = sum(source.rows for source in sources)
        written = pq.read_metadata(target).num_rows
        if written != expected:
            raise ValueError(f"{target} has {counted(written, 'row')}, {expected} were due")
        sync(target)
        return new

    def link(self, hour: str, names: list[str]) -> None:
        """Take over the files that are not merged. Call with the lock held, and exchange() before it is let go."""
        new = self._root / _NEW / hour
        for path in (self._root / hour).iterdir():
            if path.name not in names:
                os.link(path, new / path.name)
        sync(new)

    def exchange(self, hour: str) -> None:
        """Put the new directory in the place of the old one."""
        (self._root / _OLD).mkdir(exist_ok=True)
        exchange(self._root / hour, self._root / _NEW / hour, self._root / _OLD / hour)
        for directory in (self._root, self._root / _NEW):
            sync(directory)


@dataclass(frozen=True, slots=True)
class _Source:
    """What a file's footer says; size is that of its rows, uncompressed."""

    path: Path
    schema: Any  # Any: pyarrow has no types
    rows: int
    size: int

    def batches(self) -> Iterator[Any]:
        with pq.ParquetFile(self.path) as file:
            # One CPU: the batches of the job need the others.
            yield from file.iter_batches(batch_size=ROWS, use_threads=False)


def _source(path: Path) -> _Source:
    """Read a footer, and close the file: a busy hour has more files than a process may open."""
    with pq.ParquetFile(path) as file:
        groups = range(file.num_row_groups)
        size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        return _Source(path, file.schema_arrow.remove_metadata(), file.metadata.num_rows, size)


def _tables(sources: list[_Source], schema: Any) -> Iterator[Any]:  # Any: as above
    batches = (batch for source in sources for batch in source.batches())
    tables = (_fitted(pa.Table.from_batches([batch]), schema) for batch in batches)
    size = sum(source.size for source in sources)
    if size > SORTED_BYTES or "event_time" not in schema.names:
        yield from tables
        return
    whole = list(tables)
    if whole:
        yield pa.concat_tables(whole).sort_by("event_time")


def _fitted(table: Any, schema: Any) -> Any:  # Any: as above
    """Add the columns that a file does not have, for it was written with other fields."""
    columns = [
        table.column(field.name) if field.name in table.schema.names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _next_number(names: list[str]) -> int:
    numbers = [int(Path(name).stem.removeprefix("merged-")) for name in names if name.startswith("merged-")]
    return max(numbers, default=0) + 1


class Compactor:
    """Runs a Compaction in a thread of its own, beside the batches."""

    def __init__(self, compaction: Compaction) -> None:
        self._compaction = compaction
        self.last_committed = -1
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gnsq-compaction", daemon=True)
        self._thread.start()

    def committed(self, batch_id: int) -> None:
        """Tell that a batch is in the commit log."""
        self.last_committed = max(self.last_committed, batch_id)
        self._changed.set()

    def stop(self) -> None:
        """End; an hour that is being merged stays as it is."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait()  # stop() sets it, too
            self._changed.clear()
            self._compaction.run(self.last_committed, self._stopping.is_set)
