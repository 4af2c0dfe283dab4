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

from gnsq.options import Options, option

if TYPE_CHECKING:
    import ssl

    import urllib3

__all__ = ["HttpClientOptionsDict", "HttpOptions", "HttpOptionsDict", "check_header"]

_CERT_REQS = ("CERT_NONE", "CERT_OPTIONAL", "CERT_REQUIRED")
_QUERY = re.compile(r"[!$-~]+")  # printable ASCII without " and #
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HttpOptionsDict(TypedDict, total=False):
    """Typed keywords for HttpOptions. Some allow more types than the fields there, such as those of gnsq 1.0."""

    timeout: float | timedelta | urllib3.Timeout | None
    connect_timeout: float | timedelta | None
    retries: int | urllib3.Retry | None
    maxsize: int
    max_response_size: int
    headers: Mapping[str, str] | None
    auth: tuple[str, str] | str | None
    query: str | None
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
        "limit of a whole call: connecting, sending, the response and retries",
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
    query: str | None = option(
        None, "a query, such as `token=...`, that is added to that of each request; as it stands in a URL", secret=True
    )
    ca_certs: str | None = option(None, "file or directory of trusted CAs; default: the system's")
    cert_reqs: str = option(
        "CERT_REQUIRED", "with CERT_NONE any certificate is trusted, for any host name", choices=_CERT_REQS
    )
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
        if hasattr(known.get("timeout"), "connect_timeout"):
            known |= _limits(known.pop("timeout"))
        if "retries" in known:
            known["retries"] = _retries(known["retries"])
        if "cert_reqs" in known:
            known["cert_reqs"] = _cert_reqs(known["cert_reqs"])
        return super().from_keywords(owner, known, *beside)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (self.headers or {}).items():
            check_header(name, value)
        if self.query is not None and not _QUERY.fullmatch(self.query):
            raise ValueError("query (not shown: it may be secret) must be as in a URL, without ? and #, quoted with %")
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


def check_header(name: str, value: str) -> None:
    """Raise ValueError if a header is not valid. For example, a line end in the value would start another header.

    The error does not show the value, which may be a secret.
    """
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header {name!r} has no valid name")
    if not value.isprintable() or value != value.strip() or not value.isascii():
        raise ValueError(f"value of header {name} must be printable ASCII, without spaces around it")


def _limits(timeout: urllib3.Timeout) -> dict[str, float]:
    """Convert urllib3's Timeout to options. If it has no total, the sum of connect and read limits a whole call."""
    total, connect = _number(timeout.total), _number(timeout.connect_timeout)
    if total is None and connect is not None:
        read = _number(timeout.read_timeout)
        total = None if read is None else connect + read
    limits = {"timeout": total, "connect_timeout": connect}
    return {name: value for name, value in limits.items() if value is not None}


def _number(value: object) -> float | None:
    # If no limit is given, the value is None or an object of urllib3 that means "not given".
    return float(value) if isinstance(value, (int, float)) else None


def _retries(retries: Any) -> Any:  # Any: urllib3's Retry, False, or what the option accepts
    """Convert urllib3's Retry to a number: the first of its counts that is given."""
    if retries is False:
        return 0
    if not hasattr(retries, "total"):
        return retries
    given = [count for count in (retries.total, retries.connect, retries.read) if count is not None]
    return int(given[0]) if given else None


def _cert_reqs(cert_reqs: Any) -> Any:  # Any: a constant of ssl, its name without CERT_, or what the option accepts
    names = [name for number, name in enumerate(_CERT_REQS) if cert_reqs in (number, name.removeprefix("CERT_"))]
    return names[0] if names else cert_reqs
