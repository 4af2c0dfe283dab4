"""The lock of a job's work directory, which keeps other jobs out.

On a local or mounted disk it is a lock of the file job.json, which the end of the process releases, however it ends. On
an object store, where files can't be locked, it is a lease of the object job.json:

    holder    renews the object every ``renewal`` seconds by a conditional PUT. The lease is lost when the last PUT that
              succeeded began longer than ``usable`` seconds ago, or when another process has replaced the object. Then
              ``lease - usable`` seconds are left for the holder to stop what it does
    taker     takes the object if there is none or it was released; also if it has not changed while the taker has
              watched it for ``lease`` seconds, or longer

Each process measures seconds by its own clock. The clocks of two machines are never compared.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from gnsq.localfiles import open_or_create
from gnsq.logs import LogOwner
from gnsq.spark.errors import JobFailed
from gnsq.spark.spool.objectstore import ObjectStore, describe_error
from gnsq.spark.spool.ownership import try_lock, write_text
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import redact_uri

__all__ = ["Lease", "LeaseLost", "LeaseTimes", "describe", "locked"]

logger = logging.getLogger(__name__)

_NAME = "job.json"
# A job that was told to stop just before still has the lock of the file for a time: seconds of one wait, and how many.
_PAUSE, _PAUSES = 0.05, 100
# Seconds. A renewal, which begins after ``renewal`` seconds, must end before ``usable``, also if its last try lasts for
# REQUEST_TIMEOUT.
_RETRY_TIME = 20
# OSError: no credentials were found.
_FAILURES = (BaseError, OSError)


class LeaseLost(JobFailed):
    """This process must stop: another one may use the work directory soon.

    What to do: see the text; start the job again when the object store answers.
    """


@contextlib.contextmanager
def locked(work: str, wait: Callable[[float], bool]) -> Iterator[_FileLock | Lease | None]:
    """Keep other jobs out of a work directory, which must exist and be writable, during a ``with`` block.

    Yields the lock, whose check() raises LeaseLost when the block must end at once; None if wait() has returned True.

    Args:
        work: Path, or URI of an object store.
        wait: Waits the given seconds; returns True to give up. After a kill a lease is not over for some time.

    Raises:
        JobFailed: If another job uses the directory, or if the store can't be used.
    """
    store = open_store(work, "work")
    lock = _FileLock(store.root) if isinstance(store, LocalStore) else Lease(work, _NAME)
    try:
        yield lock if lock.acquire(wait) else None
    finally:
        lock.release()


def describe(work: str) -> str:
    """Describe, for --status, whether a job uses a work directory.

    Raises:
        OSError, JobFailed: If that can't be found out.
    """
    store = open_store(work, "work")
    if isinstance(store, LocalStore):
        pid = _FileLock(store.root).holder()
        return "not running" if pid is None else f"running, process {pid or 'unknown'}"
    holder = read_holder(work, _NAME)
    if holder is None:
        return "not running"
    return f"{holder}, which runs or was killed; it has renewed its lease at {holder.renewed_at[:19]} UTC by its clock"


class _FileLock:
    """A lock of a file in a directory, from acquire() to release(), or the end of the process."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._file: IO[str] | None = None

    def acquire(self, wait: Callable[[float], bool]) -> bool:
        """Take the lock; wait a short time for a job that is about to end. Return False if wait() has returned True.

        Raises:
            JobFailed: If another job keeps the lock.
        """
        self._file = open(open_or_create(self._work / _NAME), "a+", encoding="utf-8")  # noqa: SIM115  # see release()
        for _ in range(_PAUSES):
            if try_lock(self._file):
                write_text(self._file, json.dumps({"pid": os.getpid()}))
                return True
            if wait(_PAUSE):
                return False
        raise JobFailed(
            f"work {self._work} is in use by another job, process {self.holder()}: stop that one, or give this one "
            "directories and channels of its own"
        )

    def check(self) -> None:
        """Do nothing: only the end of the process takes the lock away."""

    def release(self) -> None:
        """Release the lock, if it is held; a second call does nothing."""
        if self._file is not None:
            self._file.close()

    def holder(self) -> int | None:
        """Return the id of the process that has the lock; None if no process has it, 0 if unknown."""
        try:
            with open(self._work / _NAME, encoding="utf-8") as file:
                # A shared lock, released when the file is closed. A job that starts now finds it, and tries again.
                return None if try_lock(file, fcntl.LOCK_SH) else int(json.load(file)["pid"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds; see the module. A request that hangs, with its repetitions, ends within ``usable - renewal`` seconds."""

    lease: float = 90.0
    usable: float = 60.0
    renewal: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The content of the object: who holds the lease.

    Attributes:
        run: Id of the lease; "" if it was released.
        lease: Seconds for which others must watch the object before they take it.
        renewed_at: When it was renewed, by the holder's clock, for people; ISO 8601.
        number: Number of the renewal, so that two contents are never the same: a store may compute the ETag from them.
    """

    run: str
    host: str
    pid: int
    lease: float
    renewed_at: str
    number: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """A lease, from acquire() to release(). A thread renews it.

    Args:
        location: URI of a directory.
        name: Name of the object in it.
        now: Returns seconds of a clock that never goes back; default: that of the system.
    """

    def __init__(
        self, location: str, name: str, times: LeaseTimes = LeaseTimes(), *, now: Callable[[], float] | None = None
    ) -> None:
        self._object = _Object(location, name)
        self._shown = f"{redact_uri(location)}/{name}"
        self._times = times
        self._now = now or _now
        self._run = uuid.uuid4().hex
        self._number = 0
        self._version: Any = None  # Any: obstore's
        self._renewed_at = 0.0
        self._reason = ""
        self._logger = LogOwner("", self._now).log(logger)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_end, name="gnsq-lease", daemon=True)

    def acquire(self, wait: Callable[[float], bool]) -> bool:
        """Take the lease. If a process that may have been killed holds it, watch the object until its lease is over.

        Args:
            wait: Waits the given seconds; returns True to give up.

        Returns:
            False if wait() has returned True.

        Raises:
            JobFailed: If another process holds and renews the lease, if the store fails, or ignores the conditions of a
                PUT.
        """
        try:
            return self._acquire(wait)
        except _FAILURES as error:
            raise JobFailed(f"{self._shown} can't be used: {describe_error(error)}") from error

    def _acquire(self, wait: Callable[[float], bool]) -> bool:
        watched: Any = None  # Any: obstore's version of an object
        watched_since = 0.0
        while True:
            found, version = self._object.read()
            # This process itself is found if it got no response to its PUT.
            if found is None or found.run in ("", self._run):
                if self._try_take(version):
                    return True
                continue
            if version != watched:
                if watched is not None:
                    raise JobFailed(
                        f"{self._shown} is held by {found}, which renews it: stop that process, or give this job a "
                        "work directory and channels of its own"
                    )
                watched, watched_since = version, self._now()
                logger.warning(
                    "%s was held by %s: if that was killed, this process begins in %.0f s",
                    *(self._shown, found, found.lease),
                )
            elif self._now() - watched_since > found.lease:
                if self._try_take(version):
                    return True
                continue
            if wait(min(self._times.renewal / 5, 1.0)):
                return False

    def _try_take(self, version: Any) -> bool:  # Any: obstore's
        began = self._now()
        try:
            first = self._object.write(self._holder(), version)
            # Some stores ignore the condition: there, two processes would hold one lease.
            self._version = self._object.write(self._holder(), first)
        except (PreconditionError, AlreadyExistsError):
            return False
        with contextlib.suppress(PreconditionError):
            self._object.write(self._holder(run=""), first)
            raise JobFailed(
                f"{self._shown}: the store ignores the condition of a PUT (If-Match), so two jobs could run at once: "
                "give a store that has conditional PUT, or a local or mounted directory"
            )
        self._renewed_at = began
        self._thread.start()
        return True

    def check(self) -> None:
        """Check that this process still holds the lease.

        Raises:
            LeaseLost: If it does not.
        """
        if not self._reason and self._now() - self._renewed_at > self._times.usable:
            self._reason = f"it could not be renewed for {self._times.usable:g} s"
        if self._reason:
            raise LeaseLost(
                f"{self._shown}: this process has lost the lease, since {self._reason}: it stops, so that another one "
                "may begin; start it again"
            )

    def release(self) -> None:
        """Release the lease, if it is held; a second call does nothing."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._version is not None and not self._reason:
            with contextlib.suppress(*_FAILURES):  # then it runs out
                self._object.write(self._holder(run=""), self._version)
        self._version = None

    def _renew_until_end(self) -> None:
        pause = self._times.renewal
        while not self._ended.wait(pause):
            try:
                self.check()
                pause = self._times.renewal if self._try_renew() else self._times.renewal / 10
            except LeaseLost as error:
                logger.error("%s", error)
                return

    def _try_renew(self) -> bool:
        began = self._now()
        try:
            self._version = self._object.write(self._holder(), self._version)
        except PreconditionError:
            return self._was_replaced()
        except _FAILURES as error:
            self._log_failure("renewed", error)
            return False
        self._renewed_at = began
        return True

    def _was_replaced(self) -> bool:
        """Find out who has written the object. False if this process has: it got no response to an earlier PUT."""
        try:
            found, version = self._object.read()
        except _FAILURES as error:
            self._log_failure("read", error)
            return False
        if found is not None and found.run == self._run:
            self._version = version
            return False
        self._reason = f"{found} has taken it" if found is not None and found.run else "the object was deleted"
        self.check()
        return False

    def _log_failure(self, what: str, error: Exception) -> None:
        text = "%s not %s: %s; trying again"
        self._logger.limited(logging.WARNING, what, text, self._shown, what, describe_error(error))

    def _holder(self, run: str | None = None) -> Holder:
        self._number += 1
        return Holder(
            run=self._run if run is None else run,
            host=socket.gethostname(),
            pid=os.getpid(),
            lease=self._times.lease,
            renewed_at=dt.datetime.now(dt.UTC).isoformat(),
            number=self._number,
        )


def read_holder(location: str, name: str) -> Holder | None:
    """Read who holds a lease, or has held it until it was killed; None if nobody does.

    Raises:
        JobFailed: If the store fails.
    """
    try:
        found, _ = _Object(location, name).read()
    except _FAILURES as error:
        raise JobFailed(f"{redact_uri(location)}/{name} can't be read: {describe_error(error)}") from error
    return found if found is not None and found.run else None


class _Object:
    """A small object in a store, which is replaced on condition. Methods raise one of _FAILURES if the store fails."""

    def __init__(self, location: str, name: str) -> None:
        store = open_store(location, "work", retry_time=_RETRY_TIME)
        assert isinstance(store, ObjectStore)  # JobSettings takes no other URI
        self._name = name
        self._store = store.client

    def read(self) -> tuple[Holder | None, Any]:  # Any: obstore's version of an object
        """Return the content and its version; None and None if there is no object."""
        try:
            found = obstore.get(self._store, self._name)
        except FileNotFoundError:
            return None, None
        version = {name: value for name in ("e_tag", "version") if (value := found.meta.get(name)) is not None}
        try:
            return Holder(**json.loads(bytes(found.bytes()))), version
        except (ValueError, TypeError):
            # Not written by this program. Treat it as held, so that it is not lost at once.
            return Holder(run="?", host="?", pid=0, lease=LeaseTimes().lease, renewed_at="", number=0), version

    def write(self, holder: Holder, version: Any) -> Any:  # Any: obstore's
        """Replace the object if it has a version, or create it if that is None; return the new version.

        Raises:
            PreconditionError, AlreadyExistsError: If another process has written it.
        """
        content = json.dumps({name: getattr(holder, name) for name in Holder.__slots__}).encode()
        found = obstore.put(self._store, self._name, content, mode="create" if version is None else version)
        return {name: value for name in ("e_tag", "version") if (value := found.get(name)) is not None}


def _now() -> float:
    """Seconds of a clock that never goes back. It also counts while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
