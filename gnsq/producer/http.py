"""Publishing over HTTP: links to the HTTP ports of nsqds, the pool that pings nsqds, and the rules for responses.

A link sends several requests at the same time. So nsqd may not get the publishes in the order of the calls.
Source: nsqd http.go, doPUB() and doMPUB(); protocol_v2.go for the errors over TCP.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

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
from gnsq.nsqd.http import NsqdHTTPClient
from gnsq.nsqd.pool import ConnectionPool, ReconnectOptions
from gnsq.options import ConnectionOptions
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import PendingPublish, WaitingFor, is_node_error
from gnsq.protocol.frames import OK

__all__ = [
    "HttpClients",
    "HttpLink",
    "HttpPool",
    "check_no_tcp_options",
    "is_nsqd_response",
    "is_rejected_before_nsqd",
    "make_http_clients",
    "refused_error",
    "too_old",
]

logger = logging.getLogger(__name__)


# --- rules for responses

# Error texts of nsqd over HTTP, each with the error class for the same error over TCP.
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
# Status of a proxy that did not receive the whole request in time. The proxy may have forwarded the request to nsqd.
_REQUEST_TIMEOUT = 408
# Statuses with which a server in front of nsqd rejects all publishes: login needed, wrong path, too many requests.
_REJECTED = {401, 403, 404, 405, 407, 421, 429}


def refused_error(error: NSQHttpError, *, multi: bool = False, deferred: bool = False) -> NSQErrorCode | None:
    """Return the refusal of a publish as an NSQErrorCode, as over TCP; None if the response is not clearly a refusal.

    Args:
        multi: True for a multipublish.
        deferred: True for a deferred publish.
    """
    code = error_text(error.body)
    refused: NSQErrorCode
    if code == _EXITING:
        refused = (NSQMPubFailed if multi else NSQDPubFailed if deferred else NSQPubFailed)(str(error))
    elif code in _CODES:
        # Check only the code, not the status: old nsqds give the status 500 for all errors.
        refused = _CODES[code](str(error))
    elif error.status is not None and 300 <= error.status < 500 and error.status != _REQUEST_TIMEOUT:
        refused = NSQErrorCode(str(error), f"HTTP_{error.status}")
    else:
        return None
    refused.__cause__ = error
    return refused


def is_rejected_before_nsqd(error: NSQHttpError) -> bool:
    """Return True if a server in front of nsqd has rejected the request. All publishes to this address now fail."""
    code, status = error_text(error.body), error.status
    if code == _EXITING or code in _CODES:
        return False
    return status is not None and (300 <= status < 400 or status in _REJECTED)


def too_old(version: tuple[int, ...], *, multi: bool = False, deferred: bool = False) -> str:
    """Return the reason why an nsqd of this version can't execute a publish over HTTP; an empty string if it can.

    Args:
        version: Three numbers. Empty if the version is unknown; then nsqd is assumed to be new enough.
        multi: True for a multipublish.
        deferred: True for a deferred publish.

    Source: nsqd http.go. 0.2.21 has no /mpub, 0.2.22 splits a binary body at newlines; before 0.3.6 nsqd ignores defer.
    """
    if multi and version and version < (0, 2, 23):
        return "binary /mpub came with 0.2.23; publish one by one, or over TCP"
    if deferred and version and version < (0, 3, 6):
        return "deferred messages came with 0.3.6"
    return ""


def is_nsqd_response(error: NSQHttpError) -> bool:
    """Return True if nsqd itself has refused a ping (its disk is full, for example). It may still accept messages."""
    return error.status == 500 and error.body.startswith(b"NOK")


# --- clients

# Seconds. Limit of the wait for a connection if http_options does not set it. The limit is short since the publish can
# be sent to another nsqd.
CONNECT_TIMEOUT = 5.0
# Seconds. A request times out up to this long before the deadline of its publish. So the error of the request, which
# tells if the request was sent, is known before the publish ends.
DEADLINE_MARGIN = 0.01
# Seconds. Limit of the wait for nsqd's version.
INFO_TIMEOUT = 5.0
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class HttpClients:
    """Makes clients of nsqds' HTTP ports from the arguments of a producer.

    Args:
        urls: One URL or ``host[:port]``, or a list, tuple or set of them.
        options: Options of HttpOptions. Without ``timeout``, nsqd may respond to a publish until its deadline.

    Attributes:
        max_requests: Limit of the concurrent requests to each nsqd.
        max_seconds: Limit of the duration of a request; infinite without the option ``timeout``.

    Raises:
        TypeError, ValueError: In the cases of NsqdHTTPClient.from_url(); if an argument has the wrong type.
    """

    def __init__(
        self, urls: Addresses, options: Mapping[str, Any], max_requests: int
    ) -> None:  # Any: each option has its own type
        if not isinstance(options, Mapping):
            raise TypeError(f"http_options must be a dict, not a {type(options).__name__}")
        if not isinstance(urls, (str, list, tuple, set, frozenset)):
            # The value is not shown, since it may contain a password.
            raise TypeError(f"nsqd_http_addresses must be a str, list, tuple or set, not a {type(urls).__name__}")
        items = [urls] if isinstance(urls, str) else urls
        self.max_requests = max_requests
        self._options = {"connect_timeout": CONNECT_TIMEOUT, "retries": 0, "maxsize": max_requests, **options}
        checked = HttpOptions.from_keywords("http_options", self._options)
        self.max_seconds = checked.timeout if "timeout" in options else float("inf")
        self._urls: dict[str, str] = {}
        for url in sorted(items) if isinstance(items, (set, frozenset)) else items:
            with NsqdHTTPClient.from_url(url, **self._options) as client:
                self._urls.setdefault(_address(client), url)

    @property
    def addresses(self) -> list[str]:
        """The addresses in the given order (a set is sorted), without duplicates. They have the form ``host:port``;
        but if a URL has more parts, such as a path, the address is this URL without its password.
        """
        return list(self._urls)

    def client(self, address: str) -> NsqdHTTPClient:
        """Make a client for an address. The address need not be in ``addresses``."""
        return NsqdHTTPClient.from_url(self._urls.get(address, address), **self._options)


def make_http_clients(
    urls: Addresses,
    http_options: Mapping[str, Any] | None,  # Any: each option has its own type
    options: ProducerOptions,
    *,
    http: bool,
) -> HttpClients | None:
    """Make the HttpClients if there are URLs or http is True. Otherwise return None.

    Raises:
        TypeError, ValueError: As HttpClients(); if http is not a bool; if http_options are given without HTTP.
    """
    if not isinstance(http, bool):
        raise TypeError(f"http must be a bool, not a {type(http).__name__}; options of HTTP are http_options")
    clients = HttpClients(urls, http_options or {}, options.http_requests_at_once)
    if clients.addresses or http:
        return clients
    if http_options is not None:
        raise ValueError("http_options are given, but no nsqd_http_addresses, nor http=True with nsqlookupds")
    return None


def check_no_tcp_options(addresses: Collection[str], options: ProducerOptions, rest: Collection[str]) -> None:
    """Refuse options of TCP for a producer over HTTP. If it ignored tls_v1, for example, it would send clear text.

    Args:
        addresses: TCP addresses.
        rest: Names of the given options that are not in ProducerOptions.

    Raises:
        ValueError: If TCP addresses or options of TCP are given.
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
    # Keep all parts of the URL: a proxy may have several nsqds at one host and port.
    return address if client.address == f"http://{address}/" else client.address


# --- links


# Seconds to wait for the response to a ping.
PING_TIMEOUT = 5.0
# Seconds to wait for the end of killed greenlets.
KILL_TIMEOUT = 0.5


class HttpLink:
    """Sends publishes to one nsqd over HTTP.

    Attributes:
        has_published: True if nsqd has confirmed a publish.
        error: Error that ended the link; None while the link can be used.
        workers: Greenlets that send requests. Each ends when there are no unsent publishes.
    """

    def __init__(self, address: str, pool: HttpPool) -> None:
        self.address = address
        self.client = pool.clients.client(address)
        self.confirmed = 0
        self.has_published = False
        self.error: NSQException | None = None
        self.workers: set[gevent.Greenlet] = set()
        self._pool = pool
        # Log lines about this link begin with this text.
        self._subject = pool.owner.at(address)
        self._max_requests = pool.clients.max_requests
        self._max_seconds = pool.clients.max_seconds
        self._now = pool.clock.monotonic
        self._closed = Event()
        self.unsent: OrderedDict[PendingPublish, None] = OrderedDict()
        self.sent: dict[PendingPublish, None] = {}
        # nsqd's version. None: nsqd was not asked yet. Empty: nsqd does not tell its version.
        self._version: tuple[int, ...] | None = None

    @property
    def pending(self) -> int:
        return len(self.unsent) + len(self.sent)

    def withdraw(self, publishes: Collection[PendingPublish]) -> list[PendingPublish]:
        withdrawn = [publish for publish in publishes if publish in self.unsent]
        for publish in withdrawn:
            del self.unsent[publish]
        return withdrawn

    def submit(self, publish: PendingPublish) -> None:
        self.unsent[publish] = None
        if len(self.workers) < self._max_requests:
            worker = gevent.Greenlet(self._work)
            worker.name = f"gnsq-http-{self.address}"
            self.workers.add(worker)
            worker.start()

    def open(self) -> None:
        """Ping the nsqd.

        Raises:
            NSQHttpError: If the ping fails, unless is_nsqd_response() is True for the error.
        """
        register_after_fork(self)
        try:
            self.client.request("GET", "ping", timeout=min(PING_TIMEOUT, self._max_seconds))
        except NSQHttpError as error:
            if not is_nsqd_response(error):
                raise
        logger.info("%s: answers, and is published to over HTTP", self._subject)

    def close(self, timeout: float) -> None:
        """End all requests immediately: the producer has already waited for them."""
        self.abort(NSQConnectionClosed(f"{self.address}: the producer was closed"))
        gevent.joinall(list(self.workers), timeout=KILL_TIMEOUT)

    def abort(self, error: NSQException | None = None) -> None:
        """End all requests, and close the connections."""
        error = error or NSQConnectionClosed(f"{self.address}: closed")
        self._fail(error)
        self._end_requests(error)
        self.client.close()

    def wait_closed(self) -> None:
        """Wait until a failed request or abort() has ended this link."""
        self._closed.wait()

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if a greenlet sends requests of this link."""
        return greenlet in self.workers

    def after_fork_in_child(self, parent: int) -> None:
        """End all requests in this child process. Close no connection, since the parent still uses them."""
        self._end_requests(NSQConnectionClosed(f"{self.address}: not used in a child of process {parent}"))

    def _fail(self, error: NSQException) -> None:
        """End the link: take no further publishes, and let other links send the unsent ones. Sent requests continue."""
        if self._closed.is_set():
            return
        self.error = error
        # Remove this link first, so that its unsent publishes go to other links.
        self._pool.dispatcher.remove(self)
        self._return_unsent(error)
        self._closed.set()

    def _return_unsent(self, error: NSQException) -> None:
        unsent = list(self.unsent)
        self.unsent.clear()
        for publish in unsent:
            publish.on_not_sent(error)

    def _end_requests(self, error: NSQException) -> None:
        self._return_unsent(error)
        for publish in list(self.sent):
            publish.on_connection_lost(error)
        for worker in list(self.workers):
            worker.kill(block=False)

    def _work(self) -> None:
        try:
            while self.unsent:
                publish, _ = self.unsent.popitem(last=False)
                seconds = _deadline(publish) - self._now()
                if seconds <= 0:
                    publish.owner.expire(publish, WaitingFor.SEND, _deadline(publish))
                    continue
                self.sent[publish] = None
                try:
                    self._publish(publish, seconds)
                finally:
                    self.sent.pop(publish, None)
        finally:
            self.workers.discard(gevent.getcurrent())
            if self._closed.is_set() and not self.workers:
                self.client.close()

    def _publish(self, publish: PendingPublish, seconds: float) -> None:
        limit = min(seconds - min(DEADLINE_MARGIN, seconds / 2), self._max_seconds)
        try:
            self._request(publish, limit)
        except NSQHttpUnreachable as error:
            self._fail(error)
            publish.on_not_sent(error)
        except NSQInvalid as error:
            # nsqd is too old for this publish. A retry on the same nsqd would fail, too.
            self._pool.on_error(error)
            publish.on_error(error)
        except NSQHttpError as error:
            self._on_http_error(publish, error, expires=limit < self._max_seconds)
        except Exception as error:
            # After a bug, the greenlet must continue, and the publish must end.
            logger.exception("%s: internal error while publishing", self._subject)
            publish.on_connection_lost(NSQException(f"{self.address}: internal error: {error!r}"))
        else:
            self.has_published = True
            self._pool.on_response(OK)
            publish.on_response(OK)

    def _request(self, publish: PendingPublish, limit: float) -> None:
        """Send a publish and wait for OK.

        Raises:
            NSQHttpError: If the response is not OK, or if no response came.
            NSQInvalid: If nsqd is too old; the publish was not sent.
        """
        client = self.client
        if publish.mpub_body_size or publish.defer:
            ends = self._now() + limit
            self._check_version(publish, limit)
            limit = max(ends - self._now(), DEADLINE_MARGIN / 2)
        if publish.mpub_body_size:
            data = client.multipublish(publish.topic, publish.bodies, binary=True, timeout=limit)
        else:
            data = client.publish(publish.topic, publish.body, publish.defer or None, timeout=limit)
        if data != OK:
            raise NSQHttpError(f"{client.address}: response {data!r:.80} to a publish, expected OK", 200)

    def _check_version(self, publish: PendingPublish, limit: float) -> None:
        """Refuse a publish if this nsqd is too old to execute it correctly. The first call asks for the version."""
        if self._version is None:
            self._version = self._ask_version(limit)
        reason = too_old(self._version, multi=bool(publish.mpub_body_size), deferred=bool(publish.defer))
        if reason:
            version = ".".join(map(str, self._version))
            raise NSQInvalid(f"{self.client.address}: nsqd {version} is too old: {reason}", "E_INVALID")

    def _ask_version(self, limit: float) -> tuple[int, ...]:
        try:
            # Use at most half of the remaining time, since the publish needs the rest.
            info = self.client.request("GET", "info", timeout=min(limit / 2, INFO_TIMEOUT))
        except NSQHttpUnreachable:
            raise
        except NSQHttpError as error:
            # An unknown version is not an error: a proxy may forward only publishes.
            logger.debug("%s: does not tell its version: %s", self.address, error)
            return ()
        found = _VERSION.match(str(info.get("version"))) if isinstance(info, dict) else None
        return tuple(map(int, found.groups())) if found else ()

    def _on_http_error(self, publish: PendingPublish, error: NSQHttpError, *, expires: bool) -> None:
        """Retry or end a publish that was sent and not confirmed.

        Args:
            expires: True if the deadline of the publish limits the request, and not the ``timeout`` of http_options.
        """
        if is_rejected_before_nsqd(error):
            self._fail(error)
            publish.on_not_sent(error)
            return
        refused = refused_error(error, multi=bool(publish.mpub_body_size), deferred=bool(publish.defer))
        if refused is not None:
            if is_node_error(refused):
                self._fail(refused)
            self._pool.on_error(refused)
            publish.on_error(refused)
            return
        self._fail(error)
        if expires and isinstance(error, NSQHttpTimeout) and not publish.done:
            publish.owner.expire(publish, WaitingFor.RESPONSE, _deadline(publish))
        publish.on_connection_lost(error)


def _deadline(publish: PendingPublish) -> float:
    """Return the deadline of a publish. For a batch, return the latest deadline of its members."""
    return max((each.deadline for each in publish.unfinished()), default=publish.deadline)


# --- the pool


class HttpPool(ConnectionPool[HttpLink]):
    """Links to the HTTP ports of nsqds. Pings each nsqd until it responds, and again after its link has ended.

    Args:
        dispatcher: Gets each link that the pool has opened.
        on_response: Called with OK for each publish that nsqd has confirmed.
        on_error: Called with each error with which a publish was refused.
        owner: The Producer whose name is in the log lines.
    """

    not_connected_text, lost_text = "does not answer", "not published to until it answers"

    def __init__(
        self,
        clients: HttpClients,
        reconnect: ReconnectOptions,
        clock: Clock,
        dispatcher: Dispatcher,
        *,
        on_response: Callable[[bytes], None],
        on_error: Callable[[NSQErrorCode], None],
        owner: LogOwner,
    ) -> None:
        super().__init__(reconnect, clock, make=self._make_link, setup=dispatcher.add, owner=owner)
        self.clients: HttpClients = clients
        self.clock: Clock = clock
        self.dispatcher: Dispatcher = dispatcher
        self.on_response = on_response
        self.on_error = on_error
        self.owner: LogOwner = owner
        # All links, even those that have failed and still have requests.
        self._links: weakref.WeakSet[HttpLink] = weakref.WeakSet()

    def _make_link(self, address: str) -> HttpLink:
        link = HttpLink(address, self)
        self._links.add(link)
        return link

    def add(self, address: str, *, permanent: bool) -> None:
        self.clients.client(address).close()  # raises ValueError if the address is not valid
        super().add(address, permanent=permanent)

    def close(self, timeout: float) -> None:
        super().close(timeout)
        for link in list(self._links):
            link.close(timeout)

    def _wait_with_backoff(self, failures: int, connection: HttpLink | None) -> float:
        if connection is not None and failures == 1 and isinstance(connection.error, NSQHttpError):
            # Perhaps only this one request has failed, so ping now. But if nsqd has said that it is exiting (then the
            # error is no NSQHttpError), a ping is too early.
            return 0.0
        return super()._wait_with_backoff(failures, connection)

    def _is_stable(self, connection: HttpLink, seconds: float) -> bool:
        return connection.has_published or super()._is_stable(connection, seconds)
