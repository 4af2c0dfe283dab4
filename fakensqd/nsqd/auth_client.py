"""HTTP client of auth servers on gevent: only the calling greenlet waits.

Opens a connection per request. Source: nsq internal/auth/authorizations.go; internal/http_api/api_request.go GETV1.
"""

from __future__ import annotations

import http.client
import logging
import random
import ssl
from functools import partial
from typing import Any
from urllib.parse import SplitResult, quote_plus, urlsplit

from fakensqd.addresses import connect
from fakensqd.clock import Clock, run_with_timeout
from fakensqd.effects import AskAuth
from fakensqd.nsqd.auth import Authorization, decode_authorization
from fakensqd.options import NsqdOptions
from fakensqd.tls import client_context

__all__ = ["AuthClient", "query_url"]

logger = logging.getLogger(__name__)

# Limit of an answer in bytes; nsqd has none. To parse JSON blocks the hub, for 0.1 s with 1 MB.
_MAX_ANSWER_SIZE = 1024 * 1024
_HEADERS = {"Accept": "application/vnd.nsq; version=1.0"}


class AuthClient:
    """Client of the auth servers of one nsqd."""

    def __init__(self, options: NsqdOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._context: ssl.SSLContext | None = None

    def ask(self, request: AskAuth) -> Authorization | None:
        """Ask one server after another, first a random one. Return the first valid response; None if there is none."""
        addresses = self._options.auth_http_addresses
        start = random.randrange(len(addresses))
        for address in (*addresses[start:], *addresses[:start]):
            url = query_url(address, request)
            try:
                body = run_with_timeout(self._clock, self._options.http_client_request_timeout, partial(self._get, url))
                return decode_authorization(body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                logger.warning("auth server %s: %s", address, error)
        return None

    def _get(self, url: str) -> bytes:
        """Return the body of a response with status 200."""
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        try:
            # With a gevent socket, http.client does not block the hub.
            connection.sock = self._connected(parts)
            connection.request("GET", f"{parts.path or '/'}?{parts.query}", headers=_HEADERS)
            with connection.getresponse() as answer:  # its end closes the socket
                body = answer.read(_MAX_ANSWER_SIZE + 1)
            if len(body) > _MAX_ANSWER_SIZE:
                raise ValueError(f"answer of more than {_MAX_ANSWER_SIZE} bytes")
            if answer.status != 200:
                raise ValueError(f"got response {answer.status} {body[:80]!r}")
            return body
        finally:
            connection.close()

    def _connected(self, parts: SplitResult) -> Any:  # Any: urllib3's TLS is no socket, but has what http.client uses
        secure = parts.scheme == "https"
        if not secure and parts.scheme != "http":
            raise ValueError(f"unsupported protocol scheme {parts.scheme!r}")
        address = parts.hostname or "", parts.port or (443 if secure else 80)
        sock = connect(address, self._clock, self._options.http_client_connect_timeout)
        if not secure:
            return sock  # ask() limits the time of all later steps
        if self._context is None:
            self._context = client_context(self._options)
        try:
            from urllib3.util.ssltransport import SSLTransport  # slow to load

            # TLS in memory, so that each read lets other greenlets run. OpenSSL itself would read without an end.
            return SSLTransport(sock, self._context, server_hostname=parts.hostname)
        except BaseException:  # also after a timeout: nothing else closes the socket yet
            sock.close()
            raise


def query_url(address: str, request: AskAuth) -> str:
    """Make the URL of a query.

    Args:
        address: ``host:port``, or a whole URL.
    """
    query = (
        f"common_name={quote_plus(request.common_name)}&remote_ip={quote_plus(request.remote_ip)}"
        f"&secret={quote_plus(request.secret)}&tls={'true' if request.tls else 'false'}"
    )
    return f"{address}?{query}" if "://" in address else f"http://{address}/auth?{query}"
