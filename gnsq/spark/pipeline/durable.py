"""What must survive a power failure on a local disk: syncs it, and sets aside what is torn at the next start.

Neither Spark nor delta-rs syncs a file, and nsqd has no message any more whose rows are committed. So before a batch
ends, these are on the disk, in this order: the files of Spark's checkpoint that the batch depends on, the data files
and their directories, the entry of the table's log. Everything that syncs is here. Each function does nothing for files
on an object store, which are durable when they are there.

What may be torn is what nobody has waited for: a log entry whose commit() has not returned, a checkpoint of the log,
and the newest files of Spark's checkpoint. mend_log() and mend_checkpoint() rename such a file to NAME.torn.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gnsq.localfiles import make_directory, sync_directory, write_file
from gnsq.spark.errors import JobFailed
from gnsq.spark.spool.objectstore import ObjectStore
from gnsq.spark.spool.storage import LocalStore, Store, open_store
from gnsq.spark.uris import redact_uri

__all__ = [
    "ACTIONS",
    "mend_checkpoint",
    "mend_log",
    "open_location",
    "put_new",
    "sync_checkpoint",
    "sync_directories",
    "sync_log",
    "try_create",
]

logger = logging.getLogger(__name__)

# Key in the information of a commit of a Delta log: kind of actions -> how many of them its entry has.
ACTIONS = "gnsq.actions"
_ENTRY = re.compile(r"\d{20}\.json")
# Number of the newest log entries that mend_log() checks. Older entries have this many synced ones after them.
_CHECKED_ENTRIES = 20
# Directories of a query's state whose files are synced side by side.
_CONCURRENT_SYNCS = 16
_FILE_URI = re.compile(r"^file:(//[^/]*)?")


# --- data files


def put_new(store: Store, path: str, data: Any) -> None:  # Any: pyarrow.Buffer
    """Write a new file of a table, and sync it. Its directories are made, but not the table's own.

    The caller calls sync_directories() afterwards, once for many files.

    Raises:
        OSError: If the store can't be written.
    """
    if not isinstance(store, LocalStore):
        store.put(path, data)
        return
    target = store.root / path
    # Not the root: a table's directory that is missing may be on a disk that is not mounted.
    for parent in reversed(list(Path(path).parents)[:-1]):
        (store.root / parent).mkdir(exist_ok=True)
    with open(target, "xb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())


def sync_directories(store: Store, paths: Iterable[str], pool: ThreadPoolExecutor) -> None:
    """Sync the directories of a table's files, so that the files keep their names."""
    if isinstance(store, LocalStore):
        # Up to the table's own: another task may have made a directory there, and not synced it yet.
        found = {parent for path in paths for parent in Path(path).parents}
        for _ in pool.map(lambda directory: sync_directory(store.root / directory), found):
            pass


# --- the log of a Delta table


def sync_log(location: str, *names: str) -> None:
    """Sync files of a table's log, and its directory. Leave out files that are gone."""
    store = open_store(location, "output")
    if isinstance(store, LocalStore):
        _sync_files(store.root / "_delta_log", *names)


def try_create(location: str, path: str, data: bytes) -> bool:
    """Write a file of a table, unless there is one already. Returns False if there is.

    Raises:
        OSError: If the store can't be written.
    """
    store = open_store(location, "output")
    if isinstance(store, ObjectStore):
        return store.try_create(path, data)
    target = store.root / path
    try:
        write_file(target, target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp"), data, exclusive=True)
    except FileExistsError:
        return False
    return True


def mend_log(location: str) -> None:
    """Make a table's directory. Check the log's checkpoint, its newest entries and their files.

    Rename a torn checkpoint, which the entries replace, and a torn newest entry, whose commit has not returned.

    Raises:
        JobFailed: If the entries can't replace a torn checkpoint, a torn entry has other entries after it, or a data
            file is not whole.
        OSError: If the disk fails.
    """
    store = open_store(location, "output")
    if not isinstance(store, LocalStore):
        return
    make_directory(store.root)
    log = store.root / "_delta_log"
    shown = f"table {redact_uri(location)}"
    _mend_log_checkpoint(shown, log)
    entries = _entries(log)[-_CHECKED_ENTRIES:]
    removed: set[str] = set()
    for path in reversed(entries):
        actions = _actions(path)
        if actions is None:
            if path != entries.pop():
                raise JobFailed(
                    f"{shown}: log entry {path.name} is torn, and others follow: bring the table back from a copy"
                )
            _set_aside(shown, path)
            continue
        for add in _each(actions, "add"):
            if add["path"] not in removed and not _has_size(store.root / unquote(add["path"]), add["size"]):
                raise JobFailed(
                    f"{shown}: {add['path']} of log entry {path.name} is missing or not whole: bring it back from a "
                    "copy"
                )
        removed.update(remove["path"] for remove in _each(actions, "remove"))
    if entries:
        # The writer of an entry may have been killed before it synced the entry, which is not written again.
        _sync_files(log, *(path.name for path in entries))


def _mend_log_checkpoint(shown: str, log: Path) -> None:
    """Set aside torn checkpoints after the last whole one, and _last_checkpoint if it is torn or may name one."""
    torn = []
    oldest = 0  # the first entry that readers need
    for path in sorted(log.glob("*.checkpoint.parquet"), reverse=True):
        if _is_whole_parquet(path):
            oldest = _version(path) + 1
            break
        torn.append(path)
    hint = log / "_last_checkpoint"
    if hint.exists() and (torn or not _is_hint(hint)):
        torn.append(hint)
    if not torn:
        return
    versions = set(map(_version, _entries(log)))
    missing = set(range(oldest, max(versions, default=0) + 1)) - versions
    if missing:
        raise JobFailed(
            f"{shown}: {torn[0].name} of the log is torn, and entry {min(missing):020}.json is gone, which could "
            "replace it: bring the directory _delta_log back from a copy"
        )
    for path in torn:
        _set_aside(shown, path)


def _set_aside(shown: str, path: Path) -> None:
    aside = path.with_name(f"{path.name}.torn")
    logger.warning("%s: %s of the log is torn; set aside as %s", shown, path.name, aside.name)
    path.rename(aside)
    sync_directory(path.parent)


def _entries(log: Path) -> list[Path]:
    return sorted(path for path in log.glob("*.json") if _ENTRY.fullmatch(path.name))


def _actions(path: Path) -> list[dict[str, Any]] | None:
    """Read a log entry; None if it is torn: not JSON, or with fewer actions than its commitInfo says."""
    try:
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
    except ValueError:
        return None
    information = next((action["commitInfo"] for action in actions if "commitInfo" in action), None)
    if information is None:
        return None
    if ACTIONS in information:
        is_whole = all(len(_each(actions, kind)) == number for kind, number in information[ACTIONS].items())
        return actions if is_whole else None
    # Of another writer. Only the entries of a vacuum have nothing but a commitInfo.
    return actions if len(actions) > 1 or information["operation"].startswith("VACUUM") else None


def _each(actions: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in actions if kind in action]


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _version(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _is_whole_parquet(path: Path) -> bool:
    try:
        with pq.ParquetFile(path) as parquet:
            for _ in parquet.iter_batches(use_threads=False):
                pass
    except (pa.ArrowException, OSError):
        return False
    return True


def _is_hint(path: Path) -> bool:
    """Return True if the file names a checkpoint that exists."""
    try:
        version = json.loads(path.read_bytes())["version"]
    except (ValueError, KeyError, TypeError):
        return False
    return any(path.parent.glob(f"{version:020}.checkpoint*"))


# --- Spark's checkpoint


@functools.cache
def open_location(location: str) -> tuple[Any, str]:  # Any: pyarrow has no types
    """Open a path or URI that Spark knows; returns pyarrow's file system, and the path in it.

    Raises:
        ValueError: If pyarrow can't open the URI. Spark knows more schemes.
    """
    if "://" not in location or location.startswith("file:"):
        # As Spark does: %20 in a URI of a file is no blank, and a blank may be there.
        return fs.LocalFileSystem(), str(Path(_FILE_URI.sub("", location)).absolute())
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        # OSError: for example, the library for HDFS is not installed; pyarrow does not contain it.
        raise ValueError(f"{redact_uri(location)} can't be read without Spark") from None
    return filesystem, path


def sync_checkpoint(location: str, batch_id: int) -> None:
    """Sync the files of Spark's checkpoint that a batch which has begun depends on.

    Without the file in commits, Spark would run the previous batch again, but the source deletes its messages after
    this batch. Without the file in offsets, Spark would give this number to another batch. The file metadata has the
    checkpoint's id, to which the tables belong; the files in state have counts, which the spool can't replace.

    Raises:
        ValueError: As open_location().
        OSError: If the disk fails.
    """
    filesystem, path = open_location(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    root = Path(path)
    _sync_state(root, batch_id)
    for directory, name in (("", "metadata"), ("commits", batch_id - 1), ("offsets", batch_id)):
        _sync_files(root / directory, f"{name}", f".{name}.crc")


def _sync_state(root: Path, batch_id: int) -> None:
    """Sync the files of the state that were written since the batch before began; all, if it is not known when."""
    try:
        since = Path(root, f"offsets/{batch_id - 1}").stat().st_mtime
    except FileNotFoundError:
        since = 0.0
    with ThreadPoolExecutor(_CONCURRENT_SYNCS) as pool:
        syncs = []
        for directory, _, names in os.walk(root / "state"):
            new = [name for name in names if _is_since(Path(directory, name), since)]
            if new or _is_since(Path(directory), since):
                syncs.append(pool.submit(_sync_files, Path(directory), *new))
        for sync in syncs:
            with contextlib.suppress(FileNotFoundError):  # Spark has deleted the directory
                sync.result()


def _is_since(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime >= since
    except FileNotFoundError:  # Spark has deleted it
        return False


def mend_checkpoint(location: str) -> None:
    """Rename the newest file of each log of Spark's checkpoint if a power failure tore it: Spark fails at it.

    Both logs are synced before a batch writes anything. So a torn file in offsets is of a batch that has written
    nothing. A torn file in commits is of a batch that runs again, and finds itself in the tables.

    Raises:
        ValueError: As open_location().
        OSError: If the disk fails.
    """
    filesystem, root = open_location(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    # First commits: a batch with a file there has written something, so its file in offsets stays.
    committed = -1
    for log, lines in (("commits", 2), ("offsets", 3)):
        directory = Path(root, log)
        numbers = sorted(int(path.name) for path in directory.glob("*") if path.name.isdecimal())
        if not numbers or numbers[-1] <= committed:
            continue
        newest = directory / str(numbers[-1])
        if not _is_whole(newest, lines):
            logger.warning("checkpoint %s: %s/%s is torn; set aside", redact_uri(location), log, newest.name)
            for path in (newest, _checksums(newest)):
                with contextlib.suppress(FileNotFoundError):
                    path.rename(path.with_name(f"{path.name}.torn"))
            sync_directory(directory)
            numbers.pop()
        committed = numbers[-1] if log == "commits" and numbers else committed


def _checksums(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _is_whole(path: Path, least: int) -> bool:
    """Return True if a file of a log has a version, ``least`` lines or more, JSON or "-" last, and whole checksums.

    Source: Spark, OffsetSeqLog and CommitLog; Hadoop, ChecksumFileSystem: 8 bytes, and 4 for each 512 of the file.
    """
    content, checksums = path.read_bytes(), _checksums(path)
    if checksums.exists() and checksums.stat().st_size != 8 + 4 * -(-len(content) // 512):
        return False
    version, *lines = content.splitlines() or [b""]
    try:
        return version[:1] == b"v" and len(lines) + 1 >= least and (lines[-1] == b"-" or bool(json.loads(lines[-1])))
    except ValueError:
        return False


def _sync_files(directory: Path, *names: str) -> None:
    """Sync files that another program has written, and their directory. Leave out files that are gone."""
    for name in names:
        with contextlib.suppress(FileNotFoundError), open(directory / name, "rb") as file:
            os.fsync(file.fileno())
    sync_directory(directory)
