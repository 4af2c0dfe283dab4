"""Exchange two directories: whoever opens the name sees the one or the other, whole. Knows not what is in them."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

__all__ = ["exchange", "finish_exchange"]

# Linux <fcntl.h>, <linux/fs.h>.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The system or the file system (such as NFS) can't.
_CANNOT = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def exchange(directory: Path, other: Path, aside: Path) -> None:
    """Give each of two directories the other's name.

    Args:
        aside: A name that is free, on the same file system; used where the system can't do it in one step. After a
            crash in between it holds what was in directory: finish_exchange() puts it back.

    Raises:
        OSError: If that fails.
    """
    try:
        _rename_exchange(directory, other)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        directory.rename(aside)
        other.rename(directory)
        aside.rename(other)


def finish_exchange(directory: Path, aside: Path) -> None:
    """After a crash: put back what was set aside, if nothing is in its place."""
    if aside.is_dir() and not directory.exists():
        aside.rename(directory)


def _rename_exchange(directory: Path, other: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_AT_FDCWD, os.fsencode(directory), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))
