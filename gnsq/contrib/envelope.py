"""Envelope of a message body: adds headers to the body, since NSQ's messages have no headers. Pure: bytes to bytes.

This is version 1. Numbers are unsigned, with the most significant byte first:

    offset  bytes  what
    0       7      magic: 00 4E 53 51 45 4E 56, that is a NUL and "NSQENV"
    7       1      version: 01
    8       2      H: number of bytes of all headers together, 0 to 65535
    10      H      the headers, one after the other; each consists of
                   2   N: number of bytes of its name
                   N   its name, in UTF-8
                   2   V: number of bytes of its value
                   V   its value, in UTF-8
    10 + H  rest   the unchanged body; may be empty

The header ``{"a": "xyz"}`` and the body ``hello`` are encoded as

    00 4E 53 51 45 4E 56  01  00 08  00 01 61  00 03 78 79 7A  68 65 6C 6C 6F

Each name occurs only once. Bytes that do not begin with magic and version, or that break one of these rules, are a body
without an envelope. Neither text nor JSON begins with a NUL. So a topic may have bodies with and without envelopes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from gnsq.texts import counted, not_bytes

__all__ = ["MAX_HEADERS_SIZE", "unwrap", "wrap"]

# Bytes; the largest number that fits in two bytes. W3C's header baggage may take 8192 bytes, and tracestate 512.
MAX_HEADERS_SIZE = 65_535

_START = b"\x00NSQENV\x01"
_SIZE = struct.Struct(">H")
_HEADERS = len(_START) + _SIZE.size


def wrap(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Put a body into an envelope, even if it is in an envelope already.

    ``wrap(b"", headers) + body`` gives the same result. For many bodies with equal headers, one wrap() is enough.

    Raises:
        ValueError: If the headers take more than MAX_HEADERS_SIZE bytes, or a name or value can't be encoded in UTF-8.
        TypeError: If the body is not bytes, or a name or value is not a str.
    """
    if not isinstance(body, bytes):
        raise TypeError(not_bytes("message body", body))
    fields = [_encoded(name, text) for name, value in headers.items() for text in (name, value)]
    size = sum(map(len, fields)) + len(fields) * _SIZE.size
    if size > MAX_HEADERS_SIZE:
        raise ValueError(f"headers of {size} bytes exceed an envelope's {MAX_HEADERS_SIZE}")
    sized = [part for field in fields for part in (_SIZE.pack(len(field)), field)]
    return b"".join([_START, _SIZE.pack(size), *sized, body])


def unwrap(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Take a body out of its envelope. Of two envelopes, only the outer one is removed.

    Returns:
        The body and its headers. Bytes that are not a valid envelope are returned unchanged, without headers. A body
        that was cut short is not noticed.
    """
    if not body.startswith(_START):
        return body, {}
    try:
        end = _HEADERS + _SIZE.unpack_from(body, len(_START))[0]
        if end > len(body):
            return body, {}
        headers = _decode_headers(body[_HEADERS:end])
    except (struct.error, ValueError):
        return body, {}
    return body[end:], headers


def _encoded(name: str, text: str) -> bytes:
    """Encode the name or the value of a header."""
    if not isinstance(text, str):
        raise TypeError(f"name and value of header {name!r} must be str, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"header {name!r} can't be written in UTF-8: {error}") from error


def _decode_headers(data: bytes) -> dict[str, str]:
    """Decode headers.

    Raises:
        struct.error, ValueError: If a header is not complete or not in UTF-8, or a name occurs twice.
    """
    texts: list[str] = []
    end = 0
    while end < len(data):
        start = end + _SIZE.size
        end = start + _SIZE.unpack_from(data, end)[0]
        texts.append(data[start:end].decode())
    if end != len(data):
        raise ValueError(f"headers end at {end} of {counted(len(data), 'byte')}")
    headers = dict(zip(texts[::2], texts[1::2], strict=True))
    if len(headers) * 2 != len(texts):
        raise ValueError("a header occurs twice")
    return headers
