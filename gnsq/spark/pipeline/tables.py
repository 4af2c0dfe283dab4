"""Delta tables on the driver, by delta-rs: creates them, and commits the files that tasks have written.

A table's log says which batches of which checkpoint are in it: a batch's commit has application transactions of the
checkpoint's id, which is Spark's id of the query. So a batch that runs again is committed once, and a new checkpoint,
whose batches begin at 0 again, is never taken for the old one. The property gnsq.owner has the id of the table's
checkpoint. Merges and cleanups of the log keep the newest transaction of each application.

delta-rs accepts a batch id that is not higher than the last one, without an error. So commit() reads the log first.
delta-rs refuses the commit if the same application or the table's properties have changed since that reading.

Local disks: delta-rs syncs nothing. commit() syncs the log entry and its directory before it returns, after the data
files, which are synced by the tasks. A power failure may leave a torn entry, of a commit() that has not returned, or a
torn checkpoint of the log; claim() renames both.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from gnsq.localfiles import make_directory, sync_directory
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.batches import (
    EPOCH,
    OWNER,
    BatchIdentity,
    CommittedBatch,
    TableStatus,
    check_owner,
    epoch_of,
    is_committed,
    missing_columns,
    missing_table,
)
from gnsq.spark.pipeline.datafiles import (
    DataFile,
    Partition,
    TableTarget,
    check_field_values,
    file_prefix,
    stats_columns,
    store_error,
)
from gnsq.spark.spool.objectstore import delta_retries, s3_options
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import join_uri, redact_uri

__all__ = [
    "MERGED",
    "NO_HOOKS",
    "Table",
    "check_store",
    "delta_location",
    "sync_files",
    "sync_log",
]

logger = logging.getLogger(__name__)

# Delta's property for the columns that have statistics. A column added later has no statistics: older files lack it.
_STATS = "delta.dataSkippingStatsColumns"
# Keys that gnsq adds to the information of a commit.
_BATCH, _FILES, _TRANSACTIONS = "gnsq.batch", "gnsq.files", "gnsq.transactions"
# Number of tries of a commit. A try fails if another process changes the table's properties at the same moment.
_TRIES = 5
# Key in the information of a merge's commit: how many files the merge has added and removed.
MERGED = "gnsq.merged"
_MAINTENANCE = ("OPTIMIZE", "VACUUM END")
# Number of commits at the same moment by which check_store() finds out whether a store has conditional PUT. delta-rs
# reads the newest version just before it writes the next version, so commits one after the other would show nothing.
_RIVALS = 4
# Number of newest commits in which status() looks for committed_at and maintained_at. Each takes two requests on S3.
_HISTORY = 120
# Number of the newest log entries that claim() checks. Older entries have this many synced ones after them.
_CHECKED_ENTRIES = 20
_ENTRY = re.compile(r"\d{20}\.json")
# No checkpoint or cleanup after a batch's commit: delta-rs would not sync what they write. Maintenance does both.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Table:
    """One table. Methods raise JobFailed, with one line that says what to do, if the store fails.

    Args:
        name: Such as archive, for error texts and descriptions of files.
        location: Path, or URI of an object store.
        schema: Columns of the rows, all nullable, timestamps in UTC.
        partition: How the rows are divided; None: not at all.
    """

    def __init__(self, name: str, location: str, schema: Any, partition: Partition | None) -> None:  # Any: pyarrow's
        self.name = name
        self.location = location
        self._shown = redact_uri(location)
        self.schema = schema
        self.partition = partition
        self._columns = [partition.column] if partition is not None else []
        self._uri, self._options = delta_location(location)
        store = open_store(location, "output")
        # Set only for a local disk, where files must be synced.
        self._root: Path | None = store.root if isinstance(store, LocalStore) else None
        self._delta: DeltaTable | None = None
        # The newest version whose log entry is known to be on the disk.
        self._synced_version = -1
        # Values of the field that the table is partitioned by.
        self._values: set[str | None] = set()

    def target(self, batch_id: int) -> TableTarget:
        """Build the TableTarget, which tells the tasks of a batch where and how to write."""
        return TableTarget(self.name, self.location, self.schema, self.partition, batch_id)

    def exists(self) -> bool:
        """Return True if there is a table."""
        # Not DeltaTable.is_deltatable(): it holds the interpreter's lock while it waits for the store.
        try:
            self._open()
        except JobFailed as error:
            if isinstance(error.__cause__, TableNotFoundError):
                return False
            raise
        return True

    def claim(self, owner: str | None, *, take_over: bool, committed: int = -1, batch_id: int | None = None) -> int:
        """Create the table if it is missing. Check that it fits the settings and belongs to this checkpoint.

        Args:
            owner: Spark's id of the query. None without a checkpoint: then claim() only checks, and creates no table.
            take_over: Let this checkpoint take the table of another one, or create a new table if its table is gone.
            committed: The checkpoint's last batch; -1: none. If the checkpoint has a batch, it has had a table.
            batch_id: The batch that runs, if its tasks may have written files for a table that is still missing.

        Returns:
            The epoch of the checkpoint: 1 for the table's first checkpoint, 2 for its second, and so on. A checkpoint
            that the table belongs to again keeps its epoch, since it goes on with its own state. Unused without owner.

        Raises:
            JobFailed: If it is gone, damaged, another checkpoint's, or its types or partition do not fit the settings.
        """
        if self._root is not None:
            with _errors(self.location):
                make_directory(self._root)
                self._check_log()
        if not self.exists():
            # After --take-over such files may be of a batch of the old checkpoint, which had another number.
            own = None if batch_id is None else "part-" if take_over else file_prefix(batch_id)
            self._check_empty(own)
            if committed >= 0 and not take_over:
                raise missing_table(self._shown, committed)
            if owner is None:
                return 0
            self._create(owner)
            return 1
        delta = self._open()
        properties = delta.metadata().configuration
        epoch = epoch_of(properties, owner)
        if not take_over:
            check_owner(self._shown, properties, owner)
        self._check_partition(delta)
        missing = self._missing_fields(delta)
        before = delta.version()
        with _errors(self.location):
            if missing and owner is not None:
                delta.alter.add_columns(missing, post_commithook_properties=NO_HOOKS)
            if owner is not None and properties.get(OWNER) != owner:
                changed = {OWNER: owner, f"{EPOCH}{owner}": str(epoch)}
                delta.alter.set_table_properties(
                    changed, raise_if_not_exists=False, post_commithook_properties=NO_HOOKS
                )
        self._synced(delta, before)
        return epoch

    def is_owned(self, owner: str) -> bool:
        """Return True if the table, which exists, belongs to a checkpoint."""
        return bool(self._open().metadata().configuration.get(OWNER) == owner)

    def has(self, batch: BatchIdentity) -> bool:
        """Return True if the table has a batch already.

        Raises:
            JobFailed: If the table belongs to another checkpoint now, or has a later batch of this checkpoint, another
                batch with this number, or this batch with other settings.
        """
        delta = self._open()
        check_owner(self._shown, delta.metadata().configuration, batch.owner)
        application, *hashes = _applications(batch.owner)
        last = delta.transaction_version(application)
        if last is None:
            return False
        return is_committed(self._shown, batch, CommittedBatch(last, *map(delta.transaction_version, hashes)))

    def commit(self, batch: BatchIdentity, files: Iterable[DataFile], entered: int | None = None) -> bool:
        """Make a batch's files part of the table, all or none, and durable.

        Args:
            files: Files of several tables. Those of other tables are left out.
            entered: Number of events in the aggregation, for TableStatus; None: keep the last number.

        Returns:
            False if there was nothing to do: neither files nor entered, or the log has the batch already.

        Raises:
            JobFailed: As has(), or if the table has too many partitions.
        """
        own = [file for file in files if file.table == self.name]
        if not own and entered is None:
            return False
        values = (batch.number, batch.offsets, batch.settings)
        transactions = [Transaction(*each) for each in zip(_applications(batch.owner), values, strict=True)]
        if entered is not None:
            transactions.append(Transaction(_entered(batch.owner), entered))
        tries = 0
        while not self.has(batch):
            delta = self._delta
            assert delta is not None  # has() has opened it
            self._check_values(delta, own)
            if delta.version() > self._synced_version:
                # A merge may have written an entry and not synced it. No start mends a torn entry that others follow.
                self._sync_entries(self._synced_version, delta.version())
            try:
                self._write_entry(delta, batch.number, own, transactions)
            except JobFailed as error:
                tries += 1
                if tries == _TRIES or not isinstance(error.__cause__, CommitFailedError):
                    raise
                # The properties have changed since, or the store has answered an earlier try too late.
                logger.debug("%s", error)
            else:
                self._synced(delta, delta.version())
                self._values.update(file.partition for file in own)
                return True
        return False

    def _write_entry(
        self, delta: DeltaTable, batch_id: int, files: list[DataFile], transactions: list[Transaction]
    ) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, dict.fromkeys(self._columns, file.partition), now, True, file.stats)
            for file in files
        ]
        properties = CommitProperties(
            custom_metadata={_BATCH: batch_id, _FILES: len(files), _TRANSACTIONS: len(transactions)},
            app_transactions=transactions,
        )
        with _errors(self.location):
            delta.create_write_transaction(
                actions,
                "append",
                delta.schema(),
                self._columns,
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )

    def status(self) -> TableStatus:
        """Read the status from the table's log. Changes nothing."""
        delta = self._open()
        with _errors(self.location):
            files = pa.table(delta.get_add_actions())
            batch, kept = self._newest_commits(delta.version())
            owners = [name.removeprefix(EPOCH) for name in delta.metadata().configuration if name.startswith(EPOCH)]
            entered = [delta.transaction_version(_entered(owner)) for owner in owners]
        return TableStatus(
            sum(files.column("num_records").to_pylist()),
            files.num_rows,
            sum(files.column("size_bytes").to_pylist()),
            _time(batch),
            _time(kept),
            sum(filter(None, entered)) if any(number is not None for number in entered) else None,
        )

    def _newest_commits(self, newest: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Find the newest commit of a batch, and that of maintenance; {} for one that is not found."""
        batch: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        for commit in self._history(newest):
            if not batch and _BATCH in commit:
                batch = commit
            if not kept and (MERGED in commit or commit["operation"] in _MAINTENANCE):
                kept = commit
            if batch and kept:
                break
        return batch, kept

    def _history(self, newest: int) -> Iterator[dict[str, Any]]:
        """Yield the commitInfo of the newest log entries, the newest first."""
        # DeltaTable.history() gives nothing if there is a blank in the path.
        store = open_store(self.location, "output")
        for version in range(newest, max(newest - _HISTORY, -1), -1):
            try:
                with store.open(f"_delta_log/{version:020}.json") as file:
                    yield from (action["commitInfo"] for action in _parsed(file.read()) if "commitInfo" in action)
            except FileNotFoundError:
                return

    # --- opening and creating

    def _open(self) -> DeltaTable:
        """Return the table's newest version."""
        with _errors(self.location):
            if self._delta is None:
                self._delta = DeltaTable(self._uri, storage_options=self._options)
            else:
                self._delta.update_incremental()
        return self._delta

    def _check_empty(self, own: str | None) -> None:
        """Check that there are no files; own: how the names of files begin that may be there."""
        with _errors(self.location):
            found = [path for path, _ in open_store(self.location).list()]
        if self._root is not None:
            found += (str(path.relative_to(self._root)) for path in self._root.rglob("*.parquet"))
        foreign = next(
            (
                path
                for path in found
                if path.endswith(".parquet") and (own is None or not path.rpartition("/")[2].startswith(own))
            ),
            None,
        )
        if foreign is not None:
            raise JobFailed(f"{self._shown} has files that belong to no table, such as {foreign}: give another output")

    def _create(self, owner: str) -> None:
        schema, partition = self.schema, self.partition
        if partition is not None and not partition.is_field:
            schema = schema.append(pa.field(partition.column, partition.type(schema)))
        with _errors(self.location):
            self._delta = DeltaTable.create(
                self._uri,
                schema,
                partition_by=self._columns,
                configuration={
                    OWNER: owner,
                    f"{EPOCH}{owner}": "1",
                    _STATS: ",".join(name for name in stats_columns(self.schema) if name not in self._columns),
                },
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        if self._root is not None:
            sync_directory(self._root)
        self._synced(self._delta, -1)

    def _check_partition(self, delta: DeltaTable) -> None:
        found = delta.metadata().partition_columns
        if found != self._columns:
            raise JobFailed(
                f"table {self._shown} is partitioned by {', '.join(found) or 'none'}, and the setting partition_by is "
                f"{', '.join(self._columns) or 'none'} now: leave it as it was, or give another output"
            )

    def _missing_fields(self, delta: DeltaTable) -> list[Field]:
        found = {each.name: _type(each.type) for each in delta.schema().fields}
        fields = {each.name: each for each in Schema.from_arrow(self.schema).fields}
        wanted = {name: _type(field.type) for name, field in fields.items()}
        return [fields[name] for name in missing_columns(self._shown, found, wanted)]

    def _check_values(self, delta: DeltaTable, files: list[DataFile]) -> None:
        if self.partition is None or not self.partition.is_field:
            return
        if not self._values:
            self._values = {self.partition.text(each[self.partition.column]) for each in delta.partitions()}
        check_field_values(self.partition, len(self._values | {file.partition for file in files}))

    # --- durability on local disks

    def _synced(self, delta: DeltaTable, before: int) -> None:
        """Read the log entries after a version, and sync them on a local disk."""
        with _errors(self.location):
            delta.update_incremental()
        self._sync_entries(before, delta.version())

    def _sync_entries(self, before: int, last: int) -> None:
        sync_log(self.location, *(f"{version:020}.json" for version in range(before + 1, last + 1)))
        self._synced_version = last

    def _check_log(self) -> None:
        """Check the log's checkpoint, its newest entries and their files.

        Rename a torn checkpoint, which the entries replace, and a torn newest entry, whose commit has not returned.

        Raises:
            JobFailed: If the entries can't replace a torn checkpoint, a torn entry has other entries after it, or a
                data file is not whole.
        """
        assert self._root is not None  # the caller has checked it
        log = self._root / "_delta_log"
        self._check_checkpoint(log)
        entries = sorted(path for path in log.glob("*.json") if _ENTRY.fullmatch(path.name))[-_CHECKED_ENTRIES:]
        removed: set[str] = set()
        for path in reversed(entries):
            actions = _actions(path)
            if actions is None:
                if path != entries.pop():
                    raise JobFailed(
                        f"table {self._shown}: log entry {path.name} is torn, and others follow: bring the table back "
                        "from a copy"
                    )
                self._set_aside(path)
                continue
            for add in _each(actions, "add"):
                if add["path"] not in removed and not self._is_whole(add):
                    raise JobFailed(
                        f"table {self._shown}: {add['path']} of log entry {path.name} is missing or not whole: bring "
                        "it back from a copy"
                    )
            removed.update(remove["path"] for remove in _each(actions, "remove"))
        if entries:
            # The writer of an entry may have been killed before it synced the entry, which is not written again.
            sync_log(self.location, *(path.name for path in entries))

    def _check_checkpoint(self, log: Path) -> None:
        """Set aside torn checkpoints after the last whole one, and _last_checkpoint if it is torn or may name one."""
        torn = []
        oldest = 0  # the first entry that readers need
        for path in sorted(log.glob("*.checkpoint.parquet"), reverse=True):
            if _is_whole_parquet(path):
                oldest = _version(path) + 1
                break
            torn.append(path)
        hint = log / "_last_checkpoint"
        if hint.exists() and (torn or not _is_hint(hint)):
            torn.append(hint)
        if not torn:
            return
        versions = {_version(path) for path in log.glob("*.json") if _ENTRY.fullmatch(path.name)}
        missing = set(range(oldest, max(versions, default=0) + 1)) - versions
        if missing:
            raise JobFailed(
                f"table {self._shown}: {torn[0].name} of the log is torn, and entry {min(missing):020}.json is gone, "
                "which could replace it: bring the directory _delta_log back from a copy"
            )
        for path in torn:
            self._set_aside(path)

    def _set_aside(self, path: Path) -> None:
        aside = path.with_name(f"{path.name}.torn")
        logger.warning("table %s: %s of the log is torn; set aside as %s", self._shown, path.name, aside.name)
        path.rename(aside)
        sync_directory(path.parent)

    def _is_whole(self, add: Mapping[str, Any]) -> bool:
        assert self._root is not None  # only _check_log() calls this
        try:
            return bool((self._root / unquote(add["path"])).stat().st_size == add["size"])
        except FileNotFoundError:
            return False


def _actions(path: Path) -> list[dict[str, Any]] | None:
    """Read a log entry; None if it is torn: not JSON, or with fewer actions than its commitInfo says."""
    try:
        actions = _parsed(path.read_bytes())
    except ValueError:
        return None
    information = next((action["commitInfo"] for action in actions if "commitInfo" in action), None)
    if information is None:
        return None
    added = sum("add" in action for action in actions)
    removed = sum("remove" in action for action in actions)
    if _BATCH in information:
        transactions = sum("txn" in action for action in actions)
        if [added, transactions] != [information[_FILES], information[_TRANSACTIONS]]:
            return None
    if information.get(MERGED, [added, removed]) != [added, removed]:
        return None
    if not added and not removed and len(actions) < 2 and not information["operation"].startswith("VACUUM"):
        return None
    return actions


def _version(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _is_whole_parquet(path: Path) -> bool:
    try:
        with pq.ParquetFile(path) as parquet:
            for _ in parquet.iter_batches(use_threads=False):
                pass
    except (pa.ArrowException, OSError):
        return False
    return True


def _is_hint(path: Path) -> bool:
    """Return True if the file names a checkpoint that exists."""
    try:
        version = json.loads(path.read_bytes())["version"]
    except (ValueError, KeyError, TypeError):
        return False
    return any(path.parent.glob(f"{version:020}.checkpoint*"))


def _each(actions: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in actions if kind in action]


def _parsed(entry: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry.splitlines()]


def _applications(owner: str) -> tuple[str, str, str]:
    """Name the applications whose versions are a checkpoint's last batch, the hash of its offsets, and that of its
    settings."""
    return f"gnsq:{owner}", f"gnsq:{owner}:offsets", f"gnsq:{owner}:settings"


def _entered(owner: str) -> str:
    return f"gnsq:{owner}:entered"


def _time(entry: Mapping[str, Any]) -> dt.datetime | None:
    return dt.datetime.fromtimestamp(entry["timestamp"] / 1000, dt.UTC) if entry else None


def _type(kind: Any) -> str:
    return str(getattr(kind, "type", kind))


def sync_files(directory: Path, *names: str) -> None:
    """Sync files that another program has written, and their directory. Leave out files that are gone."""
    for name in names:
        with contextlib.suppress(FileNotFoundError), open(directory / name, "rb") as file:
            os.fsync(file.fileno())
    sync_directory(directory)


def sync_log(location: str, *names: str) -> None:
    """Sync files of a table's log, and its directory, if they are on a local disk. Leave out files that are gone.

    Raises:
        JobFailed: If that fails.
    """
    store = open_store(location, "output")
    if not isinstance(store, LocalStore):
        return
    with _errors(location):
        sync_files(store.root / "_delta_log", *names)


@contextlib.contextmanager
def _errors(location: str) -> Iterator[None]:
    """Translate errors of the store and of delta-rs."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise store_error(location, error) from error


def check_store(location: str) -> None:
    """Refuse an object store on which one commit could replace another. Makes a small table there, and deletes it.

    Raises:
        JobFailed: If the store ignores the condition of a PUT, or can't be used.
    """
    scratch = join_uri(location, f"_probe-{uuid.uuid4().hex}")
    store = open_store(scratch, "output")
    if isinstance(store, LocalStore):
        return
    uri, options = delta_location(scratch)
    schema = Schema.from_arrow(pa.schema([("x", pa.int32())]))
    with _errors(location):
        DeltaTable.create(uri, schema, storage_options=options)
        # Open the tables before the threads start: a thread that failed before the barrier would block the others.
        rivals = [DeltaTable(uri, storage_options=options) for _ in range(_RIVALS)]
        with ThreadPoolExecutor(_RIVALS) as pool:
            # list() raises the exceptions of the threads.
            list(pool.map(functools.partial(_commit_probe, threading.Barrier(_RIVALS)), rivals, range(_RIVALS)))
        version = DeltaTable(uri, storage_options=options).version()
        store.remove(*(path for path, _ in store.list()))
        # Both, since pyarrow makes an object for a directory that has lost its last file.
        store.remove_directory("_delta_log")
        store.remove_directory("")
    if version != _RIVALS:
        raise JobFailed(
            f"setting output {redact_uri(location)}: the store ignores the condition of a PUT (If-None-Match), so one "
            "commit would replace another: give a store that has conditional PUT"
        )


def _commit_probe(barrier: threading.Barrier, delta: DeltaTable, number: int) -> None:
    barrier.wait()
    properties = CommitProperties(app_transactions=[Transaction(str(number), 0)])
    delta.create_write_transaction([], "append", delta.schema(), commit_properties=properties)


def delta_location(location: str) -> tuple[str, dict[str, str]]:
    """Translate a path or URI of pyarrow to delta-rs's: the URI without query and secrets, and options.

    If an s3: URI has no credentials, pyarrow and delta-rs find them in AWS's environment variables, profiles and roles.
    """
    store = open_store(location, "output")
    if isinstance(store, LocalStore):
        if "%" in str(store.root):
            raise JobFailed(
                f"output {str(store.root)!r} has a %, which delta-rs takes for a code: give another directory"
            )
        return store.root.as_uri(), {}
    bare = redact_uri(location).replace("***@", "")
    filesystem, _ = fs.FileSystem.from_uri(location)
    if filesystem.type_name != "s3":
        return bare, delta_retries()
    found = s3_options(filesystem)
    options = {**delta_retries(), **{f"AWS_{name.upper()}": value for name, value in found.items()}}
    if found.get("endpoint", "").startswith("http:"):
        options["AWS_ALLOW_HTTP"] = "true"
    if "access_key_id" not in found:
        # Without this, delta-rs reads no profile if an endpoint is given.
        options["AWS_FORCE_CREDENTIAL_LOAD"] = "true"
    return bare, options
