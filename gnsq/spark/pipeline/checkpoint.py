"""Spark's checkpoint of a query: its identity and that of its batches, and what it was made with.

Reads Spark's files, but does not import Spark, since ``--status`` does not start it.

The state of an aggregation fits one definition of a metric only. So each definition has a checkpoint of its own, called
an epoch, in a directory with its number: ``CHECKPOINT/QUERY/1``. The spool stays, and so do the messages in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs

from gnsq.spark.errors import JobFailed
from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.durable import open_location, sync_checkpoint
from gnsq.spark.pipeline.settings import Query
from gnsq.spark.pipeline.tables import SettingError, TableSettings
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import join_uri, redact_uri

__all__ = [
    "Definition",
    "changes",
    "checkpoint_id",
    "checkpoint_of",
    "delete_checkpoint",
    "delete_read",
    "hash_of",
    "identify",
    "last_batch",
    "read_epoch",
    "settings_hash",
    "settle_epoch",
]

logger = logging.getLogger(__name__)

_NAME = "definition.json"


def checkpoint_id(location: str) -> str | None:
    """Read Spark's id of the query from its checkpoint. Return None if the checkpoint does not exist yet.

    Raises:
        ValueError: As open_location().
        JobFailed: If the checkpoint's file metadata is damaged, or is missing while other files exist.
        OSError: If the file system fails.
    """
    filesystem, root = open_location(location)
    shown = redact_uri(location)
    metadata = filesystem.get_file_info(f"{root}/metadata")
    if metadata.type != fs.FileType.File:
        if filesystem.get_file_info(fs.FileSelector(f"{root}/offsets", allow_not_found=True)):
            # Spark would go on from these offsets with a new id, and a batch that runs again would look new.
            raise JobFailed(_corrupt(shown, "it is missing"))
        return None
    with filesystem.open_input_stream(metadata.path) as file:
        data = file.read()
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise JobFailed(_corrupt(shown, f"it is not Spark's: {error}")) from error


def identify(location: str, owner: str, batch_id: int, settings: int) -> BatchIdentity:
    """Build the identity of a batch that has begun. On a local disk, sync the checkpoint's files that it depends on.

    Args:
        owner: Spark's id of the query.
        settings: Hash of the settings that decide what becomes of a message.

    Raises:
        OSError: If the checkpoint can't be read.
    """
    try:
        filesystem, root = open_location(location)
    except ValueError:
        # Only Spark can read this checkpoint (such as hdfs:). Then only its number identifies a batch.
        return BatchIdentity(owner, batch_id, 0, settings)
    # Spark writes this file before the batch, and never again, even if the batch runs again.
    with filesystem.open_input_stream(f"{root}/offsets/{batch_id}") as file:
        offsets = hash_of(file.read())
    sync_checkpoint(location, batch_id)
    return BatchIdentity(owner, batch_id, offsets, settings)


def hash_of(data: bytes) -> int:
    """Compute a number of 48 bits of bytes, since some readers of a table's log take numbers as floats."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6])


def last_batch(location: str, log: str = "commits") -> int:
    """Return the last batch that Spark has committed or, of the log offsets, planned; -1 if there is none.

    Raises:
        ValueError: As open_location().
        OSError: If the file system fails.
    """
    filesystem, root = open_location(location)
    found = filesystem.get_file_info(fs.FileSelector(f"{root}/{log}", allow_not_found=True))
    return max((int(info.base_name) for info in found if info.base_name.isdecimal()), default=-1)


def delete_read(query: Query, location: str) -> None:
    """Delete from a query's spool what committed batches of a checkpoint have read. The query must not run.

    Raises:
        ValueError: As open_location().
        OSError: If a file system fails.
    """
    committed = last_batch(location)
    if committed < 0:
        return
    # Without the end of this batch, Spark would run it again, and need its messages.
    sync_checkpoint(location, committed + 1)
    filesystem, root = open_location(location)
    with filesystem.open_input_stream(f"{root}/offsets/{committed}") as file:
        *_, offset = file.read().decode().splitlines()
    spool = Spool(query.spool)
    spool.prune(spool.listing(), decode_offset(json.loads(offset), query.read_options.source))


# --- epochs


@dataclass(frozen=True)
class Definition:
    """What the state of a query depends on.

    Attributes:
        fixed: Settings that can't change while the query keeps its table.
        state: Settings whose change begins a new epoch.
    """

    fixed: Mapping[str, Any]
    state: Mapping[str, Any]

    @classmethod
    def of(cls, query: Query) -> Definition:
        """Return the definition of a query. A table's query has state only if it leaves out duplicates."""
        state: dict[str, Any] = {"deduplicate": query.deduplicate > 0}
        metric = query.metric
        if metric is None:
            return cls({}, state)
        state |= _division(query.events) | {"select": list(query.events.select)}
        state |= {"keys": list(metric.keys), "aggregates": list(metric.aggregates)}
        return cls({"window": metric.window, "slide": metric.slide}, state)


def settings_hash(query: Query) -> int:
    """Compute the hash of the settings by which a batch is divided into events, dead letters and what is left out."""
    return hash_of(json.dumps(_division(query.events), sort_keys=True).encode())


def _division(events: TableSettings) -> dict[str, Any]:
    names = ("format", "schema", "parse", "time", "max_ahead", "where", "mismatch")
    return {name: getattr(events, name) for name in names} | {"columns": dict(events.columns)}


def checkpoint_of(query: Query, epoch: int) -> str:
    """Return the location of Spark's checkpoint of an epoch."""
    base = query.checkpoint
    return join_uri(base, str(epoch)) if ":/" in base else str(Path(base, str(epoch)))


def delete_checkpoint(location: str) -> None:
    """Delete a checkpoint that is needed no more, if it exists. If that fails, log it: the next start tries again."""
    filesystem, root = open_location(location)
    try:
        # First offsets: with these and without the file metadata, a checkpoint is a damaged one.
        for path in (f"{root}/offsets", root):
            if filesystem.get_file_info(path).type != fs.FileType.NotFound:
                filesystem.delete_dir(path)
    except OSError as error:
        logger.warning("checkpoint %s, which is needed no more, not deleted: %s", redact_uri(location), error)


def read_epoch(query: Query) -> int:
    """Return the epoch of a query's checkpoint; 1 before its first start."""
    noted = _noted(query)
    return 1 if noted is None else int(noted["epoch"])


def settle_epoch(query: Query) -> int:
    """Note the definition of a query that is about to start, and return its epoch: a new one if its state fits no more.

    Before a new epoch begins, the segments that the old one has read are deleted from the spool.

    Raises:
        SettingError: If a setting has changed that can't.
        JobFailed: If a batch of the old definition is not done.
        OSError: If a file can't be read or written.
    """
    definition, noted = Definition.of(query), _noted(query)
    epoch = 1 if noted is None else int(noted["epoch"])
    if noted is not None:
        for name, value in definition.fixed.items():
            if noted["fixed"].get(name, value) != value:
                raise SettingError(
                    f"{name} {value:g} s: the metric has a table with {name} {noted['fixed'][name]:g} s, and windows "
                    "of both would overlap: give it another name (gnsq-pipeline rebuild fills its table from the "
                    "archive), or leave it as it was",
                    query.section,
                )
        if changed := changes(query):
            epoch = _next_epoch(query, epoch, changed)
    store = open_store(query.notes, "work")
    store.make_directory("")
    text = {"epoch": epoch, "fixed": dict(definition.fixed), "state": dict(definition.state)}
    store.put(_NAME, json.dumps(text).encode())
    return epoch


def changes(query: Query) -> list[str]:
    """Return the settings that have changed since the query was started last, and begin a new epoch."""
    noted = (_noted(query) or {}).get("state", {})
    return sorted(name for name, value in Definition.of(query).state.items() if noted.get(name, value) != value)


def _next_epoch(query: Query, epoch: int, changed: list[str]) -> int:
    location = checkpoint_of(query, epoch)
    subject = f"query {query.name}: {', '.join(changed)} changed, so it needs a new checkpoint"
    try:
        planned = last_batch(location, "offsets")
        if planned < 0:
            return epoch
        # A metric has an epoch of its own in its table, too, so what this batch has counted there is valid no more. A
        # batch that fails for a wrong setting would otherwise never let the metric go on.
        if planned > last_batch(location) and query.metric is None:
            raise JobFailed(
                f"{subject}, but batch {planned} was begun with the settings of before and is not done: start the job "
                "with these and --once, then with the new ones"
            )
        delete_read(query, location)
    except ValueError as error:
        raise JobFailed(f"{subject}, and {error}: leave the settings as they were, or give it another name") from error
    logger.warning("%s, and begins epoch %d with it", subject, epoch + 1)
    return epoch + 1


def _noted(query: Query) -> dict[str, Any] | None:
    try:
        with open_store(query.notes, "work").open(_NAME) as file:
            found: dict[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        return None
    return found


def _corrupt(checkpoint: str, reason: str) -> str:
    # The owner of a spool is the base of the checkpoints, so a new checkpoint there reads the spool from its begin.
    return (
        f"checkpoint {checkpoint} is corrupt: metadata can't be read, {reason}. Bring the checkpoint back from a copy; "
        "or move this directory away, leave the spool as it is, and start with --take-over. Nothing is lost: nsqd has "
        "no copy of what the spool has, and a new checkpoint reads all of it, so the last batches may be in the table "
        "twice"
    )
