"""One HTTP exchange with requests: sent, answered and read to its end, or a NoAnswer that says how far it came.

Blocks its thread, or under monkey patching its greenlet. Loads requests, which is slow: imported by the first exchange,
where it blocks no hub.
Knows no endpoint, and decides neither about retries nor about what an answer means.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from gnsq.errors import NSQHttpError
from gnsq.http.exchange import NoAnswer, Request, Watch
from gnsq.http.responses import Response, printable, shown

__all__ = ["Session"]

# What a broken connection, a strange answer or a bad proxy make requests and what is below it raise.
_FAILURES = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
)
_CHUNK = 64 * 1024
_TCP_PORTS = "nsqd's TCP port, 4150, in place of 4151, or nsqlookupd's, 4160, in place of 4161"


class Session:
    """Connections kept open, used by one exchange at a time.

    Args:
        headers: Of each request.
        proxies: As requests takes them; None for none.
        context: For HTTPS.
    """

    def __init__(
        self, headers: Mapping[str, str], proxies: Mapping[str, str] | None, context: ssl.SSLContext | None
    ) -> None:
        self._watch = Watch()
        self._session = _RequestsSession()
        # Neither proxies nor passwords nor CAs that some environment variable or ~/.netrc names.
        self._session.trust_env = False
        self._session.headers.clear()
        self._session.headers.update(headers)
        self._session.proxies = dict(proxies or {})
        adapter = _Adapter(context, self._watched)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def exchange(
        self, request: Request, watch: Watch, *, seconds: float, connect_timeout: float, max_size: int
    ) -> Response:
        """Send a request and read its answer. Follows no redirect.

        Args:
            seconds: Limit of connecting, and of each wait after it.
            max_size: Bytes of a longer body are not read.

        Raises:
            NoAnswer: If there is none.
            NSQHttpError: If the body is too long or encoded.
        """
        self._watch = watch
        try:
            with self._sent(request, (min(connect_timeout, seconds), seconds)) as response:
                return _read(request, response, max_size)
        except _FAILURES as error:
            raise _no_answer(error, watch) from error

    @contextlib.contextmanager
    def _sent(self, request: Request, timeout: tuple[float, float]) -> Iterator[requests.Response]:
        response = self._session.request(
            request.method,
            request.url,
            params=dict(request.params),
            data=request.body,
            timeout=timeout,
            allow_redirects=False,
            stream=True,
        )
        try:
            yield response
        finally:
            # One that was read to its end has gone back to its pool already; another is closed by this.
            response.close()

    def _watched(self, connection_class: Any) -> Any:  # Any: classes of urllib3 with and without TLS, of socks
        """Derive a class of connections that tell what they are about to do."""
        session = self

        class Watched(connection_class):  # type: ignore[misc]  # which one is known at run time
            def connect(self) -> None:
                session._watch.connecting(self)
                super().connect()

            def send(self, data: Any) -> None:
                if self.sock is None:
                    self.connect()
                session._watch.sending(self)
                super().send(data)

        return Watched


class _RequestsSession(requests.Session):
    """requests' session, which looks at no redirect: those that it does not follow it would read to their end."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Say that there is none."""


class _Adapter(HTTPAdapter):
    """requests' adapter, with our TLS context and our connections; it never retries."""

    def __init__(self, context: ssl.SSLContext | None, watched: Callable[[Any], Any]) -> None:
        self._context = context
        self._watched = watched
        super().__init__(pool_connections=2, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **kwargs, ssl_context=self._context)
        if not known:
            self._watch(manager)
        return manager

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Leave all to the context; requests would load CAs of its own into it."""

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        """Likewise."""
        return super().build_connection_pool_key_attributes(*args, **kwargs)[0], {}

    def _watch(self, manager: Any) -> None:
        classes = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {
            scheme: functools.partial(self._pool, pool_class) for scheme, pool_class in classes.items()
        }

    def _pool(self, pool_class: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        pool = pool_class(*args, **kwargs)
        pool.ConnectionCls = self._watched(pool.ConnectionCls)
        return pool


def _read(request: Request, response: requests.Response, max_size: int) -> Response:
    headers = response.headers
    encoding = headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise NSQHttpError(
            f"{request}: answer is encoded as {shown(encoding)}, which was not asked for", response.status_code
        )
    announced = headers.get("Content-Length", "")
    too_large = NSQHttpError(
        f"{request}: answer of more than {max_size} bytes exceeds max_response_size {max_size}", response.status_code
    )
    if announced.isdecimal() and int(announced) > max_size:
        raise too_large
    chunks, size = [], 0
    for chunk in response.iter_content(_CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_size:
            raise too_large
    return Response(
        response.status_code,
        response.reason or "",
        headers.get("Content-Type", ""),
        b"".join(chunks),
        headers.get("Location", ""),
    )


def _no_answer(error: Exception, watch: Watch) -> NoAnswer:
    causes = list(_causes(error))
    text, final = _explained(causes)
    return NoAnswer(
        text,
        sent=watch.sent,
        reused=watch.sent and not watch.connected,
        timed_out=any(isinstance(cause, TimeoutError) for cause in causes),
        final=final,
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Unwrap what requests and urllib3 wrap, the outermost first."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or current in seen:
            continue
        seen.append(current)
        yield current
        waiting += [*current.args, getattr(current, "reason", None), current.__cause__]


def _explained(causes: list[BaseException]) -> tuple[str, bool]:
    """Say in a few words what went wrong, with what to do where that is known; and whether it will again."""
    for cause in reversed(causes):
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = cause.verify_message or str(cause)
            return (
                f"certificate is not trusted: {words} (give the CA that signed it as ca_certs; "
                "cert_reqs='CERT_NONE' trusts anybody)"
            ), True
        if isinstance(cause, ssl.SSLEOFError):
            return (
                "server ended the TLS connection (if it always does: is the body longer than nsqd's --max-msg-size or "
                "--max-body-size, is it plain http there, or does it want a client's certificate, cert_file and "
                "key_file?)"
            ), False
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.strerror or cause}{_tls_advice(str(cause))}", True
        if isinstance(cause, http.client.BadStatusLine) and not isinstance(cause, ConnectionError):
            return f"answer is not HTTP (is it {_TCP_PORTS}; or does it want https?)", True
    for cause in reversed(causes):
        if isinstance(cause, TimeoutError):
            return "timed out", False
        if isinstance(cause, ConnectionResetError):
            return f"{cause.strerror or cause} (is it {_TCP_PORTS}?)", False
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror, False
    # The first line, cleaned: some repeat what the server sent.
    return printable(str(causes[-1]).partition("\n")[0]) or type(causes[-1]).__name__, False


def _tls_advice(text: str) -> str:
    upper = text.upper()
    if any(words in upper for words in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")):
        return " (is it plain http there?)"
    if "CERTIFICATE_REQUIRED" in upper or "HANDSHAKE_FAILURE" in upper or "ALERT_BAD_CERTIFICATE" in upper:
        return " (it may want a client's certificate: cert_file and key_file)"
    return ""
