"""What a query's checkpoint says, read without Spark: its offset log and its commit log."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from gnsq.spark.errors import JobFailed
from gnsq.spark.uris import redact_uri

__all__ = ["Checkpoint", "open_location", "read_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a query stands.

    Attributes:
        planned, planned_at: Last batch in the offset log; -1 if there is none.
        committed, committed_at: Last batch in the commit log.
        offset: What the source had given until the end of the last committed batch.
    """

    planned: int = -1
    planned_at: dt.datetime | None = None
    committed: int = -1
    committed_at: dt.datetime | None = None
    offset: Any = None  # Any: JSON


def open_location(location: str) -> tuple[Any, str]:
    """Open a path or URI; returns pyarrow's file system, and the path in it.

    Raises:
        ValueError: If pyarrow does not know the URI's scheme; others than Spark's are many.
    """
    if "://" not in location and not location.startswith("file:"):
        return fs.LocalFileSystem(), str(Path(location).absolute())
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        # OSError: such as the library for HDFS, which pyarrow comes without.
        raise ValueError(f"{redact_uri(location)} can't be read without Spark") from None
    return filesystem, path


def read_checkpoint(location: str) -> Checkpoint:
    """Read the logs; of a checkpoint that does not exist yet there is nothing.

    Raises:
        ValueError: As open_location().
        JobFailed: If a log can't be read; the text names the file.
        OSError: If the file system fails.
    """
    filesystem, root = open_location(location)
    shown = redact_uri(location)
    offsets, commits = _log(filesystem, f"{root}/offsets"), _log(filesystem, f"{root}/commits")
    metadata = filesystem.get_file_info(f"{root}/metadata")
    if metadata.type == fs.FileType.File:
        _parsed(filesystem, metadata.path, shown, lambda text: json.loads(text)["id"])
    elif offsets:
        raise JobFailed(_corrupt(shown, "metadata", "it is missing"))
    if not offsets:
        return Checkpoint()
    planned, committed = max(offsets), max(commits, default=-1)
    planned_at, _ = _parsed(filesystem, offsets[planned].path, shown, _decode_offsets)
    committed_at, offset = None, None
    if committed in offsets:
        committed_at = commits[committed].mtime
        _parsed(filesystem, commits[committed].path, shown, _decode_commit)
        _, offset = _parsed(filesystem, offsets[committed].path, shown, _decode_offsets)
    return Checkpoint(planned, planned_at, committed, committed_at, offset)


def _log(filesystem: Any, directory: str) -> dict[int, Any]:
    """Map batches to their files in a log; Spark's temporary files have other names."""
    found = filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
    return {int(info.base_name): info for info in found if info.base_name.isdecimal()}


def _parsed(filesystem: Any, path: str, checkpoint: str, decode: Any) -> Any:  # Any: as decode returns it
    with filesystem.open_input_stream(path) as file:
        data = file.read()
    try:
        return decode(data.decode())
    except (ValueError, KeyError, IndexError, TypeError) as error:
        name = "/".join(path.split("/")[-2:]) if path.rpartition("/")[2].isdecimal() else "metadata"
        raise JobFailed(_corrupt(checkpoint, name, f"it is not Spark's: {error}")) from error


def _corrupt(checkpoint: str, name: str, reason: str) -> str:
    return (
        f"checkpoint {checkpoint} is corrupt: {name} can't be read, {reason}. Bring the checkpoint back from a copy, "
        "or start anew with empty work and output directories"
    )


def _decode_offsets(text: str) -> tuple[dt.datetime, Any]:
    version, metadata, *offsets = text.splitlines()
    _check_version(version)
    planned_at = dt.datetime.fromtimestamp(json.loads(metadata)["batchTimestampMs"] / 1000, dt.UTC)
    return planned_at, None if offsets[0] == "-" else json.loads(offsets[0])


def _decode_commit(text: str) -> None:
    version, metadata = text.splitlines()[:2]
    _check_version(version)
    json.loads(metadata)


def _check_version(version: str) -> None:
    if not version.startswith("v"):
        raise ValueError(f"its version is {version[:20]!r}")
