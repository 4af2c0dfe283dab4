"""JSON and bytes over HTTP with requests, off the hub: a call blocks its greenlet, never the others.

Owns options, the deadline of a call, its tries and the connections kept between calls. Knows nothing of topics:
names, and who may be asked what, are its subclasses' business.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack
from urllib.parse import unquote, urljoin, urlsplit

from gnsq.addresses import joined
from gnsq.errors import NSQHttpError
from gnsq.http.answer import Answer, is_unknown_path, result_of, shown
from gnsq.http.calls import Attempt, Calls
from gnsq.http.exchange import Request
from gnsq.http.values import (
    PORTS,
    check_header,
    check_strings,
    checked_host,
    checked_path,
    checked_port,
    checked_scheme,
    is_url,
    mapped_cert_reqs,
    mapped_retries,
    mapped_timeout,
)
from gnsq.options import USER_AGENT, Options, option, parameters_of

if TYPE_CHECKING:
    import ssl

    import urllib3

__all__ = ["HTTPClient", "HttpClientOptionsDict", "HttpOptions", "HttpOptionsDict", "USERAGENT"]

USERAGENT = USER_AGENT

# What servers from 0.3 to 0.3.8 want to hear, or they wrap their answers.
_ACCEPT = "application/vnd.nsq; version=1.0"
_MAX_REDIRECTS = 5


class HttpOptionsDict(TypedDict, total=False):
    """The options of HttpOptions as typed keywords; some take more, as in gnsq 1.0."""

    timeout: float | tuple[float, float] | urllib3.Timeout | None
    connect_timeout: float | None
    retries: int | urllib3.Retry | None
    maxsize: int
    max_response_size: int
    headers: Mapping[str, str] | None
    auth: tuple[str, str] | str | None
    proxies: Mapping[str, str] | None
    ca_certs: str | os.PathLike[str] | None
    cert_reqs: str | int | None
    cert_file: str | os.PathLike[str] | None
    key_file: str | os.PathLike[str] | None
    key_password: str | bytes | None
    ssl_context: ssl.SSLContext | None


class HttpClientOptionsDict(HttpOptionsDict, total=False):
    """The keywords of HTTPClient: the options of HttpOptions and its own."""

    useragent: str
    scheme: str
    path: str


@dataclass(frozen=True, kw_only=True)
class HttpOptions(Options):
    """What a client of an HTTP address may be told."""

    timeout: float = option(
        60.0, "for a whole call: connecting, sending, the answer, redirects and retries", unit="s", minimum=0.001
    )
    connect_timeout: float | None = option(
        None, "for connecting alone; default: no limit but timeout", unit="s", minimum=0.001
    )
    retries: int = option(
        1,
        "further tries, within timeout, if no connection could be made, or a GET got no answer",
        unit="tries",
        minimum=0,
    )
    maxsize: int = option(
        4, "connections kept open between calls; not monkey-patched, also calls at once: others wait", minimum=1
    )
    max_response_size: int = option(64 * 1024 * 1024, "a longer answer is an error", unit="bytes", minimum=1)
    headers: Mapping[str, str] | None = option(None, "sent with every request", secret=True)
    auth: tuple[str, str] | str | None = option(
        None, "user and password, or the whole value of the header Authorization", secret=True
    )
    proxies: Mapping[str, str] | None = option(
        None, "URL of a proxy by scheme, as requests takes them; those of the environment are not used", secret=True
    )
    ca_certs: str | None = option(None, "file or directory of CAs to trust; default: the system's")
    cert_reqs: str = option("CERT_REQUIRED", "CERT_NONE trusts any certificate, for any host name")
    cert_file: str | None = option(None, "the client's own certificate")
    key_file: str | None = option(None, "its key, unless cert_file holds that, too")
    key_password: str | bytes | None = option(None, "of an encrypted key", secret=True)
    ssl_context: ssl.SSLContext | None = option(None, "an `ssl.SSLContext` in place of the five before")

    @classmethod
    def from_keywords(
        cls,
        owner: str,
        values: Mapping[str, Any],  # Any: each has its own type
        parameters: Iterable[str] = (),
    ) -> HttpOptions:
        """Make options from keyword arguments, those of gnsq 1.0 (which were urllib3's) among them.

        Args:
            parameters: As Options.of().

        Raises:
            TypeError: If a name is not an option (the text lists those that are), or a value has the wrong type.
            ValueError: If a value is out of bounds.
        """
        known = dict(values)
        if "timeout" in known:
            known |= mapped_timeout(known.pop("timeout"))
        if "retries" in known:
            known |= mapped_retries(known.pop("retries"))
        if "cert_reqs" in known:
            known["cert_reqs"] = mapped_cert_reqs(known["cert_reqs"])
        for name in ("ca_certs", "cert_file", "key_file"):
            if isinstance(known.get(name), os.PathLike):
                known[name] = os.fspath(known[name])
        return cls.of(owner, known, parameters=parameters)

    def __post_init__(self) -> None:
        super().__post_init__()
        mapped_cert_reqs(self.cert_reqs)
        check_strings("headers", self.headers)
        check_strings("proxies", self.proxies)
        for name, value in (self.headers or {}).items():
            check_header(name, value)
        for proxy in (self.proxies or {}).values():
            if not is_url(proxy):
                raise ValueError(
                    "proxies must be URLs such as 'http://host:3128' (one is not; not shown, for passwords)"
                )
        if self.auth is not None:
            check_header("Authorization", self.authorization)
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file is given without cert_file")
        if self.ssl_context is not None:
            self._check_context()

    def _check_context(self) -> None:
        if not hasattr(self.ssl_context, "wrap_bio"):
            raise TypeError(f"ssl_context must be an ssl.SSLContext, not {self.ssl_context!r}")
        if self.ca_certs or self.cert_file or self.cert_reqs != "CERT_REQUIRED":
            raise ValueError(
                "ssl_context and ca_certs, cert_file or cert_reqs are given; the context holds all of them"
            )

    @property
    def authorization(self) -> str:
        """The value of the header Authorization; empty for none."""
        if self.auth is None or isinstance(self.auth, str):
            return self.auth or ""
        if not isinstance(self.auth, tuple) or [type(part) for part in self.auth] != [str, str]:
            raise TypeError("auth must be a pair of str, user and password, or a str, the header's value")
        return "Basic " + base64.b64encode(":".join(self.auth).encode()).decode()


class HTTPClient:
    """A client of one HTTP address, for all greenlets and threads that like.

    A request runs on one of a few threads (in a monkey-patched process: in a greenlet), and its deadline holds for all
    of it, however the server dribbles. Connections are kept open between calls. One that the server has closed in the
    meantime is replaced; where that shows only after sending, a GET is sent again, and anything else is an error, for
    the server may have done it. So a POST duplicates nothing by itself: it is sent again only if no connection could be
    made, or the answer was that the path is unknown. Who sends it again after an NSQHttpTimeout, or an NSQHttpError
    whose status is None, may do it twice; after an NSQHttpUnreachable not.

    After a fork the child makes connections and threads of its own.

    Args:
        host, port: Where it listens.
        useragent: What it is told we are.
        connection_class: Gone since gnsq 1.0.
        scheme: ``http`` or ``https``.
        path: What comes before each endpoint, for servers behind a proxy.
        options: Those of HttpOptions.

    Raises:
        TypeError: For a keyword that is no option (the text lists those that are) or a value of the wrong type.
        ValueError: For a value out of bounds, or a certificate that can't be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        useragent: str = USERAGENT,
        connection_class: object = None,
        *,
        scheme: str = "http",
        path: str = "",
        **options: Unpack[HttpOptionsDict],
    ) -> None:
        if connection_class is not None:
            raise TypeError(
                "connection_class is gone: HTTP is requests' now; for HTTPS give an https:// URL to from_url(), "
                "or scheme='https'"
            )
        self._host = checked_host(host)
        self._port = checked_port(port)
        self._scheme = checked_scheme(scheme)
        self._path = checked_path(path)
        self.useragent = useragent
        self.options = HttpOptions.from_keywords(type(self).__name__, options, parameters_of(HTTPClient.__init__))
        context = _context(self.options) if self._scheme == "https" else None
        self._calls = Calls(
            self.address, self.options, _headers(useragent, self.options), self.options.proxies, context
        )
        # Whether this server knows an endpoint by its old name, once that is learned.
        self._old_paths: dict[str, bool] = {}

    @classmethod
    def from_url(cls, url: str, **keywords: Unpack[HttpClientOptionsDict]) -> Self:
        """Make a client from a URL or ``host[:port]``; what is missing has the class's default.

        A path is what comes before each endpoint. A user and password become ``auth``.

        Raises:
            TypeError: If it is not a str.
            ValueError: If the scheme is neither http nor https, the port is none, or there is a query or fragment.
        """
        if not isinstance(url, str):
            raise TypeError(f"URL must be a str, not {url!r}")
        kwargs: dict[str, Any] = dict(keywords)  # Any: each has its own type
        # No text shows one with a password.
        shown = repr(url) if "@" not in url else "a URL (not shown: it holds a password)"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port, host = parts.port, parts.hostname
        except ValueError:
            raise ValueError(f"{shown}: port must be a number from 1 to 65535, IPv6 stands in brackets") from None
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"{shown}: scheme must be http or https")
        if "@" in parts.path:
            raise ValueError(f"{shown}: the characters / ? # @ of a password must be quoted with %")
        if parts.query or parts.fragment:
            raise ValueError(f"{shown}: must have neither a query (?) nor a fragment (#)")
        if parts.username is not None or parts.password is not None:
            if kwargs.get("auth") is not None:
                raise ValueError("a password is given twice: in the URL and as auth")
            kwargs["auth"] = (unquote(parts.username or ""), unquote(parts.password or ""))
        if host:
            kwargs["host"] = host
        if port is not None:
            kwargs["port"] = port
        if parts.path.strip("/"):
            kwargs["path"] = parts.path
        return cls(scheme=parts.scheme, **kwargs)

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return self._scheme

    @property
    def host(self) -> str:
        """Where it listens; an IPv6 address without brackets."""
        return self._host

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def address(self) -> str:
        """``http://host:port/``, and the path that comes before each endpoint."""
        path = f"{self._path}/" if self._path else ""
        return f"{self._scheme}://{joined(self._host, self._port)}/{path}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and threads. Calls under way fail; one that is made later opens what it needs anew."""
        self._calls.close()

    def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, object] | None = None,
        body: bytes | None = None,
        *,
        old_path: str | None = None,
        timeout: float | None = None,
    ) -> Any:  # Any: whatever JSON the server sends
        """Send a request and wait for its answer.

        Args:
            params: Of the query; those that are None are left out.
            old_path: What servers before 1.0 call the path; asked where the path is unknown.
            timeout: Seconds for this call, in place of the option's.

        Returns:
            JSON as Python objects (an old server's ``data`` envelope taken off), anything else as bytes.

        Raises:
            NSQHttpError: If the status is not 200 (``status`` and ``body`` have it) or there was no answer (``status``
                is None): NSQHttpUnreachable if nothing was sent, NSQHttpTimeout if time ran out.
        """
        self._calls.check_fork()
        query = {name: str(value) for name, value in (params or {}).items() if value is not None}
        attempt = Attempt(self._calls, f"{method} {self.address}{path.lstrip('/')}", timeout)
        with attempt.deadline():
            return self._learned(attempt, method, path.lstrip("/"), old_path, query, body)

    # --- which path, which address ------------------------------------------------------------------------------------

    def _learned(
        self,
        attempt: Attempt,
        method: str,
        path: str,
        old_path: str | None,
        query: Mapping[str, str],
        body: bytes | None,
    ) -> Any:
        """Ask for the path that this server is known to have, and once for the other one."""
        if old_path is None:
            return self._result(attempt, method, path, query, body)
        old = self._old_paths.get(path, any(self._old_paths.values()))
        try:
            result = self._result(attempt, method, old_path if old else path, query, body)
        except NSQHttpError as error:
            if not is_unknown_path(error):
                raise
            try:
                result = self._result(attempt, method, path if old else old_path, query, body)
            except NSQHttpError as second:
                if second.status is None:
                    raise
                if not is_unknown_path(second):
                    self._old_paths[path] = not old
                    raise
                # It has neither.
                raise error from None
            old = not old
        self._old_paths[path] = old
        return result

    def _result(self, attempt: Attempt, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> Any:
        request = Request(method, f"{self.address}{path}", query, body)
        for _ in range(_MAX_REDIRECTS + 1):
            answer = attempt.answer(request)
            if not answer.redirects(method):
                return result_of(str(request), answer)
            request = Request(method, self._redirected(request, answer), {}, body)
        raise NSQHttpError(f"{method} {self.address}{path}: more than {_MAX_REDIRECTS} redirects", answer.status)

    def _redirected(self, request: Request, answer: Answer) -> str:
        """Say where a redirect leads. Elsewhere is refused: neither messages nor passwords go to unknown servers."""
        try:
            target = urlsplit(urljoin(request.url, answer.location))
            port = target.port or PORTS.get(target.scheme)
            here = (target.scheme, target.hostname, port) == (self._scheme, self._host.lower(), self._port)
        except ValueError:
            target, here = urlsplit(""), False
        if not here:
            there = shown(f"{target.scheme}://{target.hostname}") if target.hostname else "nowhere"
            raise NSQHttpError(
                f"{request}: http error <{answer.status}> redirects to {there}, which is not this address: "
                "give the client that one if it is right",
                answer.status,
                answer.body,
            )
        return target._replace(netloc=joined(self._host, self._port), fragment="").geturl()


# --- checks and translations of what users give -----------------------------------------------------------------------


def _headers(useragent: str, options: HttpOptions) -> dict[str, str]:
    """Say what goes with every request."""
    if not isinstance(useragent, str):
        raise TypeError(f"useragent must be a str, not {useragent!r}")
    check_header("User-Agent", useragent)
    # Compressed answers could be small here and huge when unpacked; nsqd has none.
    headers = {"User-Agent": useragent, "Accept": _ACCEPT, "Accept-Encoding": "identity"}
    if options.auth is not None:
        headers["Authorization"] = options.authorization
    # By name, whatever its case.
    given = {name.title(): value for name, value in (options.headers or {}).items()}
    return headers | given


def _context(options: HttpOptions) -> ssl.SSLContext:
    if options.ssl_context is not None:
        return options.ssl_context
    from gnsq.tls import make_context  # loads ssl: only who uses HTTPS pays for it

    return make_context(options.ca_certs, options.cert_reqs, options.cert_file, options.key_file, options.key_password)
