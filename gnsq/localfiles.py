"""Write files to local disks durably, with permissions that do not depend on the umask if a mode is given.

All functions except check_mode() block and raise OSError. The argument ``mode`` is the mode of a directory; a file
gets this mode without its x bits. If the mode is None, the umask decides.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

__all__ = ["PRIVATE", "check_mode", "make_directory", "open_or_create", "sync_directory", "write_file"]

# Mode that gives access to the owner only.
PRIVATE = 0o700
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Errors of file systems that have no permissions, such as FAT and some network file systems.
_NO_PERMISSIONS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def check_mode(mode: int) -> int:
    """Return a mode with an x bit added for each r bit, so that the files of a directory can be opened.

    Raises:
        ValueError: If the owner may not read and write, or a bit other than rwx and setgid (2000) is set.
    """
    if mode & 0o600 != 0o600 or mode & ~0o2777:
        raise ValueError(
            f"mode {mode:04o} is not usable: give octal permissions with which the owner may read and write, such as "
            "0700, or 2770 for a group (the 2 lets files belong to their directory's group)"
        )
    return mode | (mode & 0o444) >> 2


def make_directory(path: Path, mode: int | None = None) -> None:
    """Make a directory and missing parents, and sync the parent of each. Parents get the umask's permissions."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_directory(path.parent)
    path.mkdir(0o777 if mode is None else mode, exist_ok=True)
    if mode is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _set_mode(descriptor, mode)
        finally:
            os.close(descriptor)
    sync_directory(path.parent)


def write_file(
    path: Path, temporary: Path, data: bytes | memoryview, mode: int | None = None, *, exclusive: bool = False
) -> None:
    """Write a file. The file is complete and on the disk before it gets its name.

    Args:
        temporary: Path of the file until it is complete, in the same directory. An old file or symlink with this path,
            for example of a killed process, is deleted first.
        exclusive: Raise FileExistsError if there is a file already, in place of replacing it.
    """
    try:
        descriptor = _create(temporary, os.O_WRONLY, mode)
    except FileExistsError:
        temporary.unlink()
        descriptor = _create(temporary, os.O_WRONLY, mode)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(descriptor)
        if exclusive:
            os.link(temporary, path)  # unlike a rename, a link replaces no file
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    # The file's new name is on the disk only after its directory was written to the disk.
    sync_directory(path.parent)


def open_or_create(path: Path, mode: int | None = None) -> int:
    """Open a file to read and to append; create it if it does not exist. Follow no symlink. Return the descriptor."""
    while True:
        with contextlib.suppress(FileExistsError):
            return _create(path, os.O_RDWR | os.O_APPEND, mode)
        # If the file was deleted since the first try, try again to create it.
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)


def sync_directory(path: Path) -> None:
    """Write a directory's list of names to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: Path, access: int, mode: int | None) -> int:
    mode = None if mode is None else mode & 0o666
    descriptor = os.open(path, access | _NEW, 0o666 if mode is None else mode)
    try:
        if mode is not None:
            _set_mode(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _set_mode(descriptor: int, mode: int) -> None:
    """Set the mode again, as the umask may have removed bits. Ignore the error of a file system without permissions."""
    found = stat.S_IMODE(os.fstat(descriptor).st_mode)
    # A directory keeps the setgid bit that it has from its parent.
    wanted = mode | found & stat.S_ISGID
    if found != wanted:
        try:
            os.fchmod(descriptor, wanted)
        except OSError as error:
            if error.errno not in _NO_PERMISSIONS:
                raise
