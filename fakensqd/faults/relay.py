"""Relay with toxics, between clients and any TCP server: a real nsqd, a real nsqlookupd, or an HTTP server.

Owns its listener and two pumps for each connection. Knows no protocol.
"""

from __future__ import annotations

from typing import Self

from gevent import socket

from fakensqd.addresses import peer_address, split_address
from fakensqd.clock import Clock, RealClock
from fakensqd.faults.link import Link, LinkedTransport, reset_socket
from fakensqd.ports import TcpPort
from fakensqd.server import Server
from gnsq.concurrency.greenlets import spawn, supervised
from gnsq.errors import NSQSocketError
from gnsq.transport import READ_SIZE, TcpTransport, Transport

__all__ = ["Relay"]

# Timeout for connecting to the server, in seconds of real time.
_CONNECT_TIMEOUT = 10.0


class Relay(Server):
    """Relays each connection to another address, through toxics. Call start() or use ``with``.

    Args:
        upstream_address: ``host:port`` of the server.
        address: ``host:port`` to listen on. Port 0 takes a free port; the next start() takes the same port again.
        clock: Clock of the toxics; default: real time.
        seed: Seed for the random numbers of toxics; default: a random seed.

    Attributes:
        link: Toxics are added to this link; upstream is the direction from clients to the server.

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
    ) -> None:
        self.upstream_address = upstream_address
        self.link = Link(clock or RealClock(), seed)
        self._upstream = split_address(upstream_address)
        self._port = TcpPort(address)

    @property
    def address(self) -> str:
        """``host:port`` that clients connect to. The first start() replaces port 0 by the port that was taken."""
        return self._port.address

    def start(self) -> Self:
        if not self._port.is_serving:
            self._port.bind()
            self._port.serve(supervised("fakensqd-relay", self._serve, "a connection is closed"))
        return self

    def down(self) -> None:
        """Abort connections and refuse new ones, until start(). Nobody else gets the port meanwhile."""
        self._close(keeps_port=True)

    def _shut_down(self) -> None:
        self._close(keeps_port=False)

    def _close(self, *, keeps_port: bool) -> None:
        self._port.stop(keeps_port=keeps_port)
        self.link.abort()

    def _serve(self, client: socket.socket, address: object) -> None:
        try:
            server = socket.create_connection(self._upstream, timeout=_CONNECT_TIMEOUT)
        except OSError:
            reset_socket(client)  # The connection is accepted already: it can be reset, but not refused.
            return
        server.settimeout(None)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        linked = self.link.wrap(TcpTransport(client, peer_address(address)), lambda: reset_socket(client))
        upstream = TcpTransport(server, self.upstream_address)
        answers = spawn("fakensqd-relay", _pump_down, upstream, linked, on_failure="a connection is reset")
        try:
            if _pump(linked, upstream):
                answers.join()  # until the server ends its stream, or a connection fails
                linked.close()
                linked.wait_closed()
            else:
                reset_socket(server)
        finally:
            answers.kill()
            linked.abort()
            upstream.close()


def _pump_down(server: Transport, client: LinkedTransport) -> None:
    is_ended = False
    try:
        is_ended = _pump(server, client)
    finally:
        if not is_ended:
            client.abort(reset=True)


def _pump(source: Transport, target: Transport) -> bool:
    """Relay bytes until the source ends, then end the target's stream. Return False if either of them fails."""
    try:
        while data := source.recv(READ_SIZE):
            target.sendall(data)
        target.shutdown_write()
    except NSQSocketError:
        return False
    return True
