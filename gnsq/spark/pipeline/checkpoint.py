"""What a query's checkpoint says without Spark: its identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from gnsq.spark.errors import JobFailed
from gnsq.spark.uris import redact_uri

__all__ = ["checkpoint_id", "open_location"]


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


def checkpoint_id(location: str) -> str | None:
    """Read what Spark calls the query of a checkpoint; None of a checkpoint that does not exist yet.

    Raises:
        ValueError: As open_location().
        JobFailed: If it can't be told; the text names the file.
        OSError: If the file system fails.
    """
    filesystem, root = open_location(location)
    shown = redact_uri(location)
    metadata = filesystem.get_file_info(f"{root}/metadata")
    if metadata.type != fs.FileType.File:
        if filesystem.get_file_info(fs.FileSelector(f"{root}/offsets", allow_not_found=True)):
            # Spark would go on from there as another query, and a batch that runs again would be taken for a new one.
            raise JobFailed(_corrupt(shown, "it is missing"))
        return None
    with filesystem.open_input_stream(metadata.path) as file:
        data = file.read()
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise JobFailed(_corrupt(shown, f"it is not Spark's: {error}")) from error


def _corrupt(checkpoint: str, reason: str) -> str:
    return (
        f"checkpoint {checkpoint} is corrupt: metadata can't be read, {reason}. Bring the checkpoint back from a copy, "
        "or start anew with empty work and output directories"
    )
