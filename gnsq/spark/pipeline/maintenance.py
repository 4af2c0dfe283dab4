"""Maintenance of tables, in a process of its own, so that no batch waits for it.

Steps; the process may be killed after each of them:

    merge        replace small files of a partition by a larger one; readers of older versions use the old files
    checkpoint   write a checkpoint of the log, and delete log entries older than the log's retention (30 days)
    vacuum       delete files that no version of the last RETENTION seconds needs: files that a merge has replaced,
                 and files of tasks that were killed

A merged file is on disk before the files that it replaces are deleted. Batches only append, so a merge never makes a
batch's commit fail. delta-rs has a merge, too. It is not used: after two such merges of the same files at once, every
row is in the table twice; and it writes whole bodies into the log as statistics.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import itertools
import json
import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from gnsq.localfiles import open_or_create
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.datafiles import (
    DataFile,
    Partition,
    TableTarget,
    conformed,
    partition_text,
    store_error,
    sync_directories,
    write_file,
)
from gnsq.spark.pipeline.layout import query_tables, with_layout
from gnsq.spark.pipeline.lock import Lease, LeaseHeld
from gnsq.spark.pipeline.progress import read_note
from gnsq.spark.pipeline.tables import MERGED, NO_HOOKS, delta_location, sync_log
from gnsq.spark.spool.ownership import try_lock
from gnsq.spark.spool.storage import Store, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = [
    "Maintenance",
    "TableFile",
    "groups",
    "lock_tables",
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
# Bytes of rows that a merge reads into memory before it writes them as a row group.
_READ_BYTES = 16 * 2**20
_TRIES = 20
# The lock of local work directories, and the lease of those on an object store.
_LOCK, _OWNER = "maintenance.lock", "maintenance.json"
_VACUUMED = "vacuumed"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table's newest version; partition as the log has it, path as on the disk."""

    path: str
    size: int
    partition: str | None
    written_at: float


# --- one table


def groups(files: Iterable[TableFile], now: float, quiet: float = QUIET) -> Iterator[list[TableFile]]:
    """Choose the files that are merged: each group has at least two, of one partition. Pure."""
    by_partition: dict[str | None, list[TableFile]] = {}
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

    Raises:
        JobFailed: If another process has merged or deleted the same files, or was first in each of 20 tries to commit.
            Then the new file is left to the vacuum.
    """
    store = open_store(location, "output")
    partitioned = delta.metadata().partition_columns
    schema = pa.schema([field for field in pa.schema(delta.schema().to_arrow()) if field.name not in partitioned])
    partition = Partition(partitioned[0], partitioned[0]) if partitioned else None
    target = TableTarget("merged", location, schema, partition, delta.version())
    merged = 0
    for group in groups(_files(delta, partitioned), time.time(), quiet):
        new = write_file(store, target, _row_groups(store, group, schema), group[0].partition)
        with ThreadPoolExecutor() as pool:
            sync_directories(store, [new.path], pool)
        _replace(delta, location, group, new, partitioned)
        merged += len(group)
    return merged


def _files(delta: DeltaTable, partitioned: Sequence[str]) -> Iterator[TableFile]:
    found = pa.table(delta.get_add_actions(flatten=True))
    names = ["path", "size_bytes", "modification_time", *(f"partition.{name}" for name in partitioned)]
    for path, size, at, *values in zip(*(found.column(name).to_pylist() for name in names), strict=True):
        yield TableFile(unquote(path), size, partition_text(values[0]) if values else None, at / 1000)


def _row_groups(store: Store, files: Iterable[TableFile], schema: Any) -> Iterator[Any]:  # Any: pyarrow has no types
    """Read files one after the other; yield pyarrow.Tables of bounded size, with this schema."""
    held: list[Any] = []
    for file in files:
        with store.open(file.path) as opened, pq.ParquetFile(opened) as parquet:
            metadata = parquet.metadata
            size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
            rows = max(_READ_BYTES * metadata.num_rows // max(size, 1), 1)
            for batch in parquet.iter_batches(rows, use_threads=False):
                held.append(conformed(batch, schema))
                if sum(table.nbytes for table in held) >= _READ_BYTES:
                    yield pa.concat_tables(held).combine_chunks()
                    held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _replace(
    delta: DeltaTable, location: str, old: Sequence[TableFile], new: DataFile, partitioned: Sequence[str]
) -> None:
    """Commit a merge if the version before it still has all files that the merge replaces."""
    now = int(time.time() * 1000)
    values: dict[str, str | None] = dict.fromkeys(partitioned, new.partition)
    actions: list[AddAction | RemoveAction] = [
        *(RemoveAction(file.path, False, now, file.size, values) for file in old),
        AddAction(new.path, new.size, values, now, False, new.stats),
    ]
    notes = {MERGED: [1, len(old)]}
    for _ in range(_TRIES):
        present = set(map(unquote, pa.table(delta.get_add_actions()).column("path").to_pylist()))
        if not present.issuperset(file.path for file in old):
            break
        # A batch may have written an entry and not synced it. No start mends a torn entry that others follow.
        sync_log(location, f"{delta.version():020}.json")
        try:
            delta.create_write_transaction(
                actions,
                "append",
                delta.schema(),
                list(partitioned),
                # By itself delta-rs would try again on a later version, without a check that the old files are there.
                commit_properties=CommitProperties(custom_metadata=notes, max_commit_retries=0),
                post_commithook_properties=NO_HOOKS,
            )
        except CommitFailedError:
            delta.update_incremental()
            continue
        before = delta.version()
        delta.update_incremental()
        # A batch may have been committed meanwhile, so the merge is not always the newest entry.
        sync_log(location, *(f"{version:020}.json" for version in range(before + 1, delta.version() + 1)))
        return
    raise JobFailed(
        f"table {redact_uri(location)}: another process has merged {counted(len(old), 'file')} of "
        f"{new.partition or 'the table'}: they are merged the next time"
    )


def vacuum(delta: DeltaTable, location: str, retention: float) -> None:
    """Delete files, written by gnsq, that no version of the last ``retention`` seconds needs."""
    hours = math.ceil(retention / 3600)
    # full=True also finds files of killed tasks, which the log does not name. With dry_run=False delta-rs would write
    # log entries and not sync them: a power failure could tear such an entry when later entries follow it.
    names = map(unquote, delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True))
    # Delete only files that tasks and merges have made. Their directories stay: a task may be about to write there.
    open_store(location, "output").remove(*(name for name in names if PurePosixPath(name).name.startswith("part-")))


# --- all tables of a job


def maintain_tables(config: PipelineConfig, *, is_forced: bool) -> tuple[int, list[str]]:
    """Maintain a job's tables, one after the other. Does nothing while another process maintains them.

    Args:
        is_forced: Vacuum even if the last vacuum was less than a day ago. A vacuum lists all files, which is slow.

    Returns:
        How many files were merged, and the reasons why tables were not maintained.
    """
    merged, troubles = 0, []
    # Topics may have come since the job's start.
    config = with_layout(config)
    with lock_tables(config) as is_locked:
        if not is_locked:
            return 0, ["another process maintains the tables"]
        retention = _retention(config) if is_forced or _is_vacuum_due(config) else None
        for table in itertools.chain.from_iterable(query_tables(config, query) for query in config.queries):
            try:
                merged += maintain_table(table.location, retention=retention)
            except JobFailed as error:
                troubles.append(str(error))
        if retention is not None and not troubles:
            _stamp(config)
    return merged, troubles


@contextlib.contextmanager
def lock_tables(config: PipelineConfig) -> Iterator[bool]:
    """Keep other processes from maintaining a job's tables. Yield False if another process maintains them now."""
    if config.is_work_remote:
        with Lease(config.work, _OWNER) as lease:
            try:
                lease.acquire(_wait)
            except LeaseHeld:
                yield False
            else:
                yield True
        return
    with open(open_or_create(Path(config.work, _LOCK)), "a", encoding="utf-8") as lock:
        yield try_lock(lock, fcntl.LOCK_EX)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _retention(config: PipelineConfig) -> float:
    """Compute the seconds of retention: more than the age of a running batch, whose files are in no version yet."""
    retention = RETENTION
    for query in config.queries:
        with contextlib.suppress(OSError, ValueError):
            note = read_note(config, query)
            if note.begun > note.committed and note.begun_at is not None:
                retention = max(retention, time.time() - note.begun_at.timestamp() + DAY)
    return retention


def _is_vacuum_due(config: PipelineConfig) -> bool:
    """Return True if the tables were not vacuumed for a day, or it is not known when."""
    try:
        with open_store(config.work, "work").open(_VACUUMED) as file:
            at = dt.datetime.fromisoformat(file.read().decode())
    except (FileNotFoundError, ValueError):  # in an earlier release, the file was empty
        return True
    return at.timestamp() < time.time() - DAY


def _stamp(config: PipelineConfig) -> None:
    """Note that the tables were vacuumed now."""
    store = open_store(config.work, "work")
    store.make_directory("")
    store.put(_VACUUMED, dt.datetime.now(dt.UTC).isoformat().encode())


class Maintenance:
    """Runs maintenance for a job in a process of its own: after maintain_every calls of committed() and in run_daily().

    Attributes:
        merged: Number of files that were merged.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._is_on = config.maintain_every > 0
        self._batches = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.merged = 0

    def committed(self) -> None:
        """Count a batch; start maintenance if enough have been counted and none runs."""
        self._batches += 1
        if self._process is not None and self._process.poll() is not None:
            self._finish(self._process)
        if self._is_on and self._config.maintain_every <= self._batches and self._process is None:
            self._start()

    def run_daily(self) -> None:
        """Wait for maintenance that runs; run it if the last vacuum is a day old, as runs with --once may be short."""
        if self._process is not None:
            self._finish(self._process)
        if not open_store(self._config.work, "work").exists(_VACUUMED):
            _stamp(self._config)
        elif self._is_on and _is_vacuum_due(self._config):
            self._finish(self._start())

    def stop(self) -> None:
        """End the maintenance process, in any step. The next process does what is left."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._batches = 0
        command = [sys.executable, "-m", __name__]
        with open(self._config.log, "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._process = process
        assert process.stdin is not None  # since stdin=PIPE
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            # Pass the settings on stdin: every user could read arguments, and a location may have a password.
            pickle.dump(self._config, stdin)
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
                *(process.returncode, self._config.log),
            )
            return
        self.merged += merged
        for trouble in troubles:
            logger.warning("maintenance: %s", trouble)


def main() -> None:
    """Maintain the tables of the configuration that comes on standard input; write the result to standard output."""
    # Ctrl-C is for the job, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Batches need the processor more.
    os.nice(10)
    with open(os.dup(1), "w", encoding="utf-8") as result:
        # What a library prints goes to the log.
        os.dup2(2, 1)
        done = maintain_tables(pickle.load(sys.stdin.buffer), is_forced=False)
        result.write(f"\n{json.dumps(done)}")


if __name__ == "__main__":
    main()
