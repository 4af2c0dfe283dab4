"""Spark's checkpoint of a query: its identity and that of its batches, and what it was made with.

Reads Spark's files, but does not import Spark, since ``--status`` does not start it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from pyarrow import fs

from gnsq.spark.errors import JobFailed
from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.durable import open_location, sync_checkpoint
from gnsq.spark.pipeline.settings import Query
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import redact_uri

__all__ = [
    "check_state",
    "checkpoint_id",
    "delete_read",
    "hash_of",
    "identify",
    "last_batch",
    "settings_hash",
]


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


def last_batch(location: str) -> int:
    """Return the last batch that Spark has committed; -1 if there is none.

    Raises:
        ValueError: As open_location().
        OSError: If the file system fails.
    """
    filesystem, root = open_location(location)
    found = filesystem.get_file_info(fs.FileSelector(f"{root}/commits", allow_not_found=True))
    return max((int(info.base_name) for info in found if info.base_name.isdecimal()), default=-1)


def delete_read(query: Query) -> None:
    """Delete from a query's spool what committed batches have read. The query must not run.

    Raises:
        ValueError: As open_location().
        OSError: If a file system fails.
    """
    committed = last_batch(query.checkpoint)
    if committed < 0:
        return
    # Without the end of this batch, Spark would run it again, and need its messages.
    sync_checkpoint(query.checkpoint, committed + 1)
    filesystem, root = open_location(query.checkpoint)
    with filesystem.open_input_stream(f"{root}/offsets/{committed}") as file:
        *_, offset = file.read().decode().splitlines()
    spool = Spool(query.spool)
    spool.prune(spool.listing(), decode_offset(json.loads(offset), query.read_options.source))


def settings_hash(query: Query) -> int:
    """Compute the hash of the settings by which a batch is divided into events, dead letters and what is left out."""
    names = ("format", "schema", "parse", "time", "max_ahead", "where", "mismatch")
    values = {name: getattr(query.events, name) for name in names}
    values |= {"columns": dict(query.events.columns), "select": list(query.events.select)}
    return hash_of(json.dumps(values, sort_keys=True).encode())


def check_state(queries: Iterable[Query]) -> None:
    """Check that checkpoints with batches have state, as they have with deduplicate, or none: Spark can't change that.

    Those that only Spark can open are not checked.

    Raises:
        JobFailed: If it is the other way round. All such checkpoints are named, since the setting is the job's.
        OSError: If a file system fails.
    """
    changed = [query for query in queries if _has_other_state(query)]
    if changed:
        before = "0" if changed[0].deduplicate else "more than 0"
        raise JobFailed(
            f"deduplicate was {before} when the checkpoints were made, and Spark can't go on from them with another "
            'one: give it the value of before, and start the job with --once until it says "drained". Then move away '
            f"{' and '.join(redact_uri(query.checkpoint) for query in changed)}, but no spool, and start the job with "
            "the new value and --take-over"
        )


def _has_other_state(query: Query) -> bool:
    try:
        filesystem, root = open_location(query.checkpoint)
    except ValueError:
        return False
    has_state = filesystem.get_file_info(f"{root}/state").type != fs.FileType.NotFound
    return has_state != (query.deduplicate > 0) and last_batch(query.checkpoint) >= 0


def _corrupt(checkpoint: str, reason: str) -> str:
    # The owner of a spool is the base of the checkpoints, so a new checkpoint there reads the spool from its begin.
    return (
        f"checkpoint {checkpoint} is corrupt: metadata can't be read, {reason}. Bring the checkpoint back from a copy; "
        "or move this directory away, leave the spool as it is, and start with --take-over. Nothing is lost: nsqd has "
        "no copy of what the spool has, and a new checkpoint reads all of it, so the last batches may be in the table "
        "twice"
    )
