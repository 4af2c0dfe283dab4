"""HTTP client whose calls block only their own greenlet, not the hub.

The client has connections of its own in each hub that uses it. Subclasses know the endpoints.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack
from urllib.parse import unquote, urlsplit

import gevent

from gnsq.addresses import format_address, is_host, parse_address
from gnsq.concurrency.threads import checked_timeout, local
from gnsq.errors import NSQHttpError
from gnsq.http.options import HttpClientOptionsDict, HttpOptions, HttpOptionsDict, check_header
from gnsq.http.responses import is_unknown_path, parse_result
from gnsq.options import USER_AGENT, Seconds
from gnsq.texts import shown_argument
from gnsq.tracebacks import clears_locals

if TYPE_CHECKING:
    import ssl

    from gnsq.http.connections import Call, Connections

__all__ = ["HTTPClient", "HttpClientOptionsDict", "HttpOptions", "HttpOptionsDict", "USERAGENT", "arguments_of"]

USERAGENT = USER_AGENT

# The value of the header Accept. Without this value, servers from 0.3 to 0.3.8 wrap their responses in old envelopes.
_ACCEPT = "application/vnd.nsq; version=1.0"


class HTTPClient:
    """A client of one HTTP address, for all greenlets of all threads.

    The timeout of a call covers the whole call, even if the server sends slowly. Each thread has its own connections,
    which stay open between calls. A connection that the server has closed is replaced. If the client notices the close
    only after sending, it retries a GET. A request with another method fails: the server may have executed it.

    A POST is sent again only if nothing was sent, or the server does not know its path. So the client duplicates
    nothing. After an NSQHttpUnreachable, the caller can safely send the POST again. After another NSQHttpError whose
    status is None, such as NSQHttpTimeout, the server may have executed the POST already. Redirects are not followed.

    After a fork the child makes new connections. Calls that were waiting during the fork fail in the child.

    Args:
        host, port: Address of the server.
        useragent: Value of the header User-Agent.
        scheme: ``http`` or ``https``.
        path: Prefix of the path of each endpoint, for servers behind a proxy.
        options: Options of HttpOptions.

    Attributes:
        host: Host of the server; an IPv6 address without brackets.
        port: Port of the server.
        default_port: Of the class: the port if none is given; None: one must be given.
        scheme: ``http`` or ``https``.

    Raises:
        TypeError: If a keyword is not an option, or a value has the wrong type.
        ValueError: If a value is not valid or out of bounds, or a certificate can't be used.
    """

    default_port: int | None = None

    @clears_locals
    def __init__(
        self,
        host: str = "localhost",
        port: int | None = None,
        useragent: str = USERAGENT,
        *,
        scheme: str = "http",
        path: str = "",
        **options: Unpack[HttpOptionsDict],
    ) -> None:
        port = self.default_port if port is None else port
        if port is None:
            raise TypeError(f"{type(self).__name__} needs a port")
        self.host, self.port = _host_and_port(host, port)
        if scheme not in ("http", "https"):
            raise ValueError(f"scheme {shown_argument(scheme)} must be http or https")
        self.scheme = scheme
        self._path = _checked_path(path)
        self.useragent = useragent
        self.options = HttpOptions.from_keywords(type(self), options)
        self._headers = _headers(useragent, self.options)
        self._context = _context(self.options) if self.scheme == "https" else None
        # Thread-local: has the connections of the calling thread, and keeps them alive.
        self._local = local()
        # Connections of all threads.
        self._all: weakref.WeakValueDictionary[int, Connections] = weakref.WeakValueDictionary()
        # True if the server knew the old path of an endpoint at the last call that had one.
        self._is_old = False

    @classmethod
    @clears_locals
    def from_url(cls, url: str, **keywords: Unpack[HttpClientOptionsDict]) -> Self:
        """Make a client from a URL or ``host[:port]``; missing parts have the defaults of the class.

        A path in the URL becomes the prefix of the path of each endpoint. A user and password become ``auth``, and a
        query becomes ``query``.

        Raises:
            TypeError: If the URL is not a str, and in the cases of the constructor.
            ValueError: If the URL can't be used, a password or query is given twice, and in the cases of the
                constructor.
        """
        return cls(**arguments_of(url, dict(keywords)))

    @property
    def address(self) -> str:
        """``scheme://host:port/``, followed by the prefix of all paths and a slash, if there is a prefix."""
        path = f"{self._path}/" if self._path else ""
        return f"{self.scheme}://{format_address(self.host, self.port)}/{path}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls that are waiting fail; a later call makes new connections.

        Connections of other threads are closed as soon as their hub runs.
        """
        for reference in self._all.valuerefs():
            connections = reference()
            if connections is not None and not connections.closed:
                connections.close()

    @clears_locals  # of the header Authorization
    def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, object] | None = None,
        body: bytes | None = None,
        *,
        old_path: str | None = None,
        timeout: Seconds | None = None,
    ) -> Any:  # Any: any JSON
        """Send a request and wait for the response.

        Args:
            params: Parameters of the query; a parameter whose value is None is left out.
            old_path: The endpoint's path in servers before 1.0; tried after ``path``, or first if the server seems old.
            timeout: Seconds for this call, in place of the client's option timeout.

        Returns:
            A body declared as JSON as Python objects (without an old server's envelope), another body as bytes.

        Raises:
            NSQHttpError: If the status is not 200, the body is unusable, or no response came (``status`` is None). If
                nothing was sent: NSQHttpUnreachable. If the timeout was over after sending: NSQHttpTimeout.
        """
        limit = checked_timeout(timeout, self.options.timeout)
        query = {name: str(value) for name, value in (params or {}).items() if value is not None}
        path = path.lstrip("/")
        with self._connections().call(f"{method} {self.address}{path}", limit) as call:
            return self._remember_path(call, method, path, old_path, query, body)

    def _connections(self) -> Connections:
        """Return the connections of the calling thread's hub."""
        found: Connections | None = getattr(self._local, "connections", None)
        if found is None or found.closed or found.hub is not gevent.get_hub():
            from gnsq.http.connections import Connections  # not above, since it loads requests, which takes 0.1 s

            found = Connections(self.address, self.options, self._headers, self._context)
            self._local.connections = self._all[id(found)] = found
        return found

    def _remember_path(
        self,
        call: Call,
        method: str,
        path: str,
        old_path: str | None,
        query: Mapping[str, str],
        body: bytes | None,
    ) -> Any:
        """Send to the path that this server probably knows; if the server does not know it, send to the other path."""
        if old_path is None:
            return self._result(call, method, path, query, body)
        errors: list[NSQHttpError] = []
        for is_old in (self._is_old, not self._is_old):
            try:
                with call.named_errors():
                    result = self._result(call, method, old_path if is_old else path, query, body)
            except NSQHttpError as error:
                if is_unknown_path(error):
                    errors.append(error)
                    continue
                if error.status is not None:
                    self._is_old = is_old
                raise
            self._is_old = is_old
            return result
        raise errors[0]  # the server has neither path

    def _result(self, call: Call, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> Any:
        return parse_result(call.send(method, f"{self.address}{path}", query, body))


# --- helpers


@clears_locals
def arguments_of(url: str, keywords: dict[str, Any]) -> dict[str, Any]:  # Any: each option has its own type
    """Return arguments of the constructor: the parts of a URL, and keywords."""
    if not isinstance(url, str):
        raise TypeError(f"URL must be a str, not {shown_argument(url)}")
    # No error text shows a URL with a password, or with a query, which may have a token.
    shown = repr(url) if "@" not in url and "?" not in url else "a URL (not shown: it may hold a password)"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port, host = parts.port, parts.hostname
    except ValueError:
        raise ValueError(f"{shown}: port must be a number from 1 to 65535, IPv6 stands in brackets") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{shown}: scheme must be http or https")
    if "@" in parts.path or "@" in parts.query:
        raise ValueError(f"{shown}: the characters / ? # @ of a password must be quoted with %")
    if parts.fragment:
        raise ValueError(f"{shown}: must not have a fragment (#)")
    if parts.query:
        if keywords.get("query") is not None:
            raise ValueError("a query is given twice: in the URL and as query")
        keywords["query"] = parts.query
    if parts.username is not None or parts.password is not None:
        if keywords.get("auth") is not None:
            raise ValueError("a password is given twice: in the URL and as auth")
        keywords["auth"] = (unquote(parts.username or ""), unquote(parts.password or ""))
    found = {"scheme": parts.scheme, "host": host, "port": port, "path": parts.path.strip("/")}
    return keywords | {name: value for name, value in found.items() if value not in (None, "")}


def _host_and_port(host: str, port: int) -> tuple[str, int]:
    """Check two arguments. An IPv6 address may have brackets and, as in gnsq 1.0, a port may be text."""
    bare = host[1:-1] if isinstance(host, str) and host.startswith("[") and host.endswith("]") else host
    if isinstance(host, str) and not is_host(bare):
        # The error does not show the host, which may be a URL with a password.
        raise ValueError("host must be a name or an IP address; from_url() takes URLs, and host:port")
    return parse_address(format_address(bare, port))


def _checked_path(path: str) -> str:
    """Return the prefix of each endpoint's path, without slashes around it."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {shown_argument(path)}")
    if not path.isprintable() or any(character in path for character in "?# "):
        raise ValueError(f"path {shown_argument(path)} must have neither spaces nor ? nor #")
    return path.strip("/")


def _headers(useragent: str, options: HttpOptions) -> dict[str, str]:
    """Return the headers of every request."""
    if not isinstance(useragent, str):
        raise TypeError(f"useragent must be a str, not {useragent!r}")
    check_header("User-Agent", useragent)
    # "identity" asks for uncompressed bodies: a short body could be huge after decompression. nsqd does not compress.
    headers = {"User-Agent": useragent, "Accept": _ACCEPT, "Accept-Encoding": "identity"}
    if options.auth is not None:
        headers["Authorization"] = options.authorization
    # Names of headers are case-insensitive.
    given = {name.title(): value for name, value in (options.headers or {}).items()}
    return headers | given


def _context(options: HttpOptions) -> ssl.SSLContext:
    if options.ssl_context is not None:
        return options.ssl_context
    from gnsq.tls import make_context  # loads ssl, which HTTP does not need

    return make_context(options.ca_certs, options.cert_reqs, options.cert_file, options.key_file, options.key_password)
