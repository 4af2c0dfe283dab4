"""Publishing over HTTP: links to nsqds' HTTP ports, the pool that pings nsqds, and the meaning of their responses.

A link sends several requests concurrently, so the order of publishes is not kept.

Source: nsqd http.go, doPUB() and doMPUB(); protocol_v2.go for the errors that TCP has.
"""

from __future__ import annotations

import logging
import re
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
from gnsq.nsqd.connection import InternalError
from gnsq.nsqd.http import NsqdHTTPClient
from gnsq.nsqd.pending import PendingRequest
from gnsq.nsqd.pool import STABLE_AFTER, ReconnectOptions, wait_all
from gnsq.options import ConnectionOptions
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import PendingPublish, WaitingFor, is_node_error
from gnsq.protocol.frames import OK
from gnsq.texts import without_address

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


# --- the meaning of responses

# Errors of nsqd over HTTP, and the error that TCP has for the same.
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
# A proxy has not got the whole request in time; it may have passed on what it got.
_REQUEST_TIMEOUT = 408
# Login, wrong path, too many requests: nsqd can't be published to at this address, or not now.
_REJECTED = {401, 403, 404, 405, 407, 421, 429}


def refused_error(error: NSQHttpError, *, multi: bool = False, deferred: bool = False) -> NSQErrorCode | None:
    """Return the error of a publish that nsqd has certainly not stored; None if nsqd may have stored it.

    Args:
        multi, deferred: Kind of the publish, which decides the name of the error over TCP.
    """
    code = error_text(error.body)
    refused: NSQErrorCode
    if code == _EXITING:
        refused = (NSQMPubFailed if multi else NSQDPubFailed if deferred else NSQPubFailed)(str(error))
    elif code in _CODES:
        # With any status: old servers answered 500.
        refused = _CODES[code](str(error))
    elif error.status is not None and 300 <= error.status < 500 and error.status != _REQUEST_TIMEOUT:
        refused = NSQErrorCode(str(error), f"HTTP_{error.status}")
    else:
        return None
    refused.__cause__ = error
    return refused


def is_rejected_before_nsqd(error: NSQHttpError) -> bool:
    """Whether a server in front of nsqd has rejected the request: the address is wrong, and not the publish."""
    code, status = error_text(error.body), error.status
    if code == _EXITING or code in _CODES:
        return False
    return status is not None and (300 <= status < 400 or status in _REJECTED)


def too_old(version: tuple[int, ...], *, multi: bool = False, deferred: bool = False) -> str:
    """Say why an nsqd of this version can't take a publish over HTTP; empty if it can.

    Args:
        version: Three numbers; empty if it is not known, which counts as new enough.
        multi, deferred: Kind of the publish.

    Source: nsqd http.go. 0.2.21 has no /mpub, 0.2.22 splits a binary body into lines, and before 0.3.6 defer is
    ignored.
    """
    if multi and version and version < (0, 2, 23):
        return "binary /mpub came with 0.2.23; publish one by one, or over TCP"
    if deferred and version and version < (0, 3, 6):
        return "deferred messages came with 0.3.6"
    return ""


def is_nsqd_response(error: NSQHttpError) -> bool:
    """Whether nsqd itself has answered a ping with an error: its disk is full, but it may still take messages."""
    return error.status == 500 and error.body.startswith(b"NOK")


# --- clients

# Longest wait for a connection if http_options does not set it, seconds: another nsqd may take the publish meanwhile.
CONNECT_TIMEOUT = 5.0
# Seconds before the deadline of a publish at which its request ends, so that its error says whether it was sent.
DEADLINE_MARGIN = 0.01
# Longest wait for nsqd's version, seconds.
INFO_TIMEOUT = 5.0
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class HttpClients:
    """Makes clients of nsqds' HTTP ports from the arguments of a producer.

    Args:
        urls: One URL or ``host[:port]``, or a list, tuple or set of them.
        options: Options of HttpOptions. Without ``timeout`` only the deadline of a publish limits its request.
        max_requests: Concurrent requests to each nsqd.

    Attributes:
        max_seconds: Longest time of a request.

    Raises:
        TypeError, ValueError: As NsqdHTTPClient.from_url().
    """

    def __init__(
        self, urls: Addresses, options: Mapping[str, Any], max_requests: int
    ) -> None:  # Any: each its own type
        if not isinstance(options, Mapping):
            raise TypeError(f"http_options must be a dict, not a {type(options).__name__}")
        if not isinstance(urls, (str, list, tuple, set, frozenset)):
            # The value is not shown: it may have a password.
            raise TypeError(f"nsqd_http_addresses must be a str, list, tuple or set, not a {type(urls).__name__}")
        items = [urls] if isinstance(urls, str) else urls
        self._options = {"connect_timeout": CONNECT_TIMEOUT, "retries": 0, "maxsize": max_requests, **options}
        checked = HttpOptions.from_keywords("http_options", self._options)
        self.max_seconds = checked.timeout if "timeout" in options else float("inf")
        self._urls: dict[str, str] = {}
        for url in sorted(items) if isinstance(items, (set, frozenset)) else items:
            with NsqdHTTPClient.from_url(url, **self._options) as client:
                self._urls.setdefault(_address(client), url)

    @property
    def addresses(self) -> list[str]:
        """``host:port``, or a URL that says more than that; each once, in the order given, without passwords."""
        return list(self._urls)

    def client(self, address: str) -> NsqdHTTPClient:
        """Make a client for one of the addresses, or for another one."""
        return NsqdHTTPClient.from_url(self._urls.get(address, address), **self._options)


def make_http_clients(
    urls: Addresses,
    http_options: Mapping[str, Any] | None,  # Any: each option's own type
    options: ProducerOptions,
    *,
    http: bool,
) -> HttpClients | None:
    """Make the clients if there are URLs, or if http is on; else return None.

    Raises:
        TypeError, ValueError: As HttpClients, and if http_options are given for a producer over TCP.
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
    """Refuse options that have no meaning over HTTP: a caller who asks for TLS must not publish in clear text.

    Args:
        addresses: TCP addresses.
        rest: Names of options that are neither in ProducerOptions nor in ReconnectOptions.

    Raises:
        ValueError: If there is any.
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


# --- links


class HttpLink:
    """Sends publishes to one nsqd over HTTP.

    Args:
        max_requests: Concurrent requests.
        max_seconds: Longest time of a request.
        pool: Takes responses, errors, and the failure that ends the use of this link.
        subject: Start of log lines: the address and the producer.

    Attributes:
        is_up: Whether nsqd answered its last ping, and no request has failed since.
        has_published: Whether nsqd has taken a publish since that ping.
        released: Whether to ping no more.
        attempted: Set after the first ping.
        woken: Ends the wait between two pings.
        down, request_error: Set with the error of the request that has failed.
        failures: Consecutive pings or requests that failed.
        last_failure: Why the link is not used.
        greenlet: Runs the pings.
        workers: Greenlets that send requests. Each ends when nothing is left to send.
    """

    def __init__(
        self,
        address: str,
        client: NsqdHTTPClient,
        max_requests: int,
        max_seconds: float,
        clock: Clock,
        *,
        pool: HttpPool,
        subject: str,
    ) -> None:
        self.address = address
        self._subject = subject
        self.client = client
        self.confirmed = 0
        self.submit: Callable[[PendingPublish], None] = self._submit
        self.is_up = False
        self.has_published = False
        self.released = False
        self.attempted, self.woken, self.down = Event(), Event(), Event()
        self.request_error: NSQException | None = None
        self.failures = 0
        self.last_failure: NSQException | None = None
        self.greenlet: Any = None  # Any: gevent has no types
        self.workers: set[gevent.Greenlet] = set()
        self._max_requests = max_requests
        self._max_seconds = max_seconds
        self._clock = clock
        self._pool = pool
        self._unsent: OrderedDict[PendingPublish, None] = OrderedDict()
        self._sent: dict[PendingPublish, None] = {}
        # Counts the times it was up: a failure of a request that was sent before says nothing about the nsqd now.
        self._period = 0
        # nsqd's version: None if not asked yet, empty if nsqd does not say. Another nsqd may respond after a failure.
        self._version: tuple[int, ...] | None = None

    @property
    def pending(self) -> int:
        return len(self._unsent) + len(self._sent)

    @property
    def unsent(self) -> Collection[PendingRequest]:
        return self._unsent

    @property
    def sent(self) -> Collection[PendingRequest]:
        return self._sent

    def withdraw(self, publishes: Collection[PendingPublish]) -> list[PendingPublish]:
        withdrawn = [publish for publish in publishes if publish in self._unsent]
        for publish in withdrawn:
            del self._unsent[publish]
        return withdrawn

    def _submit(self, publish: PendingPublish) -> None:
        self._unsent[publish] = None
        if len(self.workers) < self._max_requests:
            worker = gevent.Greenlet(self._work)
            worker.name = f"gnsq-http-{self.address}"
            self.workers.add(worker)
            worker.start()

    def return_unsent(self, error: NSQException) -> None:
        """Let other links send the publishes that were not sent."""
        unsent = list(self._unsent)
        self._unsent.clear()
        for publish in unsent:
            publish.on_not_sent(error)

    def finish(self) -> None:
        """Wait for all requests, and close the connections."""
        gevent.joinall(list(self.workers))  # each request has a limit
        self.client.close()

    def abort(self, error: NSQException) -> None:
        """End all requests, and close the connections."""
        self.abort_requests(error)
        self.client.close()

    def abort_requests(self, error: NSQException) -> None:
        """End all requests, but keep the connections: a child process shares them with its parent."""
        self.return_unsent(error)
        for publish in list(self._sent):
            publish.on_connection_lost(error)
        for worker in list(self.workers):
            worker.kill(block=False)

    def _work(self) -> None:
        try:
            while self._unsent:
                publish, _ = self._unsent.popitem(last=False)
                seconds = _deadline(publish) - self._clock.monotonic()
                if seconds <= 0:
                    publish.owner.expire(publish, WaitingFor.SEND, _deadline(publish))
                    continue
                self._sent[publish] = None
                try:
                    self._publish(publish, seconds)
                finally:
                    self._sent.pop(publish, None)
        finally:
            self.workers.discard(gevent.getcurrent())

    def _publish(self, publish: PendingPublish, seconds: float) -> None:
        period = self._period
        limit = min(seconds - min(DEADLINE_MARGIN, seconds / 2), self._max_seconds)
        try:
            self._request(publish, limit)
        except NSQHttpUnreachable as error:
            self._fail(period, error)
            publish.on_not_sent(error)
        except NSQInvalid as error:
            # Too old: a retry on this nsqd would end in the same way.
            self._pool.on_error(error)
            publish.on_error(error)
        except NSQHttpError as error:
            self._on_http_error(publish, error, period, expires=limit < self._max_seconds)
        except Exception as error:
            # A bug must neither end the greenlet nor let a caller wait.
            logger.exception("%s: internal error while publishing", self._subject)
            publish.on_connection_lost(NSQException(f"{self.address}: internal error: {error!r}"))
        else:
            self.has_published = True
            self._pool.on_response(OK)
            publish.on_response(OK)

    def _request(self, publish: PendingPublish, limit: float) -> None:
        """Send a publish, and wait for OK.

        Raises:
            NSQHttpError: If the response is not OK, or does not come.
            NSQInvalid: If nsqd is too old; nothing was sent.
        """
        client = self.client
        if publish.mpub_body_size or publish.defer:
            ends = self._clock.monotonic() + limit
            self._check_version(publish, limit)
            limit = max(ends - self._clock.monotonic(), DEADLINE_MARGIN / 2)
        if publish.mpub_body_size:
            data = client.multipublish(publish.topic, publish.bodies, binary=True, timeout=limit)
        else:
            data = client.publish(publish.topic, publish.body, publish.defer or None, timeout=limit)
        if data != OK:
            raise NSQHttpError(f"{client.address}: response {data!r:.80} to a publish, expected OK", 200)

    def _check_version(self, publish: PendingPublish, limit: float) -> None:
        """Refuse a publish that this nsqd would ignore or misunderstand; asks for its version once."""
        if self._version is None:
            self._version = self._ask_version(limit)
        reason = too_old(self._version, multi=bool(publish.mpub_body_size), deferred=bool(publish.defer))
        if reason:
            version = ".".join(map(str, self._version))
            raise NSQInvalid(f"{self.client.address}: nsqd {version} is too old: {reason}", "E_INVALID")

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

    def _on_http_error(self, publish: PendingPublish, error: NSQHttpError, period: int, *, expires: bool) -> None:
        """Retry or end a publish that was sent and not confirmed.

        Args:
            expires: Whether a timeout of the request means that the deadline has come.
        """
        if is_rejected_before_nsqd(error):
            self._fail(period, error)
            publish.on_not_sent(error)
            return
        refused = refused_error(error, multi=bool(publish.mpub_body_size), deferred=bool(publish.defer))
        if refused is not None:
            if is_node_error(refused):
                self._fail(period, refused)
            self._pool.on_error(refused)
            publish.on_error(refused)
            return
        self._fail(period, error)
        if expires and isinstance(error, NSQHttpTimeout) and not publish.done:
            publish.owner.expire(publish, WaitingFor.RESPONSE, _deadline(publish))
        publish.on_connection_lost(error)

    def _fail(self, period: int, error: NSQException) -> None:
        """End the use of this link, if the request that has failed was sent in the current period."""
        if self.is_up and period == self._period:
            self.is_up = False
            self._version = None
            self._period += 1
            self._pool.on_failure(self, error)


def _deadline(publish: PendingPublish) -> float:
    """Return the deadline of a publish, of a batch the last one of its members."""
    return max((each.deadline for each in publish.unfinished()), default=publish.deadline)


# --- the pool

# Seconds to wait for the response to a ping.
PING_TIMEOUT = 5.0
# Seconds to wait for the end of killed greenlets.
KILL_TIMEOUT = 0.5


class HttpPool:
    """Links to nsqds' HTTP ports; the counterpart of gnsq.nsqd.pool.ConnectionPool.

    One greenlet for each address pings the nsqd until it responds. Then the dispatcher uses the link until a request
    fails and the failure concerns the nsqd; then the nsqd is pinged again.

    Args:
        max_requests: Concurrent requests to each nsqd.
        on_response, on_error: Called with each response to a publish, and each error of nsqd.
        owner: Producer that log lines name.
    """

    def __init__(
        self,
        clients: HttpClients,
        reconnect: ReconnectOptions,
        clock: Clock,
        dispatcher: Dispatcher,
        *,
        max_requests: int,
        on_response: Callable[[bytes], None],
        on_error: Callable[[NSQErrorCode], None],
        owner: LogOwner,
    ) -> None:
        self._clients = clients
        self._reconnect = reconnect
        self._clock = clock
        self._dispatcher = dispatcher
        self._max_requests = max_requests
        self._owner = owner
        self.on_response = on_response
        self.on_error = on_error
        self._by_address: dict[str, HttpLink] = {}
        # Links of released addresses that still have requests are in here, too.
        self._links: set[HttpLink] = set()
        self._closing = False
        register_after_fork(self)

    def add(self, address: str, *, permanent: bool = True) -> None:
        """Use an nsqd whenever it responds. No-op if it is used already."""
        if self._closing:
            return
        link = self._by_address.get(address)
        if link is not None:
            link.released = False
            return
        link = self._by_address[address] = HttpLink(
            address,
            self._clients.client(address),
            self._max_requests,
            self._clients.max_seconds,
            self._clock,
            pool=self,
            subject=self._owner.at(address),
        )
        self._links.add(link)
        link.greenlet = gevent.spawn(self._ping_loop, link)
        link.greenlet.name = f"gnsq-keep-http-{address}"

    def release(self, address: str) -> None:
        """Ping an address no more, until it is added again. Its link is used until it fails."""
        link = self._by_address.get(address)
        if link is not None:
            link.released = True
            link.woken.set()

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Whether a greenlet belongs to the pool or its links."""
        return any(greenlet is link.greenlet or greenlet in link.workers for link in self._links)

    def wait_attempted(self, limit: float) -> None:
        """Wait until every address was pinged once, up to a limit in seconds; each ping has a limit of its own."""
        wait_all([link.attempted for link in self._by_address.values()], limit, self._clock)

    def failures(self) -> dict[str, NSQException]:
        """Return the last error of each address that is not used."""
        return {
            address: link.last_failure
            for address, link in list(self._by_address.items())
            if link.last_failure is not None and not link.is_up
        }

    def close(self, timeout: float) -> None:
        """End everything; publishes that were sent are lost."""
        self._closing = True
        self._by_address.clear()
        links, self._links = self._links, set()
        greenlets: list[gevent.Greenlet] = []
        for link in links:
            link.attempted.set()
            link.greenlet.kill(block=False)
            self._dispatcher.remove(link)
            greenlets += [link.greenlet, *link.workers]
            link.abort(NSQConnectionClosed(f"{link.address}: the producer was closed"))
        gevent.joinall(greenlets, timeout=KILL_TIMEOUT)

    def after_fork_in_child(self, parent: int) -> None:
        """Stop in this child process: the parent goes on with the connections. See concurrency.forks."""
        self._closing = True
        for link in self._links:
            link.greenlet.kill(block=False)
            link.abort_requests(NSQConnectionClosed(f"{link.address}: not used in a child of process {parent}"))

    def on_failure(self, link: HttpLink, error: NSQException) -> None:
        """Stop using a link whose nsqd does not respond, or refuses everything, until it responds to a ping."""
        self._dispatcher.remove(link)
        link.return_unsent(error)
        link.request_error = link.last_failure = error
        link.down.set()

    def _ping_loop(self, link: HttpLink) -> None:
        while not link.released and not self._closing:
            answered = self._ping(link)
            if answered:
                self._use(link)
            link.failures += 1
            # Before `released` is read: release() ends the wait from here on.
            link.woken.clear()
            wait = 0.0 if link.released else self._seconds_to_wait(link)
            self._log_failure(link, wait, was_used=answered)
            if wait > 0:
                self._clock.wait(link.woken, wait)
        self._by_address.pop(link.address, None)
        link.finish()
        self._links.discard(link)

    def _ping(self, link: HttpLink) -> bool:
        """Ping the nsqd. Returns: whether it responds."""
        failure: NSQException | None = None
        try:
            link.client.request("GET", "ping", timeout=min(PING_TIMEOUT, self._clients.max_seconds))
        except NSQHttpError as error:
            if not is_nsqd_response(error):
                failure = error
        except Exception as error:  # noqa: BLE001  # a bug must not end the loop
            failure = InternalError(f"internal error while pinging: {error!r}")
            failure.__cause__ = error
        link.last_failure = failure
        if failure is not None:
            link.attempted.set()
        return failure is None

    def _use(self, link: HttpLink) -> None:
        """Use the link until it fails."""
        link.down.clear()
        link.request_error = None
        link.is_up, link.has_published = True, False
        since = self._clock.monotonic()
        logger.info("%s: answers, and is published to over HTTP", self._owner.at(link.address))
        self._dispatcher.add(link)
        link.attempted.set()
        link.down.wait()  # until a request fails, without a limit
        if link.has_published or self._clock.monotonic() - since >= STABLE_AFTER:
            link.failures = 0

    def _log_failure(self, link: HttpLink, wait: float, *, was_used: bool) -> None:
        """Log why an nsqd is not used, and the next step. Once a minute for each kind of failure: an nsqd may be down
        for days."""
        error, address = link.last_failure, link.address
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
            "not tried again" if link.released else then,
            exc_info=bug,
        )

    def _seconds_to_wait(self, link: HttpLink) -> float:
        """Return the seconds until the next ping."""
        error, link.request_error = link.request_error, None
        if link.failures == 1 and isinstance(error, NSQHttpError):
            # It may have been that request alone. An error of nsqd itself, that it exits, stays true for a while.
            return 0.0
        return self._reconnect.delay(link.failures)
