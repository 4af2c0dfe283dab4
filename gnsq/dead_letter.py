"""Dead letters: a message that was given up, as a JSON object that also says why, when, and where it came from. Pure.

A Consumer with ``dead_letter_topic`` writes dead letters, and ``gnsq requeue-dead`` reads them. This is version 1. All
keys but the last one are always there:

    {
      "nsq_dead_letter": 1,
      "topic": "orders",                  origin: the topic, the channel and the nsqd of the message
      "channel": "billing",
      "nsqd": "10.0.0.1:4150",            null if it is unknown
      "id": "0c6d3a1f5e2b4000",           of the message
      "timestamp": 1700000000123456789,   nanoseconds of Unix time: when the message was published
      "attempts": 6,                      number of its deliveries
      "given_up_at": 1700000900.25,       seconds of Unix time
      "error": "ValueError",              class of the last exception; empty if it was not an exception
      "reason": "no such country: XX",    text of the last exception, or what happened in its place
      "body": "...",
      "encoding": "base64"                only if the body is not UTF-8: then it is in base64
    }

JSON without this version is not taken for a dead letter. Keys that are not listed here are ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["DeadLetter", "decode_dead_letter", "encode_dead_letter"]

VERSION = 1
_VERSION_KEY = "nsq_dead_letter"
# A body that is no dead letter is not parsed if this text is missing.
_MARK = f'"{_VERSION_KEY}"'.encode()


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that was given up. The fields are the keys of the JSON object; body has the bytes of the message."""

    topic: str
    channel: str
    nsqd: str | None
    id: str
    timestamp: int
    attempts: int
    given_up_at: float
    error: str
    reason: str
    body: bytes


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Write a dead letter as JSON, in one line without a newline at its end."""
    record: dict[str, object] = {_VERSION_KEY: VERSION, **{name: getattr(letter, name) for name in _FIELDS}}
    try:
        record["body"] = letter.body.decode()
    except UnicodeDecodeError:
        record |= {"body": base64.b64encode(letter.body).decode(), "encoding": "base64"}
    # Without ASCII escapes, a text that is not English is not longer than its body.
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")


def decode_dead_letter(data: bytes) -> DeadLetter | None:
    """Read a dead letter. Return None if the bytes are something else: other JSON, another version, or no JSON."""
    if _MARK not in data:
        return None
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get(_VERSION_KEY) is not VERSION:
        return None
    try:
        return _letter(record)
    except (KeyError, ValueError):
        return None


# Fields of a record, with the types that JSON has for them. The body is decoded apart from them.
_FIELDS: dict[str, tuple[type, ...]] = {
    "topic": (str,),
    "channel": (str,),
    "nsqd": (str, type(None)),
    "id": (str,),
    "timestamp": (int,),
    "attempts": (int,),
    "given_up_at": (int, float),
    "error": (str,),
    "reason": (str,),
}


def _letter(record: dict[str, Any]) -> DeadLetter:  # Any: JSON
    """Make a dead letter of an object of JSON.

    Raises:
        KeyError, ValueError: If a field is missing or not valid.
    """
    for name, types in _FIELDS.items():
        if type(record[name]) not in types:
            raise ValueError(f"{name} of a dead letter is a {type(record[name]).__name__}")
    return DeadLetter(body=_body(record), **{name: record[name] for name in _FIELDS})


def _body(record: dict[str, Any]) -> bytes:  # Any: JSON
    body, encoding = record["body"], record.get("encoding")
    if not isinstance(body, str) or encoding not in (None, "base64"):
        raise ValueError(f"body of a dead letter is a {type(body).__name__} with the encoding {encoding!r}")
    if encoding is None:
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(f"body of a dead letter is not in base64: {error}") from error
