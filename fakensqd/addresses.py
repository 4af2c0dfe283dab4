"""Addresses to listen on and to connect to: ``host:port``, or the path of a unix socket, whose port is UNIX_PORT.

Opens sockets. Only listen() and connect() import gevent: listen_before_start() works before gevent is loaded.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnsq.options import check_unix
from gnsq.texts import shown_argument

if TYPE_CHECKING:
    from fakensqd.clock import Clock

__all__ = [
    "UNIX_PORT",
    "bound_address",
    "connect",
    "remove_socket_file",
    "join_address",
    "listen",
    "listen_address",
    "listen_before_start",
    "is_listening",
    "open_socket",
    "peer_address",
    "split_address",
]


# The port of each unix socket's address, as in nsqd.
UNIX_PORT = -1
_MAPPED = "::ffff:"
# Sockets that listen_before_start() has opened, by address; listen() takes them over.
_listening: dict[tuple[str, int], socket.socket] = {}


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; the brackets of an IPv6 host are removed.

    Raises:
        ValueError: If there is no port from 0 to 65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address {shown_argument(address)} is not host:port with a port of 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_address(address: str) -> tuple[str, int]:
    """Split an address to listen on: ``host:port``, or the path of a unix socket if the address has a slash.

    Raises:
        ValueError: If there is no slash and no port from 0 to 65535, or a path is too long.
    """
    if "/" not in address:
        return split_address(address)
    check_unix(address)
    return address, UNIX_PORT


def join_address(host: str, port: int) -> str:
    """Join host and port: an IPv6 host in brackets, an IPv4-mapped one as IPv4. With UNIX_PORT, return the host."""
    if port == UNIX_PORT:
        return host
    host = host.removeprefix(_MAPPED)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_address(address: Any) -> str:  # Any: the type depends on the socket's family
    """Format the address of a client; Go writes ``@`` for the client of a unix socket."""
    return join_address(*address[:2]) if isinstance(address, tuple) else "@"


def bound_address(listener: socket.socket) -> tuple[str, int]:
    """Return the address of a listening socket."""
    if listener.family == socket.AF_UNIX:
        return listener.getsockname(), UNIX_PORT
    host, port = listener.getsockname()[:2]
    return host, port


def listen(address: tuple[str, int]) -> Any:  # Any: gevent has no types
    """Open a listening gevent socket, or take over the one that listen_before_start() opened for this address.

    Raises:
        OSError: If the address cannot be listened on.
    """
    from gevent import socket as cooperative  # slow to load

    listener = _listening.pop(address, None) or open_socket(address)
    return cooperative.socket(listener.family, listener.type, fileno=listener.detach())


def is_listening(address: tuple[str, int]) -> bool:
    """Return True if listen_before_start() listens on an address, and listen() has not taken its socket."""
    return address in _listening


def listen_before_start(address: str) -> str:
    """Listen before the rest of the emulator is loaded. Clients that connect meanwhile wait until they are served.

    Returns:
        The address with its real port. Given this address, listen() uses the socket that was opened here.

    Raises:
        ValueError: If the address is not valid.
        OSError: If the address cannot be listened on.
    """
    listener = open_socket(listen_address(address))
    bound = bound_address(listener)
    _listening[bound] = listener
    return join_address(*bound)


def open_socket(address: tuple[str, int], *, listening: bool = True) -> socket.socket:
    """Bind a socket, and listen. With listening=False the socket only reserves its port: connections are refused.

    Raises:
        OSError: If the address cannot be bound or listened on; the error's filename is then the address.
    """
    host, port = address
    family = socket.AF_UNIX if port == UNIX_PORT else socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port == UNIX_PORT:
            _remove_dead_socket(host)
        else:
            # With SO_REUSEADDR a restart can take the port while old connections are in TIME_WAIT.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(host if port == UNIX_PORT else address)
        if listening:
            opened.listen(1024)
    except OSError as error:
        opened.close()
        error.filename = join_address(*address)
        raise
    return opened


def _remove_dead_socket(path: str) -> None:
    """Remove the file at this path if no server listens on it: bind() would fail. The real nsqd keeps the file."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if Path(path).is_socket():  # connecting to any other file is refused, too
                remove_socket_file((path, UNIX_PORT))
        except OSError:
            pass


def remove_socket_file(address: tuple[str, int]) -> None:
    """Remove the file of a unix socket; do nothing for other addresses."""
    if address[1] == UNIX_PORT:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address[0])


def connect(address: tuple[str, int], clock: Clock, seconds: float) -> socket.socket:
    """Connect within ``seconds``, measured by the clock. Return a socket without a timeout, whose reads let others run.

    Raises:
        TimeoutError: If connecting takes longer.
        OSError: If the connection fails.
    """
    from gevent import socket as cooperative

    from fakensqd.clock import run_with_timeout
    from gnsq.concurrency.sockets import CooperativeSocket

    opened = run_with_timeout(clock, seconds, lambda: cooperative.create_connection(address))
    connected: socket.socket = CooperativeSocket.take_over(opened)
    return connected
