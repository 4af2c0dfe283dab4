"""Link: the toxics between clients and a server, put on and taken off while connections live.

Owns what waits because of a toxic, and the greenlets that carry it on; lies right over TCP, so that toxics meet the
bytes of the wire, TLS and all. A connection that never had a toxic is passed straight through: it costs one look at an
attribute for each chunk. Knows no command.
"""

from __future__ import annotations

import errno
import math
import random
import struct
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import gevent
from gevent import socket
from gevent.event import Event

from fakensqd.clock import Clock
from fakensqd.faults.toxics import Chain, Deliver, Effect, End, Toxic
from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.transport import READ_SIZE, Transport

__all__ = ["Link", "LinkedTransport", "ActiveToxic", "reset_socket"]

# What a link holds in one direction before who sends has to wait: about what the buffers of two sockets hold.
_MAX_HELD = 1024 * 1024


class ActiveToxic:
    """A toxic on a link: remove() takes it off, and so does the end of a ``with``."""

    def __init__(
        self, link: Link, toxic: Toxic, number: int, *, upstream: bool | None, connection: int | None, kept: bool
    ) -> None:
        self.toxic = toxic
        self.number = number
        self.kept = kept
        self.upstream = upstream
        self.connection = connection
        self._link = link

    def applies_to(self, connection: int, *, upstream: bool) -> bool:
        """Whether it is for this direction of a connection."""
        return self.upstream in (None, upstream) and self.connection in (None, connection)

    def remove(self) -> None:
        """Take it off: what it holds goes on. Does nothing the second time."""
        self._link.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<ActiveToxic {self.number}: {self.toxic}>"


class Link:
    """The toxics of all connections of one server.

    Args:
        clock: What all waits go by.
        seed: Of whatever toxics leave to chance; default: another one each time.

    Attributes:
        seed: That number. The same one gives the same chances to each toxic and connection, by their numbers.
        connections: How many there have been; the number of the last.
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
        """Put a toxic on, behind the others; on connections that live, too.

        Args:
            upstream: True for what clients send, False for what they are sent; default: both.
            connection: The number of the one connection that it is for, from 1; default: all.
            kept: Leave it on when clear() is called.
        """
        self._added += 1
        active = ActiveToxic(self, toxic, self._added, upstream=upstream, connection=connection, kept=kept)
        self._active.append(active)
        for transport in self._transports:
            self._attach(active, transport)
        return active

    def remove(self, active: ActiveToxic) -> None:
        """Take a toxic off: what it holds goes on. Does nothing if it is off."""
        if active in self._active:
            self._active.remove(active)
            for transport in self._transports:
                transport.detach(active)

    @property
    def toxics(self) -> list[ActiveToxic]:
        """The toxics that clear() takes off, in order."""
        return [active for active in self._active if not active.kept]

    def clear(self) -> None:
        """Take all toxics off."""
        for active in self.toxics:
            self.remove(active)

    # --- for the server -----------------------------------------------------------------------------------------------

    def wrap(self, transport: Transport, reset: Callable[[], None]) -> LinkedTransport:
        """Put a new connection on this link.

        Args:
            reset: Breaks the connection in a way that its peer notices.
        """
        self.connections += 1
        linked = LinkedTransport(self, transport, reset, self.connections)
        self._transports[linked] = None
        for active in self._active:
            self._attach(active, linked)
        return linked

    def abort(self) -> None:
        """Close all connections at once; what is on its way is lost."""
        transports = list(self._transports)
        for transport in transports:
            transport.abort()
        gevent.killall([pump for transport in transports for pump in transport.pumps])

    def remove_transport(self, transport: LinkedTransport) -> None:
        """Take note that a connection is gone."""
        self._transports.pop(transport, None)

    def _attach(self, active: ActiveToxic, transport: LinkedTransport) -> None:
        for upstream in (True, False):
            if active.applies_to(transport.number, upstream=upstream):
                # One generator each: what one connection does changes nothing for the others.
                chance = random.Random(f"{self.seed} {active.number} {transport.number} {upstream}")
                transport.attach(active, chance, upstream=upstream)


class _Flow:
    """One direction of a connection that has, or had, toxics: what waits in it, and for what time."""

    def __init__(self, clock: Clock) -> None:
        self._chain = Chain()
        self._clock = clock
        self._changed = Event()
        self._roomy = Event()
        self._ready: deque[Effect] = deque()
        self._closed: NSQSocketError | None = None

    def add(self, active: ActiveToxic, chance: random.Random) -> None:
        self._chain.add(active, active.toxic.begin(chance))

    def remove(self, active: ActiveToxic) -> None:
        self._chain.remove(active, self._clock.monotonic())
        self._changed.set()

    def push(self, data: bytes) -> None:
        self._chain.push(data, self._clock.monotonic())
        self._changed.set()

    def close(self, error: NSQSocketError) -> None:
        """Let whoever waits here get an error."""
        self._closed = error
        self._changed.set()
        self._roomy.set()

    def wait_for_room(self) -> None:
        while self._chain.held > _MAX_HELD and self._closed is None:
            self._roomy.clear()
            self._roomy.wait()  # next() sets it, or close()
        if self._closed is not None:
            raise self._closed

    def next(self) -> Effect:
        """Wait for what comes out next."""
        while True:
            if self._closed is not None:
                raise self._closed
            effect = self._chain.pop(self._clock.monotonic())
            if effect is not None:
                self._roomy.set()
                return effect
            self._wait(self._chain.due)

    def has_more(self) -> bool:
        """Whether next() would not wait."""
        return self._chain.due <= self._clock.monotonic()

    def _wait(self, due: float) -> None:
        self._changed.clear()
        if due == math.inf:
            self._changed.wait()  # for more bytes, another toxic, or close()
            return
        timer = self._clock.call_later(due - self._clock.monotonic(), self._changed.set)
        try:
            self._changed.wait()
        finally:
            timer.cancel()


class LinkedTransport:
    """One connection on a link: a transport over a transport.

    Where there are, or were, toxics in a direction, a greenlet of its own reads or sends, so that bytes come late
    without those behind them being kept from coming.
    """

    __slots__ = (
        "_aborted",
        "_closing",
        "_down",
        "_ended",
        "_failure",
        "_inner",
        "_link",
        "_pumps",
        "_reset",
        "_rest",
        "_up",
        "number",
    )

    def __init__(self, link: Link, inner: Transport, reset: Callable[[], None], number: int) -> None:
        self.number = number
        self._link = link
        self._inner = inner
        self._reset = reset
        self._up: _Flow | None = None
        self._down: _Flow | None = None
        # By direction: upstream is True.
        self._pumps: dict[bool, gevent.Greenlet] = {}
        self._rest = b""
        self._ended = self._closing = self._aborted = False
        self._failure: NSQSocketError | None = None

    # --- as a transport -----------------------------------------------------------------------------------------------

    def recv(self, size: int) -> bytes:
        if self._up is None:
            data = self._inner.recv(size)
            if self._up is None:
                return data
            # A toxic has come while this waited.
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
        """Close behind what was sent: with toxics that may take its time, though it is over for who calls."""
        if self._closing:
            return
        self._closing = True
        pump = self._pumps.get(False)
        if self._down is None or (pump is not None and pump.dead):
            self.abort()
            return
        if self._up is not None:
            self._up.close(_closed_by_us())
        self._send(self._down, b"")

    def wait_closed(self) -> None:
        """Wait until what was sent before close() has gone, if it was to."""
        pump = self._pumps.get(False)
        if pump is not None and self._closing:
            pump.join()  # as long as the toxics make it; drop() ends it

    @property
    def pumps(self) -> Iterable[gevent.Greenlet]:
        """The greenlets at work because of toxics."""
        return self._pumps.values()

    # --- for the link -------------------------------------------------------------------------------------------------

    def attach(self, active: ActiveToxic, chance: random.Random, *, upstream: bool) -> None:
        """Put a toxic on one direction."""
        flow = self._up if upstream else self._down
        if flow is None:
            flow = _Flow(self._link.clock)
            if upstream:
                self._up = flow
            else:
                self._down = flow
        flow.add(active, chance)

    def detach(self, active: ActiveToxic) -> None:
        """Take a toxic off, if it is on."""
        for flow in (self._up, self._down):
            if flow is not None:
                flow.remove(active)

    def abort(self, *, reset: bool = False) -> None:
        """Close at once; what is on its way is lost. Does nothing the second time."""
        if self._aborted:
            return
        self._aborted = self._closing = True
        self._link.remove_transport(self)
        for flow in (self._up, self._down):
            if flow is not None:
                flow.close(_closed_by_us())
        if reset:
            self._reset()
        else:
            self._inner.close()
        gevent.killall([pump for pump in self._pumps.values() if pump is not gevent.getcurrent()], block=False)

    # --- with toxics --------------------------------------------------------------------------------------------------

    def _receive(self, flow: _Flow, size: int) -> bytes:
        if not self._ended:
            self._start_pump(flow, upstream=True)
        if not self._rest:
            effect = flow.next()
            if isinstance(effect, Deliver):
                self._rest = effect.data
            elif isinstance(effect, End):
                if self._failure is not None:
                    raise self._failure
                return b""
            else:
                self.abort(reset=True)
                raise NSQSocketError(errno.ECONNRESET, "connection reset by a toxic")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _send(self, flow: _Flow, data: bytes) -> None:
        flow.push(data)
        self._start_pump(flow, upstream=False)
        if data:
            flow.wait_for_room()

    def _start_pump(self, flow: _Flow, *, upstream: bool) -> None:
        if upstream not in self._pumps:
            pump = gevent.spawn(self._pump_up if upstream else self._pump_down, flow)
            pump.name = f"fakensqd-link-{'up' if upstream else 'down'}"
            self._pumps[upstream] = pump

    def _pump_up(self, flow: _Flow) -> None:
        data = b"x"
        while data:
            try:
                data = self._inner.recv(READ_SIZE)
                flow.push(data)
                flow.wait_for_room()
            except NSQSocketError as error:
                self._failure = error
                flow.push(b"")
                return

    def _pump_down(self, flow: _Flow) -> None:
        try:
            while isinstance(effect := flow.next(), Deliver):
                self._inner.sendall(effect.data)
                if flow.has_more():
                    # Through the loop, which looks at its sockets on the way: a reader in this hub gets slices one by
                    # one. It would not between two sleep(0).
                    gevent.sleep(1e-9)
            if isinstance(effect, End) and not self._closing:
                self._inner.shutdown_write()
            else:
                self.abort(reset=not isinstance(effect, End))
        except NSQSocketError as error:
            flow.close(error)
            self.abort()


def _closed_by_us() -> NSQConnectionClosed:
    return NSQConnectionClosed("connection was closed")


def reset_socket(sock: Any) -> None:  # Any: gevent has no types
    """Close a connection so that its peer sees a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
