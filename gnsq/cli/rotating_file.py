"""RotatingFile: writes records durably to files that are complete at a size or a time. Knows no NSQ.

A record is bytes that end with a newline, or with another byte. All functions block, and raise OSError with the path in
it.
"""

# The life of a file. A process holds a lock (flock) on each file that it writes; the lock ends with the process.
#
#     .NAME.part  --- write() appends records and syncs them ---> .NAME.part --- size, time or close() ---> NAME
#          |                                                                                                 ^
#          +--- the process is killed ---> recover() of another process cuts an incomplete record -----------+

from __future__ import annotations

import bisect
import contextlib
import errno
import fcntl
import gzip
import itertools
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnsq.localfiles import sync_directory
from gnsq.texts import reason_of

__all__ = ["COMPRESSIONS", "Compression", "Recovery", "RotatingFile", "file_stem", "recover"]

# Bytes of a read of recover(). What is compressed is read in smaller parts, because 1 KB of zstd may have 32 MB, and
# because what follows a member in a read is copied.
_READ_SIZE, _COMPRESSED_READ_SIZE = 16 * 1024, 1024
# Errors of file systems that have no hard links.
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


# --- compression


@dataclass(frozen=True)
class Compression:
    """Format of the stored records: as they are, or as gzip members or zstd frames, one for all records of a write.

    So all that was synced can be read even if the process is killed, by any program, and each member has a checksum.
    One stream that is flushed after each write would be smaller, by 35% with 10 records of 150 bytes in a write, by 8%
    with 100 and by 1% with 1000 (gzip, JSON). But after a kill it has no end, which most programs report as an error.

    Attributes:
        suffix: End of the names of files.
        complete_size: Returns the size of all complete records or members of an open file, for recover(). Its second
            argument is the last byte of each record.
        levels: The lowest and the highest level, and the default; None: it has none.
        encoder: Makes, for a level, the function that returns the bytes to store.
    """

    suffix: str
    complete_size: Callable[[int, bytes], int]
    levels: tuple[int, int, int] | None = None
    encoder: Callable[[int], Callable[[bytes], bytes]] = lambda level: lambda data: data

    def encode(self, level: int | None = None) -> Callable[[bytes], bytes]:
        """Return the function that returns the bytes to store.

        Raises:
            ValueError: If the level is out of bounds, or the compression has no levels.
        """
        if self.levels is None:
            if level is not None:
                names = " or ".join(name for name, each in COMPRESSIONS.items() if each.levels)
                raise ValueError(f"level {level} needs a compression: {names}")
            return self.encoder(0)
        lowest, highest, default = self.levels
        if level is None:
            level = default
        if not lowest <= level <= highest:
            raise ValueError(f"level {level} must be {lowest} to {highest}")
        return self.encoder(level)

    def overhead(self, size: int) -> int:
        """Return the most bytes by which data of a size may get longer."""
        return 0 if self.levels is None else size // 1000 + 64


# --- names


def file_stem(template: str, fields: Mapping[str, str], now: float) -> str:
    """Return the name of a file, without its suffix.

    Args:
        template: Directives of strftime, such as ``%H``, for the time in UTC; and names of fields in braces.
        fields: Their values, which may have directives, too.
        now: Unix time.

    Raises:
        ValueError: If a field is unknown, or the name would be empty or have a slash.
    """
    # Not str.format(): it would also evaluate {topic.__class__}, or {topic:>999999999}.
    filled = re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), template)
    if "{" in filled or "}" in filled:
        known = ", ".join(f"{{{name}}}" for name in fields)
        raise ValueError(f"name {template!r} is not valid; it may have {known} and %Y, %m and so on")
    stem = datetime.fromtimestamp(now, UTC).strftime(filled)
    if not stem or not {"/", "\0"}.isdisjoint(stem):
        raise ValueError(f"name {template!r} gives {stem!r}, and the name of a file is due: it has no slash")
    return stem


def _numbered(stem: str, suffix: str) -> Iterator[str]:
    """Return the names that a file may have, the first one first; they sort in this order."""
    yield stem + suffix
    for number in itertools.count(1):
        yield f"{stem}_{number:04d}{suffix}"


# --- files


@dataclass
class _OpenFile:
    """A file that is being written.

    Attributes:
        name: Its name after it is complete, unless another file gets this name first.
        period: Number of the interval in which it was begun.
        size, synced: Bytes that were written, and how many of them are on the disk.
    """

    descriptor: int
    part: Path
    name: str
    period: int
    size: int = 0
    synced: int = 0


class RotatingFile:
    """Writes records to one file after the other. Not to be used by two threads at the same time.

    No file is made before there is a record for it. If a call fails, close() keeps only what was on the disk before.

    Args:
        directory: An existing directory.
        stem: Returns the name of a new file, without suffix, for the Unix time at which it is begun. If there is such
            a file already, a number is added: no file is ever replaced.
        kind: Suffix of the names before that of the compression: .log or .jsonl.
        level: Of the compression; None: its default.
        max_size: Bytes. No file is larger than this, unless one record is.
        interval: Seconds. A file is complete at the first multiple of this since 1970-01-01 UTC: 3600 is the full hour.
        clock: Returns the Unix time.
        on_complete: Called with the path and the size of each complete file.
        delimiter: Last byte of each record.

    Attributes:
        completed: Number of complete files.
    """

    def __init__(
        self,
        directory: Path,
        stem: Callable[[float], str],
        kind: str,
        compression: Compression,
        level: int | None = None,
        *,
        max_size: int | None = None,
        interval: float | None = None,
        clock: Callable[[], float] = time.time,
        on_complete: Callable[[Path, int], object] = lambda path, size: None,
        delimiter: bytes = b"\n",
    ) -> None:
        self.completed = 0
        self._directory = directory
        self._stem = stem
        self._suffix = kind + compression.suffix
        self._compression = compression
        self._encode = compression.encode(level)
        self._max_size = max_size
        self._interval = interval
        self._clock = clock
        self._on_complete = on_complete
        # recover() of a process with other options must know where records end.
        self._part = ".part" if delimiter == b"\n" else f".part-{delimiter.hex()}"
        self._file: _OpenFile | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until rotate() must be called; None if there is no file, or no interval."""
        file = self._file  # that another thread may complete now
        if file is None or self._interval is None:
            return None
        now = self._clock()
        if self._period(now) != file.period:  # also after the clock was set back
            return 0.0
        return (file.period + 1) * self._interval - now

    def check(self) -> None:
        """Make a file and delete it, to fail now if that is impossible, and not only when there is a record."""
        self._file = self._begin()
        self.close()

    def write(self, records: Sequence[bytes]) -> None:
        """Append records. When this returns, they are on the disk."""
        if self.seconds_left == 0.0:
            self.rotate()
        first, count = 0, len(records)
        # Size of the first 1, 2, 3... records.
        sizes = list(itertools.accumulate(map(len, records)))
        while first < count:
            last = self._fitting(sizes, first)
            if last == first and self._file is not None:
                self.rotate()
                continue
            last = max(last, first + 1)
            self._append(b"".join(records[first:last]))
            first = last
        self._sync()

    def rotate(self) -> None:
        """Complete the present file, if there is one."""
        self._sync()
        self.close()

    def close(self) -> None:
        """Complete the present file with the records of all calls of write() that have not failed."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            with _path_in_error(file.part):
                if file.synced < file.size:
                    os.ftruncate(file.descriptor, file.synced)
                    os.fsync(file.descriptor)
                if not file.synced:
                    file.part.unlink()
                    return
                path = _give_name(file.part, file.name, self._suffix)
        finally:
            os.close(file.descriptor)
        self.completed += 1
        self._on_complete(path, file.synced)

    def _period(self, now: float) -> int:
        return 0 if self._interval is None else int(now // self._interval)

    def _fitting(self, sizes: Sequence[int], first: int) -> int:
        """Return the index after the last record that fits into the present file, or into a new one.

        While records are compressed, their size is not known: so assume that they do not get smaller. Near max_size,
        this makes several small members, each of them a fraction of what is left.
        """
        if self._max_size is None:
            return len(sizes)
        before = sizes[first - 1] if first else 0
        left = self._max_size - (0 if self._file is None else self._file.size)
        left -= self._compression.overhead(max(left, 0))
        return bisect.bisect_right(sizes, before + left, first)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._begin()
        file, rest = self._file, memoryview(self._encode(data))
        with _path_in_error(file.part):
            while rest:
                written = os.write(file.descriptor, rest)
                file.size += written
                rest = rest[written:]

    def _sync(self) -> None:
        file = self._file
        if file is None or file.synced == file.size:
            return
        with _path_in_error(file.part):
            os.fsync(file.descriptor)
            if not file.synced:
                sync_directory(file.part.parent)
        file.synced = file.size

    def _begin(self) -> _OpenFile:
        now = self._clock()
        for name in _numbered(self._stem(now), self._suffix):
            path = self._directory / name
            part = path.with_name(f".{path.name}{self._part}")
            with _path_in_error(part):
                try:
                    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                except FileExistsError:
                    continue
                try:
                    # This waits if recover() of another process has found the new file before the lock. Then recover()
                    # deletes the file, since the file is empty.
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if _is_at(descriptor, part):
                        # After the lock, no other process of this program can take the name.
                        if not os.path.lexists(path):
                            return _OpenFile(descriptor, part, path.name, self._period(now))
                        part.unlink()
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
        raise AssertionError("unreachable")  # _numbered() does not end


@contextlib.contextmanager
def _path_in_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno or errno.EIO, reason_of(error), str(path)) from error


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if a path leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _give_name(part: Path, name: str, suffix: str) -> Path:
    """Give a complete file its name, or the next free one after it. Replace no file."""
    for free in _numbered(name.removesuffix(suffix), suffix):
        path = part.with_name(free)
        try:
            os.link(part, path)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            except FileExistsError:
                continue
            part.replace(path)
        else:
            part.unlink()
        sync_directory(part.parent)
        return path
    raise AssertionError("unreachable")  # _numbered() does not end


# --- recovery


@dataclass(frozen=True)
class Recovery:
    """Result of recover() for a file that a killed process has left.

    Attributes:
        part: Its path before.
        path: Its path now; None: it had no complete record and was deleted, or see error.
        size: Bytes that were kept.
        cut: Bytes of an incomplete record or member that were cut off. They were never synced.
        error: Why it could not be recovered, and was left as it is.
    """

    part: Path
    path: Path | None = None
    size: int = 0
    cut: int = 0
    error: OSError | None = None


def recover(directory: Path, kinds: Iterable[str]) -> list[Recovery]:
    """Complete the files that killed processes have left in a directory. Leave files alone that a process writes.

    Args:
        kinds: The kinds of RotatingFile. A .part file that has none of them is another program's, and is left alone.

    A file that is not compressed is cut after its last newline, or the delimiter that it has. So if records have
    newlines themselves, the beginning of one that was not synced may stay.
    """
    by_suffix = {each.suffix: each for each in COMPRESSIONS.values()}
    any_kind, any_compression = ("|".join(map(re.escape, suffixes)) for suffixes in (kinds, by_suffix))
    pattern = re.compile(rf"\.(.+((?:{any_kind})({any_compression})))\.part(?:-([0-9a-f]{{2}}))?")
    os.listdir(directory)  # glob() finds nothing if this is refused
    found = [(part, match) for part in sorted(directory.glob(".*.part*")) if (match := pattern.fullmatch(part.name))]
    recoveries = []
    for part, match in found:
        name, suffix, compressed, delimiter = match.groups()
        try:
            recovery = _recover(part, name, suffix, by_suffix[compressed], bytes.fromhex(delimiter or "0a"))
        except OSError as error:
            recovery = Recovery(part, error=error)
        if recovery is not None:
            recoveries.append(recovery)
    return recoveries


def _recover(part: Path, name: str, suffix: str, compression: Compression, delimiter: bytes) -> Recovery | None:
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # completed meanwhile
    try:
        with _path_in_error(part):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if not _is_at(descriptor, part):
                return None
            path = part.with_name(name)
            found = os.fstat(descriptor).st_size
            if _is_at(descriptor, path):
                # The process was killed between the two steps of _give_name().
                part.unlink()
                return Recovery(part, path, found)
            size = compression.complete_size(descriptor, delimiter)
            if not size:
                part.unlink()
                return Recovery(part, cut=found)
            if size < found:
                os.ftruncate(descriptor, size)
            os.fsync(descriptor)
            return Recovery(part, _give_name(part, name, suffix), size, found - size)
    finally:
        os.close(descriptor)


# --- the compressions. Of an open file, each function holds only a part in memory at a time.


def _size_to_last_delimiter(descriptor: int, delimiter: bytes) -> int:
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _READ_SIZE)
        last = os.pread(descriptor, end - start, start).rfind(delimiter)
        if last >= 0:
            return start + last + 1
        end = start
    return 0


def _size_of_members(make_decoder: Callable[[], Any], descriptor: int) -> int:
    """Decode members one after the other. Any: a decompressobj of zlib or zstandard."""
    decoder, position, complete = make_decoder(), 0, 0
    while data := os.pread(descriptor, _COMPRESSED_READ_SIZE, position):
        position += len(data)
        while data:
            try:
                decoder.decompress(data)
            except Exception:  # noqa: BLE001  # zlib and zstandard have no base class in common
                return complete
            data = decoder.unused_data
            if decoder.eof:
                complete = position - len(data)
                decoder = make_decoder()
    return complete


def _size_of_gzip_members(descriptor: int, delimiter: bytes) -> int:
    return _size_of_members(lambda: zlib.decompressobj(31), descriptor)


def _size_of_zstd_frames(descriptor: int, delimiter: bytes) -> int:
    import zstandard

    return _size_of_members(lambda: zstandard.ZstdDecompressor().decompressobj(), descriptor)


def _gzip_encoder(level: int) -> Callable[[bytes], bytes]:
    return lambda data: gzip.compress(data, level, mtime=0)


def _zstd_encoder(level: int) -> Callable[[bytes], bytes]:
    import zstandard  # imported here, since most commands do not need it

    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress


COMPRESSIONS = {
    "none": Compression("", _size_to_last_delimiter),
    "gzip": Compression(".gz", _size_of_gzip_members, (1, 9, 6), _gzip_encoder),
    "zstd": Compression(".zst", _size_of_zstd_frames, (1, 22, 3), _zstd_encoder),
}
