"""Stores by a URI: object stores, and file systems of pyarrow that are neither that nor local, such as HDFS."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
from pyarrow import fs

from gnsq.spark.spool.objectstore import OBJECT_STORES, RETRY_TIME, ObjectStore
from gnsq.spark.uris import redact_uri

__all__ = ["RemoteStore", "open_remote"]

# As LocalStore's. A file gets its own name when it is whole.
TEMPORARY = ".tmp-"


def open_remote(location: str, what: str, retry_time: float | None) -> ObjectStore | RemoteStore:
    """Make the store of a URI, as storage.open_store() does."""
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        shown = redact_uri(location)
        # Raise without the cause (from None): its text may show the credentials in the location.
        raise ValueError(f"{what} {shown!r} can't be opened: {str(error).replace(location, shown)}") from None
    if filesystem.type_name in OBJECT_STORES:
        return ObjectStore(location, filesystem, path, RETRY_TIME if retry_time is None else retry_time)
    return RemoteStore(filesystem, path)


class RemoteStore:
    """A directory of a pyarrow file system that is neither local nor an object store, such as HDFS.

    Methods as LocalStore's; list() lists all levels.
    """

    lists_in_order = False

    def __init__(self, filesystem: Any, root: str) -> None:  # Any: pyarrow has no types
        self._fs = filesystem
        self._root = root.rstrip("/")

    def put(self, path: str, data: Any) -> None:
        whole = self._path(path)
        directory, _, name = whole.rpartition("/")
        temporary = f"{directory}/{TEMPORARY}{name}"
        with self._fs.open_output_stream(temporary) as stream:
            stream.write(data)
        self._fs.move(temporary, whole)

    def read(self, path: str) -> Any:
        with self.open(path) as file:
            return file.read_buffer()

    def open(self, path: str) -> Any:
        return self._fs.open_input_file(self._path(path))

    def make_directory(self, path: str) -> None:
        self._fs.create_dir(self._path(path), recursive=True)

    def list(self) -> list[tuple[str, int]]:
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=True)
        start = len(self._root) + 1
        found = [info for info in self._fs.get_file_info(selector) if info.type == fs.FileType.File]
        return [(info.path[start:], info.size) for info in found]

    def directories(self) -> set[str]:
        return {info.base_name for info in self._infos("") if info.type == fs.FileType.Directory}

    def names(self, directory: str, after: str = "") -> dict[str, int | None]:
        return {info.base_name: info.size for info in self._infos(directory) if info.type == fs.FileType.File}

    def first_name(self, directory: str) -> str | None:
        return min(self.names(directory), default=None)

    def size(self, path: str) -> int | None:
        info = self._fs.get_file_info(self._path(path))
        return int(info.size) if info.type == fs.FileType.File else None

    def _infos(self, directory: str) -> Any:
        return self._fs.get_file_info(fs.FileSelector(self._path(directory), allow_not_found=True))

    def remove(self, *paths: str) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(self._path(path))

    def remove_directory(self, path: str) -> None:
        whole = self._path(path)
        if not self._fs.get_file_info(fs.FileSelector(whole, allow_not_found=True)):
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_dir(whole)

    def rename(self, path: str, target: str) -> bool:
        try:
            self._fs.move(self._path(path), self._path(target))
        except OSError:
            # Ignore an error if the file does not exist: pyarrow does not always raise FileNotFoundError then.
            if self.size(path) is not None:
                raise
            return False
        return True

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root
