"""HttpLink: what takes publishes to one nsqd over HTTP, some requests at once. Promises no order.

Owns its client and the greenlets that wait for answers. When the nsqd is tried again is said in httppool.py.

HttpPool: keeps a link to each of some nsqds' HTTP ports in a dispatcher, as long as the nsqd answers.

Owns one keeper greenlet for each address, and the links. The counterpart of gnsq.nsqd.pool.ConnectionPool.

What an HTTP answer other than 200 means for a publish. PURE.

Source: nsqd http.go, doPUB() and doMPUB(); protocol_v2.go for what TCP says of the same.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Protocol

import gevent
from gevent.event import Event

from gnsq.addresses import Addresses, format_address
from gnsq.clock import Clock
from gnsq.concurrency.forks import register_after_fork
from gnsq.errors import (
    NSQBadBody,
    NSQBadMessage,
    NSQBadTopic,
    NSQConnectionClosed,
    NSQDPubFailed,
    NSQErrorCode,
    NSQException,
    NSQHttpError,
    NSQHttpTimeout,
    NSQHttpUnreachable,
    NSQInvalid,
    NSQMPubFailed,
    NSQPubFailed,
)
from gnsq.http.responses import error_text
from gnsq.httpclient import HttpOptions
from gnsq.logs import LogOwner
from gnsq.nsqd.connection import InternalError
from gnsq.nsqd.http import NsqdHTTPClient
from gnsq.nsqd.pending import PendingRequest
from gnsq.nsqd.pool import STABLE_AFTER, ReconnectOptions, wait_all
from gnsq.options import ConnectionOptions
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import Publish, Where, is_about_the_nsqd
from gnsq.protocol.frames import OK
from gnsq.texts import without_address

__all__ = [
    "Heard",
    "HttpClients",
    "HttpLink",
    "HttpPool",
    "answers",
    "check_no_tcp",
    "is_turned_away",
    "refusal",
    "too_old",
    "wanted_clients",
]

logger = logging.getLogger(__name__)


# nsqd's words, and what it says over TCP.
_CODES: dict[str, type[NSQErrorCode]] = {
    "MSG_TOO_BIG": NSQBadMessage,
    "MSG_EMPTY": NSQBadMessage,
    "BAD_MESSAGE": NSQBadMessage,
    "BODY_TOO_BIG": NSQBadBody,
    "BAD_BODY": NSQBadBody,
    "INVALID_TOPIC": NSQBadTopic,
    "INVALID_ARG_TOPIC": NSQBadTopic,
    "INVALID_DEFER": NSQInvalid,
    "INVALID_REQUEST": NSQInvalid,
    "TLS_REQUIRED": NSQInvalid,
}
_EXITING = "EXITING"
# A request that had not come whole when a proxy lost patience; it may have handed on what it had.
_REQUEST_TIMEOUT = 408
# What says that this is not where nsqd can be published to, or not now: login, wrong path, too many requests.
_TURNED_AWAY = {401, 403, 404, 405, 407, 421, 429}


def refusal(error: NSQHttpError, *, multi: bool = False, deferred: bool = False) -> NSQErrorCode | None:
    """Make the error of a publish that was certainly not taken; None where nobody knows.

    Args:
        multi, deferred: What was published; decides how TCP would call it.
    """
    words = error_text(error.body).text
    made: NSQErrorCode
    if words == _EXITING:
        made = (NSQMPubFailed if multi else NSQDPubFailed if deferred else NSQPubFailed)(str(error))
    elif words in _CODES:
        # Whatever the status: old servers said 500.
        made = _CODES[words](str(error))
    elif error.status is not None and 300 <= error.status < 500 and error.status != _REQUEST_TIMEOUT:
        made = NSQErrorCode(str(error), f"HTTP_{error.status}")
    else:
        return None
    made.__cause__ = error
    return made


def is_turned_away(error: NSQHttpError) -> bool:
    """Whether something else than nsqd has answered that it does not let this through: nothing was taken, and what is
    wrong is the address, not the publish."""
    status = error.status
    return status is not None and (300 <= status < 400 or status in _TURNED_AWAY) and not _is_nsqds(error)


def too_old(version: tuple[int, ...], *, multi: bool = False, deferred: bool = False) -> str:
    """Say what an nsqd of this version can't do of a publish over HTTP, and what helps; empty if it can.

    Args:
        version: Three numbers; empty if it is not known, which is taken for new enough.
        multi, deferred: What is published.

    Source: nsqd http.go. 0.2.21 does not know /mpub, and 0.2.22 takes a binary body for lines; before 0.3.6 defer is
    ignored.
    """
    if multi and version and version < (0, 2, 23):
        return "binary /mpub came with 0.2.23; publish one by one, or over TCP"
    if deferred and version and version < (0, 3, 6):
        return "deferred messages came with 0.3.6"
    return ""


def answers(error: NSQHttpError) -> bool:
    """Whether nsqd has answered a ping, if not with OK: one whose disk is full says so with a 500, and may yet take
    messages."""
    return error.status == 500 and error.body.startswith(b"NOK")


def _is_nsqds(error: NSQHttpError) -> bool:
    words = error_text(error.body).text
    return words == _EXITING or words in _CODES


# Longest wait for a connection where http_options does not say, seconds: others may take the publish meanwhile.
CONNECT_TIMEOUT = 5.0
# So long before the deadline of a publish its request is given up, seconds: what it knows (was anything sent?) is to
# come before the deadline.
EARLY = 0.01
# Longest wait for nsqd's version, seconds.
INFO_TIMEOUT = 5.0
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class HttpClients:
    """Clients of nsqds' HTTP ports, as the constructor of a producer was told.

    Args:
        urls: One URL or ``host[:port]``, or a list, tuple or set of them.
        options: Those of HttpOptions. ``timeout`` is the longest that a request may take; else only the deadlines of
            what is published limit it.
        at_once: Requests to each nsqd.

    Attributes:
        addresses: ``host:port``, or the URL where that would not say all; each once, in the order given; no secrets.
        longest: Seconds that a request may take.

    Raises:
        TypeError, ValueError: As NsqdHTTPClient.from_url().
    """

    def __init__(self, urls: Addresses, options: Mapping[str, Any], at_once: int) -> None:  # Any: each its own type
        if not isinstance(options, Mapping):
            raise TypeError(f"http_options must be a dict, not a {type(options).__name__}")
        if not isinstance(urls, (str, list, tuple, set, frozenset)):
            # Not shown: it may hold a password.
            raise TypeError(f"nsqd_http_addresses must be a str, list, tuple or set, not a {type(urls).__name__}")
        items = [urls] if isinstance(urls, str) else urls
        self._options = {"connect_timeout": CONNECT_TIMEOUT, "retries": 0, "maxsize": at_once, **options}
        checked = HttpOptions.from_keywords("http_options", self._options)
        self.longest = checked.timeout if "timeout" in options else float("inf")
        self._urls: dict[str, str] = {}
        for url in sorted(items) if isinstance(items, (set, frozenset)) else items:
            with NsqdHTTPClient.from_url(url, **self._options) as client:
                self._urls.setdefault(_address(client), url)

    @property
    def addresses(self) -> list[str]:
        """``host:port``, or URLs."""
        return list(self._urls)

    def client(self, address: str) -> NsqdHTTPClient:
        """Make a client; of an address that was not given, too."""
        return NsqdHTTPClient.from_url(self._urls.get(address, address), **self._options)


def wanted_clients(
    urls: Addresses,
    http_options: Mapping[str, Any] | None,  # Any: each option's own type
    options: ProducerOptions,
    *,
    http: bool,
) -> HttpClients | None:
    """Make them if publishing over HTTP is wanted: there are URLs, or http says so.

    Raises:
        TypeError, ValueError: As HttpClients; also for http_options where it is not wanted.
    """
    if not isinstance(http, bool):
        raise TypeError(f"http must be a bool, not a {type(http).__name__}; options of HTTP are http_options")
    clients = HttpClients(urls, http_options or {}, options.http_requests_at_once)
    if clients.addresses or http:
        return clients
    if http_options is not None:
        raise ValueError("http_options are given, but no nsqd_http_addresses, nor http=True with nsqlookupds")
    return None


def check_no_tcp(addresses: Collection[str], options: ProducerOptions, rest: Collection[str]) -> None:
    """Refuse what HTTP would leave out: who asks for TLS must not be published for in clear text.

    Args:
        addresses: Of TCP.
        rest: Names of options that are neither ProducerOptions nor ReconnectOptions.

    Raises:
        ValueError: If there is any such thing.
    """
    if addresses:
        raise ValueError("nsqd_tcp_addresses are given, and HTTP: one producer has one of the two")
    known = {field.name for field in fields(ConnectionOptions)} - {"max_name_length"}
    of_tcp = sorted(known.intersection(rest))
    if options.connections_per_nsqd != 1:
        of_tcp.append("connections_per_nsqd")
    if of_tcp:
        raise ValueError(f"{', '.join(of_tcp)}: of TCP; over HTTP there are http_options and http_requests_at_once")


def _address(client: NsqdHTTPClient) -> str:
    address = format_address(client.host, client.port)
    # One host and port may be a proxy to several nsqds.
    return address if client.address == f"http://{address}/" else client.address


class Heard(Protocol):
    """Who is told what comes over a link."""

    def responded(self, data: bytes) -> None:
        """nsqd has said yes."""

    def refused(self, error: NSQErrorCode) -> None:
        """nsqd has said no."""

    def doubted(self, link: HttpLink, error: NSQException) -> None:
        """The nsqd may not be there, or can't take anything now. Not told again until link.trusted is set again."""


class HttpLink:
    """One nsqd, as the dispatcher sees it: see publish.Link.

    Args:
        at_once: Requests.
        longest: Seconds that one may take.
        subject: How log lines begin: the nsqd's address, and the producer.

    Attributes:
        trusted: Whether nothing speaks against the nsqd; set by whoever has tried it.
        proven: Whether it has taken something since.
        workers: Greenlets that wait for answers; one ends when nothing is left to be sent.
    """

    def __init__(
        self,
        address: str,
        client: NsqdHTTPClient,
        at_once: int,
        longest: float,
        clock: Clock,
        *,
        heard: Heard,
        subject: str,
    ) -> None:
        self.address = address
        self._subject = subject
        self.client = client
        self.confirmed = 0
        self.submit: Callable[[Publish], None] = self._submit
        self.trusted = False
        self.proven = False
        self.workers: set[gevent.Greenlet] = set()
        self._at_once = at_once
        self._longest = longest
        self._clock = clock
        self._heard = heard
        self._unsent: OrderedDict[Publish, None] = OrderedDict()
        self._sent: dict[Publish, None] = {}
        # How often it was doubted: what was begun before says nothing about now.
        self._doubts = 0
        # nsqd's version, once it was asked for; empty if it does not say. Another one may answer after a doubt.
        self._version: tuple[int, ...] | None = None

    # --- what the dispatcher sees

    @property
    def pending(self) -> int:
        """Publishes that have no answer."""
        return len(self._unsent) + len(self._sent)

    @property
    def unsent(self) -> Collection[PendingRequest]:
        """Those that no request was begun for."""
        return self._unsent

    @property
    def sent(self) -> Collection[PendingRequest]:
        """Those whose request is under way, the oldest first."""
        return self._sent

    def withdraw(self, publishes: Collection[Publish]) -> list[Publish]:
        """Take back those of these publishes that were not sent; gives them."""
        taken = [publish for publish in publishes if publish in self._unsent]
        for publish in taken:
            del self._unsent[publish]
        return taken

    def _submit(self, publish: Publish) -> None:
        self._unsent[publish] = None
        if len(self.workers) < self._at_once:
            worker = gevent.Greenlet(self._work)
            worker.name = f"gnsq-http-{self.address}"
            self.workers.add(worker)
            worker.start()

    # --- the end

    def give_back(self, error: NSQException) -> None:
        """Let others send what was not sent."""
        unsent = list(self._unsent)
        self._unsent.clear()
        for publish in unsent:
            publish.on_not_sent(error)

    def finish(self) -> None:
        """Wait until nothing is under way, and close the connections."""
        gevent.joinall(list(self.workers))  # each request has a limit
        self.client.close()

    def abort(self, error: NSQException) -> None:
        """End everything now."""
        self.abandon(error)
        self.client.close()

    def abandon(self, error: NSQException) -> None:
        """End everything but the connections, which a child process shares with its parent."""
        self.give_back(error)
        for publish in list(self._sent):
            publish.on_connection_lost(error)
        for worker in list(self.workers):
            worker.kill(block=False)

    # --- requests

    def _work(self) -> None:
        try:
            while self._unsent:
                publish, _ = self._unsent.popitem(last=False)
                seconds = _deadline(publish) - self._clock.monotonic()
                if seconds <= 0:
                    publish.overdue(Where.UNSENT, _deadline(publish))
                    continue
                self._sent[publish] = None
                try:
                    self._publish(publish, seconds)
                finally:
                    self._sent.pop(publish, None)
        finally:
            self.workers.discard(gevent.getcurrent())

    def _publish(self, publish: Publish, seconds: float) -> None:
        doubts = self._doubts
        limit = min(seconds - min(EARLY, seconds / 2), self._longest)
        try:
            self._request(publish, limit)
        except NSQHttpUnreachable as error:
            self._doubt(doubts, error)
            publish.on_not_sent(error)
        except NSQInvalid as error:
            # Another try there ends like this one.
            self._heard.refused(error)
            publish.on_error(error)
        except NSQHttpError as error:
            self._failed(publish, error, doubts, overdue=limit < self._longest)
        except Exception as error:
            # A bug must not end the greenlet, nor leave anybody waiting.
            logger.exception("%s: internal error while publishing", self._subject)
            publish.on_connection_lost(NSQException(f"{self.address}: internal error: {error!r}"))
        else:
            self.proven = True
            self._heard.responded(OK)
            publish.on_response(OK)

    def _request(self, publish: Publish, limit: float) -> None:
        """Send a publish, and wait for OK.

        Raises:
            NSQHttpError: If it does not come.
            NSQInvalid: If nsqd is too old for it. Nothing was sent.
        """
        client, bodies = self.client, publish.bodies
        if publish.mpub_body_size or publish.defer:
            ends = self._clock.monotonic() + limit
            self._refuse_if_too_old(publish, limit)
            limit = max(ends - self._clock.monotonic(), EARLY / 2)
        if publish.mpub_body_size:
            data = client.multipublish(publish.topic, bodies, binary=True, timeout=limit)
        else:
            data = client.publish(publish.topic, bodies[0], publish.defer or None, timeout=limit)
        if data != OK:
            raise NSQHttpError(f"{client.address}: answer {data!r:.80} to a publish, OK was due", 200)

    def _refuse_if_too_old(self, publish: Publish, limit: float) -> None:
        """Refuse what this nsqd would not do, or would take for something else; asks for its version, once."""
        if self._version is None:
            self._version = self._ask_version(limit)
        what = too_old(self._version, multi=bool(publish.mpub_body_size), deferred=bool(publish.defer))
        if what:
            version = ".".join(map(str, self._version))
            raise NSQInvalid(f"{self.client.address}: nsqd {version} is too old: {what}", "E_INVALID")

    def _ask_version(self, limit: float) -> tuple[int, ...]:
        try:
            # Half of the time at most: the publish itself needs some.
            info = self.client.request("GET", "info", timeout=min(limit / 2, INFO_TIMEOUT))
        except NSQHttpUnreachable:
            raise
        except NSQHttpError as error:
            # A proxy may let nothing but publishes through.
            logger.debug("%s: does not tell its version: %s", self.address, error)
            return ()
        found = _VERSION.match(str(info.get("version"))) if isinstance(info, dict) else None
        return tuple(map(int, found.groups())) if found else ()

    def _failed(self, publish: Publish, error: NSQHttpError, doubts: int, *, overdue: bool) -> None:
        """End a publish that has another answer than OK, or none though it was sent.

        Args:
            overdue: Whether its deadline has come, if time has run out.
        """
        if is_turned_away(error):
            self._doubt(doubts, error)
            publish.on_not_sent(error)
            return
        refused = refusal(error, multi=bool(publish.mpub_body_size), deferred=bool(publish.defer))
        if refused is not None:
            if is_about_the_nsqd(refused):
                self._doubt(doubts, refused)
            self._heard.refused(refused)
            publish.on_error(refused)
            return
        self._doubt(doubts, error)
        if overdue and isinstance(error, NSQHttpTimeout) and not publish.done:
            publish.overdue(Where.SENT, _deadline(publish))
        publish.on_connection_lost(error)

    def _doubt(self, doubts: int, error: NSQException) -> None:
        if self.trusted and doubts == self._doubts:
            self.trusted = False
            self._version = None
            self._doubts += 1
            self._heard.doubted(self, error)


def _deadline(publish: Publish) -> float:
    """Of a batch that of the member that has the most time."""
    return max((part.deadline for part in publish.parts if not part.done), default=publish.deadline)


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

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Whether a greenlet does the work of the pool or of its links."""
        return any(kept.greenlet is greenlet for kept in self._kept.values()) or any(
            greenlet in link.workers for link in self._links
        )

    def wait_attempted(self, limit: float) -> None:
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
        if link.proven or self._clock.monotonic() - since >= STABLE_AFTER:
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
