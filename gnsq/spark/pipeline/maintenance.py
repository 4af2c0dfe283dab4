"""Maintenance of tables, in a process of its own, so that no batch waits for it.

Steps; the process may be killed after each of them:

    merge        replace small files of a partition by a larger one; readers of older versions use the old files
    checkpoint   write a checkpoint of the log, and delete log entries older than the log's retention (30 days)
    vacuum       delete files that no version of the last RETENTION seconds needs: files that a merge has replaced,
                 and files of tasks that were killed

A merged file is on disk before the files that it replaces are deleted. Batches only append, so a merge never makes a
batch's commit fail; a count of a metric that it makes fail commits again. Several processes may maintain a table at
once: a merge is committed only onto a version that still has all files that it replaces. delta-rs has a merge, too. It
is not used: after two such merges of the same files at once, every row is in the table twice; and it writes whole
bodies into the log as statistics.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.delta import TableFile, delta_location
from gnsq.spark.pipeline.durable import sync_directories, sync_log
from gnsq.spark.pipeline.parquet import (
    DataFile,
    Partitioning,
    TableTarget,
    conformed,
    store_error,
    write_file,
)
from gnsq.spark.pipeline.snapshot import READ_BYTES, Snapshot, read_rows
from gnsq.spark.spool.storage import Store, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = [
    "RETENTION",
    "Maintenance",
    "groups",
    "maintain_table",
    "maintain_tables",
    "merge_files",
    "vacuum",
]

logger = logging.getLogger(__name__)

DAY = 86_400.0
# Seconds for which files are kept, or longer, after a merge has replaced them. A reader of an older version may fail.
RETENTION = 7 * DAY
# Seconds. A partition counts as complete if all its files are older. Files that a replay adds later are merged, too.
QUIET = 600.0
# Limit of the bytes of the files that are merged into one file. That file is in memory until it is written.
TARGET = 64 * 2**20
# In a partition that is not complete, files below BUSY_BYTES are merged if there are at least BUSY_FILES of them.
BUSY_FILES, BUSY_BYTES = 100, 4 * 2**20
# Number of merged files in one commit. After a kill, so many are written again.
COMMIT_FILES = 100
_TRIES = 20
# File in a table's directory with the time of its last vacuum. Readers and other vacuums leave it alone.
_VACUUMED = "_gnsq-vacuumed"


# --- one table


def groups(files: Iterable[TableFile], now: float, quiet: float = QUIET) -> Iterator[list[TableFile]]:
    """Choose the files that are merged: each group has at least two, of one partition. Pure."""
    by_partition: dict[tuple[str | None, ...], list[TableFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        by_partition.setdefault(file.partition, []).append(file)
    for found in by_partition.values():
        if max(file.written_at for file in found) > now - quiet:
            found = [file for file in found if file.size < BUSY_BYTES]
            if len(found) < BUSY_FILES:
                continue
        group: list[TableFile] = []
        size = 0
        for file in found:
            if group and size + file.size > TARGET:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if len(group) > 1:
            yield group


def maintain_table(location: str, *, retention: float | None, quiet: float = QUIET) -> int:
    """Merge, checkpoint and vacuum one table, if it exists. Return how many files were merged.

    Args:
        retention: Seconds; None: leave out the vacuum, which lists all files.

    Raises:
        JobFailed: If the store fails, or as merge_files().
    """
    uri, options = delta_location(location)
    try:
        if not DeltaTable.is_deltatable(uri, storage_options=options):
            return 0
        delta = DeltaTable(uri, storage_options=options)
        merged = merge_files(delta, location, quiet)
        # A batch may have written the log entry of this version and not synced it yet. If a power failure tore the
        # entry after the checkpoint was made, this version would exist in the checkpoint only.
        sync_log(location, f"{delta.version():020}.json")
        delta.create_checkpoint()
        sync_log(location, f"{delta.version():020}.checkpoint.parquet", "_last_checkpoint")
        delta.cleanup_metadata()
        if retention is not None:
            vacuum(delta, location, retention)
        return merged
    except (DeltaError, OSError) as error:
        raise store_error(location, error) from error


def merge_files(delta: DeltaTable, location: str, quiet: float = QUIET) -> int:
    """Merge small files with bounded memory; return how many files were merged.

    Files that another process has merged or deleted meanwhile are left out; the new file is left to the vacuum.

    Raises:
        JobFailed: If another process was first in each of 20 tries to commit.
    """
    store = open_store(location, "output")
    partitioning = Partitioning(tuple(delta.metadata().partition_columns))
    schema = pa.schema([each for each in pa.schema(delta.schema().to_arrow()) if each.name not in partitioning.columns])
    target = TableTarget("merged", location, schema, partitioning, delta.version())
    found = groups(Snapshot(location, delta).files, time.time(), quiet)
    merged = 0
    with ThreadPoolExecutor() as pool:
        while some := list(itertools.islice(found, COMMIT_FILES)):
            written = [
                (group, write_file(store, target, _row_groups(store, group, schema), group[0].partition))
                for group in some
            ]
            sync_directories(store, (new.path for _, new in written), pool)
            merged += _replace(delta, location, written)
    return merged


def _row_groups(store: Store, files: Iterable[TableFile], schema: Any) -> Iterator[Any]:  # Any: pyarrow has no types
    """Read files one after the other; yield pyarrow.Tables of bounded size, with this schema."""
    held: list[Any] = []
    for file in files:
        for batch in read_rows(store, file.path):
            held.append(conformed(batch, schema))
            if sum(table.nbytes for table in held) >= READ_BYTES:
                yield pa.concat_tables(held).combine_chunks()
                held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _replace(delta: DeltaTable, location: str, written: Sequence[tuple[Sequence[TableFile], DataFile]]) -> int:
    """Commit merges of groups of files, if the version before it still has all files that they replace.

    Returns:
        How many files were replaced.
    """
    for _ in range(_TRIES):
        snapshot = Snapshot(location, delta)
        present = {file.path for file in snapshot.files}
        kept = [(old, new) for old, new in written if present.issuperset(file.path for file in old)]
        if len(kept) < len(written):
            lost = counted(len(written) - len(kept), "merge")
            logger.info("table %s: another process has done %s of files already", redact_uri(location), lost)
            written = kept
        if not written:
            return 0
        replaced = [file for old, _ in written for file in old]
        if snapshot.commit([new for _, new in written], replaced, is_merge=True):
            return len(replaced)
        # If the store has answered an earlier try too late, the old files are gone by that try: so the new file is
        # never deleted here.
        delta.update_incremental()
    raise JobFailed(
        f"table {redact_uri(location)}: {counted(len(written), 'merge')} of files could not be committed, since other "
        "processes always were first: they are done again the next time"
    )


def vacuum(delta: DeltaTable, location: str, retention: float) -> None:
    """Delete files, written by gnsq, that no version of the last ``retention`` seconds needs. Note the time."""
    hours = math.ceil(retention / 3600)
    # full=True also finds files of killed tasks, which the log does not name. With dry_run=False delta-rs would write
    # log entries and not sync them: a power failure could tear such an entry when later entries follow it.
    # Unlike get_add_actions(), vacuum() returns paths as on the disk.
    names = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    store = open_store(location, "output")
    # Delete only files that tasks and merges have made. Their directories stay: a task may be about to write there.
    store.remove(*(name for name in names if PurePosixPath(name).name.startswith("part-")))
    # Another process may write the file at the same moment, by the same temporary file.
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        store.put(_VACUUMED, dt.datetime.now(dt.UTC).isoformat().encode())


def _is_vacuum_due(location: str) -> bool:
    """Return True if a table was not vacuumed for a day, and is older than that."""
    try:
        with open_store(location, "output").open(_VACUUMED) as file:
            at = dt.datetime.fromisoformat(file.read().decode()).timestamp()
    except (FileNotFoundError, ValueError):
        uri, options = delta_location(location)
        if not DeltaTable.is_deltatable(uri, storage_options=options):
            return False
        at = (DeltaTable(uri, storage_options=options).metadata().created_time or 0) / 1000
    return at < time.time() - DAY


# --- all tables of a job


def maintain_tables(
    locations: Iterable[str], *, retention: float = RETENTION, is_forced: bool
) -> tuple[int, list[str]]:
    """Maintain tables, one after the other. One that does not exist yet is left out.

    Args:
        retention: Seconds for which files are kept that no version needs: more than a batch may run, since the files of
            a batch that runs are in no version yet.
        is_forced: Vacuum even if the last vacuum was less than a day ago. A vacuum lists all files, which is slow.

    Returns:
        How many files were merged, and the reasons why tables were not maintained.
    """
    merged, troubles = 0, []
    for location in locations:
        try:
            is_due = is_forced or _is_vacuum_due(location)
            merged += maintain_table(location, retention=retention if is_due else None)
        except (DeltaError, OSError) as error:
            troubles.append(str(store_error(location, error)))
        except JobFailed as error:
            troubles.append(str(error))
    return merged, troubles


class Maintenance:
    """Runs maintenance for a job in a process of its own: after ``every`` calls of committed(), and in run_daily().

    Args:
        tables: Returns the locations of the tables, and the retention for maintain_tables().
        every: 0: never.
        log: File for the messages of the process.

    Attributes:
        merged: Number of files that were merged.
    """

    def __init__(self, tables: Callable[[], tuple[list[str], float]], *, every: int, log: Path) -> None:
        self._tables = tables
        self._every = every
        self._log = log
        self._batches = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.merged = 0

    def committed(self) -> None:
        """Count a batch; start maintenance if enough have been counted and none runs."""
        self._batches += 1
        if self._process is not None and self._process.poll() is not None:
            self._finish(self._process)
        if 0 < self._every <= self._batches and self._process is None:
            with _warning():
                self._start(*self._tables())

    def run_daily(self) -> None:
        """Wait for maintenance that runs; run it if a vacuum is due, as runs with --once may be short."""
        if self._process is not None:
            self._finish(self._process)
        if self._every:
            with _warning():
                locations, retention = self._tables()
                if any(map(_is_vacuum_due, locations)):
                    self._finish(self._start(locations, retention))

    def stop(self) -> None:
        """End the maintenance process, in any step. The next process does what is left."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None

    def _start(self, locations: list[str], retention: float) -> subprocess.Popen[bytes]:
        self._batches = 0
        command = [sys.executable, "-m", __name__]
        with open(self._log, "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._process = process
        assert process.stdin is not None  # since stdin=PIPE
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            # On stdin: every user could read arguments, and a location may have a password.
            stdin.write(json.dumps([locations, retention]).encode())
        process.stdin = None  # communicate() fails if stdin is a closed file
        return process

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        text, _ = process.communicate()
        self._process = None
        try:
            # A library may have printed something before main() has begun.
            merged, troubles = json.loads(text.splitlines()[-1])
        except (ValueError, IndexError, TypeError):
            logger.warning(
                "maintenance of the tables has ended with status %s and no result; see %s; it is done again the next "
                "time",
                *(process.returncode, self._log),
            )
            return
        self.merged += merged
        for trouble in troubles:
            logger.warning("maintenance: %s", trouble)


@contextlib.contextmanager
def _warning() -> Iterator[None]:
    """Log an error: a job that can't maintain its tables goes on."""
    try:
        yield
    except (DeltaError, JobFailed, OSError, ValueError) as error:
        logger.warning("maintenance: %s", error)


def main() -> None:
    """Maintain the tables that come on standard input; write the result to standard output."""
    # Ctrl-C is for the job, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Batches need the processor more.
    os.nice(10)
    with open(os.dup(1), "w", encoding="utf-8") as result:
        # What a library prints goes to the log.
        os.dup2(2, 1)
        locations, retention = json.loads(sys.stdin.buffer.read())
        done = maintain_tables(locations, retention=retention, is_forced=False)
        result.write(f"\n{json.dumps(done)}")


if __name__ == "__main__":
    main()
