"""Progress of a query: Spark's progress events, a note that ``--status`` reads, and the identity of the checkpoint.

Reads Spark's JSON, but does not import Spark, since ``--status`` does not start it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.durable import open_location, sync_checkpoint
from gnsq.spark.pipeline.report import Batch
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import redact_uri

__all__ = [
    "OBSERVED",
    "Note",
    "Notebook",
    "batch_of",
    "checkpoint_id",
    "identify",
    "last_batch",
    "read_note",
    "source_of",
    "start_of",
]

logger = logging.getLogger(__name__)

# Name under which job.py observes the parsed events, by DataFrame.observe().
OBSERVED = "gnsq"
_NAME = "progress.json"


@dataclass(frozen=True, slots=True)
class Note:
    """Progress of a query.

    Attributes:
        committed, committed_at: Its last batch that Spark has committed, and when; -1 if there is none.
        begun, begun_at: Its last batch that has begun, and when; -1 if there is none.
        offset: The source's offset at the end of the last committed batch.
        state_rows, state_bytes: Size of the query's state after that batch; bytes on disk and in memory.
        lag: Seconds from the newest message's publishing to the end of that batch; None if it had no message.
    """

    committed: int = -1
    committed_at: dt.datetime | None = None
    begun: int = -1
    begun_at: dt.datetime | None = None
    offset: Any = None  # Any: JSON
    state_rows: int = 0
    state_bytes: int = 0
    lag: float | None = None


class Notebook:
    """Keeps a query's note in its work directory. Any thread may call it.

    A note may be one batch behind if the job is killed just after Spark's commit.
    """

    def __init__(self, config: PipelineConfig, query: str) -> None:
        self._lock = threading.Lock()
        self._note = read_note(config, query)
        self._store = open_store(config.notes_of(query), "work")
        self._store.make_directory("")

    def begin(self, batch_id: int) -> None:
        """Note that a batch begins."""
        with self._changed(batch_id - 1) as note:
            self._note = dataclasses.replace(note, begun=batch_id, begun_at=dt.datetime.now(dt.UTC))

    def finish(self, progress: Any, batch: Batch) -> None:  # Any: Spark's JSON
        """Note a batch that Spark has committed."""
        with self._changed(batch.batch_id) as note:
            self._note = dataclasses.replace(
                note,
                committed=batch.batch_id,
                committed_at=_ended_at(progress),
                # For a batch without rows, begin() is not called.
                begun=max(batch.batch_id, note.begun),
                offset=_json(progress["sources"][0]["endOffset"]),
                state_rows=batch.state_rows,
                state_bytes=batch.state_bytes,
                lag=batch.lag,
            )

    @contextlib.contextmanager
    def _changed(self, committed: int) -> Iterator[Note]:
        """Yield the note to change, then write it. A note of later batches is another checkpoint's: yield a new one."""
        with self._lock:
            yield self._note if committed >= self._note.committed else Note()
            fields = dataclasses.asdict(self._note)
            for name in ("committed_at", "begun_at"):
                fields[name] = fields[name] and fields[name].isoformat()
            self._store.put(_NAME, json.dumps(fields).encode())


def read_note(config: PipelineConfig, query: str) -> Note:
    """Read a query's note; an empty one if there is none yet.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is no note.
    """
    location = config.notes_of(query)
    try:
        with open_store(location, "work").open(_NAME) as file:
            fields = json.loads(file.read())
        for name in ("committed_at", "begun_at"):
            fields[name] = fields[name] and dt.datetime.fromisoformat(fields[name])
        return Note(**fields)
    except FileNotFoundError:
        return Note()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{redact_uri(location)}/{_NAME} is not a note of the job ({error}): delete it, the next batch writes it "
            "anew"
        ) from error


def source_of(progress: Any) -> Any:  # Any: Spark's JSON
    """Return what the source's reportLatestOffset() has returned; an empty dict if that was None."""
    return _json(progress["sources"][0]["latestOffset"]) or {}


def start_of(progress: Any) -> Any:  # Any: Spark's JSON
    """Return the offset at which a batch begins; None for the first batch."""
    return _json(progress["sources"][0]["startOffset"])


def batch_of(name: str, progress: Any) -> Batch:  # Any: Spark's JSON
    """Build the Batch of a progress."""
    source = source_of(progress)
    observed = progress.get("observedMetrics", {}).get(OBSERVED)
    lag = None
    if observed is not None and observed.get("latest") is not None:
        lag = max(_ended_at(progress).timestamp() - observed["latest"] / 1e6, 0.0)
    operators = progress["stateOperators"]
    return Batch(
        name,
        progress["batchId"],
        progress["numInputRows"],
        _seconds(progress),
        malformed=observed["malformed"] if observed is not None else 0,
        duplicates=_custom(operators, "numDroppedDuplicateRows"),
        waiting=source["waiting"] + source["in_flight"] if "waiting" in source else None,
        spooled=source.get("spool_rows"),
        lag=lag,
        dropped=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
        trouble=source.get("trouble", ""),
        state_rows=sum(operator["numRowsTotal"] for operator in operators),
        state_bytes=sum(operator["memoryUsedBytes"] for operator in operators)
        + _custom(operators, "rocksdbSstFileSize"),
    )


def _seconds(progress: Any) -> float:  # Any: Spark's JSON
    return float(progress["durationMs"].get("triggerExecution", 0)) / 1000


def _ended_at(progress: Any) -> dt.datetime:  # Any: Spark's JSON
    return dt.datetime.fromisoformat(progress["timestamp"]) + dt.timedelta(seconds=_seconds(progress))


def _custom(operators: Any, name: str) -> int:  # Any: Spark's JSON
    return sum(operator.get("customMetrics", {}).get(name, 0) for operator in operators)


def _json(text: Any) -> Any:  # Any: an offset, which Spark has as a text with JSON or as JSON
    return json.loads(text) if isinstance(text, str) else text


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


def identify(config: PipelineConfig, query: str, owner: str, batch_id: int) -> BatchIdentity:
    """Build the identity of a batch that has begun. On a local disk, sync the checkpoint's files that it depends on.

    Args:
        owner: Spark's id of the query.

    Raises:
        OSError: If the checkpoint can't be read.
    """
    metric = config.metric_queries.get(query)
    entry = None if metric is None else config.entry_of(metric.topic)
    # The query archive has the settings of each topic in the tables of the topic.
    settings = 0 if entry is None else entry.division
    try:
        filesystem, root = open_location(config.checkpoint_of(query))
    except ValueError:
        # Only Spark can read this checkpoint (such as hdfs:). Then only its number identifies a batch.
        offsets = 0
    else:
        # Spark writes this file before the batch, and never again, even if the batch runs again.
        with filesystem.open_input_stream(f"{root}/offsets/{batch_id}") as file:
            offsets = _hash(file.read())
        sync_checkpoint(config.checkpoint_of(query), batch_id)
    return BatchIdentity(owner, batch_id, offsets, settings)


def _hash(data: bytes) -> int:
    # 48 bits: some readers of a table's log take numbers as floats.
    return int.from_bytes(hashlib.sha256(data).digest()[:6])


def last_batch(location: str) -> int:
    """Return the last batch in a checkpoint's commit log; -1 if there is none.

    Raises:
        ValueError: As open_location().
        OSError: If the file system fails.
    """
    filesystem, root = open_location(location)
    found = filesystem.get_file_info(fs.FileSelector(f"{root}/commits", allow_not_found=True))
    return max((int(info.base_name) for info in found if info.base_name.isdecimal()), default=-1)


def _corrupt(checkpoint: str, reason: str) -> str:
    # The owner of a spool is the location of the checkpoint, so a new checkpoint there reads the spool from its begin.
    return (
        f"checkpoint {checkpoint} is corrupt: metadata can't be read, {reason}. Bring the checkpoint back from a copy; "
        "or move this directory away, leave the spool as it is, and start with --take-over. Nothing is lost: nsqd has "
        "no copy of what the spool has, and a new checkpoint reads all of it, so the last batches may be in the table "
        "twice"
    )
