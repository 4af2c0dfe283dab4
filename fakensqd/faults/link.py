"""Link between a server and its clients. Toxics can be added to it and removed from it while connections are open.

The link is directly above TCP: with TLS, toxics change the encrypted bytes. For a connection that never had a toxic,
the link only passes bytes on. Knows no command.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import gevent
from gevent import socket
from gevent.event import Event

from fakensqd.clock import Clock
from fakensqd.faults.toxics import ConnectionReset, Deliver, StreamEnd, Toxic, ToxicChain
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.transport import READ_SIZE, TcpTransport, Transport

__all__ = ["ActiveToxic", "Link", "LinkedTransport", "reset_socket", "set_reset_on_close", "wait_for_end"]

logger = logging.getLogger(__name__)

# A sender waits while more bytes than this are delayed in its direction. About the size of two sockets' buffers.
_MAX_HELD_BYTES = 1024 * 1024


@dataclass(eq=False, repr=False)
class ActiveToxic:
    """A toxic on a link. remove() or the end of a ``with`` block removes the toxic."""

    toxic: Toxic
    number: int
    upstream: bool | None
    connection: int | None
    kept: bool
    _link: Link

    def remove(self) -> None:
        """Remove the toxic, and pass on the bytes that it holds. Does nothing if the toxic is already removed."""
        self._link.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<ActiveToxic {self.number}: {self.toxic}>"


class Link:
    """Toxics of all connections of one server.

    Args:
        clock: The clock of all delays.
        seed: Seed for the random numbers of toxics; default: a random seed.

    Attributes:
        seed: With the same seed, toxic number M gets the same random numbers on connection number N in each run.
        connections: How many connections there were, which is also the number of the newest connection.
    """

    def __init__(self, clock: Clock, seed: int | None = None) -> None:
        self.clock = clock
        self.seed = random.randrange(2**32) if seed is None else seed
        self.connections = 0
        self._active: list[ActiveToxic] = []
        self._added = 0
        self._transports: dict[LinkedTransport, None] = {}

    def __repr__(self) -> str:
        return f"<Link seed={self.seed} toxics={[active.toxic for active in self._active]}>"

    def add(
        self, toxic: Toxic, *, upstream: bool | None = None, connection: int | None = None, kept: bool = False
    ) -> ActiveToxic:
        """Add a toxic after the other toxics. Connections that exist already get the toxic, too.

        Args:
            upstream: True: only for bytes that clients send. False: only for bytes that they receive. Default: both.
            connection: Number of the connection that gets the toxic, from 1; default: all connections.
            kept: True: clear() keeps the toxic.
        """
        self._added += 1
        active = ActiveToxic(toxic, self._added, upstream, connection, kept, self)
        self._active.append(active)
        for transport in self._transports:
            self._attach(active, transport)
        return active

    def remove(self, active: ActiveToxic) -> None:
        """Remove a toxic, and pass on the bytes that it holds. Does nothing if the toxic is already removed."""
        if active in self._active:
            self._active.remove(active)
            for transport in self._transports:
                transport.detach(active)

    @property
    def toxics(self) -> list[ActiveToxic]:
        """The toxics in the order of adding, without those that clear() keeps."""
        return [active for active in self._active if not active.kept]

    def clear(self) -> None:
        """Remove all toxics, except those that were added with kept=True."""
        for active in self.toxics:
            self.remove(active)

    # --- for the server -----------------------------------------------------------------------------------------------

    def wrap(self, transport: Transport, reset: Callable[[], None]) -> LinkedTransport:
        """Put a new connection on this link.

        Args:
            reset: Resets the connection with a TCP RST.
        """
        self.connections += 1
        linked = LinkedTransport(self, transport, reset, self.connections)
        self._transports[linked] = None
        for active in self._active:
            self._attach(active, linked)
        return linked

    def abort(self) -> None:
        """Close all connections immediately. Delayed bytes are lost."""
        transports = list(self._transports)
        for transport in transports:
            transport.abort()
        gevent.killall([pump for transport in transports for pump in transport.pumps.values()])

    def remove_transport(self, transport: LinkedTransport) -> None:
        """Forget a connection, which the caller closes."""
        self._transports.pop(transport, None)

    def _attach(self, active: ActiveToxic, transport: LinkedTransport) -> None:
        for upstream in (True, False):
            if active.upstream in (None, upstream) and active.connection in (None, transport.number):
                # Each toxic has a random generator for each connection and direction, so that the traffic of one
                # connection does not change the random numbers of other connections.
                rng = random.Random(f"{self.seed} {active.number} {transport.number} {upstream}")
                transport.attach(active, rng, upstream=upstream)


class _DelayedStream:
    """One direction of a connection that has or had toxics: a ToxicChain with a clock. Greenlets wait for its bytes."""

    def __init__(self, clock: Clock) -> None:
        self.chain = ToxicChain()
        self._clock = clock
        self._changed = Event()
        self._has_capacity = Event()
        self._error: NSQSocketError | None = None

    def remove(self, active: ActiveToxic) -> None:
        self.chain.remove(active, self._clock.monotonic())
        self._changed.set()

    def push(self, data: bytes) -> None:
        self.chain.push(data, self._clock.monotonic())
        self._changed.set()

    def close(self, error: NSQSocketError) -> None:
        """Make all greenlets that wait for this stream, now or later, raise this error."""
        self._error = error
        self._changed.set()
        self._has_capacity.set()

    def wait_for_capacity(self) -> None:
        while self.chain.held_bytes > _MAX_HELD_BYTES and self._error is None:
            self._has_capacity.clear()
            self._has_capacity.wait()  # set by next() and close()
        if self._error is not None:
            raise self._error

    def next(self) -> Deliver | StreamEnd | ConnectionReset:
        while True:
            if self._error is not None:
                raise self._error
            outcome = self.chain.pop(self._clock.monotonic())
            if outcome is not None:
                self._has_capacity.set()
                return outcome
            self._wait(self.chain.due)

    def _wait(self, due: float) -> None:
        self._changed.clear()
        if due == math.inf:
            self._changed.wait()  # until push(), remove() or close()
            return
        timer = self._clock.call_later(due - self._clock.monotonic(), self._changed.set)
        try:
            self._changed.wait()
        finally:
            timer.cancel()


class LinkedTransport:
    """One connection on a link: a transport that wraps another transport.

    A direction that has or had toxics gets its own greenlet, the pump, when it is next used. While bytes are delayed,
    the upstream pump receives later bytes, and the downstream pump waits to send the delayed bytes.
    """

    def __init__(self, link: Link, inner: Transport, reset: Callable[[], None], number: int) -> None:
        self.number = number
        # The key is the direction: True is upstream.
        self.pumps: dict[bool, gevent.Greenlet] = {}
        self._link = link
        self._inner = inner
        self._reset = reset
        self._up: _DelayedStream | None = None
        self._down: _DelayedStream | None = None
        self._rest = b""
        self._ended = self._closing = self._aborted = False
        self._failure: NSQSocketError | None = None

    # --- as a transport -----------------------------------------------------------------------------------------------

    def recv(self, size: int) -> bytes:
        if self._up is None:
            data = self._inner.recv(size)
            if self._up is None:
                return data
            # A toxic was added while recv() waited, so the data must pass the toxic.
            self._up.push(data)
            self._ended = not data
        return self._receive(self._up, size)

    def sendall(self, data: bytes) -> None:
        if self._down is None:
            self._inner.sendall(data)
        elif data:
            self._send(self._down, data)

    def shutdown_write(self) -> None:
        if self._down is None:
            self._inner.shutdown_write()
        else:
            self._send(self._down, b"")

    def close(self) -> None:
        """Close the connection after all sent bytes, which toxics may delay. Returns immediately, see wait_closed()."""
        if self._closing:
            return
        self._closing = True
        pump = self.pumps.get(False)
        if self._down is None or (pump is not None and pump.dead):
            self.abort()
            return
        if self._up is not None:
            self._up.close(_closed_by_us())
        self._send(self._down, b"")

    def wait_closed(self) -> None:
        """After close(), wait until all bytes are sent. Returns immediately if close() was not called."""
        pump = self.pumps.get(False)
        if pump is not None and self._closing:
            pump.join()  # takes as long as the toxics delay bytes; abort() ends the pump

    # --- for the link -------------------------------------------------------------------------------------------------

    def attach(self, active: ActiveToxic, rng: random.Random, *, upstream: bool) -> None:
        """Add a toxic to one direction."""
        stream = self._up if upstream else self._down
        if stream is None:
            stream = _DelayedStream(self._link.clock)
            if upstream:
                self._up = stream
            else:
                self._down = stream
        stream.chain.add(active, active.toxic.start(rng))

    def detach(self, active: ActiveToxic) -> None:
        """Remove a toxic. Does nothing if this connection does not have this toxic."""
        for stream in (self._up, self._down):
            if stream is not None:
                stream.remove(active)

    def abort(self, *, reset: bool = False) -> None:
        """Close or reset the connection immediately. Delayed bytes are lost. Does nothing the second time."""
        if self._aborted:
            return
        self._aborted = self._closing = True
        self._link.remove_transport(self)
        for stream in (self._up, self._down):
            if stream is not None:
                stream.close(_closed_by_us())
        if reset:
            self._reset()
        else:
            self._inner.close()
        gevent.killall([pump for pump in self.pumps.values() if pump is not gevent.getcurrent()], block=False)

    # --- with toxics --------------------------------------------------------------------------------------------------

    def _receive(self, stream: _DelayedStream, size: int) -> bytes:
        if not self._ended:
            self._start_pump(stream, upstream=True)
        if not self._rest:
            outcome = stream.next()
            if isinstance(outcome, Deliver):
                self._rest = outcome.data
            elif isinstance(outcome, StreamEnd):
                if self._failure is not None:
                    raise self._failure
                return b""
            else:
                self.abort(reset=True)
                raise NSQSocketError(errno.ECONNRESET, "connection reset by a toxic")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _send(self, stream: _DelayedStream, data: bytes) -> None:
        stream.push(data)
        self._start_pump(stream, upstream=False)
        if data:
            stream.wait_for_capacity()

    def _start_pump(self, stream: _DelayedStream, *, upstream: bool) -> None:
        if upstream not in self.pumps:
            name, pump = ("up", self._pump_up) if upstream else ("down", self._pump_down)
            self.pumps[upstream] = spawn(f"fakensqd-link-{name}", pump, stream, on_failure=self._fail)

    def _fail(self, error: BaseException) -> None:
        logger.error("internal error of the emulator: a connection is reset", exc_info=error)
        self.abort(reset=True)

    def _pump_up(self, stream: _DelayedStream) -> None:
        data = b"x"
        while data:
            try:
                data = self._inner.recv(READ_SIZE)
                stream.push(data)
                stream.wait_for_capacity()
            except NSQSocketError as error:
                self._failure = error
                stream.push(b"")
                return

    def _pump_down(self, stream: _DelayedStream) -> None:
        try:
            while isinstance(outcome := stream.next(), Deliver):
                self._inner.sendall(outcome.data)
                if stream.chain.due <= self._link.clock.monotonic():
                    # Let the event loop poll its sockets, so that a reader in this hub receives each slice alone.
                    # Not sleep(0): the loop does not poll between two calls of sleep(0).
                    gevent.sleep(1e-9)
            if isinstance(outcome, StreamEnd) and not self._closing:
                self._inner.shutdown_write()
            else:
                self.abort(reset=not isinstance(outcome, StreamEnd))
        except NSQSocketError as error:
            stream.close(error)
            self.abort()


def _closed_by_us() -> NSQConnectionClosed:
    return NSQConnectionClosed("connection was closed")


# --- sockets ----------------------------------------------------------------------------------------------------------


def set_reset_on_close(sock: Any) -> None:  # Any: gevent has no types
    """Make close() of a socket end the connection with a TCP RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def reset_socket(sock: Any) -> None:
    """Close a connection with a TCP RST."""
    set_reset_on_close(sock)
    sock.close()


def wait_for_end(sock: Any) -> None:
    """Read and drop bytes of the client until it closes the connection, or the connection fails."""
    try:
        transport = TcpTransport(sock, "")
        while transport.recv(READ_SIZE):
            pass
    except OSError:
        pass
