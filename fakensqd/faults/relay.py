"""Relay with toxics before any server that speaks TCP: a real nsqd, nsqlookupd, or an HTTP endpoint.

Owns its listener and two pumps for each connection. Knows no protocol.
"""

from __future__ import annotations

from typing import Self

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer

from fakensqd.addresses import bound_address, join_address, listen, peer_address, split_address
from fakensqd.clock import Clock, RealClock
from fakensqd.faults.link import Link, LinkedTransport, reset_socket
from fakensqd.thread import Server
from gnsq.errors import NSQSocketError
from gnsq.transport import READ_SIZE, TcpTransport, Transport

__all__ = ["Relay"]

# For the connection to the server, seconds of real time.
_CONNECT_TIMEOUT = 10.0


class Relay(Server):
    """Relay each connection to another address, with toxics on the way: start() or ``with``.

    Args:
        upstream_address: ``host:port`` of the server.
        address: Where to listen; port 0 takes a free one, which later starts take again.
        clock: Of the toxics; default: the machine's.
        seed: Of the random numbers of toxics; default: a random one.
        threaded: Run on a thread with its own hub, see fakensqd.thread.

    Attributes:
        link: For adding toxics; upstream are the bytes that clients send.

    Raises:
        ValueError: If an address is invalid.
    """

    def __init__(
        self,
        upstream_address: str,
        *,
        address: str = "127.0.0.1:0",
        clock: Clock | None = None,
        seed: int | None = None,
        threaded: bool = False,
    ) -> None:
        self.upstream_address = upstream_address
        self.link = Link(clock or RealClock(), seed)
        self._upstream = split_address(upstream_address)
        self._bind = split_address(address)
        self._server: StreamServer | None = None

    @property
    def address(self) -> str:
        """``host:port`` that clients connect to; port 0 before the first start."""
        return join_address(*self._bind)

    def start(self) -> Self:
        """Listen, and return this relay. Does nothing if it listens already.

        Raises:
            OSError: If the address cannot be listened on.
        """
        if self._server is None:
            listener = listen(self._bind)
            self._bind = bound_address(listener)
            self._server = StreamServer(listener, self._serve, spawn=Pool())
            self._server.start()
        return self

    def stop(self) -> None:
        """Close everything at once. Does nothing if it is stopped."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            server.stop(timeout=0)
            self.link.abort()

    def _serve(self, client: socket.socket, address: object) -> None:
        try:
            server = socket.create_connection(self._upstream, timeout=_CONNECT_TIMEOUT)
        except OSError:
            reset_socket(client)  # the relay has accepted the connection: it can be reset, not refused
            return
        server.settimeout(None)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        linked = self.link.wrap(TcpTransport(client, peer_address(address)), lambda: reset_socket(client))
        upstream = TcpTransport(server, self.upstream_address)
        answers = gevent.spawn(_pump_down, upstream, linked)
        answers.name = "fakensqd-relay"
        try:
            if _pump(linked, upstream):
                answers.join()  # until the server closes the connection, or stop() does
                linked.close()
                linked.wait_closed()
            else:
                reset_socket(server)
        finally:
            answers.kill()
            linked.abort()
            upstream.close()


def _pump_down(server: Transport, client: LinkedTransport) -> None:
    if not _pump(server, client):
        client.abort(reset=True)


def _pump(source: Transport, target: Transport) -> bool:
    """Relay bytes until the source ends; return whether it ended without an error."""
    try:
        while data := source.recv(READ_SIZE):
            target.sendall(data)
        target.shutdown_write()
    except NSQSocketError:
        return False
    return True
