"""A user's own directory in the temporary one, and directories there that last as long as a program.

If a program is killed, the next one deletes what it has left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gnsq.localfiles import PRIVATE, make_directory, open_or_create

__all__ = ["make_user_directory", "scratch_directory", "user_directory"]

_LOCK = "lock"


def user_directory() -> Path:
    """Return the path of the directory; it may not exist."""
    return Path(tempfile.gettempdir(), f"gnsq-{os.getuid()}")


def make_user_directory() -> Path:
    """Make the directory, and return its path.

    Raises:
        OSError: If it can't be made, or another user has made it before.
    """
    path = user_directory()
    make_directory(path, PRIVATE)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(
            errno.EPERM, "the directory belongs to another user: set TMPDIR to one of your own", str(path)
        )
    return path


@contextlib.contextmanager
def scratch_directory(prefix: str) -> Iterator[Path]:
    """Make a directory that is deleted at the end of the block. Delete those of this prefix whose process is gone.

    Raises:
        OSError: If it can't be made.
    """
    parent = make_user_directory()
    # Locked meanwhile: else another program may delete the new directory before it has its own lock.
    both = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(both, fcntl.LOCK_EX)
        for old in parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError), open(old / _LOCK, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = open_or_create(path / _LOCK)
        fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(both)
    with open(lock, "rb"):
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
