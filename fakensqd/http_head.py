"""The head of an HTTP request, read by the rules of Go's net/http, with which nsqd and nsqlookupd serve. Pure.

Source: Go's net/http request.go, transfer.go and server.go; net/textproto reader.go; nsqd 1.3.0's answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MAX_HEAD_SIZE", "Head", "RefusedRequest", "is_last", "parse_head"]

# Bytes of all lines. Source: server.go, DefaultMaxHeaderBytes and initialReadLimitSize.
MAX_HEAD_SIZE = (1 << 20) + 4096

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VERSION = re.compile(r"HTTP/([0-9])\.([0-9])")
# What a target must not have. Source: net/url parse.
_BAD_TARGET = re.compile(r"[\x00-\x20\x7f]")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Source: golang.org/x/net/http/httpguts ValidHostHeader.
_HOST = re.compile(r"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
_DIGITS = re.compile(r"[0-9]+")
_BLANKS = " \t"
_MAX_LENGTH = 2**63 - 1


class RefusedRequest(ValueError):
    """A request that is refused before any handler sees it.

    Args:
        status: The answer's status line, without the version.
        text: Body of the answer; None: the status.
    """

    def __init__(self, status: str = "400 Bad Request", text: str | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.text = status if text is None else text

    def encode(self) -> bytes:
        """Write the whole answer, after which the connection is closed."""
        kind = "Content-Type: text/plain; charset=utf-8" if self.text else "Content-Length: 0"
        return f"HTTP/1.1 {self.status}\r\n{kind}\r\nConnection: close\r\n\r\n{self.text}".encode("latin-1")


@dataclass(frozen=True, slots=True)
class Head:
    """A head that is valid.

    Attributes:
        target: Path and query.
        is_old: True for HTTP/1.0.
        headers: Names and values in their order. Content-Length, Transfer-Encoding and Expect are not there.
        length: Bytes of the body; None if it is chunked.
        closes: True if the client wants no other request on this connection.
        expects: True if the client waits with the body for ``100 Continue``.
    """

    method: str
    target: str
    is_old: bool
    headers: tuple[tuple[str, str], ...]
    length: int | None
    closes: bool
    expects: bool


def is_last(lines: Sequence[bytes]) -> bool:
    """Return True if Go reads no line after these: the last one has no end, or is malformed. So a client of another
    protocol, which sends no empty line, gets an answer."""
    *before, last = lines
    line = last.decode("latin-1").rstrip("\r\n")
    try:
        if not before:
            _request_line(line)
        elif len(before) == 1 or line[:1] not in _BLANKS:
            _headers([line])
    except RefusedRequest:
        return True
    return not last.endswith(b"\n")


def parse_head(lines: Sequence[bytes]) -> Head:
    """Read the lines before the empty one, with their ends; they are incomplete if the client has ended.

    Raises:
        RefusedRequest: If Go refuses it.
    """
    if sum(map(len, lines)) > MAX_HEAD_SIZE:
        raise RefusedRequest("431 Request Header Fields Too Large")
    if not lines or not lines[-1].endswith(b"\n"):
        raise RefusedRequest
    first, *rest = (line.decode("latin-1").rstrip("\r\n") for line in lines)
    method, target, version = _request_line(first)
    headers = _headers(rest)
    is_old = version == (1, 0)
    length = _body_length(headers, method, is_old=is_old)
    if version[0] != 1:
        raise RefusedRequest("505 HTTP Version Not Supported: unsupported protocol version")
    _check_host(headers, method, is_old=is_old)
    if any(not _TOKEN.fullmatch(name) for name, _ in headers):
        raise RefusedRequest("400 Bad Request: invalid header name")
    tokens = {token.strip().lower() for value in _values(headers, "connection") for token in value.split(",")}
    expectation = "".join(_values(headers, "expect")).lower()
    if expectation not in ("", "100-continue"):
        raise RefusedRequest("417 Expectation Failed", "")
    left_out = ("content-length", "transfer-encoding", "expect")
    return Head(
        *(method, target, is_old),
        headers=tuple(header for header in headers if header[0].lower() not in left_out),
        length=length,
        closes="keep-alive" not in tokens if is_old else "close" in tokens,
        expects=bool(expectation) and not is_old and length != 0,
    )


def _request_line(line: str) -> tuple[str, str, tuple[int, int]]:
    method, _, rest = line.partition(" ")
    target, _, protocol = rest.partition(" ")
    version = _VERSION.fullmatch(protocol)
    if not _TOKEN.fullmatch(method) or version is None:
        raise RefusedRequest
    if origin := _ORIGIN.match(target):
        rest = target[origin.end() :]
        target = rest if rest.startswith("/") else f"/{rest}"
    # The handlers refuse a bad escape in a query.
    is_bad = _BAD_TARGET.search(target) or _BAD_ESCAPE.search(target.partition("?")[0])
    if is_bad or not (target.startswith("/") or target == "*"):
        raise RefusedRequest
    return method, target, (int(version[1]), int(version[2]))


def _headers(lines: Sequence[str]) -> list[tuple[str, str]]:
    if lines and lines[0][:1] in _BLANKS:
        raise RefusedRequest
    headers: list[tuple[str, str]] = []
    for line in lines:
        if line[:1] in _BLANKS:  # goes on with the value of the line before
            name, value = headers.pop()
            headers.append((name, " ".join([value, line.strip(_BLANKS)])))
            continue
        name, colon, value = line.partition(":")
        # A blank is refused later, with another text.
        if not colon or not _TOKEN.fullmatch(name.replace(" ", "")) or _BAD_VALUE.search(value):
            raise RefusedRequest
        headers.append((name, value.strip(_BLANKS)))
    return headers


def _values(headers: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in headers if each.lower() == name]


def _body_length(headers: Sequence[tuple[str, str]], method: str, *, is_old: bool) -> int | None:
    codings = [] if is_old else _values(headers, "transfer-encoding")
    if codings:
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise RefusedRequest("501 Not Implemented", "Unsupported transfer encoding")
        return None
    if is_old and _values(headers, "transfer-encoding"):
        return 0
    lengths = set(_values(headers, "content-length"))
    if len(lengths) > 1:
        raise RefusedRequest
    text = lengths.pop() if lengths else ""
    if text and (not _DIGITS.fullmatch(text) or int(text) > _MAX_LENGTH):
        raise RefusedRequest
    return int(text or 0)


def _check_host(headers: Sequence[tuple[str, str]], method: str, *, is_old: bool) -> None:
    hosts = _values(headers, "host")
    if len(hosts) > 1:
        raise RefusedRequest
    if not hosts and not is_old and method != "CONNECT":
        raise RefusedRequest("400 Bad Request: missing required Host header")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise RefusedRequest("400 Bad Request: malformed Host header")
