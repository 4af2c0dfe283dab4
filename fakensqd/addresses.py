"""Addresses that servers listen on: ``host:port``, or the path of a unix socket, which is a pair with port -1.

Opens listening sockets. Needs no gevent until one is to be served, so that a program can listen while it loads what
serves.

Connecting to others, by the daemon's clock.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

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
    "peer_address",
    "split_address",
]


# In place of a port; what nsqd says of a unix socket, too.
UNIX_PORT = -1
_MAPPED = "::ffff:"
# Sockets that listen already, by their addresses; listen() gives each out once.
_early: dict[tuple[str, int], socket.socket] = {}


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 host stands in brackets.

    Raises:
        ValueError: If there is no port from 0 to 65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address {address!r} is not host:port with a port of 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_address(address: str) -> tuple[str, int]:
    """Split what a server is to listen on: a path has a slash.

    Raises:
        ValueError: If it is neither.
    """
    return (address, UNIX_PORT) if "/" in address else split_address(address)


def join_address(host: str, port: int) -> str:
    """Join host and port, an IPv6 host in brackets, but IPv4 inside of IPv6 as it is."""
    if port == UNIX_PORT:
        return host
    host = host.removeprefix(_MAPPED)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_address(address: Any) -> str:  # Any: what accept() gives depends on the family
    """Write down who has connected; clients of a unix socket have no name, which Go writes as ``@``."""
    return join_address(*address[:2]) if isinstance(address, tuple) else "@"


def bound_address(listener: socket.socket) -> tuple[str, int]:
    """Give back where a socket listens."""
    if listener.family == socket.AF_UNIX:
        return listener.getsockname(), UNIX_PORT
    host, port = listener.getsockname()[:2]
    return host, port


def listen(address: tuple[str, int]) -> Any:  # Any: gevent has no types
    """Open a listening socket of gevent's.

    Raises:
        OSError: If the address cannot be listened on.
    """
    from gevent import socket as cooperative  # slow to load

    listener = _early.pop(address, None) or _opened(address)
    return cooperative.socket(listener.family, listener.type, fileno=listener.detach())


def listen_before_start(address: str) -> str:
    """Listen before the rest of the emulator is loaded; clients that connect wait until it is.

    Returns:
        The address with its real port, for which listen() will give the socket out.

    Raises:
        ValueError: If it is no address.
        OSError: If it cannot be listened on.
    """
    listener = _opened(listen_address(address))
    bound = bound_address(listener)
    _early[bound] = listener
    return join_address(*bound)


def _opened(address: tuple[str, int]) -> socket.socket:
    host, port = address
    if port == UNIX_PORT:
        return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), _unused(host))
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    # A restart takes the port again while old connections linger.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _bound(listener, address)


def _bound(listener: socket.socket, address: tuple[str, int] | str) -> socket.socket:
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        # Python's error does not name the address.
        error.filename = address if isinstance(address, str) else join_address(*address)
        raise
    return listener


def _unused(path: str) -> str:
    """Remove the socket of a server that was killed: nobody answers there. nsqd would refuse to start."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            remove_socket_file((path, UNIX_PORT))
        except OSError:
            pass
    return path


def remove_socket_file(address: tuple[str, int]) -> None:
    """Remove the file of a unix socket that nobody listens on any more."""
    if address[1] == UNIX_PORT:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address[0])


def connect(address: tuple[str, int], clock: Clock, seconds: float) -> socket.socket:
    """Connect to a host and port within so many seconds of a clock; the socket itself has no limit.

    Raises:
        TimeoutError: If it takes longer.
        OSError: If it can't be done.
    """
    # A program listens before it loads gevent.
    from gevent import socket as cooperative

    from fakensqd.clock import run_with_timeout

    opened: socket.socket = run_with_timeout(clock, seconds, lambda: cooperative.create_connection(address))
    return opened
