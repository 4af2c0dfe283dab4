"""Options of HTTP clients: checks, and the conversion of urllib3's objects, which gnsq 1.0 accepted as options.

At run time this module imports neither urllib3 nor ssl. No error text shows a value that may contain a password.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypedDict
from urllib.parse import urlsplit

from gnsq.addresses import is_host
from gnsq.options import Options, option
from gnsq.texts import shown_argument

if TYPE_CHECKING:
    import ssl

    import urllib3

__all__ = [
    "PORTS",
    "HttpClientOptionsDict",
    "HttpOptions",
    "HttpOptionsDict",
    "check_header",
    "check_host",
    "check_path",
    "check_port",
    "check_scheme",
    "convert_timeout",
]

# Default port of each scheme.
PORTS = {"http": 80, "https": 443}

_CERT_REQS = ("CERT_NONE", "CERT_OPTIONAL", "CERT_REQUIRED")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HttpOptionsDict(TypedDict, total=False):
    """Typed keywords for HttpOptions. Some allow more types than the fields there, such as those of gnsq 1.0."""

    timeout: float | timedelta | tuple[float, float] | urllib3.Timeout | None
    connect_timeout: float | timedelta | None
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
    """Typed keywords of HTTPClient."""

    useragent: str
    scheme: str
    path: str


@dataclass(frozen=True, kw_only=True)
class HttpOptions(Options):
    """Options of an HTTP client."""

    timeout: float = option(
        60.0,
        "limit of a whole call: connecting, sending, the response, redirects and retries",
        unit="s",
        minimum=0.001,
    )
    connect_timeout: float | None = option(
        None, "limit of connecting; default: only timeout is a limit", unit="s", minimum=0.001
    )
    retries: int = option(
        1,
        "limit of the retries within timeout, if no connection could be made or a GET got no response",
        unit="tries",
        minimum=0,
    )
    maxsize: int = option(
        4, "limit of the connections in each hub; each call uses one, and further calls wait", minimum=1
    )
    max_response_size: int = option(
        64 * 1024 * 1024, "limit of a response; a longer one is an error", unit="bytes", minimum=1
    )
    headers: Mapping[str, str] | None = option(None, "headers of every request", secret=True)
    auth: tuple[str, str] | str | None = option(
        None, "user and password, or the whole value of the header Authorization", secret=True
    )
    proxies: Mapping[str, str] | None = option(
        None,
        "`http://` URLs of proxies by scheme, as for requests; https goes through a tunnel (CONNECT); proxies from the "
        "environment are not used",
        secret=True,
    )
    ca_certs: str | None = option(None, "file or directory of trusted CAs; default: the system's")
    cert_reqs: str = option("CERT_REQUIRED", "with CERT_NONE any certificate is trusted, for any host name")
    cert_file: str | None = option(None, "file with the client's own certificate")
    key_file: str | None = option(None, "file with the key of this certificate, if cert_file does not have it")
    key_password: str | bytes | None = option(None, "password of an encrypted key", secret=True)
    ssl_context: ssl.SSLContext | None = option(
        None, "an `ssl.SSLContext`, given in place of the five options above", secret=True
    )

    @classmethod
    def from_keywords(cls, owner: type | str, values: Mapping[str, Any], *beside: type[Options]) -> Self:
        """Make options as Options.from_keywords() does. Accepts urllib3's objects as values, too, as gnsq 1.0 did."""
        known = dict(values)
        if "timeout" in known:
            known |= convert_timeout(known.pop("timeout"))
        if "retries" in known:
            known |= _convert_retries(known.pop("retries"))
        if "cert_reqs" in known:
            known["cert_reqs"] = _convert_cert_reqs(known["cert_reqs"])
        for name in ("ca_certs", "cert_file", "key_file"):
            if isinstance(known.get(name), os.PathLike):
                known[name] = os.fspath(known[name])
        return super().from_keywords(owner, known, *beside)

    def __post_init__(self) -> None:
        super().__post_init__()
        _convert_cert_reqs(self.cert_reqs)
        for name, value in (self.headers or {}).items():
            check_header(name, value)
        for proxy in (self.proxies or {}).values():
            if not _is_http_url(proxy):
                raise ValueError(
                    "proxies must be http:// URLs such as 'http://host:3128' (one is not; not shown, for passwords): "
                    "proxies for SOCKS, and those that speak TLS themselves, are not supported"
                )
        if self.auth is not None:
            check_header("Authorization", self.authorization)
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file is given without cert_file")
        if self.ssl_context is not None and (self.ca_certs or self.cert_file or self.cert_reqs != "CERT_REQUIRED"):
            raise ValueError(
                "ssl_context and ca_certs, cert_file or cert_reqs are given; the context holds all of them"
            )

    @property
    def authorization(self) -> str:
        """The value of the header Authorization; empty if the header must not be sent."""
        if self.auth is None or isinstance(self.auth, str):
            return self.auth or ""
        if not isinstance(self.auth, tuple) or [type(part) for part in self.auth] != [str, str]:
            raise TypeError("auth must be a pair of str, user and password, or a str, the header's value")
        return "Basic " + base64.b64encode(":".join(self.auth).encode()).decode()


def check_host(host: object) -> str:
    """Check a host name or IP address, and return it, an IPv6 address without brackets."""
    if not isinstance(host, str):
        raise TypeError(f"host must be a str, not {shown_argument(host)}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not is_host(bare):
        # The error does not show the host, which may be a URL with a password.
        raise ValueError("host must be a name or an IP address; from_url() takes URLs, and host:port")
    return bare


def check_path(path: object) -> str:
    """Return the prefix of each endpoint's path, without slashes around it."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {shown_argument(path)}")
    if not path.isprintable() or any(character in path for character in "?# "):
        raise ValueError(f"path {shown_argument(path)} must have neither spaces nor ? nor #")
    return path.strip("/")


def check_port(port: Any) -> int:  # Any: gnsq 1.0 accepted "4151", too
    """Return a port as an int."""
    if isinstance(port, bool) or not isinstance(port, (int, str)):
        raise TypeError(f"port must be an int, not {shown_argument(port)}")
    if not str(port).isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"port {shown_argument(port)} must be a number from 1 to 65535")
    return int(port)


def check_scheme(scheme: str) -> str:
    """Return the scheme if it is http or https; otherwise raise ValueError."""
    if scheme not in PORTS:
        raise ValueError(f"scheme {shown_argument(scheme)} must be http or https")
    return scheme


def check_header(name: str, value: str) -> None:
    """Raise ValueError if a header is not valid. For example, a line end in the value would start another header.

    The error does not show the value, which may be a secret.
    """
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header {name!r} has no valid name")
    if not value.isprintable() or value != value.strip() or not value.isascii():
        raise ValueError(f"value of header {name} must be printable ASCII, without spaces around it")


def _is_http_url(text: str) -> bool:
    """Return True if a text has the scheme http and a host, and the port, if there is one, is valid."""
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def convert_timeout(timeout: Any) -> dict[str, Any]:  # Any: a timeout of urllib3 or requests, or a number
    """Convert a number, a pair of limits (connect, read), or an object such as urllib3's Timeout to options.

    If connect and read are given, but no total, the sum of connect and read is the limit of a whole call.
    """
    if isinstance(timeout, tuple) and len(timeout) == 2:
        total, (connect, read) = None, timeout
    elif hasattr(timeout, "connect_timeout"):
        total, connect = _number(timeout.total), _number(timeout.connect_timeout)
        # If there is a total, the property read_timeout of urllib3's Timeout raises, unless the Timeout was started.
        read = None if total is not None else _number(timeout.read_timeout)
    elif hasattr(timeout, "connect"):
        total, connect, read = getattr(timeout, "total", None), timeout.connect, getattr(timeout, "read", None)
    elif timeout is None:
        # In urllib3, None means no limit. Here every call has a limit, so use the default.
        return {}
    else:
        return {"timeout": timeout}
    if total is None and connect is not None and read is not None:
        total = connect + read
    mapped = {"timeout": total, "connect_timeout": connect}
    return {name: value for name, value in mapped.items() if value is not None}


def _number(value: object) -> float | None:
    # If no limit is given, the value is None or an object of urllib3 that means "not given".
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _convert_retries(retries: Any) -> dict[str, Any]:  # Any: urllib3's Retry or a number
    """Convert a number, False, or an object such as urllib3's Retry to options. Of the object's attributes total,
    connect and read, the first one that is not None is used."""
    if retries is None:
        return {}
    if hasattr(retries, "total"):
        counts = [getattr(retries, name, None) for name in ("total", "connect", "read")]
        given = [count for count in counts if count is not None]
        return {"retries": int(given[0])} if given else {}
    return {"retries": 0 if retries is False else retries}


def _convert_cert_reqs(cert_reqs: object) -> str:
    """Return the name of cert_reqs, such as CERT_NONE. cert_reqs is a name (CERT_ may be missing) or ssl's constant."""
    if cert_reqs is None:
        return "CERT_REQUIRED"
    if isinstance(cert_reqs, int) and not isinstance(cert_reqs, bool) and 0 <= cert_reqs < len(_CERT_REQS):
        return _CERT_REQS[cert_reqs]
    if isinstance(cert_reqs, str):
        name = cert_reqs if cert_reqs.startswith("CERT_") else f"CERT_{cert_reqs}"
        if name in _CERT_REQS:
            return name
    raise ValueError(f"cert_reqs {cert_reqs!r} must be one of {', '.join(_CERT_REQS)}")
