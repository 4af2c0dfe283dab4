"""HttpPool: keeps a link to each of some nsqds' HTTP ports in a dispatcher, as long as the nsqd answers.

Owns one keeper greenlet for each address, and the links. The counterpart of gnsq.pool.ConnectionPool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.concurrency.forks import register_after_fork
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException, NSQHttpError
from gnsq.logs import LogOwner
from gnsq.nsqd.connection import InternalError
from gnsq.pool import STABLE, ReconnectOptions, wait_all
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.httplinks import HttpClients, HttpLink
from gnsq.producer.httpoutcomes import answers
from gnsq.texts import without_address

__all__ = ["HttpPool"]

logger = logging.getLogger(__name__)

# Seconds for the answer to a ping.
PING_TIMEOUT = 5.0
# How long greenlets that were killed may take to end, seconds.
PATIENCE = 0.5


class _Kept:
    """What the pool knows of one address."""

    __slots__ = ("doubt", "doubted", "failures", "greenlet", "last_failure", "link", "released", "tried", "woken")

    def __init__(self, link: HttpLink) -> None:
        self.link = link
        self.released = False
        self.tried = Event()
        # Ends the wait between two tries.
        self.woken = Event()
        # Ends the trust, and why.
        self.doubted = Event()
        self.doubt: NSQException | None = None
        # In a row.
        self.failures = 0
        self.last_failure: NSQException | None = None
        self.greenlet: Any = None  # Any: gevent has no types


class HttpPool:
    """Links by address. An nsqd is pinged until it answers; then its link is used until a publish fails for want of it,
    and it is pinged again.

    Args:
        at_once: Requests to each nsqd.
        responded, refused: Called with each answer to a publish: nsqd's data, or its error.
        owner: Producer that log lines name.
    """

    def __init__(
        self,
        clients: HttpClients,
        reconnect: ReconnectOptions,
        clock: Clock,
        dispatcher: Dispatcher,
        *,
        at_once: int,
        responded: Callable[[bytes], None],
        refused: Callable[[NSQErrorCode], None],
        owner: LogOwner,
    ) -> None:
        self._clients = clients
        self._reconnect = reconnect
        self._clock = clock
        self._dispatcher = dispatcher
        self._at_once = at_once
        self._owner = owner
        self.responded = responded
        self.refused = refused
        self._kept: dict[str, _Kept] = {}
        # Also of addresses that are kept no more.
        self._links: set[HttpLink] = set()
        self._closing = False
        register_after_fork(self)

    def add(self, address: str, *, permanent: bool = True) -> None:
        """Use an nsqd whenever it answers, unless that is done already; in the background."""
        if self._closing:
            return
        kept = self._kept.get(address)
        if kept is not None:
            kept.released = False
            return
        link = HttpLink(
            address,
            self._clients.client(address),
            self._at_once,
            self._clients.longest,
            self._clock,
            heard=self,
            subject=self._owner.at(address),
        )
        self._links.add(link)
        kept = self._kept[address] = _Kept(link)
        kept.greenlet = gevent.spawn(self._keep, kept)
        kept.greenlet.name = f"gnsq-keep-http-{address}"

    def release(self, address: str) -> None:
        """Try an address no more, until it is added again. Its link is used until it fails."""
        kept = self._kept.get(address)
        if kept is not None:
            kept.released = True
            kept.woken.set()

    def runs_in(self, greenlet: gevent.Greenlet) -> bool:
        """Whether a greenlet does the work of the pool or of its links."""
        return any(kept.greenlet is greenlet for kept in self._kept.values()) or any(
            greenlet in link.workers for link in self._links
        )

    def wait_tried(self, limit: float) -> None:
        """Wait until every address has been tried once, up to a limit in seconds; each try has one of its own."""
        wait_all([kept.tried for kept in self._kept.values()], limit, self._clock)

    def failures(self) -> dict[str, NSQException]:
        """Say what went wrong last with each address that is not used."""
        return {
            address: kept.last_failure
            for address, kept in list(self._kept.items())
            if kept.last_failure is not None and not kept.link.trusted
        }

    def close(self, timeout: float) -> None:
        """End everything; what is under way is lost."""
        self._closing = True
        ending = [kept.greenlet for kept in self._kept.values()]
        for kept in self._kept.values():
            kept.tried.set()
            kept.greenlet.kill(block=False)
        self._kept.clear()
        links, self._links = self._links, set()
        for link in links:
            self._dispatcher.remove(link)
            ending += link.workers
            link.abort(NSQConnectionClosed(f"{link.address}: the producer was closed"))
        gevent.joinall(ending, timeout=PATIENCE)

    def after_fork_in_child(self, parent: int) -> None:
        """Do nothing more in this child process: the parent goes on using the connections. See concurrency.forks."""
        self._closing = True
        for kept in self._kept.values():
            kept.greenlet.kill(block=False)
        for link in self._links:
            link.abandon(NSQConnectionClosed(f"{link.address}: given up in a child of process {parent}"))

    # --- what links tell, see httplinks.Heard

    def doubted(self, link: HttpLink, error: NSQException) -> None:
        """Use a link no more, until its nsqd answers a ping."""
        self._dispatcher.remove(link)
        link.give_back(error)
        kept = self._kept.get(link.address)
        if kept is not None:
            kept.doubt = kept.last_failure = error
            kept.doubted.set()

    # --- keeping

    def _keep(self, kept: _Kept) -> None:
        while not kept.released and not self._closing:
            answered = self._ping(kept)
            if answered:
                self._use(kept)
            kept.failures += 1
            # Before `released` is read: what release() sets from here on ends the wait.
            kept.woken.clear()
            wait = 0.0 if kept.released else self._wait(kept)
            self._log_failure(kept, wait, was_used=answered)
            if wait > 0:
                self._clock.wait(kept.woken, wait)
        self._kept.pop(kept.link.address, None)
        kept.link.finish()
        self._links.discard(kept.link)

    def _ping(self, kept: _Kept) -> bool:
        """Whether the nsqd answers."""
        link = kept.link
        failure: NSQException | None = None
        try:
            link.client.request("GET", "ping", timeout=min(PING_TIMEOUT, self._clients.longest))
        except NSQHttpError as error:
            if not answers(error):
                failure = error
        except Exception as error:  # noqa: BLE001  # a bug must not end the trying
            failure = InternalError(f"internal error while pinging: {error!r}")
            failure.__cause__ = error
        kept.last_failure = failure
        if failure is not None:
            kept.tried.set()
        return failure is None

    def _use(self, kept: _Kept) -> None:
        """Let the link be used until it is doubted."""
        link = kept.link
        kept.doubted.clear()
        kept.doubt = None
        link.trusted, link.proven = True, False
        since = self._clock.monotonic()
        logger.info("%s: answers, and is published to over HTTP", self._owner.at(link.address))
        self._dispatcher.add(link)
        kept.tried.set()
        kept.doubted.wait()  # until a publish fails, whenever that is
        if link.proven or self._clock.monotonic() - since >= STABLE:
            kept.failures = 0

    def _log_failure(self, kept: _Kept, wait: float, *, was_used: bool) -> None:
        """Say why an nsqd is not used, and what is next. Once a minute for each kind of failure: an nsqd may be down
        for days."""
        error, address = kept.last_failure, kept.link.address
        what = "not published to until it answers" if was_used else "does not answer"
        then = f"trying again in {wait:.1f} s" if wait > 0 else "trying again at once"
        bug = error.__cause__ if isinstance(error, InternalError) else None
        self._owner.rate_limited(logger).log(
            logging.ERROR if bug else logging.WARNING,
            f"{address} {what} {type(error).__name__}",
            "%s: %s: %s; %s",
            self._owner.at(address),
            what,
            without_address(error, address),
            "not tried again" if kept.released else then,
            exc_info=bug,
        )

    def _wait(self, kept: _Kept) -> float:
        """Seconds until the next try."""
        doubt, kept.doubt = kept.doubt, None
        if kept.failures == 1 and isinstance(doubt, NSQHttpError):
            # It may have been that request alone. What nsqd itself says, that it ends, is true for a while.
            return 0.0
        return self._reconnect.delay(kept.failures)
