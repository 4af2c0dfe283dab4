"""Health of a receiver over HTTP, for the probes of Kubernetes and for the supervisor.

``GET /live`` and ``GET /ready`` answer 200 and ``ok``, or 503 and the reason. ``GET /metrics`` answers with metrics for
Prometheus, see metrics.py. Other paths answer 404. Any answer shows that the hub runs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import gevent
from gevent import socket
from gevent.pywsgi import WSGIServer

from gnsq.addresses import is_unix, parse_address
from gnsq.concurrency.sockets import CooperativeHandler, CooperativeSocket

if TYPE_CHECKING:
    from gnsq.spark.receiver.receiver import Receiver

__all__ = ["HealthServer", "ask_health", "get", "parse_health_address", "why_not_live", "why_not_ready"]

# Seconds after which a call of the file system counts as hung.
IO_TIMEOUT = 60.0
# Returns the reason for 503, or "" for 200.
Check = Callable[[], str]
# A WSGI application.
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

NO_PAGES: Mapping[str, Application] = MappingProxyType({})


def why_not_live(receiver: Receiver, io_timeout: float = IO_TIMEOUT) -> str:
    """Return why the process should be killed and started again; "" if it should not."""
    seconds = receiver.io_seconds
    if seconds is not None and seconds >= io_timeout:
        return f"the spool's file system has not answered for {seconds:.0f} s"
    return f"internal error: {receiver.error!r}" if receiver.error is not None else ""


def why_not_ready(receiver: Receiver) -> str:
    """Return why the receiver receives nothing; "" if it receives, or if nsqlookupd names no nsqd.

    A receiver that waits since the spool is full is ready: another one could not write more.
    """
    if not receiver.is_started:
        return "the spool is not open yet"
    if receiver.is_closing:
        return "stopping"
    if receiver.failing:
        return "the spool can't be written, see the log"
    failures = receiver.subscriptions.failures()
    if failures and not receiver.subscriptions.nsqds:
        return "; ".join(f"{address} not connected: {text}" for address, text in failures.items())
    return why_not_live(receiver)


def parse_health_address(address: str) -> tuple[str, int]:
    """Split ``host:port``, or return the path of a unix socket and 0.

    Raises:
        ValueError: If there is no port, or the address is not valid.
    """
    host, port = parse_address(address, 0)
    if not port and not is_unix(host):
        raise ValueError(f"address {address!r} has no port: give host:port, such as 0.0.0.0:8080")
    return host, port


class HealthServer:
    """Serves checks and other pages by their paths, until close().

    Raises:
        ValueError: If the address is not valid.
        OSError: If it can't be listened on.
    """

    def __init__(self, address: str, checks: Mapping[str, Check], pages: Mapping[str, Application] = NO_PAGES) -> None:
        host, port = parse_health_address(address)
        self._path = host if is_unix(host) else ""
        self._checks = checks
        self._pages = pages
        listener = _listen_on_path(host) if self._path else (host, port)
        # Requests are not logged: a probe comes every few seconds.
        self._server = WSGIServer(listener, self._respond, log=None, error_log=None, handler_class=CooperativeHandler)
        self._server.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.stop(timeout=0)
        if self._path:
            _remove_socket(self._path)

    def _respond(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:  # Any: WSGI
        path = environ["PATH_INFO"]
        if path in self._pages:
            return self._pages[path](environ, start_response)
        check = self._checks.get(path)
        if check is None:
            status, text = "404 Not Found", f"known are {', '.join([*self._checks, *self._pages])}"
        else:
            reason = check()
            status, text = ("503 Service Unavailable", reason) if reason else ("200 OK", "ok")
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode() + b"\n"]


def ask_health(path: str, check: str, timeout: float) -> str:
    """Ask the server on a unix socket for a check; return the reason for 503, or why there is no answer, or ""."""
    try:
        is_ok, body = get(path, check, timeout)
    except OSError as error:
        return f"{check} does not answer: {error}"
    return "" if is_ok else body.strip() or f"{check} has an empty answer"


def get(path: str, page: str, timeout: float) -> tuple[bool, str]:
    """Ask the server on a unix socket for a page. Return whether the status is 200, and the body.

    Raises:
        OSError: If there is no answer within timeout seconds.
    """
    with gevent.Timeout(timeout, TimeoutError(f"no answer within {timeout:g} s")), _connected(path) as connection:
        connection.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    return head.partition("\r\n")[0].split()[1:2] == ["200"], body


@contextlib.contextmanager
def _connected(path: str) -> Any:  # Any: gevent has no types
    with CooperativeSocket(socket.AF_UNIX) as connection:
        connection.connect(path)
        yield connection


def _listen_on_path(path: str) -> Any:  # Any: gevent has no types
    # A process that was killed has left its socket.
    _remove_socket(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def _remove_socket(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
