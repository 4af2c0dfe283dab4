"""Files on local disks: durable, and made with the permissions that the caller states, whatever the umask is.

All functions block, and raise OSError. A mode is that of directories; files have it without the x bits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

__all__ = ["PRIVATE", "check_mode", "make_directory", "open_or_create", "sync_directory", "write_file"]

# Of directories and files for their owner only.
PRIVATE = 0o700
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# What file systems without permissions of their own answer, such as FAT's and some that are mounted over a network.
_NO_PERMISSIONS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def check_mode(mode: int) -> int:
    """Complete a mode: x, with which a directory's files can be reached, for all that may read.

    Raises:
        ValueError: If its owner may not read and write, or it has other bits than rwx and setgid (2000).
    """
    if mode & 0o600 != 0o600 or mode & ~0o2777:
        raise ValueError(
            f"mode {mode:04o} is not usable: give octal permissions with which the owner may read and write, such as "
            "0700, or 2770 for a group (the 2 lets files belong to their directory's group)"
        )
    return mode | (mode & 0o444) >> 2


def make_directory(path: Path, mode: int | None = None) -> None:
    """Make a directory durably; one that exists stays as it is.

    Args:
        mode: Its own; parents that are missing have the umask's. None: as them.
    """
    if path.is_dir():
        return
    path.mkdir(0o777 if mode is None else mode, parents=True, exist_ok=True)
    if mode is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _set_mode(descriptor, mode)
        finally:
            os.close(descriptor)
    sync_directory(path.parent)


def write_file(path: Path, temporary: Path, data: bytes | memoryview, mode: int | None = None) -> None:
    """Write a file that is whole and on the disk once it has its name.

    Args:
        temporary: Its name until then, in the same directory. What has that name is deleted first: a file that a
            killed process has left, or a symlink that somebody has put there.
        mode: None: as the umask says.
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
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    # The name, too, is safe only when its directory is.
    sync_directory(path.parent)


def open_or_create(path: Path, mode: int | None = None) -> int:
    """Open a file to read and to append, which is made if it is not there. Follows no symlink.

    Args:
        mode: Of a file that is made. None: as the umask says.

    Returns:
        The descriptor.
    """
    while True:
        with contextlib.suppress(FileExistsError):
            return _create(path, os.O_RDWR | os.O_APPEND, mode)
        # Deleted in between: made anew.
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
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
    """Give back what the umask has taken: until then it is too little, and never too much."""
    found = stat.S_IMODE(os.fstat(descriptor).st_mode)
    # A directory that has setgid from its parent keeps it.
    wanted = mode | found & stat.S_ISGID
    if found != wanted:
        try:
            os.fchmod(descriptor, wanted)
        except OSError as error:
            if error.errno not in _NO_PERMISSIONS:
                raise
