"""ConnectionPool: keeps one connection open to each of some nsqds, and opens lost ones again.

Owns one keeper greenlet for each address. What a connection is for is said by two callables; RDY, messages and
publishes are not its business.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypedDict

import gevent
from gevent.event import Event

from gnsq.addresses import parse_address
from gnsq.backofftimer import exponential_delay
from gnsq.clock import Clock
from gnsq.errors import NSQException
from gnsq.logs import LogOwner
from gnsq.nsqd.connection import Connection, InternalError
from gnsq.options import ConnectionOptions, Options, option
from gnsq.texts import without_address

__all__ = ["ConnectionPool", "State", "ReconnectOptions", "wait_all"]

logger = logging.getLogger(__name__)


class ReconnectOptionsDict(TypedDict, total=False):
    """The options of ReconnectOptions as typed keywords."""

    reconnect_initial: float
    reconnect_maximum: float
    reconnect_jitter: float


@dataclass(frozen=True, kw_only=True)
class ReconnectOptions(Options):
    """When to try again an nsqd that can't be reached or was lost."""

    reconnect_initial: float = option(8.0, "wait before an nsqd is tried again", unit="s", minimum=0.001)
    reconnect_maximum: float = option(128.0, "longest wait; each failure doubles it", unit="s", minimum=0.001)
    reconnect_jitter: float = option(0.3, "share of each wait that is random", minimum=0, maximum=1)

    def delay(self, failures: int) -> float:
        """Seconds until the next try, behind so many failures in a row."""
        return exponential_delay(
            failures,
            self.reconnect_initial,
            self.reconnect_maximum,
            jitter=self.reconnect_jitter,
            spread=random.random(),
        )


# Seconds after which a connection counts as one: those that end sooner are failures to connect.
STABLE_AFTER = 10.0


class State(enum.Enum):
    """Where whoever owns a pool is in its life; it only ever moves down this list, but in a child process, which begins
    anew.
    """

    INIT = "init"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


def wait_all(events: Iterable[Event], limit: float, clock: Clock) -> None:
    """Wait until all of these are set, for so many seconds together at most."""
    deadline = clock.monotonic() + limit
    for event in events:
        left = deadline - clock.monotonic()
        if not event.is_set() and left > 0:
            clock.wait(event, left)


class _Keeper:
    """What the pool knows of one address."""

    __slots__ = ("excused", "failures", "greenlet", "last_failure", "permanent", "released", "stable", "tried", "woken")

    def __init__(self, permanent: bool) -> None:
        self.permanent = permanent
        self.released = False
        self.tried = Event()
        # Ends the wait between two tries.
        self.woken = Event()
        # In a row.
        self.failures = 0
        # When the last connection that was stable was opened: failures since then are another story.
        self.stable = -math.inf
        # When a loss was blameless last.
        self.excused = -math.inf
        self.last_failure: NSQException | None = None
        self.greenlet: gevent.Greenlet | None = None


class ConnectionPool:
    """Connections by address.

    Args:
        prepare: Called with each new Connection before it is opened, to set its callbacks.
        setup: Called with each opened Connection, in its keeper's greenlet; may send and wait (SUB), may raise
            NSQException, which counts as a failure to connect.
        on_lost: Called with a connection that had been set up and is closed now.
        blameless: Asked, behind on_lost, whether the nsqd had no part in such a loss. If so it is no failure: the
            connection is opened again at once, also to an address that is not permanent; but after the second one
            within reconnect_initial seconds only when as much time has passed.
        owner: Consumer or Producer that log lines name; pools that have one together are rate-limited together.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        reconnect: ReconnectOptions,
        clock: Clock,
        *,
        prepare: Callable[[Connection], None],
        setup: Callable[[Connection], None],
        on_lost: Callable[[Connection], object] = lambda connection: None,
        blameless: Callable[[Connection], bool] = lambda connection: False,
        owner: LogOwner | None = None,
    ) -> None:
        self.connections: dict[str, Connection] = {}
        self._options = options
        self._reconnect = reconnect
        self._clock = clock
        self._prepare = prepare
        self._setup = setup
        self._on_lost = on_lost
        self._blameless = blameless
        self._owner = owner if owner is not None else LogOwner("", clock.monotonic)
        self._keepers: dict[str, _Keeper] = {}
        # Of addresses that are not permanent, and not tried now: why they have no connection.
        self._past_failures: dict[str, NSQException] = {}
        self._opening: set[Connection] = set()
        self._closing = False
        # Of the process that opens the connections; a child of it opens none of its own.
        self._pid: int | None = None

    @property
    def _over(self) -> bool:
        return self._closing or (self._pid is not None and self._pid != os.getpid())

    def add(self, address: str, *, permanent: bool) -> None:
        """Connect to an address, unless that is done already; at once, in the background.

        Args:
            permanent: Try again for ever; else the address is forgotten when its connection fails or is lost. Of an
                address that is kept already only one that was released takes this over.
        """
        if self._pid is None:
            self._pid = os.getpid()
        if self._over:
            return
        kept = self._keepers.get(address)
        if kept is not None:
            if kept.released:
                kept.released, kept.permanent = False, permanent
            return
        keeper = self._keepers[address] = _Keeper(permanent)
        keeper.greenlet = gevent.spawn(self._keep, address, keeper)
        keeper.greenlet.name = f"gnsq-keep-{address}"

    def release(self, address: str) -> None:
        """Try an address no more, until it is added again. Its connection stays until it is lost, and a try that is
        under way is carried to its end; an address that is not known is no error.
        """
        keeper = self._keepers.get(address)
        if keeper is not None:
            keeper.released = True
            keeper.woken.set()

    def retry(self, address: str) -> None:
        """End the wait for the next try of an address, if it waits."""
        keeper = self._keepers.get(address)
        if keeper is not None:
            keeper.woken.set()

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Whether a greenlet does the work of the pool or of its connections."""
        return any(keeper.greenlet is greenlet for keeper in self._keepers.values()) or any(
            connection.owns_greenlet(greenlet) for connection in self.connections.values()
        )

    @property
    def not_attempted(self) -> int:
        """How many addresses have not been tried yet."""
        return sum(not keeper.tried.is_set() for keeper in self._keepers.values())

    def wait_attempted(self, limit: float | None = None) -> None:
        """Wait until every address has been tried once; each try has a time limit of its own.

        Args:
            limit: Seconds, after which it returns all the same; None: no other limit than theirs.
        """
        tries = [keeper.tried for keeper in self._keepers.values()]
        if limit is None:
            gevent.wait(tries)
            return
        wait_all(tries, limit, self._clock)

    def failures(self) -> dict[str, NSQException]:
        """Say what went wrong last with each address that has no connection."""
        failures = dict(self._past_failures)
        failures |= {
            address: keeper.last_failure
            for address, keeper in list(self._keepers.items())
            if keeper.last_failure is not None
        }
        return {address: error for address, error in failures.items() if address not in self.connections}

    def retain_only(self, addresses: Collection[str]) -> None:
        """Tell no more of failures of addresses that are neither kept nor among these."""
        for address in self._past_failures.keys() - addresses:
            del self._past_failures[address]

    def close(self, timeout: float) -> None:
        """Close all connections in order, together; cut those that take longer than the timeout (seconds)."""
        self._closing = True
        for connection in list(self._opening):
            connection.abort()
        closers = [gevent.spawn(connection.close, timeout) for connection in list(self.connections.values())]
        try:
            gevent.joinall(closers)
        finally:
            for connection in list(self.connections.values()):
                connection.abort()
            for keeper in self._keepers.values():
                # A keeper that is killed before it has begun can't do that itself.
                keeper.tried.set()
                if keeper.greenlet is not None:
                    keeper.greenlet.kill(block=False)
            self._keepers.clear()
            self.connections.clear()

    def _keep(self, address: str, keeper: _Keeper) -> None:
        try:
            while not self._over and not keeper.released:
                connection = self._try_open(address, keeper)
                keeper.tried.set()
                excused = connection is not None and self._is_lost_blameless(address, connection, keeper)
                # Before `released` is read: what release() sets from here on ends the wait.
                keeper.woken.clear()
                if self._over:
                    return
                wait: float | None = None
                if not keeper.released and (keeper.permanent or excused):
                    wait = self._wait_excused(keeper) if excused else self._wait_failed(keeper)
                # Excused: whose publish it was has been told.
                level = logging.INFO if excused or keeper.released else logging.WARNING
                self._log_failure(keeper, address, wait, level, was_open=connection is not None)
                if wait is None:
                    return
                if wait > 0:
                    self._clock.wait(keeper.woken, wait)
        finally:
            keeper.tried.set()
            if self._keepers.get(address) is keeper:
                del self._keepers[address]
                if keeper.last_failure is not None and not keeper.permanent:
                    self._past_failures[address] = keeper.last_failure

    def _log_failure(self, keeper: _Keeper, address: str, wait: float | None, level: int, *, was_open: bool) -> None:
        """Say why there is no connection, and what is next. Once a minute for each kind of failure: an nsqd may be down
        for days."""
        error = keeper.last_failure
        bug = error.__cause__ if isinstance(error, InternalError) else None
        what = "connection lost" if was_open else "not connected"
        if wait is not None:
            then = f"trying again in {wait:.1f} s" if wait > 0 else "trying again at once"
        else:
            then = "not tried again" if keeper.released else "not tried again until an nsqlookupd names it"
        self._owner.rate_limited(logger).log(
            logging.ERROR if bug else level,
            f"{address} {what} {type(error).__name__}",
            "%s: %s: %s; %s",
            self._owner.at(address),
            what,
            "closed by this side" if error is None else without_address(error, address),
            then,
            exc_info=bug,
            since=keeper.stable,
        )

    def _is_lost_blameless(self, address: str, connection: Connection, keeper: _Keeper) -> bool:
        """Wait until a connection is lost; whether that is no failure."""
        opened = self._clock.monotonic()
        connection.wait_closed()
        if self._clock.monotonic() - opened >= STABLE_AFTER:
            keeper.failures, keeper.stable = 0, opened
        keeper.last_failure = connection.error
        self.connections.pop(address, None)
        self._on_lost(connection)
        return self._blameless(connection)

    def _wait_excused(self, keeper: _Keeper) -> float:
        """Seconds to wait after a loss that is no failure; those that follow each other fast must be no busy loop."""
        before, keeper.excused = keeper.excused, self._clock.monotonic()
        initial = self._reconnect.reconnect_initial
        return initial if keeper.excused - before < initial else 0.0

    def _wait_failed(self, keeper: _Keeper) -> float:
        keeper.failures += 1
        return self._reconnect.delay(keeper.failures)

    def _try_open(self, address: str, keeper: _Keeper) -> Connection | None:
        host, port = parse_address(address)
        connection = Connection(host, port, self._options, self._clock, owner=self._owner)
        self._prepare(connection)
        self._opening.add(connection)
        try:
            connection.open()
            self.connections[address] = connection
            self._setup(connection)
        except Exception as error:  # noqa: BLE001  # a bug is logged with what is next
            connection.abort(_failure(error))
            self.connections.pop(address, None)
            # What ended it first, if that was before: setup may only have seen that it is closed.
            keeper.last_failure = connection.error or _failure(error)
            return None
        finally:
            self._opening.discard(connection)
        keeper.last_failure = None
        self._past_failures.pop(address, None)
        return connection


def _failure(error: Exception) -> NSQException:
    """Name what has kept a connection from being opened; a bug, ours or a callback's, must not end the trying."""
    if isinstance(error, NSQException):
        return error
    failure = InternalError(f"internal error while connecting: {error!r}")
    failure.__cause__ = error
    return failure
