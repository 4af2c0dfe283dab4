"""Delta tables on the driver, by delta-rs: creates them, and commits the files that tasks have written.

A table's log says which batches of which checkpoint are in it: a batch's commit has application transactions of the
checkpoint's id, which is Spark's id of the query. So a batch that runs again is committed once, and a new checkpoint,
whose batches begin at 0 again, is never taken for the old one. The property gnsq.owner has the id of the table's
checkpoint. Merges and cleanups of the log keep the newest transaction of each application.

delta-rs accepts a batch id that is not higher than the last one, without an error. So commit() reads the log first.
delta-rs refuses the commit if the same application or the table's properties have changed since that reading.

commit() syncs the log entry before it returns, after the data files, which are synced by the tasks; claim() mends a log
that a power failure has torn. Both are in durable.py.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import re
import tempfile
import time as clock
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from gnsq.localfiles import sync_directory
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.durable import ACTIONS, mend_log, sync_log, try_create
from gnsq.spark.pipeline.parquet import (
    DERIVED,
    DISTINCT,
    DataFile,
    Partitioning,
    TableTarget,
    check_partition_by,
    check_partitions,
    partition_text,
    stats_columns,
    store_error,
)
from gnsq.spark.pipeline.tables import SettingError
from gnsq.spark.spool.objectstore import ObjectStore, delta_retries, s3_options
from gnsq.spark.spool.storage import LocalStore, Store, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = [
    *("NO_HOOKS", "BatchIdentity", "Table", "TableFile", "TableStatus"),
    *("check_store", "delta_location"),
]

logger = logging.getLogger(__name__)

# Property of a table: the id of its checkpoint or, of a metric's table, that of the table whose events it counts.
_OWNER = "gnsq.owner"
# Delta's property for the columns that have statistics. A column added later has no statistics: older files lack it.
_STATS = "delta.dataSkippingStatsColumns"
# Number of tries of a commit. A try fails if another process changes the table's properties at the same moment.
_TRIES = 5
# Key in the information of a merge's commit; and operations of Spark and delta-rs that are maintenance, too.
_MERGE = "gnsq.merge"
_MAINTENANCE = ("OPTIMIZE", "VACUUM END")
# Number of newest commits in which status() looks for committed_at and maintained_at. Each takes two requests on S3.
_HISTORY = 120
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Types, narrower ones first: all readers that the guide names read a file whose column has a narrower type of a row
# than the table. Polars reads no whole numbers as double or decimal, no decimals with more digits after the point, and
# no dates as timestamps.
_WIDTHS = ([pa.int8(), pa.int16(), pa.int32(), pa.int64()], [pa.float32(), pa.float64()])
# No checkpoint or cleanup after a batch's commit: delta-rs would not sync what they write. Maintenance does both.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which batch runs.

    Attributes:
        owner: Spark's id of the query.
        number: Spark's id of the batch.
        offsets: Hash of what the checkpoint says about the batch, since a checkpoint that has lost its newest files may
            give the same number to another batch. 0 if unknown.
        settings: Hash of the settings that divide the rows of a batch between tables.
    """

    owner: str
    number: int
    offsets: int
    settings: int

    @property
    def unchecked(self) -> int:
        """The batch before, if the checks at the start could not read it in the checkpoint; else -1."""
        return self.number - 1 if self.offsets == 0 else -1


@dataclass(frozen=True, slots=True)
class TableStatus:
    """State of a table, as far as it is known.

    Attributes:
        rows, files, size: Of the table's newest version; size in bytes.
        committed_at: When rows were committed last; None if the newest 120 log entries do not say it.
        maintained_at: When a merge or a vacuum was last written to the log; None likewise.
    """

    rows: int
    files: int
    size: int
    committed_at: dt.datetime | None = None
    maintained_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a version; path as on the disk, values of its partition as the log has them."""

    path: str
    size: int
    partition: tuple[str | None, ...]
    written_at: float


class Table:
    """One table. Methods raise JobFailed, with one line that says what to do, if the store fails.

    Args:
        name: Such as clicks, for error texts and descriptions of files.
        location: Path, or URI of an object store.
        schema: Columns of the rows. In the table all of them, and all their fields, are nullable.
        partition_by: Columns that divide the rows: _day, _hour, _month, which are computed and added, and columns of
            the schema.
        time: The column, a timestamp in UTC, that _day, _hour and _month are computed from.
        owned_by: What the table belongs to, for error texts: a checkpoint or a table.

    Raises:
        ValueError: If the rows can't be divided so, or the location can't be used.
    """

    def __init__(
        self,
        name: str,
        location: str,
        schema: Any,  # Any: pyarrow has no types
        partition_by: Sequence[str] = (),
        *,
        time: str = "_time",
        owned_by: str = "checkpoint",
    ) -> None:
        check_partition_by(schema, partition_by, time)
        self.name = name
        self._owned_by = owned_by
        self.location = location
        self._shown = redact_uri(location)
        self.schema = pa.schema([_nullable(field) for field in schema])
        self.partitioning = Partitioning(tuple(partition_by), time)
        self._uri, self._options = delta_location(location)
        store = open_store(location, "output")
        # Set only for a local disk, where files must be synced.
        self._root: Path | None = store.root if isinstance(store, LocalStore) else None
        self._delta: DeltaTable | None = None
        # The newest version whose log entry is known to be on the disk.
        self._synced_version = -1
        # Partition column of the schema -> its values in the table.
        self._values: dict[str, set[str | None]] = {}

    def target(self, batch_id: int) -> TableTarget:
        """Build the TableTarget, which tells the tasks of a batch where and how to write."""
        return TableTarget(self.name, self.location, self.schema, self.partitioning, batch_id)

    def whole_schema(self) -> Any:  # Any: pyarrow has no types
        """Return the schema with the partition columns that are computed."""
        derived = [pa.field(name, DERIVED[name]) for name in self.partitioning.columns if name in DERIVED]
        return pa.schema([*self.schema, *derived])

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

    def claim(self, owner: str | None, *, take_over: bool, committed: int = -1) -> None:
        """Create the table if it is missing. Check that it fits the settings and belongs to this owner.

        Args:
            owner: Spark's id of the query; of a metric's table, Delta's id of the table that is counted. None if there
                is none yet: then claim() creates no table, and checks only, or leaves it to the next owner.
            take_over: Let this owner take the table of another one, or create a new table if its table is gone.
            committed: The checkpoint's last batch; -1: none. If the checkpoint has a batch, it has had a table.

        Raises:
            JobFailed: If it is gone, damaged, or another checkpoint's.
            SettingError: If its types or partition do not fit the settings.
        """
        with store_errors(self.location):
            mend_log(self.location)
        if not self.exists():
            self._check_empty()
            if committed >= 0 and not take_over:
                batches = counted(committed + 1, "batch", "batches")
                raise JobFailed(
                    f"table {self._shown} is missing, and its checkpoint has {batches}: mount the disk that has the "
                    "table, bring it back from a copy, or --take-over if the job is to go on with a new one"
                )
            if owner is not None:
                self._create(owner)
            return
        while True:
            delta = self._open()
            # mend_log() has synced those before, unless another process has just written the newest.
            self._sync_entries(delta.version() - 1, delta.version())
            properties = delta.metadata().configuration
            if not take_over:
                self._check_owner(properties, owner)
            self._check_partition(delta)
            found = pa.schema(delta.schema().to_arrow())
            wanted, before, after = self._evolved(found), properties.get(_OWNER), owner
            if owner is None:
                # A new checkpoint has no id before its query starts. Until its first batch the table belongs to none,
                # so that the next start does not need take_over.
                wanted, after = found, "" if take_over else before
            if wanted == found and before == after:
                return
            if self._try_change(delta, wanted, {**properties, _OWNER: after or ""}):
                self._synced(delta, delta.version())
                return

    def has(self, batch: BatchIdentity) -> bool:
        """Return True if the table has a batch already.

        Raises:
            JobFailed: If the table belongs to another checkpoint now, or has a later batch of this checkpoint, another
                batch with this number, or this batch with other settings.
        """
        delta = self._open()
        self._check_owner(delta.metadata().configuration, batch.owner)
        last, offsets, settings = map(delta.transaction_version, _applications(batch.owner))
        if last is None or last < batch.number:
            return False
        is_other = bool(offsets and batch.offsets and offsets != batch.offsets)
        if last > batch.number or is_other:
            raise JobFailed(
                f"table {self._shown} has batch {last} of this checkpoint, and {'another ' if is_other else ''}batch "
                f"{batch.number} runs: the checkpoint is older than the table. Start with a new one, and with "
                "--take-over"
            )
        if settings not in (None, batch.settings):
            raise JobFailed(
                f"table {self._shown} has batch {last}, which was begun with other settings (format, schema, columns, "
                "parse, time, max_ahead, where or mismatch of [tables]) and is not done: start the job with the "
                "settings of before and --once, then with the new ones"
            )
        return True

    def commit(self, batch: BatchIdentity, files: Iterable[DataFile]) -> bool:
        """Make a batch's files part of the table, all or none, and durable.

        Args:
            files: Files of several tables. Those of other tables are left out.

        Returns:
            False if there was nothing to do: no files, or the log has the batch already.

        Raises:
            JobFailed: As has(), or if the table has too many partitions.
        """
        own = [file for file in files if file.table == self.name]
        if not own:
            return False
        values = (batch.number, batch.offsets, batch.settings)
        transactions = [Transaction(*each) for each in zip(_applications(batch.owner), values, strict=True)]
        tries = 0
        while not self.has(batch):
            delta = self._delta
            assert delta is not None  # has() has opened it
            self._check_values(delta, own)
            if delta.version() > self._synced_version:
                # A merge may have written an entry and not synced it. No start mends a torn entry that others follow.
                self._sync_entries(self._synced_version, delta.version())
            try:
                write_entry(delta, self.location, own, (), transactions)
            except JobFailed as error:
                tries += 1
                if tries == _TRIES or not isinstance(error.__cause__, CommitFailedError):
                    raise
                # The properties have changed since, or the store has answered an earlier try too late.
                logger.debug("%s", error)
            else:
                self._synced(delta, delta.version())
                return True
        return False

    def prepare(self) -> None:
        """Create or widen the table, as claim() does, and leave it to the checkpoint that it belongs to.

        If it is created, it belongs to the first checkpoint that claims it.
        """
        owner = self._open().metadata().configuration.get(_OWNER) if self.exists() else ""
        self.claim(owner, take_over=False)

    def status(self) -> TableStatus:
        """Read the status from the table's log. Changes nothing."""
        delta = self._open()
        with store_errors(self.location):
            files = pa.table(delta.get_add_actions())
            newest: dict[str, dt.datetime] = {}
            for commit in self._history(delta.version()):
                is_kept = _MERGE in commit or commit["operation"] in _MAINTENANCE
                kind = "maintenance" if is_kept else "batch" if commit["operation"] == "WRITE" else ""
                newest.setdefault(kind, dt.datetime.fromtimestamp(commit["timestamp"] / 1000, dt.UTC))
                if {"batch", "maintenance"} <= newest.keys():
                    break
        return TableStatus(
            sum(number or 0 for number in files.column("num_records").to_pylist()),
            files.num_rows,
            sum(files.column("size_bytes").to_pylist()),
            newest.get("batch"),
            newest.get("maintenance"),
        )

    def _history(self, newest: int) -> Iterator[dict[str, Any]]:
        """Yield the commitInfo of the newest log entries, the newest first."""
        # DeltaTable.history() gives nothing if there is a blank in the path.
        store = open_store(self.location, "output")
        for version in range(newest, max(newest - _HISTORY, -1), -1):
            try:
                actions = log_entry(store, version)
            except FileNotFoundError:
                return
            yield from (action["commitInfo"] for action in actions if "commitInfo" in action)

    # --- opening and creating

    def has_columns(self, found: Any) -> bool:  # Any: pyarrow has no types
        """Return whether a table with these columns needs no others. May raise SettingError, as claim()."""
        return bool(self._evolved(found) == found)

    def _open(self) -> DeltaTable:
        """Return the table's newest version."""
        with store_errors(self.location):
            if self._delta is None:
                self._delta = DeltaTable(self._uri, storage_options=self._options)
            else:
                self._delta.update_incremental()
        return self._delta

    def _check_empty(self) -> None:
        """Check that there are no files."""
        with store_errors(self.location):
            found = open_store(self.location).list()
        foreign = next((path for path in found if path.endswith(".parquet")), None)
        if foreign is not None:
            raise JobFailed(f"{self._shown} has files that belong to no table, such as {foreign}: give another output")

    def _create(self, owner: str) -> None:
        names = stats_columns(self.schema, {*DISTINCT, *self.partitioning.columns})
        with store_errors(self.location):
            self._delta = DeltaTable.create(
                self._uri,
                self.whole_schema(),
                partition_by=list(self.partitioning.columns),
                configuration={
                    _OWNER: owner,
                    _STATS: ",".join(".".join(map(_quoted, path)) for path in names),
                },
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        if self._root is not None:
            sync_directory(self._root)
        self._synced(self._delta, -1)

    def _check_owner(self, properties: Mapping[str, str], owner: str | None) -> None:
        """Check that the table belongs to an owner; None: one that is new."""
        found = properties.get(_OWNER)
        if found is None:
            raise JobFailed(
                f"table {self._shown} is there, and no job has made it: give another output, or --take-over if this "
                "job is to write into it"
            )
        if found not in ("", owner):  # "": it belongs to none yet
            who = "is new, so it" if owner is None else f"is {owner}, so it"
            raise JobFailed(
                f"table {self._shown} belongs to the {self._owned_by} {found}; this job's {self._owned_by} {who} does "
                f"not fit: bring that {self._owned_by} back, give another output, or --take-over if the job that wrote "
                "there is gone and this one goes on"
            )

    def _check_partition(self, delta: DeltaTable) -> None:
        found, wanted = delta.metadata().partition_columns, self.partitioning.columns
        if tuple(found) != wanted:
            raise SettingError(
                f"partition_by: table {self._shown} is partitioned by {', '.join(found) or 'none'}, and the setting is "
                f"{', '.join(wanted) or 'none'} now: leave it as it was, or give another output"
            )

    def _evolved(self, found: Any) -> Any:  # Any: pyarrow has no types
        """Return the columns of the table with those of the settings joined to them.

        Raises:
            SettingError: If readers could not read the table's files any more, or names differ in case only.
        """
        # By way of Delta's types, which have one of Arrow's types each.
        wanted = pa.schema(Schema.from_arrow(self.whole_schema()).to_arrow())
        try:
            return pa.schema(list(_joined("", pa.struct(list(found)), pa.struct(list(wanted)))))
        except ValueError as error:
            raise SettingError(f"columns do not fit: table {self._shown} has {error}") from error

    def _try_change(self, delta: DeltaTable, schema: Any, properties: Mapping[str, str]) -> bool:  # Any: pyarrow's
        """Write a log entry that changes schema and properties, unless another process has written one meanwhile.

        delta-rs changes no types, except by DataFusion, which panics if there is a blank in the table's path.
        """
        metadata, protocol = delta.metadata(), delta.protocol()
        with tempfile.TemporaryDirectory() as scratch, store_errors(self.location):
            DeltaTable.create(scratch, schema, partition_by=metadata.partition_columns)
            [entry] = Path(scratch, "_delta_log").glob("*.json")
            lines = map(json.loads, entry.read_bytes().splitlines())
            made = {kind: action for line in lines for kind, action in line.items()}
        actions: list[dict[str, Any]] = []
        features = {"readerFeatures": protocol.reader_features or (), "writerFeatures": protocol.writer_features or ()}
        if not set(made["protocol"].get("readerFeatures", ())) <= {*features["readerFeatures"]}:
            # For a new type, such as timestamp_ntz.
            all_features = {kind: sorted({*made["protocol"][kind], *known}) for kind, known in features.items()}
            actions.append({"protocol": made["protocol"] | all_features})
        kept = {"id": metadata.id, "name": metadata.name, "description": metadata.description}
        kept |= {"createdTime": metadata.created_time, "configuration": properties}
        actions.append({"metaData": made["metaData"] | kept})
        information = {"timestamp": int(clock.time() * 1000), "operation": "CHANGE COLUMN", "operationParameters": {}}
        information |= {"engineInfo": "gnsq", ACTIONS: {"metaData": 1}}
        entry_lines = "\n".join(map(json.dumps, [{"commitInfo": information}, *actions]))
        with store_errors(self.location):
            return try_create(self.location, f"_delta_log/{delta.version() + 1:020}.json", entry_lines.encode())

    def _check_values(self, delta: DeltaTable, files: Iterable[DataFile]) -> None:
        if not self.partitioning.own:
            return
        if not self._values:
            partitions = delta.partitions()
            self._values = {name: {partition_text(each[name]) for each in partitions} for name in self.partitioning.own}
        for name, values in self._values.items():
            values.update(file.partition[self.partitioning.columns.index(name)] for file in files)
            check_partitions(self.partitioning, len(values), name)

    # --- durability on local disks

    def _synced(self, delta: DeltaTable, before: int) -> None:
        """Read the log entries after a version, and sync them on a local disk."""
        with store_errors(self.location):
            delta.update_incremental()
        self._sync_entries(before, delta.version())

    def _sync_entries(self, before: int, last: int) -> None:
        sync_log(self.location, *(f"{version:020}.json" for version in range(before + 1, last + 1)))
        self._synced_version = last


def _nullable(field: Any) -> Any:  # Any: pyarrow has no types
    """Return a field without NOT NULL, at any depth; the keys of a map can't be null."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(each) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _nullable(kind.item_field))
    return pa.field(field.name, kind)


def _joined(path: str, found: Any, wanted: Any) -> Any:  # Any: pyarrow has no types
    """Return the type that has the values of both.

    Raises:
        ValueError: If there is none with which readers can read files of both.
    """
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        fields = {field.name: field.type for field in found}
        names = {name.lower(): name for name in fields}
        for field in wanted:
            inner = f"{path}.{field.name}" if path else field.name
            if field.name in fields:
                fields[field.name] = _joined(inner, fields[field.name], field.type)
            elif other := names.get(field.name.lower()):
                raise ValueError(
                    f"column {path and f'{path}.'}{other}, and the field is {field.name} now: give it the name of "
                    "before, since case makes no difference"
                )
            else:
                fields[field.name] = field.type
        return pa.struct(list(fields.items()))
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return pa.list_(pa.field(found.value_field.name, _joined(f"{path}[]", found.value_type, wanted.value_type)))
    if pa.types.is_map(found) and pa.types.is_map(wanted) and found.key_type == wanted.key_type:
        return pa.map_(found.key_type, _joined(f"{path}[]", found.item_type, wanted.item_type))
    if found == wanted:
        return found
    for widths in _WIDTHS:
        if found in widths and wanted in widths:
            return max(found, wanted, key=widths.index)
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted) and found.scale == wanted.scale:
        return max(found, wanted, key=lambda kind: kind.precision)
    raise ValueError(
        f"column {path} of type {_type(found)}, and its type is {_type(wanted)} now, in which readers could not read "
        "the files of before: leave it, take the values into a column of another name, or give another output"
    )


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def log_entry(store: Store, version: int) -> list[dict[str, Any]]:  # Any: JSON
    """Read the actions of an entry of a table's log.

    Raises:
        FileNotFoundError: If the log does not have it any more.
    """
    with store.open(f"_delta_log/{version:020}.json") as file:
        return [json.loads(line) for line in file.read().splitlines()]


def write_entry(
    delta: DeltaTable,
    location: str,
    added: Collection[DataFile],
    removed: Collection[TableFile] = (),
    transactions: Sequence[Transaction] = (),
    *,
    retries: int | None = None,
    is_merge: bool = False,
) -> None:
    """Add and remove files of a table in one log entry. On a local disk the caller syncs it.

    Args:
        retries: On newer versions; None: as delta-rs does.
        is_merge: The rows stay the same.

    Raises:
        JobFailed: If the store fails, or, with CommitFailedError as its cause, if the entry does not fit newer ones.
    """
    now, columns = int(clock.time() * 1000), delta.metadata().partition_columns
    actions: list[AddAction | RemoveAction] = []
    for file in removed:
        values = dict(zip(columns, file.partition, strict=True))
        actions.append(RemoveAction(file.path, not is_merge, now, file.size, values))
    for new in added:
        values = dict(zip(columns, new.partition, strict=True))
        actions.append(AddAction(new.path, new.size, values, now, not is_merge, new.stats))
    kinds = {"add": len(added), "remove": len(removed), "txn": len(transactions)}
    properties = CommitProperties(
        custom_metadata={
            **({_MERGE: True} if is_merge else {}),
            ACTIONS: {kind: number for kind, number in kinds.items() if number},
        },
        app_transactions=list(transactions),
        max_commit_retries=retries,
    )
    with store_errors(location):
        delta.create_write_transaction(
            actions,
            "append",
            delta.schema(),
            columns,
            commit_properties=properties,
            post_commithook_properties=NO_HOOKS,
        )


def _applications(owner: str) -> tuple[str, str, str]:
    """Name the applications whose versions are a checkpoint's last batch, the hash of its offsets, and that of its
    settings."""
    return f"gnsq:{owner}", f"gnsq:{owner}:offsets", f"gnsq:{owner}:settings"


def _type(kind: Any) -> str:  # Any: pyarrow has no types
    """Name a type as Delta does."""
    [field] = Schema.from_arrow(pa.schema([("x", kind)])).fields
    return str(field.type.type)


@contextlib.contextmanager
def store_errors(location: str) -> Iterator[None]:
    """Translate errors of the store and of delta-rs."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise store_error(location, error) from error


def check_store(location: str) -> None:
    """Refuse an object store on which one commit could replace another. Makes a file there, and deletes it.

    Raises:
        JobFailed: If the store ignores the condition of a PUT, or can't be used.
    """
    store, name = open_store(location, "output"), f"_probe-{uuid.uuid4().hex}"
    if not isinstance(store, ObjectStore):
        return
    with store_errors(location):
        store.try_create(name, b"")
        # delta-rs and obstore are one library, and send the same request.
        is_replaced = store.try_create(name, b"")
        store.remove(name)
    if is_replaced:
        raise JobFailed(
            f"setting output {redact_uri(location)}: the store ignores the condition of a PUT (If-None-Match), so one "
            "commit would replace another: give a store that has conditional PUT"
        )


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
