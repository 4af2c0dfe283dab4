"""Durable files below one directory, on any file system that pyarrow knows. Knows no segments.

A file is there whole or not at all: written under a temporary name, synced and renamed on local disks; renamed on
HDFS; one PUT on object stores.
"""

from __future__ import annotations

import contextlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from gnsq.localfiles import make_directory, open_or_create, write_file
from gnsq.spark.uris import redact_uri

__all__ = ["LocalStore", "RemoteStore", "Store", "TEMPORARY", "open_store"]

TEMPORARY = ".tmp-"
# On these a file appears when its upload is complete, and a rename is a copy.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
# pyarrow deletes one file at a time, in three requests on S3.
_DELETIONS = 16


class Store(Protocol):
    """What a spool needs of a file system. Paths are relative, with slashes; all methods raise OSError."""

    local: bool

    def put(self, path: str, data: Any) -> None:
        """Write a whole file durably (data: bytes or a pyarrow buffer); its directory must exist where that matters."""

    def open(self, path: str) -> Any:  # Any: pyarrow.NativeFile, which has no types
        """Open a file for reading at any position."""

    def exists(self, path: str) -> bool:
        """Say whether there is such a file."""

    def make_directory(self, path: str) -> None:
        """Make a directory durably; no-op if it exists."""

    def list(self) -> list[tuple[str, int]]:
        """List (path, size) of all files below, temporary ones too; none if there is no such directory."""

    def remove(self, *paths: str) -> None:
        """Delete files; those that do not exist are no error."""

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory; no-op if it is not empty or does not exist."""

    def rename(self, path: str, target: str) -> bool:
        """Give a file another name; False if it does not exist."""


def open_store(location: str, what: str = "spool", *, mode: int | None = None) -> Store:
    """Open the directory that a path or URI (file:, s3:, gs:, hdfs: ...) names; touches nothing.

    Args:
        what: It is, for errors.
        mode: As LocalStore's; other file systems have permissions of their own.

    Raises:
        ValueError: If the location is empty or its scheme is unknown.
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
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        shown = redact_uri(location)
        # The cause is left out: it may show the whole location, with its credentials.
        raise ValueError(f"{what} {shown!r} can't be opened: {str(error).replace(location, shown)}") from None
    if filesystem.type_name == "s3":
        filesystem = _with_single_put(filesystem)
    return RemoteStore(filesystem, path)


def _with_single_put(filesystem: Any) -> Any:  # Any: pyarrow has no types
    """Let a small file be one PUT instead of an upload in three requests; a URI can't say so."""
    make, (settings, *_) = filesystem.__reduce__()[:2]
    # pyarrow before 19 has no such setting.
    return make({**settings, "allow_delayed_open": True}) if "allow_delayed_open" in settings else filesystem


class LocalStore:
    """A directory of this machine, or one that is mounted.

    Args:
        mode: Permissions of the directories that are made, and without x of the files; None: as the umask says.
    """

    local = True

    def __init__(self, root: Path, mode: int | None = None) -> None:
        self.root = root.absolute()
        self._mode = mode

    def put(self, path: str, data: Any) -> None:  # Any: bytes or pyarrow.Buffer
        target = self.root / path
        try:
            self._write(target, data)
        except FileNotFoundError:
            # remove_abandoned() takes an empty directory that nobody has touched for long for that of a dead writer.
            # Without a root it was somebody else: another disk, now that this one is not mounted, is no place for it.
            if not self.root.is_dir():
                raise
            make_directory(target.parent, self._mode)
            self._write(target, data)

    def _write(self, target: Path, data: Any) -> None:
        write_file(target, target.with_name(TEMPORARY + target.name), memoryview(data), self._mode)

    def open(self, path: str) -> Any:
        # Not mapped: a disk that fails is to raise an error, and not to kill who reads.
        return pa.OSFile(str(self.root / path))

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def make_directory(self, path: str) -> None:
        for directory in dict.fromkeys((self.root, self.root / path)):
            make_directory(directory, self._mode)

    def open_or_create(self, path: str) -> int:
        """Open a file to read, append and lock, made if it is not there: its descriptor. Follows no symlink."""
        return open_or_create(self.root / path, self._mode)

    def others_access(self) -> str:
        """Say how others than mode lets may delete and replace files here; nothing if they may not."""
        found = self.root.stat()
        shared = (self._mode or 0) & 0o022
        if found.st_mode & 0o022 & ~shared:
            return f"has the permissions {stat.filemode(found.st_mode)}"
        if found.st_uid not in (0, os.geteuid()) and not shared:
            return f"belongs to another user, {found.st_uid}"
        return ""

    def list(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for directory in (self.root, *_directories(self.root)):
            with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
                prefix = "" if directory == self.root else f"{directory.name}/"
                for entry in entries:
                    # Pruned between the listing and the question: as good as not listed.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file():
                            found.append((prefix + entry.name, entry.stat().st_size))
        return found

    def remove(self, *paths: str) -> None:
        for path in paths:
            (self.root / path).unlink(missing_ok=True)

    def remove_abandoned(self, before: float) -> None:
        """Delete what writers that were killed have left: temporary files, and then empty directories, that are older
        than a time."""
        for path, _ in self.list():
            if path.rpartition("/")[2].startswith(TEMPORARY) and self._is_older(self.root / path, before):
                self.remove(path)
        for directory in _directories(self.root):
            if self._is_older(directory, before):
                self.remove_directory(directory.name)

    def _is_older(self, path: Path, before: float) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime < before
        return False

    def remove_directory(self, path: str) -> None:
        # Not empty, or gone: both are fine.
        with contextlib.suppress(OSError):
            (self.root / path).rmdir()

    def rename(self, path: str, target: str) -> bool:
        try:
            (self.root / path).rename(self.root / target)
        except FileNotFoundError:
            return False
        return True


class RemoteStore:
    """A directory of any other pyarrow file system."""

    local = False

    def __init__(self, filesystem: Any, root: str) -> None:  # Any: pyarrow has no types
        self._fs = filesystem
        self._root = root.rstrip("/")

    def put(self, path: str, data: Any) -> None:
        whole = self._path(path)
        if self._fs.type_name in _OBJECT_STORES:
            self._write(whole, data)
            return
        directory, _, name = whole.rpartition("/")
        temporary = f"{directory}/{TEMPORARY}{name}"
        self._write(temporary, data)
        self._fs.move(temporary, whole)

    def open(self, path: str) -> Any:
        return self._fs.open_input_file(self._path(path))

    def exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self._path(path)).type == fs.FileType.File)

    def make_directory(self, path: str) -> None:
        if self._fs.type_name not in _OBJECT_STORES:
            self._fs.create_dir(self._path(path), recursive=True)

    def list(self) -> list[tuple[str, int]]:
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=True)
        start = len(self._root) + 1
        found = [info for info in self._fs.get_file_info(selector) if info.type == fs.FileType.File]
        return [(info.path[start:], info.size) for info in found]

    def remove(self, *paths: str) -> None:
        if not paths:
            return
        with ThreadPoolExecutor(min(len(paths), _DELETIONS)) as pool:
            # list() lets what a thread has raised be raised here.
            list(pool.map(self._remove, paths))

    def remove_directory(self, path: str) -> None:
        whole = self._path(path)
        if not self._fs.get_file_info(fs.FileSelector(whole, allow_not_found=True)):
            # On object stores too: where its last file was deleted, pyarrow puts an empty object of its name.
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_dir(whole)

    def rename(self, path: str, target: str) -> bool:
        try:
            self._fs.move(self._path(path), self._path(target))
        except OSError:
            # What S3 says of an object that is not there is no FileNotFoundError.
            if self.exists(path):
                raise
            return False
        return True

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._path(path))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _write(self, path: str, data: Any) -> None:
        with self._fs.open_output_stream(path) as stream:
            stream.write(data)


def _directories(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            # A symlink is no directory of a writer: what it leads to is not for us to tidy up.
            return [root / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
