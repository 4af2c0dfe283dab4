"""HealthApplication and serve_health(): answers to probes, such as those of Kubernetes, and statistics as JSON.

``/live`` is 200 if each client works, starts or drains. It is 503 if a client has closed, if its thread has ended or is
blocked, or if ``is_healthy`` of a consumer is False. ``/ready`` is 200 if ``is_ready`` of each client is True; so it is
503 while the clients drain. A producer that is not started is ready: the first publish starts it, and none would come
to a program that is not ready. The text of a 503 has a line with the reason for each client. ``/stats`` is JSON.

``/live`` is meant to fail if a restart may help. A producer without an nsqd is live: it connects again by itself. A
consumer without one is not live, since its ``is_healthy`` also finds wrong addresses: let the probe fail only after
some minutes (``failureThreshold`` in Kubernetes).

The answers come from the hub that serves the requests. It serves them also while all handlers wait. While a handler
blocks this hub, no answer comes, so the probe fails by its timeout. If a client has another thread, with
``threaded=True``, /live asks the hub of that thread, and is 503 if it does not run within ``blocked_after`` seconds.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gevent import socket
from gevent.pywsgi import WSGIServer

from gnsq.addresses import format_address
from gnsq.concurrency.sockets import CooperativeHandler
from gnsq.concurrency.threads import checked_seconds
from gnsq.consumer import Consumer
from gnsq.lifecycle import State
from gnsq.options import Seconds
from gnsq.producer import Producer
from gnsq.texts import reason_of

__all__ = ["HealthApplication", "serve_health"]

logger = logging.getLogger(__name__)

Client = Consumer | Producer

_TEXT = "text/plain; charset=utf-8"

# A status, the type of a content, and the content.
Answer = tuple[str, str, bytes]


def checked(reason: str) -> Answer:
    """Make the answer to a probe: 200, or 503 and the reason."""
    return ("503 Service Unavailable", _TEXT, f"{reason}\n".encode()) if reason else ("200 OK", _TEXT, b"ok\n")


class Pages:
    """A WSGI application that answers GET and HEAD of some paths. Other paths are 404.

    Args:
        pages: By path: a function that makes the answer.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Answer]]) -> None:
        self._pages = pages

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:  # Any: WSGI
        """Answer a request."""
        method, page = environ["REQUEST_METHOD"], self._pages.get(environ.get("PATH_INFO", ""))
        kind, extra = _TEXT, []
        if page is None:
            status, body = "404 Not Found", f"known are {', '.join(self._pages)}\n".encode()
        elif method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", f"{method} is not possible: use GET or HEAD\n".encode()
            extra = [("Allow", "GET, HEAD")]
        else:
            status, kind, body = page()
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"), *extra]
        start_response(status, headers)
        return [] if method == "HEAD" else [body]


def serve(host: str, port: int, application: Callable[..., Iterable[bytes]]) -> WSGIServer:
    """Serve a WSGI application in the background, in the hub of the calling thread.

    Raises:
        OSError: If the address is not free.
    """
    # Requests are not logged: a probe comes every few seconds.
    server = WSGIServer(_listen(host, port), application, log=None, error_log=logger, handler_class=CooperativeHandler)
    server.start()
    return server


class HealthApplication(Pages):
    """A WSGI application that answers GET and HEAD of /live, /ready and /stats. Other paths are 404.

    A framework may mount it under any path. Its answers have no secrets, but names of topics and addresses.

    Args:
        clients: Consumers and producers, started or not. add() adds others later.
        blocked_after: Seconds in which the hub of a client's thread must run, if it is another thread. Should be below
            the timeout of the probe.

    Raises:
        ValueError: If no client is given.
    """

    def __init__(self, *clients: Client, blocked_after: Seconds = 0.5) -> None:
        if not clients:
            raise ValueError("HealthApplication has no client: give a Consumer or a Producer, or several")
        super().__init__(
            {
                "/live": lambda: checked("\n".join(self.why_not_live())),
                "/ready": lambda: checked("\n".join(self.why_not_ready())),
                "/stats": lambda: ("200 OK", "application/json", f"{json.dumps(self.stats())}\n".encode()),
            }
        )
        self._clients: dict[Client, None] = dict.fromkeys(clients)
        self._blocked_after = checked_seconds("blocked_after", blocked_after)

    def add(self, client: Client) -> None:
        """Add a consumer or a producer, unless it was added before."""
        self._clients[client] = None

    def remove(self, client: Client) -> None:
        """Remove a client, such as one that is closed while the program continues. Ignores unknown clients."""
        self._clients.pop(client, None)

    def why_not_live(self) -> list[str]:
        """Return a line for each client for which a restart of the process may help. Empty: live."""
        return self._reasons(lambda client: _why_not_live(client, self._blocked_after))

    def why_not_ready(self) -> list[str]:
        """Return a line for each client that receives or publishes nothing now. Empty: ready."""
        return self._reasons(_why_not_ready)

    def _reasons(self, check: Callable[[Client], str]) -> list[str]:
        return [f"{_label(client)}: {reason}" for client in list(self._clients) if (reason := check(client))]

    def stats(self) -> dict[str, list[dict[str, Any]]]:  # Any: fields of all types
        """Return the statistics of all clients, by kind: ``consumers`` and ``producers``.

        Each has the fields of ConsumerStats or ProducerStats and the keys ``name`` and ``is_ready``; a consumer also
        ``is_healthy``, ``in_flight`` and ``rdy``. Later versions may add keys.
        """
        clients = list(self._clients)
        return {
            "consumers": [_consumer_stats(client) for client in clients if isinstance(client, Consumer)],
            "producers": [
                {"name": client.name, "is_ready": client.is_ready, **dataclasses.asdict(client.stats())}
                for client in clients
                if isinstance(client, Producer)
            ],
        }


def serve_health(port: int, *clients: Client, host: str = "", blocked_after: Seconds = 0.5) -> WSGIServer:
    """Serve a HealthApplication in the background, in the hub of the calling thread, until the program ends.

    Args:
        port: TCP port; 0: a free one, which is the attribute ``server_port`` of the returned server.
        clients, blocked_after: As for HealthApplication.
        host: Address to listen on. Default: all addresses of the machine, of IPv6 too if it has that: the kubelet of
            Kubernetes sends its probes to the address of the pod, so ``127.0.0.1`` would not do there.

    Returns:
        gevent's server, whose stop() ends it before the end of the program. Its ``application`` is the
        HealthApplication.

    Raises:
        ValueError: If no client is given.
        OSError: If the address is not free.
    """
    application = HealthApplication(*clients, blocked_after=blocked_after)
    host = host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")
    return serve(host, port, application)


def _listen(host: str, port: int) -> Any:  # Any: gevent has no types
    # gevent's server would not close the socket if the address is not free.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"can't listen on {format_address(host, port)}: {reason_of(error)}") from error
    return listener


def _label(client: Client) -> str:
    return client.log_owner.label


def _why_not_live(client: Client, blocked_after: float) -> str:
    stats = client.stats()
    if client.is_closed:
        return stats.not_ready
    if not client.is_running:
        return ""  # it starts or drains: a restart would only interrupt that
    if reason := client.why_blocked(blocked_after):
        return reason
    if isinstance(client, Producer) or client.is_healthy:
        return ""
    failures = [f"{address}: {text}" for address, text in stats.lookupd_failures.items()]
    return stats.not_ready or "; ".join(failures)


def _why_not_ready(client: Client) -> str:
    stats = client.stats()
    if client.is_ready or (isinstance(client, Producer) and stats.state == State.INIT.value):
        return ""
    return "not started: start() does it" if stats.state == State.INIT.value else stats.not_ready


def _consumer_stats(consumer: Consumer) -> dict[str, Any]:  # Any: fields of all types
    stats = consumer.stats()
    own = {"name": _label(consumer), "is_ready": consumer.is_ready, "is_healthy": consumer.is_healthy}
    return {**own, "in_flight": stats.in_flight, "rdy": stats.rdy, **dataclasses.asdict(stats)}
