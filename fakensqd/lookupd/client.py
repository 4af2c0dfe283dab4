"""FakeNsqd's connection to one nsqlookupd: registers topics and channels, and sends PINGs.

Owns its socket; runs in a greenlet of the FakeNsqd. Source: nsqd lookup.go and lookup_peer.go.
"""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from gevent import socket
from gevent.event import Event
from gevent.queue import Queue

from fakensqd.addresses import connect, split_address
from fakensqd.clock import Clock, Timer, run_with_timeout
from fakensqd.golang import encoding_json
from fakensqd.input_buffer import SIZE
from fakensqd.lookupd.session import MAGIC_V1
from fakensqd.options import NsqdOptions
from gnsq.concurrency.forks import disown, register_after_fork

__all__ = ["LookupPeer"]

logger = logging.getLogger(__name__)

_PING = b"PING\n"
# Seconds to connect, and for each read and write. Source: lookup_peer.go.
_TIMEOUT = 1.0
# Limit of an answer of nsqlookupd's HTTP API in bytes; nsqd has none.
_MAX_ANSWER_SIZE = 1024 * 1024


class LookupPeer:
    """The connection to one nsqlookupd while run() runs. After a failure, the next command connects again.

    Args:
        address: ``host:port``.
        identity: Fields of IDENTIFY, without the version.
        registrations: Function that lists the topics and channels to register after connecting.
    """

    def __init__(
        self,
        address: str,
        identity: Mapping[str, object],
        registrations: Callable[[], list[tuple[str, str | None]]],
        clock: Clock,
        options: NsqdOptions,
    ) -> None:
        self._address = address
        self._identity = dict(identity) | {"version": options.release}
        self._registrations = registrations
        self._clock = clock
        self._options = options
        self._socket: socket.socket | None = None
        self._timer: Timer | None = None
        # Address of nsqlookupd's HTTP API; None before a response to IDENTIFY, or if the newest response has none.
        self._http_address: tuple[str, int] | None = None
        self._attempted = Event()
        self._is_inherited = False
        # Commands to send; None ends run().
        self._commands: Queue[bytes | None] = Queue()

    def send(self, verb: bytes, topic: str, channel: str | None) -> None:
        """Let run() send REGISTER or UNREGISTER for a topic or channel."""
        self._commands.put(_registration(verb, topic, channel))

    @property
    def can_query(self) -> bool:
        """True if channels() may have a result: the HTTP address is known, or no attempt to connect has ended yet."""
        return self._http_address is not None or not self._attempted.is_set()

    def wait_attempted(self) -> None:
        """Wait until run() has connected and registered all topics and channels, or its first attempt has failed."""
        self._attempted.wait()  # run() sets this event in any case

    def channels(self, topic: str) -> list[str]:
        """Wait for the first attempt to connect, then query a topic's channels. Return an empty list if that fails."""
        self.wait_attempted()
        if self._http_address is None:
            return []
        address, options = self._http_address, self._options
        try:
            return run_with_timeout(
                self._clock,
                options.http_client_request_timeout,
                lambda: _channels(connect(address, self._clock, options.http_client_connect_timeout), topic),
            )
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError) as error:
            logger.warning("nsqlookupd %s: channels of topic %s: %s", self._address, topic, error)
            return []

    def stop(self) -> None:
        """Let run() end after the commands given so far, and close the connection: nsqlookupd unregisters the nsqd."""
        self._commands.put(None)

    def run(self) -> None:
        """Send commands until stop(). Drop commands that fail, since a new connection registers everything again."""
        try:
            self._command(b"")
            self._attempted.set()
            self._ping_later()
            while (command := self._commands.get()) is not None and not self._is_inherited:
                self._command(command)
                if command == _PING:
                    self._ping_later()
        finally:
            self._attempted.set()
            if self._timer is not None:
                self._timer.cancel()
            self._disconnect()

    def _ping_later(self) -> None:
        self._timer = self._clock.call_later(self._options.lookupd_ping_interval, lambda: self._commands.put(_PING))

    def _command(self, command: bytes) -> None:
        try:
            if self._socket is None:
                self._connect()
            if command:
                self._request(command)
        except (OSError, ValueError) as error:  # ValueError: a malformed address, which PUT /config accepts
            logger.warning("nsqlookupd %s: %s", self._address, error)
            self._disconnect()

    def _connect(self) -> None:
        self._socket = connect(split_address(self._address), self._clock, _TIMEOUT)
        register_after_fork(self)
        body = encoding_json.encode(self._identity)
        self._http_address = _http_address(self._request(MAGIC_V1 + b"IDENTIFY\n" + SIZE.pack(len(body)) + body))
        for topic, channel in self._registrations():
            self._request(_registration(b"REGISTER", topic, channel))

    def after_fork_in_child(self, parent: int) -> None:
        """Leave the connection to the parent, and end run(): this process has no ports that could be registered."""
        self._is_inherited = True
        if self._socket is not None:
            disown(self._socket)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _request(self, command: bytes) -> bytes:
        sock = self._socket
        assert sock is not None  # _command() has connected
        run_with_timeout(self._clock, _TIMEOUT, partial(sock.sendall, command))
        return run_with_timeout(self._clock, _TIMEOUT, partial(self._response, sock))

    def _response(self, sock: socket.socket) -> bytes:
        (size,) = SIZE.unpack(_receive(sock, SIZE.size))
        # Source: lookup_peer.go readResponseBounded.
        if size > self._options.max_body_size:
            raise ValueError(f"response body size ({size}) is greater than limit ({self._options.max_body_size})")
        return _receive(sock, size)


def _receive(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("closed by nsqlookupd")
        data += part
    return bytes(data)


def _registration(verb: bytes, topic: str, channel: str | None) -> bytes:
    words = [verb, topic.encode()] if channel is None else [verb, topic.encode(), channel.encode()]
    return b" ".join(words) + b"\n"


def _channels(sock: socket.socket, topic: str) -> list[str]:
    """Query the HTTP API over a socket, and close the socket."""
    connection = http.client.HTTPConnection("nsqlookupd")
    # With a gevent socket, http.client does not block the hub.
    connection.sock = sock
    try:
        connection.request("GET", f"/channels?topic={quote(topic, safe='')}")
        with connection.getresponse() as response:
            answer: Any = json.loads(response.read(_MAX_ANSWER_SIZE))  # Any: JSON
        return list(answer["channels"])
    finally:
        connection.close()


def _http_address(answer: bytes) -> tuple[str, int] | None:
    """Find the address of the HTTP API in the response to IDENTIFY; None if the response has none."""
    try:
        facts = json.loads(answer)
        return str(facts["broadcast_address"]), int(facts["http_port"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
