"""Keeps one connection open to each of several nsqds, and reopens lost connections.

Owns one greenlet for each address. Knows neither messages nor publishes.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypedDict

import gevent
from gevent.event import Event

from gnsq.backofftimer import exponential_delay, jittered
from gnsq.clock import Clock
from gnsq.concurrency.greenlets import run_until_done, spawn
from gnsq.concurrency.threads import is_hub_greenlet
from gnsq.errors import NSQBadBody, NSQException
from gnsq.logs import LogOwner
from gnsq.nsqd.connection import Connection, InternalError
from gnsq.options import Options, option

__all__ = ["ConnectionPool", "FirstAttempts", "ReconnectOptions"]

logger = logging.getLogger(__name__)


class ReconnectOptionsDict(TypedDict, total=False):
    """The options of ReconnectOptions as typed keywords."""

    reconnect_initial: float | timedelta
    reconnect_maximum: float | timedelta


@dataclass(frozen=True, kw_only=True)
class ReconnectOptions(Options):
    """Options of the wait before a reconnect, after a failed attempt or a lost connection."""

    reconnect_initial: float = option(8.0, "time until an nsqd is tried again", unit="s", minimum=0.001)
    reconnect_maximum: float = option(128.0, "limit of this time; each failure doubles it", unit="s", minimum=0.001)

    def delay(self, failures: int) -> float:
        """Return the seconds before the next attempt, after this number of failures in a row."""
        return jittered(exponential_delay(failures, self.reconnect_initial, self.reconnect_maximum))


# Seconds that start() waits for the first connection. A silent nsqd must not hold up a program, such as a web worker,
# which gunicorn kills if it is not ready within 30 s.
START_LIMIT = 1.0
# Seconds after which a connection is stable. When a stable connection is lost, the failures before it do not count.
STABLE_AFTER = 10.0
# Seconds. An nsqd that was down, perhaps several times in a minute, is tried again so soon for a publish that waits.
URGENT_AFTER = 1.0


@dataclass(eq=False)
class _Reconnector:
    """State of one address.

    Attributes:
        attempted: True if the first attempt to connect has ended, or the pool is closed.
        wake_event: Ends the wait between two attempts.
        failures: Failed attempts and losses with fault in a row. The loss of a stable connection begins a new row.
        stable: When the last stable connection was opened. The first failure of a kind after this time is logged,
            even if one of the same kind was logged less than a minute ago.
        last_no_fault: When a connection was last lost for a reason that is not a fault of the nsqd.
    """

    permanent: bool
    released: bool = False
    attempted: bool = False
    wake_event: Event = field(default_factory=Event)
    failures: int = 0
    stable: float = -math.inf
    last_no_fault: float = -math.inf
    last_failure: NSQException | None = None
    greenlet: gevent.Greenlet | None = None


class FirstAttempts:
    """The first attempts to connect of a client that starts: it is started when one of them has succeeded.

    Args:
        looks_up: True if the client also asks nsqlookupds for nsqds, and calls lookup_ended().
    """

    def __init__(self, clock: Clock, owner: LogOwner, *, looks_up: bool = False) -> None:
        self._clock = clock
        self._owner = owner
        self._looks_up = looks_up
        self._addresses: list[str] = []  # of the attempts that go on
        self._is_connected = False
        self._decided = Event()

    def begin(self, address: str) -> None:
        """Note that an attempt begins."""
        self._addresses.append(address)

    def end(self, address: str, *, connected: bool) -> None:
        """Note that an attempt has ended."""
        self._addresses.remove(address)
        self._is_connected |= connected
        self._check()

    def lookup_ended(self) -> None:
        """Note that all nsqlookupds were asked."""
        self._looks_up = False
        self._check()

    def _check(self) -> None:
        if self._is_connected or not (self._addresses or self._looks_up):
            self._decided.set()

    def wait(self) -> None:
        """Wait until an nsqd is connected, or all attempts have failed, up to START_LIMIT. Log what is not connected by
        then, since it may take a minute until its attempt fails and is logged. The hub itself can't wait."""
        if is_hub_greenlet():
            return
        is_decided = self._decided.is_set() or self._clock.wait(self._decided, START_LIMIT)
        waiting = ["nsqlookupd"] * self._looks_up + sorted(set(self._addresses))
        if waiting:
            rest = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
            level = logging.INFO if is_decided else logging.WARNING
            text = "started; the first answers of %s%s are awaited in the background"
            self._owner.log(logger).log(level, text, ", ".join(waiting[:3]), rest)


class ConnectionPool:
    """Connections by address.

    Args:
        make: Makes a connection for an address. The pool opens the connection.
        setup: Called with each opened connection, in the greenlet of its address. setup may send commands and wait, for
            example for the response to SUB. If it raises an exception, the attempt has failed.
        on_lost: Called with each connection that is closed after setup has succeeded.
        closed_without_fault: Called after on_lost. Returns True if the nsqd did not cause the loss. Then the pool
            reconnects immediately, even if the address is not permanent, unless it was released. After a second such
            loss within reconnect_initial seconds, the pool reconnects reconnect_initial seconds later.
        first_attempts: Told of the first attempt of each address.
        is_urgent: Returns True while somebody waits for any connection; None: nobody ever does.

    Attributes:
        not_attempted: Number of addresses to which the first attempt to connect has not ended.
    """

    def __init__(
        self,
        reconnect: ReconnectOptions,
        clock: Clock,
        *,
        make: Callable[[str], Connection],
        setup: Callable[[Connection], None],
        on_lost: Callable[[Connection], object] = lambda connection: None,
        closed_without_fault: Callable[[Connection], bool] = lambda connection: False,
        owner: LogOwner | None = None,
        first_attempts: FirstAttempts | None = None,
        is_urgent: Callable[[], bool] | None = None,
    ) -> None:
        self.connections: dict[str, Connection] = {}
        self._reconnect = reconnect
        self._clock = clock
        self._make = make
        self._setup = setup
        self._on_lost = on_lost
        self._closed_without_fault = closed_without_fault
        self._owner = owner if owner is not None else LogOwner("", clock.monotonic)
        self._is_urgent = is_urgent
        self._first_attempts = first_attempts or FirstAttempts(clock, self._owner)
        self._reconnectors: dict[str, _Reconnector] = {}
        self.not_attempted = 0
        # Last failures of addresses that were removed because they are not permanent.
        self._past_failures: dict[str, NSQException] = {}
        self._opening: set[Connection] = set()
        self._closing = False
        # Id of the process that opens connections. Its forked children open none.
        self._pid: int | None = None

    @property
    def _is_closed(self) -> bool:
        return self._closing or (self._pid is not None and self._pid != os.getpid())

    def add(self, address: str, *, permanent: bool) -> None:
        """Connect to an address in the background, unless the pool has it already or is closed.

        Args:
            permanent: True: reconnect after each failure. False: remove the address after a failed attempt or a
                loss that the nsqd caused. If the pool has the address already, this has an effect only after release().
        """
        if self._pid is None:
            self._pid = os.getpid()
        if self._is_closed:
            return
        known = self._reconnectors.get(address)
        if known is not None:
            if known.released:
                known.released, known.permanent = False, permanent
            return
        reconnector = self._reconnectors[address] = _Reconnector(permanent)
        self.not_attempted += 1
        self._first_attempts.begin(address)
        reconnector.greenlet = spawn(
            f"gnsq-reconnect-{address}",
            *(self._keep_connected, address, reconnector),
            on_failure="no connection any more",
        )

    def release(self, address: str) -> None:
        """Do not reconnect to an address until it is added again. Its connection or a running attempt continues.

        An unknown address is not an error.
        """
        if address in self._reconnectors:
            self._reconnectors[address].released = True
            self.retry(address)

    def retry(self, address: str) -> None:
        """If the pool waits before its next attempt to connect to an address, end the wait."""
        reconnector = self._reconnectors.get(address)
        if reconnector is not None:
            reconnector.wake_event.set()

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if a greenlet is the pool's greenlet of an address, or one of an open connection's own."""
        return any(reconnector.greenlet is greenlet for reconnector in self._reconnectors.values()) or any(
            connection.owns_greenlet(greenlet) for connection in self.connections.values()
        )

    def failures(self) -> dict[str, NSQException]:
        """Return the last failure of each address that has no connection."""
        failures = dict(self._past_failures)
        for address, reconnector in list(self._reconnectors.items()):
            if reconnector.last_failure is not None:
                failures[address] = reconnector.last_failure
        return {address: error for address, error in failures.items() if address not in self.connections}

    def retain_only(self, addresses: Collection[str]) -> None:
        """Forget the failures of removed addresses that are not among the given ones."""
        for address in self._past_failures.keys() - addresses:
            del self._past_failures[address]

    def close(self, timeout: float) -> None:
        """Drain and close all connections; abort those that take longer than timeout seconds or are not open yet."""
        self._closing = True
        for connection in list(self._opening):
            connection.abort()
        closers = [
            spawn(f"gnsq-close-{address}", connection.close, timeout, on_failure="not drained")
            for address, connection in list(self.connections.items())
        ]
        try:
            gevent.joinall(closers)
        finally:
            for connection in list(self.connections.values()):
                connection.abort()
            for address, reconnector in self._reconnectors.items():
                # A greenlet that is killed before it has started can't set this event itself.
                self._set_attempted(address, reconnector)
                if reconnector.greenlet is not None:
                    reconnector.greenlet.kill(block=False)
            self._reconnectors.clear()
            self.connections.clear()

    def _keep_connected(self, address: str, reconnector: _Reconnector) -> None:
        what = f"the greenlet that connects to {address}"
        try:
            run_until_done(what, lambda: self._reconnect_loop(address, reconnector), logger, self._clock)
        finally:
            self._set_attempted(address, reconnector)
            if self._reconnectors.get(address) is reconnector:
                del self._reconnectors[address]
                if reconnector.last_failure is not None and not reconnector.permanent:
                    self._past_failures[address] = reconnector.last_failure

    def _reconnect_loop(self, address: str, reconnector: _Reconnector) -> None:
        while not self._is_closed and not reconnector.released:
            connection = self._try_open(address, reconnector)
            self._set_attempted(address, reconnector, connected=connection is not None)
            no_fault = connection is not None and self._wait_lost(address, connection, reconnector)
            # Clear the event before `released` is read: so a release() after the read sets it, and ends the wait.
            reconnector.wake_event.clear()
            if self._is_closed:
                return
            wait: float | None = None
            if not reconnector.released and (reconnector.permanent or no_fault):
                if no_fault:
                    wait = self._wait_without_backoff(reconnector)
                else:
                    reconnector.failures += 1
                    wait = self._reconnect.delay(reconnector.failures)
            # A loss without fault means that nsqd refused a publish. The publish raises the error, so do not warn.
            level = logging.INFO if no_fault or reconnector.released else logging.WARNING
            self._log_failure(reconnector, address, wait, level, was_open=connection is not None)
            if wait is None:
                return
            if wait > 0:
                self._wait(reconnector, wait)

    def _wait(self, reconnector: _Reconnector, seconds: float) -> None:
        """Wait before the next attempt, but not longer than URGENT_AFTER while somebody waits for any connection."""
        end = self._clock.monotonic() + seconds
        step = seconds if self._is_urgent is None else URGENT_AFTER
        while (left := end - self._clock.monotonic()) > 0:
            if self._clock.wait(reconnector.wake_event, min(left, step)):
                return
            if left > step and self._is_urgent is not None and self._is_urgent():
                # If it fails, the time is as long as after the attempt before: else it would double each second.
                reconnector.failures = max(reconnector.failures - 1, 0)
                return

    def _set_attempted(self, address: str, reconnector: _Reconnector, *, connected: bool = False) -> None:
        if not reconnector.attempted:
            self.not_attempted -= 1
            reconnector.attempted = True
            self._first_attempts.end(address, connected=connected)

    def _log_failure(
        self, reconnector: _Reconnector, address: str, wait: float | None, level: int, *, was_open: bool
    ) -> None:
        """Log why there is no connection, and the next step. Each kind of failure is logged only once a minute, since
        an nsqd may be down for days."""
        error = reconnector.last_failure
        bug = error.__cause__ if isinstance(error, InternalError) else None
        what = "connection lost" if was_open else "not connected"
        if wait is not None:
            then = f"trying again in {wait:.1f} s" if wait > 0 else "trying again at once"
        else:
            then = "not tried again" if reconnector.released else "not tried again until an nsqlookupd names it"
        # nsqd has refused an option: somebody must act, but another try may find an nsqd with other flags.
        is_refused_option = isinstance(error, NSQBadBody) and not was_open
        self._owner.log(logger, nsqd=address).limited(
            logging.ERROR if bug or is_refused_option else level,
            f"{address} {what} {type(error).__name__}",
            "%s: %s; %s",
            what,
            "closed by this side" if error is None else error.explanation,
            then,
            exc_info=bug,
            since=reconnector.stable,
        )

    def _wait_lost(self, address: str, connection: Connection, reconnector: _Reconnector) -> bool:
        """Wait until a connection is lost. Return True if the nsqd did not cause the loss."""
        opened = self._clock.monotonic()
        try:
            connection.wait_closed()
        except (Exception, gevent.Timeout) as error:  # noqa: BLE001  # only this greenlet would handle the loss
            connection.abort(InternalError.of(error))
        if self._clock.monotonic() - opened >= STABLE_AFTER:
            reconnector.failures, reconnector.stable = 0, opened
        reconnector.last_failure = connection.error
        self.connections.pop(address, None)
        self._on_lost(connection)
        return self._closed_without_fault(connection)

    def _wait_without_backoff(self, reconnector: _Reconnector) -> float:
        """Return the seconds to wait after a loss without fault of the nsqd: 0, but reconnect_initial if the last such
        loss was less than reconnect_initial ago, since attempts without a wait could become a busy loop."""
        before, reconnector.last_no_fault = reconnector.last_no_fault, self._clock.monotonic()
        initial = self._reconnect.reconnect_initial
        return initial if reconnector.last_no_fault - before < initial else 0.0

    def _try_open(self, address: str, reconnector: _Reconnector) -> Connection | None:
        connection = self._make(address)
        self._opening.add(connection)
        try:
            connection.open()
            self.connections[address] = connection
            self._setup(connection)
        except (Exception, gevent.Timeout) as error:  # noqa: BLE001  # a bug must not leave the connection open
            failure = error if isinstance(error, NSQException) else InternalError.of(error, " while connecting")
            connection.abort(failure)
            self.connections.pop(address, None)
            # The connection's error tells more: the error of setup may only say that the connection was closed.
            reconnector.last_failure = connection.error or failure
            return None
        finally:
            self._opening.discard(connection)
        reconnector.last_failure = None
        self._past_failures.pop(address, None)
        return connection
