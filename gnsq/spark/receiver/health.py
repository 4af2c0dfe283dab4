"""Health of a receiver over HTTP, for the probes of Kubernetes.

``GET /live`` and ``GET /ready`` answer 200 and ``ok``, or 503 and the reason. ``GET /metrics`` answers with metrics for
Prometheus, see metrics.py. Other paths answer 404. Any answer shows that the hub runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gevent.pywsgi import WSGIServer

from gnsq.addresses import is_unix, parse_address
from gnsq.concurrency.sockets import CooperativeHandler

if TYPE_CHECKING:
    from gnsq.spark.receiver.receiver import Receiver

__all__ = ["HealthServer", "parse_health_address", "why_not_live", "why_not_ready"]

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
    """Split ``host:port``.

    Raises:
        ValueError: If there is no port, or the address is not valid.
    """
    host, port = parse_address(address, 0)
    if not port or is_unix(host):
        raise ValueError(f"address {address!r} has no port: give host:port, such as 0.0.0.0:8080")
    return host, port


class HealthServer:
    """Serves checks and other pages by their paths, until close().

    Raises:
        ValueError: If the address is not valid.
        OSError: If it can't be listened on.
    """

    def __init__(self, address: str, checks: Mapping[str, Check], pages: Mapping[str, Application] = NO_PAGES) -> None:
        self._checks = checks
        self._pages = pages
        # Requests are not logged: a probe comes every few seconds.
        self._server = WSGIServer(
            parse_health_address(address), self._respond, log=None, error_log=None, handler_class=CooperativeHandler
        )
        self._server.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.stop(timeout=0)

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
