"""Which heads of HTTP requests are refused before anybody looks at path and query, and in which words.

Pure. Source: Go's net/http: server.go readRequest, request.go readRequest, transfer.go; net/textproto ReadMIMEHeader;
golang.org/x/net/http/httpguts. Compared with the real nsqd.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["MAX_HEAD", "HeadRefusal", "check_head", "check_request_line", "origin_form"]

# Bytes of a first line and headers together. Source: net/http DefaultMaxHeaderBytes, initialReadLimitSize.
MAX_HEAD = (1 << 20) + 4096

BAD_REQUEST = "400 Bad Request"
_VERSION = re.compile(r"HTTP/[0-9]\.[0-9]\Z")
_TARGET = re.compile(r"/|\*\Z|\w+://")
_ORIGIN = re.compile(r"\w+://[^/?]*")
_BAD_ESCAPE = re.compile(r"[^?]*%(?![0-9a-fA-F]{2})")
_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_NAME = re.compile(_TOKEN + rb"\Z")
# What is read as a name; one with spaces in it is refused later, and is another one until then.
_READABLE_NAME = re.compile(_TOKEN.replace(rb"[-", rb"[- ") + rb"\Z")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*\Z")
_HOST = re.compile(rb"[-!$%&()*+,.:;=\[\]'_~0-9A-Za-z]*\Z")
_LENGTH = re.compile(rb"[0-9]+\Z")
_MAX_LENGTH = 2**63 - 1


class HeadRefusal(ValueError):
    """A request that is answered before it is one.

    Args:
        status: Of the answer.
        text: Its body; default: the status. None: there is no body.
    """

    def __init__(self, status: str = BAD_REQUEST, text: str | None = "") -> None:
        super().__init__(status)
        about = "Content-Length: 0" if text is None else "Content-Type: text/plain; charset=utf-8"
        body = "" if text is None else text or status
        self.answer = f"HTTP/1.1 {status}\r\n{about}\r\nConnection: close\r\n\r\n{body}".encode()


def check_request_line(line: str) -> None:
    """Check the first line of a request.

    Raises:
        HeadRefusal: If nsqd would not take it, whatever follows.
    """
    words = line.rstrip("\r\n").split(" ")
    if len(words) != 3 or not _VERSION.match(words[2]) or not _NAME.match(words[0].encode("latin-1")):
        raise HeadRefusal
    if _BAD_ESCAPE.match(words[1]) or (not _TARGET.match(words[1]) and words[0] != "CONNECT"):
        raise HeadRefusal


def origin_form(target: str) -> str:
    """Give the path and query of a target, which a client that takes this for a proxy sends with scheme and host."""
    origin = _ORIGIN.match(target)
    if origin is None:
        return target
    path = target[origin.end() :]
    return path if path.startswith("/") else f"/{path}"


def check_head(request_line: str, lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Check the headers of a request, each a line with its end, given its first line, which is right.

    Returns:
        Names, in small letters, and values.

    Raises:
        HeadRefusal: If nsqd would not take them.
    """
    method, _, version = request_line.rstrip("\r\n").split(" ")
    major, minor = version[-3], version[-1]
    headers = _headers(lines)
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise HeadRefusal
    _check_body(headers)
    if major != "1":
        raise HeadRefusal("505 HTTP Version Not Supported: unsupported protocol version")
    if not hosts and minor != "0" and method != "CONNECT":
        raise HeadRefusal(f"{BAD_REQUEST}: missing required Host header")
    if hosts and not _HOST.match(hosts[0]):
        raise HeadRefusal(f"{BAD_REQUEST}: malformed Host header")
    if not all(_NAME.match(name) for name, _ in headers):
        raise HeadRefusal(f"{BAD_REQUEST}: invalid header name")
    expected = next((value for name, value in headers if name == b"expect"), b"")
    if expected and b"100-continue" not in expected.lower():
        raise HeadRefusal("417 Expectation Failed", None)
    return headers


def _headers(lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Split lines into names, in small letters, and values; one that begins with a space goes on with the last."""
    unfolded: list[bytes] = []
    for line in lines:
        text = line.rstrip(b"\r\n")
        if not line.startswith((b" ", b"\t")):
            unfolded.append(text)
        elif unfolded:
            unfolded[-1] += b" " + text.strip()
        else:
            raise HeadRefusal
    headers = []
    for line in unfolded:
        name, colon, value = line.partition(b":")
        if not colon or not _READABLE_NAME.match(name) or not _VALUE.match(value):
            raise HeadRefusal
        headers.append((name.lower(), value.strip(b" \t")))
    return headers


def _check_body(headers: list[tuple[bytes, bytes]]) -> None:
    encodings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if encodings not in ([], [b"chunked"]):
        raise HeadRefusal("501 Not Implemented", "Unsupported transfer encoding")
    lengths = {value for name, value in headers if name == b"content-length"}
    if not encodings and (len(lengths) > 1 or not all(map(_is_length, lengths))):
        raise HeadRefusal


def _is_length(value: bytes) -> bool:
    return _LENGTH.match(value) is not None and int(value) <= _MAX_LENGTH
