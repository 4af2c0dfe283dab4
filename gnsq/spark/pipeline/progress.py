"""Progress of a query: Spark's progress events, a note that ``--status`` reads, and the identity of the checkpoint.

Reads Spark's JSON, but does not import Spark, since ``--status`` does not start it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from gnsq.localfiles import sync_directory
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.batches import BatchIdentity
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.report import Batch
from gnsq.spark.pipeline.tables import sync_files
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
    "open_location",
    "read_note",
    "set_torn_aside",
    "source_of",
    "start_of",
]

logger = logging.getLogger(__name__)

# Name under which job.py observes the parsed events, by DataFrame.observe().
OBSERVED = "gnsq"
_NAME = "progress.json"
_FILE_URI = re.compile(r"^file:(//[^/]*)?")
# Directories of a query's state whose files are synced side by side.
_CONCURRENT_SYNCS = 16


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


@functools.cache
def open_location(location: str) -> tuple[Any, str]:
    """Open a path or URI; returns pyarrow's file system, and the path in it.

    Raises:
        ValueError: If pyarrow can't open the URI. Spark knows more schemes.
    """
    if "://" not in location or location.startswith("file:"):
        # As Spark does: %20 in a URI of a file is no blank, and a blank may be there.
        return fs.LocalFileSystem(), str(Path(_FILE_URI.sub("", location)).absolute())
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        # OSError: for example, the library for HDFS is not installed; pyarrow does not contain it.
        raise ValueError(f"{redact_uri(location)} can't be read without Spark") from None
    return filesystem, path


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
        if isinstance(filesystem, fs.LocalFileSystem):
            # Spark syncs nothing, so a power failure may remove files. Without the file in commits, Spark would run the
            # previous batch again, but the source deletes its messages after this batch. Without the file in offsets,
            # Spark would give this number to another batch. The file metadata has the owner; the files in state have
            # counts, which the spool can't replace.
            _sync_state(Path(root), batch_id)
            for directory, name in (("", "metadata"), ("commits", batch_id - 1), ("offsets", batch_id)):
                sync_files(Path(root, directory), f"{name}", f".{name}.crc")
    return BatchIdentity(owner, batch_id, offsets, settings)


def _sync_state(root: Path, batch_id: int) -> None:
    """Sync the files of the state that were written since the batch before began; all, if it is not known when."""
    try:
        since = Path(root, f"offsets/{batch_id - 1}").stat().st_mtime
    except FileNotFoundError:
        since = 0.0
    with ThreadPoolExecutor(_CONCURRENT_SYNCS) as pool:
        for directory, _, names in os.walk(root / "state"):
            new = [name for name in names if _is_since(Path(directory, name), since)]
            if new or _is_since(Path(directory), since):
                pool.submit(sync_files, Path(directory), *new)


def _is_since(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime >= since
    except FileNotFoundError:  # Spark has deleted it
        return False


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


def set_torn_aside(location: str) -> None:
    """On local disks, rename the newest file of each log of a checkpoint if a power failure tore it: Spark fails at it.

    Spark syncs nothing, and identify() syncs both logs before a batch writes anything. So a torn file in offsets is of
    a batch that has written nothing. A torn file in commits is of a batch that runs again, and finds itself in the
    tables.

    Raises:
        ValueError: As open_location().
        OSError: If the file system fails.
    """
    filesystem, root = open_location(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    # First commits: a batch with a file there has written something, so its file in offsets stays.
    for log, lines in (("commits", 2), ("offsets", 3)):
        directory = Path(root, log)
        newest = max((path for path in directory.glob("*") if path.name.isdecimal()), key=_number, default=None)
        if newest is None or _is_whole(newest, lines) or (log == "offsets" and _number(newest) <= last_batch(location)):
            continue
        logger.warning("checkpoint %s: %s/%s is torn; set aside", redact_uri(location), log, newest.name)
        for path in (newest, _checksums(newest)):
            with contextlib.suppress(FileNotFoundError):
                path.rename(path.with_name(f"{path.name}.torn"))
        sync_directory(directory)


def _number(path: Path) -> int:
    return int(path.name)


def _checksums(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _is_whole(path: Path, least: int) -> bool:
    """Return True if a file of a log has a version, ``least`` lines or more, JSON or "-" last, and whole checksums.

    Source: Spark, OffsetSeqLog and CommitLog; Hadoop, ChecksumFileSystem: 8 bytes, and 4 for each 512 of the file.
    """
    content, checksums = path.read_bytes(), _checksums(path)
    if checksums.exists() and checksums.stat().st_size != 8 + 4 * -(-len(content) // 512):
        return False
    version, *lines = content.splitlines() or [b""]
    try:
        return version[:1] == b"v" and len(lines) + 1 >= least and (lines[-1] == b"-" or bool(json.loads(lines[-1])))
    except ValueError:
        return False


def _corrupt(checkpoint: str, reason: str) -> str:
    return (
        f"checkpoint {checkpoint} is corrupt: metadata can't be read, {reason}. Bring the checkpoint back from a copy, "
        "or start anew with empty work and output directories"
    )
