"""The connections of one HTTP client in one hub, and the calls over them, with deadlines and retries.

The library ``requests`` uses gevent's sockets here, so a call blocks only its own greenlet. Other modules interpret the
responses. Importing this module takes 0.1 s, because that imports the library.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import ssl
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import gevent
import requests
import urllib3
from gevent import socket
from gevent.lock import BoundedSemaphore
from requests.adapters import HTTPAdapter
from urllib3.util.ssltransport import SSLTransport

from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.sockets import CooperativeSocket
from gnsq.concurrency.threads import hub_call_queue
from gnsq.errors import NSQHttpError, NSQHttpTimeout, NSQHttpUnreachable
from gnsq.http.options import HttpOptions
from gnsq.http.responses import Response, shown
from gnsq.texts import option_text, printable

__all__ = ["Call", "Connections"]

# Seconds before the first retry. Each further retry waits twice as long as the one before, up to _MAX_RETRY_DELAY.
_RETRY_DELAY = 0.1
_MAX_RETRY_DELAY = 2.0
_CHUNK = 64 * 1024
# Limit of what is received besides the body, in bytes: status lines such as 100 Continue, headers, sizes of chunks,
# trailers, and what TLS adds. Without the limit such lines could go on until the deadline, and one line could fill the
# memory. A body raises the limit by its own size, since it may come in small chunks.
_MAX_OVERHEAD = 256 * 1024
_TCP_PORTS = "nsqd's TCP port, 4150, in place of 4151, or nsqlookupd's, 4160, in place of 4161"
# Exceptions that requests, urllib3 and http.client raise for a broken connection, a malformed response or a bad proxy.
_FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)


class NoResponse(Exception):
    """A request got no complete, valid response.

    Attributes:
        sent: True if any byte of the request may have been sent.
        reused: True if the request was sent on a connection that an earlier request had opened.
        timed_out: True if the reason is a timeout.
        final: True if a retry would fail for the same reason.
    """

    def __init__(self, error: Exception, call: Call) -> None:
        causes = list(_causes(error))
        text, self.final = _explain(causes)
        super().__init__(text)
        self.sent = call.sent
        self.reused = call.sent and not call.connected
        self.timed_out = any(isinstance(cause, TimeoutError) for cause in causes)


class Connections:
    """The connections of one client in one hub, that of the thread that makes this object, and the calls over them.

    Only close() may be called from another thread.

    Args:
        address: URL of the server, for error texts.
        headers: Headers of each request.
        context: TLS context for HTTPS; None for HTTP.

    Attributes:
        closed: Reason why the connections were closed; empty while they are open.
    """

    def __init__(
        self, address: str, options: HttpOptions, headers: Mapping[str, str], context: ssl.SSLContext | None
    ) -> None:
        self.hub = gevent.get_hub()
        self.closed = ""
        self.options = options
        self.headers = headers
        self._address = address
        self._queue = hub_call_queue()
        self._adapter = _Adapter(context, options.maxsize)
        self._slots = BoundedSemaphore(options.maxsize)
        self._calls: set[Call] = set()
        register_after_fork(self)

    def close(self, *, in_own_thread: bool) -> None:
        """Close all connections, so that waiting calls fail. If in_own_thread is False, their hub does so later."""
        self.closed = "client was closed while it waited for a response"
        if not in_own_thread:
            # If the hub was destroyed, its queue raises ValueError, and the connections are closed here.
            with contextlib.suppress(ValueError):
                self._queue.call_soon_threadsafe(self._end)
                return
        self._end()

    def after_fork_in_child(self, parent: int) -> None:
        """Close this child process's copies of the connections. The parent continues to use the connections."""
        self.closed = f"connection belongs to process {parent}, and this is its child"
        for call in self._calls:
            if call.socket is not None:
                # Close the socket before the call fails. Otherwise the call could read bytes that the parent waits for.
                _close_descriptor(call.socket)
        self._end()

    def _end(self) -> None:
        for call in self._calls:
            self.hub.loop.run_callback(self._interrupt, call)
        self._adapter.close()

    def _interrupt(self, call: Call) -> None:
        # The hub runs this callback. So the greenlet of an unfinished call waits now, and throw() raises in it.
        if call in self._calls:
            call.greenlet.throw(call.deadline)

    def _closed_error(self) -> NSQHttpError:
        return NSQHttpError(f"{self._address}: {self.closed}")

    @contextlib.contextmanager
    def call(self, what: str, timeout: float) -> Iterator[Call]:
        """Begin a call, and limit its time.

        Args:
            what: The request, for error texts.
            timeout: Seconds.

        Raises:
            NSQHttpError: If the client is closed before the end. If time is over: NSQHttpTimeout or NSQHttpUnreachable.
        """
        call = Call(self, what, timeout)
        token = _current_call.set(call)
        self._calls.add(call)
        try:
            yield call
        except gevent.Timeout as expired:
            if expired is not call.deadline:
                raise
            raise (self._closed_error() if self.closed else call.timeout_error()) from None
        finally:
            self._calls.discard(call)
            call.deadline.close()
            _current_call.reset(token)

    def exchange(self, call: Call, request: requests.Request, *, fresh: bool) -> Response:
        """Send a request and read the response. Does not follow redirects.

        Args:
            fresh: True: close the idle connections first, so that the request uses a new one.

        Raises:
            NoResponse: If no connection can be made, or the connection or the response is broken.
            NSQHttpError: If the client is closed, or the response is too long or has an encoding such as gzip.
        """
        with self._slots:
            call.connected = call.sent = False
            call.received = call.body_size = 0
            if self.closed:
                raise self._closed_error()
            if fresh:
                # Empty the pool. Until the send no other greenlet runs, so no other call can put a connection back.
                self._adapter.close()
            seconds = max(call.ends - time.monotonic(), 0.001)
            timeout = (min(self.options.connect_timeout or seconds, seconds), None)
            try:
                # Do not use a requests.Session: it would use proxies and passwords of the environment, and would read
                # the whole body of each redirect.
                response = self._adapter.send(
                    request.prepare(), stream=True, timeout=timeout, proxies=self.options.proxies
                )
                # closing() closes a broken connection. After a complete response the pool has the connection already.
                with contextlib.closing(response):
                    return _read(call, response, self.options.max_response_size)
            except _FAILURES as error:
                raise (self._closed_error() if self.closed else NoResponse(error, call)) from error
            finally:
                call.socket = None


class Call:
    """One call of a client: its requests with retries, all within one deadline. Made by Connections.call().

    Attributes:
        greenlet: The greenlet that waits for the call.
        deadline: The gevent.Timeout that is raised in the greenlet when the timeout is over or the client is closed.
        ends: Time at which the timeout is over, as time.monotonic().
        connected: True if the current request has begun to make a connection.
        sent: True if any byte of the current request may have been sent.
        received: Number of the bytes that were received for the current request.
        body_size: Number of these bytes that belong to the body of its response.
        what: The request, for error texts.
        socket: The socket to which the current request is sent; None before and after.
    """

    def __init__(self, connections: Connections, what: str, timeout: float) -> None:
        self._connections = connections
        self.what = what
        self._timeout = timeout
        self.greenlet = gevent.getcurrent()
        self.ends = time.monotonic() + timeout
        self.deadline = gevent.Timeout.start_new(timeout)
        self.connected = self.sent = False
        self.received = self.body_size = 0
        self.socket: Any = None  # Any: gevent has no types

    def send(self, method: str, url: str, params: Mapping[str, str], body: bytes | None) -> Response:
        """Send a request and return the response. Retry if that is safe.

        Raises:
            NSQHttpError: If there is no response, or it is refused: too long, or with an encoding such as gzip.
        """
        self.what = f"{method} {url}"
        request = requests.Request(method, url, self._connections.headers, data=body, params=params)
        retries, fresh = 0, False
        while True:
            try:
                return self._connections.exchange(self, request, fresh=fresh)
            except NoResponse as failure:
                if failure.reused and method == "GET" and not fresh:
                    # The server has probably closed the idle connection. Trying a new one does not count as a retry.
                    fresh = True
                    continue
                if retries >= self._connections.options.retries or not _may_be_repeated(method, failure):
                    raise self._error(failure) from failure.__cause__
            gevent.sleep(min(_RETRY_DELAY * 2**retries, _MAX_RETRY_DELAY))
            retries += 1

    def count(self, size: int) -> None:
        """Count received bytes. Raises NSQHttpError if they are too many beside the body."""
        self.received += size
        if self.received > _MAX_OVERHEAD + 2 * self.body_size:
            text = f"{self.what}: more than {_MAX_OVERHEAD} bytes of status lines, headers, chunk sizes or trailers"
            raise (NSQHttpError if self.sent else NSQHttpUnreachable)(text)

    def timeout_error(self) -> NSQHttpError:
        """Make the error for a call whose timeout is over."""
        if self.sent:
            return NSQHttpTimeout(f"{self.what}: no response within {self._timeout:.6g} s")
        return NSQHttpUnreachable(f"{self.what}: no response: nothing could be sent within {self._timeout:.6g} s")

    def _error(self, failure: NoResponse) -> NSQHttpError:
        if failure.timed_out and failure.sent:
            return self.timeout_error()
        if failure.sent:
            return NSQHttpError(f"{self.what}: no response: {failure}")
        return NSQHttpUnreachable(f"{self.what}: no response: can't connect: {failure}")


def _may_be_repeated(method: str, failure: NoResponse) -> bool:
    """Return True if a retry may succeed and is safe: nothing was sent, or it is a GET that has not timed out."""
    if failure.final:
        return False
    return not failure.sent or (method == "GET" and not failure.timed_out)


# The call of the current greenlet. The connection that the call uses sets connected, sent and socket of the call.
_current_call: ContextVar[Call] = ContextVar("gnsq.http.call")


# --- requests and urllib3 on gevent's sockets ---


class _Adapter(HTTPAdapter):
    """An HTTPAdapter that uses gevent's sockets and the given TLS context, and never retries."""

    def __init__(self, context: ssl.SSLContext | None, maxsize: int) -> None:
        # Keyword arguments for urllib3's pool managers. Any: each keyword has its own type.
        self._tls: dict[str, Any] = {} if context is None else {"ssl_context": _BufferedTLS(context)}
        # Two pools suffice: one for the server and one for its proxy.
        super().__init__(pool_connections=2, pool_maxsize=maxsize, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:  # Any: arguments of HTTPAdapter
        super().init_poolmanager(*args, **kwargs | self._tls)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:  # Any: arguments of HTTPAdapter
        manager = super().proxy_manager_for(proxy, **kwargs | self._tls)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing. HTTPAdapter's method makes urllib3 trust the CAs of the library requests."""

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        """Leave out requests' own TLS settings, since the context has the settings to use."""
        return super().build_connection_pool_key_attributes(*args, **kwargs)[0], {}


class _Socket(CooperativeSocket):
    """A gevent socket that counts the received bytes of its call."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        _current_call.get().count(len(data))
        return data


class _Connection(urllib3.connection.HTTPConnection):
    """A connection on a gevent socket, which records the progress of its call."""

    sock: Any  # gevent has no types
    gevent_socket: Any = None

    def _new_conn(self) -> Any:
        connected = socket.create_connection((self._dns_host, self.port), self.timeout)
        self.gevent_socket = _Socket.take_over(connected)
        for option in self.socket_options or ():
            self.gevent_socket.setsockopt(*option)
        return self.gevent_socket

    def connect(self) -> None:
        call = _current_call.get()
        call.connected = True
        try:
            super().connect()
        finally:
            call.sent = False  # only CONNECT may have been sent, to a proxy
        # From now on the timeout of the whole call is the only limit.
        self.sock.settimeout(None)

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        call = _current_call.get()
        call.sent, call.socket = True, self.gevent_socket
        super().send(data)

    def close(self) -> None:
        sock = self.gevent_socket
        if sock is not None and sock.hub.loop is None:
            # The hub was destroyed. gevent's close() would fail, since it needs the loop of the hub.
            _close_descriptor(sock)
            self.sock = None
        super().close()


class _TLSConnection(_Connection, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


_POOLS = {"http": _Pool, "https": _TLSPool}


class _BufferedTLS:
    """A wrapper of an SSLContext. Its sockets do TLS in memory, over sockets of any kind.

    SSLContext.wrap_socket() of the standard library takes the descriptor of a gevent socket and blocks the hub. urllib3
    sets attributes of its context to the values that they already have. This object stores these attributes itself,
    since an SSLContext that was made before gevent patched ssl can't be changed.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of any type
        return getattr(self._context, name)

    def wrap_socket(self, sock: Any, server_hostname: str | None = None) -> SSLTransport:  # Any: gevent has no types
        try:
            if self._context.check_hostname and not server_hostname:
                # SSLContext.wrap_socket() checks this. SSLTransport calls wrap_bio() instead, which does not check it.
                raise ValueError("check_hostname requires server_hostname")
            return SSLTransport(sock, self._context, server_hostname)
        except BaseException:
            sock.close()
            raise


def _close_descriptor(sock: Any) -> None:  # Any: gevent has no types
    """Close a gevent socket without using its hub."""
    sock._sock.close()


# --- responses and errors ---


def _read(call: Call, response: requests.Response, max_size: int) -> Response:
    headers = response.headers
    encoding = headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise NSQHttpError(
            f"{call.what}: response has the encoding {shown(encoding)}, which was not allowed",
            response.status_code,
        )
    announced = headers.get("Content-Length", "")
    too_large = NSQHttpError(
        f"{call.what}: response of more than {max_size} bytes exceeds max_response_size {max_size}",
        response.status_code,
    )
    if announced.isdecimal() and int(announced) > max_size:
        raise too_large
    body = io.BytesIO()
    for chunk in response.iter_content(_CHUNK):
        call.body_size += body.write(chunk)
        if call.body_size > max_size:
            raise too_large
    return Response(
        response.status_code,
        response.reason or "",
        headers.get("Content-Type", ""),
        body.getvalue(),
        headers.get("Location", ""),
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and all errors that requests and urllib3 have wrapped in it, the outermost first."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or current in seen:
            continue
        seen.append(current)
        yield current
        waiting += [*current.args, getattr(current, "reason", None), current.__cause__]


def _explain(causes: list[BaseException]) -> tuple[str, bool]:
    """Describe an error in a few words, with a hint if there is one.

    Returns:
        The text, and True if a retry would fail for the same reason.
    """
    for cause in reversed(causes):
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = cause.verify_message or str(cause)
            return (
                f"certificate is not trusted: {words} (give the CA that signed it as {option_text('ca_certs')}; "
                f"{option_text('cert_reqs=CERT_NONE')} trusts any certificate)"
            ), True
        if isinstance(cause, ssl.SSLEOFError):
            return (
                "server ended the TLS connection (if it always does: is the body longer than nsqd's --max-msg-size or "
                "--max-body-size, is it plain http there, or does it want a client's certificate, cert_file and "
                "key_file?)"
            ), False
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.strerror or cause}{_tls_hint(str(cause))}", True
        if isinstance(cause, http.client.BadStatusLine) and not isinstance(cause, ConnectionError):
            return f"response is not HTTP (is it {_TCP_PORTS}; or does it want https?)", True
    for cause in reversed(causes):
        if isinstance(cause, TimeoutError):
            return "timed out", False
        if isinstance(cause, ConnectionResetError):
            return f"{cause.strerror or cause} (is it {_TCP_PORTS}?)", False
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror, False
    # Some texts repeat bytes that the server sent, so show only the first line, without control characters.
    return printable(str(causes[-1]).partition("\n")[0]) or type(causes[-1]).__name__, False


def _tls_hint(text: str) -> str:
    upper = text.upper()
    if any(words in upper for words in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")):
        return " (is it plain http there?)"
    if "CERTIFICATE_REQUIRED" in upper or "HANDSHAKE_FAILURE" in upper or "ALERT_BAD_CERTIFICATE" in upper:
        return " (it may want a client's certificate: cert_file and key_file)"
    return ""
