"""Durable files below one directory: of a local disk here, of an object store in objectstore.py. Knows no segments.

A file appears whole. On local disks it is written under a temporary name, synced and renamed. On object stores, it
appears when its upload has ended.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from gnsq.localfiles import make_directory, open_or_create, write_file
from gnsq.spark.uris import is_object_store, redact_uri

if TYPE_CHECKING:
    from gnsq.spark.spool.objectstore import ObjectStore

__all__ = ["LocalStore", "Store", "TEMPORARY", "open_store"]

TEMPORARY = ".tmp-"


def open_store(location: str, what: str = "spool", *, mode: int | None = None) -> Store:
    """Make the store of a path or URI (file:, or that of an object store); touches no file.

    Args:
        what: Name of the location, for errors.
        mode: Permissions of new directories, as in LocalStore. Object stores ignore it.

    Raises:
        ValueError: If the location is empty, or is a URI that can't be used.
    """
    if not location.strip():
        raise ValueError(f"{what} is empty: give a directory, as a path or a URI")
    scheme = urlsplit(location).scheme
    if scheme in ("s3a", "s3n"):
        raise ValueError(f"{what} {redact_uri(location)!r}: {scheme}: is Hadoop's name for it, write s3:")
    if scheme == "file" and urlsplit(location).netloc not in ("", "localhost"):
        raise ValueError(
            f"{what} {location!r} names a host: write file:/// and the path, which this machine has to see"
        )
    if scheme in ("", "file"):
        path = unquote(urlsplit(location).path) if scheme else location
        return LocalStore(Path(path), mode)
    if not is_object_store(location):
        raise ValueError(
            f"{what} {redact_uri(location)!r} is not an object store (s3, gs, gcs, abfs, abfss): give one, or a local "
            "or mounted directory as a path"
        )
    # Loads pyarrow.fs and obstore: 12 MiB that the process of a query with a local spool does not need.
    from gnsq.spark.spool.objectstore import open_object_store

    return open_object_store(location, what)


class LocalStore:
    """A local or mounted directory. Paths are relative, with slashes. All methods may raise OSError.

    Args:
        mode: Permissions of new directories, and, without the x bits, of files. None: as the umask says.
    """

    # True if names() lists names in their order, and can begin after one of them.
    lists_in_order = False

    def __init__(self, root: Path, mode: int | None = None) -> None:
        self.root = root.absolute()
        self._mode = mode

    def put(self, path: str, data: Any) -> None:  # Any: bytes or pyarrow.Buffer
        """Write a whole file durably. Its directory is made again if it is missing, but the root must exist."""
        target = self.root / path
        try:
            self._write(target, data)
        except FileNotFoundError:
            # Make the directory again: remove_abandoned() deletes it if it was empty for long, but never deletes the
            # root. If the root is gone, the disk may be unmounted, and another disk must not get the file.
            if not self.root.is_dir():
                raise
            make_directory(target.parent, self._mode)
            self._write(target, data)

    def _write(self, target: Path, data: Any) -> None:
        write_file(target, target.with_name(TEMPORARY + target.name), memoryview(data), self._mode)

    def read(self, path: str) -> Any:
        """Read a whole file; returns a pyarrow.Buffer."""
        with self.open(path) as file:
            return file.read_buffer()

    def open(self, path: str) -> Any:
        """Open a file for reading at any position."""
        # Not memory-mapped: a disk that fails must raise an error, and not kill the process.
        return pa.OSFile(str(self.root / path))

    def make_directory(self, path: str) -> None:
        """Make a directory durably, if it does not exist."""
        for directory in dict.fromkeys((self.root, self.root / path)):
            make_directory(directory, self._mode)

    def open_or_create(self, path: str) -> int:
        """Open a file to read, append and lock; make it if it does not exist. Follows no symlink."""
        return open_or_create(self.root / path, self._mode)

    def others_access(self) -> str:
        """Describe why users that mode excludes can still delete files here; "" if they can't."""
        found = self.root.stat()
        shared = (self._mode or 0) & 0o022
        if found.st_mode & 0o022 & ~shared:
            return f"has the permissions {stat.filemode(found.st_mode)}"
        if found.st_uid not in (0, os.geteuid()) and not shared:
            return f"belongs to another user, {found.st_uid}"
        return ""

    def list(self) -> list[str]:
        """List the paths of all files, on all levels. Empty without a root."""
        found = (Path(directory, name) for directory, _, names in os.walk(self.root) for name in names)
        return [str(path.relative_to(self.root)) for path in found]

    def directories(self) -> set[str]:
        """List the names of the directories in the root. Empty without a root."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root) as entries:
            # Leave symlinks out: no writer makes them, and files in the directory that one points to must stay.
            return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        return set()

    def names(self, directory: str, after: str = "") -> set[str]:
        """List the names of files in a directory.

        Args:
            after: Only names after this one, if lists_in_order.
        """
        with contextlib.suppress(FileNotFoundError):
            return set(os.listdir(self.root / directory))
        return set()

    def first_name(self, directory: str) -> str | None:
        """Return the first name in a directory; None if it is empty. Called only if lists_in_order."""
        return min(self.names(directory), default=None)

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is no such file."""
        # Text, here and in remove(): a Path would take three times as long as the request.
        try:
            found = os.stat(f"{self.root}/{path}")
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def remove(self, *paths: str) -> None:
        """Delete files; ignore those that do not exist."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.root}/{path}")

    def remove_abandoned(self, before: float) -> None:
        """Delete temporary files and empty directories of killed writers, last changed before a time."""
        for directory in ("", *self.directories()):
            for name in self.names(directory):
                path = self.root / directory / name if name.startswith(TEMPORARY) else None
                if path is not None and path.is_file() and self._is_older(path, before):
                    path.unlink(missing_ok=True)
            if directory and self._is_older(self.root / directory, before):
                self.remove_directory(directory)

    def _is_older(self, path: Path, before: float) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime < before
        return False

    def remove_directory(self, path: str) -> None:
        """Delete a directory if it exists and is empty."""
        # OSError: the directory is not empty, or does not exist any more.
        with contextlib.suppress(OSError):
            (self.root / path).rmdir()

    def rename(self, path: str, target: str) -> bool:
        """Rename a file; False if it does not exist."""
        try:
            (self.root / path).rename(self.root / target)
        except FileNotFoundError:
            return False
        return True


Store: TypeAlias = "LocalStore | ObjectStore"
