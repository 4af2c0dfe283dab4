"""The connections of one HTTP client in one hub, and the calls over them, with deadlines and retries.

The library ``requests`` uses gevent's sockets here, so a call blocks only its own greenlet. Other modules interpret the
responses. Importing this module takes 0.1 s, because that imports the library.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import ssl
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import gevent
import requests
import urllib3
from gevent.lock import BoundedSemaphore
from requests.adapters import HTTPAdapter
from urllib3.util.ssltransport import SSLTransport

from gnsq.backofftimer import exponential_delay
from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.sockets import CooperativeSocket
from gnsq.concurrency.threads import get_hub_if_exists, hub_call_queue
from gnsq.errors import NSQHttpError, NSQHttpTimeout, NSQHttpUnreachable
from gnsq.http.options import HttpOptions
from gnsq.http.responses import Response, shown
from gnsq.texts import printable
from gnsq.transport import open_socket, translate_os_error, tried_text

__all__ = ["Call", "Connections", "explain"]

# Seconds before the first retry. Each further retry waits twice as long as the one before, up to _MAX_RETRY_DELAY.
_RETRY_DELAY = 0.1
_MAX_RETRY_DELAY = 2.0
_CHUNK = 64 * 1024
# Limit of what is received besides the body, in bytes: status lines such as 100 Continue, headers, sizes of chunks,
# trailers, and what TLS adds. Without the limit such lines could go on until the deadline, and one line could fill the
# memory. A body raises the limit by its own size, since it may come in small chunks.
_MAX_OVERHEAD = 256 * 1024
_TCP_PORTS = "nsqd's TCP port, 4150, in place of 4151, or nsqlookupd's, 4160, in place of 4161"
# Exceptions that requests, urllib3 and http.client raise for a broken connection, a malformed response.
_FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)


class Connections:
    """The connections of one client in one hub, that of the thread that makes this object, and the calls over them.

    Only close() may be called from another thread.

    Args:
        address: URL of the server, for errors.
        headers: Headers of each request.
        context: TLS context for HTTPS; None for HTTP.

    Attributes:
        closed: Reason why the connections were closed; empty while they are open.
        slots: Limits the requests that run at the same time.
    """

    def __init__(
        self, address: str, options: HttpOptions, headers: Mapping[str, str], context: ssl.SSLContext | None
    ) -> None:
        self.hub = gevent.get_hub()
        self.closed = ""
        self.options = options
        self.headers = headers
        self.adapter = _Adapter(context, options.maxsize)
        self.slots = BoundedSemaphore(options.maxsize)
        self.address = address
        self._queue = hub_call_queue()
        self._calls: set[Call] = set()
        register_after_fork(self)

    def close(self) -> None:
        """Close all connections, so that waiting calls fail. In another thread: let their hub do so."""
        self.closed = "client was closed while it waited for a response"
        if get_hub_if_exists() is not self.hub:
            # If the hub was destroyed, its queue raises ValueError, and the connections are closed here.
            with contextlib.suppress(ValueError):
                self._queue.call_soon_threadsafe(self._end)
                return
        self._end()

    def after_fork_in_child(self, parent: int) -> None:
        """Close this child process's copies of the connections. The parent continues to use the connections."""
        self.closed = f"connection belongs to process {parent}, and this is its child"
        self._end()

    def _end(self) -> None:
        for call in self._calls:
            self.hub.loop.run_callback(self._interrupt, call)
        self.adapter.close()

    def _interrupt(self, call: Call) -> None:
        # The hub runs this callback. So the greenlet of an unfinished call waits now, and throw() raises in it.
        if call in self._calls:
            call.greenlet.throw(call.deadline)

    def check_open(self) -> None:
        """Raise NSQHttpError if the connections were closed."""
        if self.closed:
            raise NSQHttpError(self.closed, code="CLOSED")

    @contextlib.contextmanager
    def call(self, what: str, timeout: float) -> Iterator[Call]:
        """Begin a call, and limit its time.

        Args:
            what: The request, for errors.
            timeout: Seconds.

        Raises:
            NSQHttpError: If the client is closed before the end. If time is over: NSQHttpTimeout or NSQHttpUnreachable.
        """
        call = Call(self, what, timeout)
        token = _current_call.set(call)
        self._calls.add(call)
        try:
            with call.named_errors():
                yield call
        finally:
            self._calls.discard(call)
            call.deadline.close()
            _current_call.reset(token)


class Call:
    """One call of a client: its requests with retries, all within one deadline. Made by Connections.call().

    Attributes:
        greenlet: The greenlet that waits for the call.
        deadline: The gevent.Timeout that is raised in the greenlet when the timeout is over or the client is closed.
        connect_timeout: Seconds for connecting, which alone has a limit of its own.
        query: What is added to the query of each request.
        sent: True if any byte of the current request may have been sent.
        tried: Addresses of the server's name to which it could not connect, and why.
    """

    def __init__(self, connections: Connections, what: str, timeout: float) -> None:
        self._connections = connections
        self._what = what
        self._timeout = timeout
        self.greenlet = gevent.getcurrent()
        self.deadline = gevent.Timeout.start_new(timeout)
        self.connect_timeout = connections.options.connect_timeout or timeout
        self.query = connections.options.query
        self.sent = False
        self.tried: dict[str, str] = {}
        # Bytes that were received for the current request, and how many of them belong to the body of its response.
        self._received = self._body_size = 0

    def send(self, method: str, url: str, params: Mapping[str, str], body: bytes | None) -> Response:
        """Send a request and return the response. Retry if that is safe: nothing was sent, or it is a GET.

        Raises:
            NSQHttpError: If the client is closed, there is no response, or it is refused: too long, or with an encoding
                such as gzip.
        """
        self._what = f"{method} {url}"
        connections = self._connections
        request = requests.Request(method, url, connections.headers, data=body, params=params)
        retries = 0
        while True:
            try:
                with connections.slots:
                    connections.check_open()
                    return self._exchange(request.prepare())
            except _FAILURES as error:
                connections.check_open()
                code, reason, hint, is_final = explain(error)
                is_safe = not self.sent or method == "GET"
                if is_final or not is_safe or retries == connections.options.retries:
                    kind, doing = (NSQHttpError, "") if self.sent else (NSQHttpUnreachable, "can't connect: ")
                    hint = hint or tried_text(self.tried)
                    raise kind(f"no response: {doing}{reason}", code=code, hint=hint) from error
            retries += 1
            gevent.sleep(exponential_delay(retries, _RETRY_DELAY, _MAX_RETRY_DELAY))
            if self.sent:
                # What has broken this connection may have broken the idle ones, too.
                connections.adapter.close()

    def _exchange(self, request: requests.PreparedRequest) -> Response:
        self.sent = False
        self._received = self._body_size = 0
        # Do not use a requests.Session: it would use proxies and passwords of the environment.
        response = self._connections.adapter.send(request, stream=True)
        # closing() closes a broken connection. After a complete response the pool has the connection already.
        with contextlib.closing(response):
            return self._read(response, self._connections.options.max_response_size)

    def _read(self, response: requests.Response, max_size: int) -> Response:
        headers = response.headers
        encoding = headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            text = f"response has the encoding {shown(encoding)}, which was not allowed"
            raise NSQHttpError(text, response.status_code)
        announced = headers.get("Content-Length", "")
        too_large = NSQHttpError(
            f"response of more than {max_size} bytes exceeds max_response_size {max_size}", response.status_code
        )
        if announced.isdecimal() and int(announced) > max_size:
            raise too_large
        body = io.BytesIO()
        for chunk in response.iter_content(_CHUNK):
            self._body_size += body.write(chunk)
            if self._body_size > max_size:
                raise too_large
        return Response(
            response.status_code,
            response.reason or "",
            headers.get("Content-Type", ""),
            body.getvalue(),
            headers.get("Location", ""),
        )

    def count(self, size: int) -> None:
        """Count received bytes. Raises NSQHttpError if they are too many beside the body."""
        self._received += size
        if self._received > _MAX_OVERHEAD + 2 * self._body_size:
            text = f"more than {_MAX_OVERHEAD} bytes of status lines, headers, chunk sizes or trailers"
            raise (NSQHttpError if self.sent else NSQHttpUnreachable)(text)

    @contextlib.contextmanager
    def named_errors(self) -> Iterator[None]:
        """Let the errors of a block name the server and the request. At the deadline, raise the error for it."""
        try:
            try:
                yield
            except gevent.Timeout as expired:
                if expired is not self.deadline:
                    raise
                self._connections.check_open()
                if self.sent:
                    raise NSQHttpTimeout(f"no response within {self._timeout:.6g} s") from None
                text = f"no response: nothing could be sent within {self._timeout:.6g} s"
                raise NSQHttpUnreachable(text, code="ETIMEDOUT", hint=tried_text(self.tried)) from None
        except NSQHttpError as error:
            error.address, error.request = self._connections.address, error.request or self._what
            raise


# The call of the current greenlet. The connection that the call uses sets its attribute ``sent``.
_current_call: ContextVar[Call] = ContextVar("gnsq.http.call")


# --- requests and urllib3 on gevent's sockets ---


class _Adapter(HTTPAdapter):
    """An HTTPAdapter that uses gevent's sockets and the given TLS context, and never retries."""

    def __init__(self, context: ssl.SSLContext | None, maxsize: int) -> None:
        # Keyword arguments for urllib3's pool managers. Any: each keyword has its own type.
        self._tls: dict[str, Any] = {} if context is None else {"ssl_context": _BufferedTLS(context)}
        super().__init__(pool_connections=1, pool_maxsize=maxsize, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:  # Any: arguments of HTTPAdapter
        super().init_poolmanager(*args, **kwargs | self._tls)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing. HTTPAdapter's method makes urllib3 trust the CAs of the library requests."""

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        """Leave out requests' own TLS settings, since the context has the settings to use."""
        return super().build_connection_pool_key_attributes(*args, **kwargs)[0], {}


class _Socket(CooperativeSocket):
    """A gevent socket that counts the received bytes of its call. A forked child closes its copy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: arguments of gevent's socket
        super().__init__(*args, **kwargs)
        register_after_fork(self)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        _current_call.get().count(len(data))
        return data

    def after_fork_in_child(self, parent: int) -> None:
        """Close the descriptor now. Otherwise a call that waits could read bytes that the parent waits for."""
        self._sock.close()

    def close(self) -> None:
        if self.hub.loop is None:
            # The hub was destroyed. gevent's close() would fail, since it needs the loop of the hub.
            self._sock.close()
        else:
            super().close()


class _Connection(urllib3.connection.HTTPConnection):
    """A connection on a gevent socket, which records whether the request of its call was sent."""

    sock: Any  # gevent has no types

    def _new_conn(self) -> Any:
        call = _current_call.get()
        call.tried = {}
        sock = _Socket.take_over(open_socket(self._dns_host, self.port, call.connect_timeout, call.tried))
        sock.settimeout(call.connect_timeout)  # for the handshake of TLS
        for option in self.socket_options or ():
            sock.setsockopt(*option)
        return sock

    def connect(self) -> None:
        super().connect()
        # From now on the timeout of the whole call is the only limit.
        self.sock.settimeout(None)

    def putrequest(self, method: str, url: str, *arguments: Any, **options: Any) -> None:  # Any: as above
        # Only here, since the errors and log lines of urllib3 show its URL, and the query may be secret.
        query = _current_call.get().query
        if query:
            url += ("&" if "?" in url else "?") + query
        super().putrequest(method, url, *arguments, **options)

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        _current_call.get().sent = True
        super().send(data)

    def getresponse(self) -> Any:  # Any: as above
        # After a broken pipe urllib3 asks for a response, also if there is no connection yet.
        if self.sock is None:
            raise http.client.RemoteDisconnected("connection lost")
        return super().getresponse()


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

    def wrap_socket(self, sock: Any, server_hostname: str) -> SSLTransport:  # Any: gevent has no types
        return SSLTransport(sock, self._context, server_hostname)


# --- errors ---


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


def explain(error: BaseException) -> tuple[str, str, str, bool]:
    """Return the code, the reason and the hint of the error for one of requests, and True if a retry is of no use."""
    causes = list(_causes(error))
    for cause in reversed(causes):
        if isinstance(cause, ssl.SSLEOFError):
            hint = (
                "if it always does: is the body longer than nsqd's --max-msg-size or --max-body-size, is it plain http "
                "there, or does it want a client's certificate, {cert_file and key_file}?"
            )
            return "TLS_CLOSED", "server ended the TLS connection", hint, False
        if isinstance(cause, ssl.SSLError):
            from gnsq.tls import explain_ssl_error  # loads what HTTP without TLS does not need

            code, reason, _ = explain_ssl_error(cause)
            return code, f"TLS failed: {reason}", _TLS_HINTS.get(code, ""), True
        if isinstance(cause, http.client.BadStatusLine) and not isinstance(cause, ConnectionError):
            return "NOT_HTTP", "response is not HTTP", f"is it {_TCP_PORTS}; or does it want https?", True
    for cause in reversed(causes):
        if isinstance(cause, TimeoutError):
            return "ETIMEDOUT", "timed out", "", False
        if isinstance(cause, OSError) and cause.strerror:
            found = translate_os_error(cause, "")
            hint = f"is it {_TCP_PORTS}?" if isinstance(cause, ConnectionResetError) else ""
            return found.code, found.reason, hint, False
    # Some texts repeat bytes that the server sent, so show only the first line, without control characters.
    code = "HOST_UNKNOWN" if isinstance(causes[-1], UnicodeError) else ""
    return code, printable(str(causes[-1]).partition("\n")[0]) or type(causes[-1]).__name__, "", False


_TLS_HINTS = {
    "CERT_EXPIRED": "renew it, and restart the server; if it is valid, the clock of this machine is wrong",
    "CERT_UNKNOWN_CA": "give the CA that signed it as {ca_certs}; {cert_reqs='CERT_NONE'} trusts any certificate",
    "CERT_WRONG_NAME": "give the name in the certificate as the host of the URL",
    "NO_TLS": "is it plain http there?",
    "TLS_REFUSED": "it may want a client's certificate: {cert_file and key_file}",
}
