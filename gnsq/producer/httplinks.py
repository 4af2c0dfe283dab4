"""HttpLink: what takes publishes to one nsqd over HTTP, some requests at once. Promises no order.

Owns its client and the greenlets that wait for answers. When the nsqd is tried again is said in httppool.py.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Protocol

import gevent

from gnsq.addresses import Addresses, joined
from gnsq.clock import Clock
from gnsq.errors import NSQErrorCode, NSQException, NSQHttpError, NSQHttpTimeout, NSQHttpUnreachable, NSQInvalid
from gnsq.httpclient import HttpOptions
from gnsq.nsqd.http import NsqdHTTPClient
from gnsq.nsqd.requests import Request
from gnsq.options import ConnectionOptions
from gnsq.producer.httpoutcomes import is_turned_away, refusal, too_old
from gnsq.producer.options import ProducerOptions
from gnsq.producer.outcomes import is_about_the_nsqd
from gnsq.producer.publish import Publish, Where
from gnsq.protocol.frames import OK

__all__ = ["Heard", "HttpClients", "HttpLink", "check_no_tcp", "wanted_clients"]

logger = logging.getLogger(__name__)

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
    address = joined(client.host, client.port)
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
    def unsent(self) -> Collection[Request]:
        """Those that no request was begun for."""
        return self._unsent

    @property
    def sent(self) -> Collection[Request]:
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
            publish.not_executed(error)

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
            publish.lost(error)
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
            publish.not_executed(error)
        except NSQInvalid as error:
            # Another try there ends like this one.
            self._heard.refused(error)
            publish.refused(error)
        except NSQHttpError as error:
            self._failed(publish, error, doubts, overdue=limit < self._longest)
        except Exception as error:
            # A bug must not end the greenlet, nor leave anybody waiting.
            logger.exception("%s: internal error while publishing", self._subject)
            publish.lost(NSQException(f"{self.address}: internal error: {error!r}"))
        else:
            self.proven = True
            self._heard.responded(OK)
            publish.answered(OK)

    def _request(self, publish: Publish, limit: float) -> None:
        """Send a publish, and wait for OK.

        Raises:
            NSQHttpError: If it does not come.
            NSQInvalid: If nsqd is too old for it. Nothing was sent.
        """
        client, bodies = self.client, publish.bodies
        if publish.together or publish.defer:
            ends = self._clock.monotonic() + limit
            self._refuse_if_too_old(publish, limit)
            limit = max(ends - self._clock.monotonic(), EARLY / 2)
        if publish.together:
            data = client.multipublish(publish.topic, bodies, binary=True, timeout=limit)
        else:
            data = client.publish(publish.topic, bodies[0], publish.defer or None, timeout=limit)
        if data != OK:
            raise NSQHttpError(f"{client.address}: answer {data!r:.80} to a publish, OK was due", 200)

    def _refuse_if_too_old(self, publish: Publish, limit: float) -> None:
        """Refuse what this nsqd would not do, or would take for something else; asks for its version, once."""
        if self._version is None:
            self._version = self._ask_version(limit)
        what = too_old(self._version, multi=bool(publish.together), deferred=bool(publish.defer))
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
            publish.not_executed(error)
            return
        refused = refusal(error, multi=bool(publish.together), deferred=bool(publish.defer))
        if refused is not None:
            if is_about_the_nsqd(refused):
                self._doubt(doubts, refused)
            self._heard.refused(refused)
            publish.refused(refused)
            return
        self._doubt(doubts, error)
        if overdue and isinstance(error, NSQHttpTimeout) and not publish.done:
            publish.overdue(Where.SENT, _deadline(publish))
        publish.lost(error)

    def _doubt(self, doubts: int, error: NSQException) -> None:
        if self.trusted and doubts == self._doubts:
            self.trusted = False
            self._version = None
            self._doubts += 1
            self._heard.doubted(self, error)


def _deadline(publish: Publish) -> float:
    """Of a batch that of the member that has the most time."""
    return max((part.deadline for part in publish.parts if not part.done), default=publish.deadline)
