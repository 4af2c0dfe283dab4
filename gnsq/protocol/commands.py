"""Builds the commands of the V2 protocol, and decodes their lines and bodies for a server. Pure.

Functions that build a command check names, message bodies, message ids and numbers first. They raise ValueError for a
name or id that is not valid, a negative number, and an empty or too long body; TypeError for another wrong type. They
know none of nsqd's limits. CommandDecoder does not check that a command is legal: its caller must do that. Source: the
V2 specification; nsqd protocol_v2.go.
"""

from __future__ import annotations

import functools
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gnsq.protocol.frames import MESSAGE_ID_SIZE
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.texts import counted, not_bytes, shown_argument

__all__ = [
    "Command",
    "CommandDecoder",
    "MAGIC_V2",
    "MAX_LINE_SIZE",
    "NOP",
    "WITH_BODY",
    "auth",
    "check_count",
    "checked_milliseconds",
    "check_messages",
    "close",
    "deferpublish",
    "finish",
    "finish_all",
    "identify",
    "is_starved",
    "multipublish",
    "multipublish_body",
    "nop",
    "publish",
    "ready",
    "requeue",
    "split_multipublish_body",
    "subscribe",
    "touch",
]

MAGIC_V2: Final = b"  V2"
NOP: Final = b"NOP\n"
# The commands whose line is followed by a size and a body.
WITH_BODY: Final = frozenset({b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"})

# A connection is starved if the messages in flight are at least this part of its RDY count, and at least one.
STARVED_AT: Final = 0.85

# Bytes of a line. nsqd reads lines through a bufio.Reader of 16 KiB. Source: protocol_v2.go IOLoop, ReadSlice.
MAX_LINE_SIZE: Final = 16384

_SIZE = struct.Struct(">i")
_pack = _SIZE.pack
_MAX_SIZE: Final = 2**31 - 1


def identify(data: Mapping[str, object]) -> bytes:
    """Build IDENTIFY from the fields of its JSON body. Durations in the fields must be in milliseconds."""
    return b"IDENTIFY\n" + _sized(json.dumps(dict(data)).encode(), "IDENTIFY body")


def auth(secret: bytes) -> bytes:
    """Build AUTH."""
    if not isinstance(secret, bytes):
        raise TypeError(f"auth secret must be bytes, not {type(secret).__name__}")
    return b"AUTH\n" + _sized(secret, "auth secret")


def subscribe(topic_name: str, channel_name: str) -> bytes:
    """Build SUB."""
    assert_valid_topic_name(topic_name)
    assert_valid_channel_name(channel_name)
    return b"SUB %s %s\n" % (topic_name.encode(), channel_name.encode())


def publish(topic_name: str, data: bytes, *, check: bool = True) -> bytes:
    """Build PUB. An empty body is a ValueError, since nsqd refuses it ("invalid message body size 0").

    Args:
        check: If False, the body must have been checked: a bytes object that is neither empty nor too long.
    """
    if check:
        return _pub_line(topic_name) + _sized(_checked_body(data), "message body")
    return _pub_line(topic_name) + _pack(len(data)) + data


@functools.lru_cache(1000)
def _pub_line(topic_name: str) -> bytes:
    # Cached: checking a name takes 1 us, and most programs publish to a few topics.
    assert_valid_topic_name(topic_name)
    return b"PUB %s\n" % topic_name.encode()


def multipublish(topic_name: str, messages: Iterable[bytes]) -> bytes:
    """Build MPUB, of at least one message. nsqd stores no message if one of them is not valid."""
    assert_valid_topic_name(topic_name)
    return b"MPUB %s\n" % topic_name.encode() + _sized(multipublish_body(messages), "MPUB body")


def multipublish_body(messages: Iterable[bytes]) -> bytes:
    """Build the body of MPUB, and of HTTP's binary /mpub: number of messages, then size and body of each one."""
    check_messages(messages)
    parts = [b""]
    for body in messages:
        if type(body) is not bytes or not body:
            _checked_body(body, f"message {len(parts) // 2}")  # makes the text of the error
        parts += _SIZE.pack(len(body)), body
    count = len(parts) // 2
    if not count:
        raise ValueError("multipublish of 0 messages; nsqd wants at least 1")
    parts[0] = _SIZE.pack(count)
    return b"".join(parts)


def deferpublish(topic_name: str, data: bytes, delay_ms: int) -> bytes:
    """Build DPUB: nsqd delivers the message after delay_ms milliseconds. nsqd refuses more than its max-req-timeout."""
    assert_valid_topic_name(topic_name)
    check_count("delay_ms", delay_ms, "milliseconds")
    return b"DPUB %s %d\n" % (topic_name.encode(), delay_ms) + _sized(_checked_body(data), "message body")


def ready(count: int) -> bytes:
    """Build RDY, which sets the limit of the messages in flight on this connection; 0: nsqd sends no messages."""
    check_count("ready count", count)
    return b"RDY %d\n" % count


def is_starved(in_flight: int, ready_count: int) -> bool:
    """Return True if at least 85 % of the messages that RDY allows, and at least one message, are in flight.

    Source: the client guide, "is_starved".
    """
    return in_flight >= max(ready_count * STARVED_AT, 1)


def finish(message_id: bytes | str) -> bytes:
    """Build FIN.

    Raises:
        ValueError: If the id does not have 16 bytes, or contains a space, CR or newline.
    """
    return finish_all([_checked_id(message_id)], check=False)


def finish_all(message_ids: Sequence[bytes], *, check: bool = True) -> bytes:
    """Build FIN for each of one or more ids.

    Args:
        check: False for ids that are known to be valid. If True, an id that is not valid is an error as in finish().
    """
    ids = [_checked_id(message_id) for message_id in message_ids] if check else message_ids
    return b"FIN " + b"\nFIN ".join(ids) + b"\n"


def requeue(message_id: bytes | str, timeout: int = 0) -> bytes:
    """Build REQ: nsqd delivers the message again after timeout milliseconds. The limit is nsqd's max-req-timeout."""
    check_count("requeue timeout", timeout, "milliseconds")
    return b"REQ %s %d\n" % (_checked_id(message_id), timeout)


def touch(message_id: bytes | str) -> bytes:
    """Build TOUCH: nsqd restarts the timeout of the message."""
    return b"TOUCH %s\n" % _checked_id(message_id)


def close() -> bytes:
    """Build CLS: nsqd sends no more messages, and responds with CLOSE_WAIT."""
    return b"CLS\n"


def nop() -> bytes:
    """Build NOP, the answer to a heartbeat."""
    return NOP


def _sized(data: bytes, subject: str) -> bytes:
    if len(data) > _MAX_SIZE:
        raise ValueError(f"{subject} of {len(data)} bytes exceeds {_MAX_SIZE}, the maximum of its size field")
    return _SIZE.pack(len(data)) + data


def _checked_body(body: bytes, subject: str = "message body") -> bytes:
    if not isinstance(body, bytes):
        raise TypeError(not_bytes(subject, body))
    if not body:
        raise ValueError(f"{subject} is empty; nsqd wants at least 1 byte")
    return body


def check_messages(messages: object) -> None:
    """Raise TypeError unless an argument is an iterable, and not a single message."""
    if isinstance(messages, (bytes, bytearray, memoryview, str)) or not (
        hasattr(messages, "__iter__") or hasattr(messages, "__getitem__")
    ):
        raise TypeError(f"messages must be an iterable of bytes, not {type(messages).__name__}: give a list")


# A space ends a word of a command, and a newline ends its line; nsqd also removes a CR at the end of a line.
_FORBIDDEN_IN_ID = re.compile(rb"[ \r\n]")


def _checked_id(message_id: bytes | str) -> bytes:
    data = message_id.encode() if isinstance(message_id, str) else message_id
    if not isinstance(data, bytes):
        raise TypeError(f"message id must be bytes or str, not {shown_argument(message_id)}")
    if len(data) != MESSAGE_ID_SIZE or _FORBIDDEN_IN_ID.search(data):
        raise ValueError(f"message id {data!r} is not {MESSAGE_ID_SIZE} bytes without space or newline")
    return data


def checked_milliseconds(name: str, value: int | timedelta) -> int:
    """Return an argument in milliseconds. Raise TypeError or ValueError as check_count() does."""
    if isinstance(value, timedelta):
        value = round(value / timedelta(milliseconds=1))
    check_count(name, value, "milliseconds")
    return value


def check_count(name: str, value: object, unit: str = "") -> None:
    """Raise TypeError unless an argument is an int, and ValueError if it is negative.

    Args:
        unit: What is counted, for the text of the error.
    """
    # Refuse a bool, which is an int in Python: in place of a number, it is probably a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int{unit and f' of {unit}'}, not {shown_argument(value)}")
    if value < 0:
        raise ValueError(f"{name} {value} must be at least 0{unit and f' {unit}'}")


# --- the server's side


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a server has received: its name, its parameters, and its body if it has one."""

    name: bytes
    args: tuple[bytes, ...] = ()
    body: bytes | None = None


class CommandDecoder:
    """Buffers received bytes, and splits them into lines, sizes and bodies. The server knows which of these comes next,
    and calls the method for it."""

    __slots__ = ("_data", "_later", "_later_size", "_position")

    def __init__(self) -> None:
        # Bytes objects are sliced from a position on. A bytearray that is cut at its front takes twice as long.
        self._data = b""
        self._position = 0
        # Bytes that came while _data was not used up. They are joined when they are needed, so that the time for a
        # large body is linear in its size.
        self._later: list[bytes] = []
        self._later_size = 0

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        if self._position == len(self._data) and not self._later:
            self._data = data
            self._position = 0
        else:
            self._later.append(data)
            self._later_size += len(data)

    @property
    def buffered(self) -> int:
        """Number of received bytes that are still in the buffer."""
        return len(self._data) - self._position + self._later_size

    def _join(self) -> None:
        """Drop the bytes that were taken, and append the later bytes."""
        self._data = b"".join([self._data[self._position :], *self._later])
        self._position = self._later_size = 0
        self._later.clear()

    def take(self, count: int) -> bytes | None:
        """Remove and return exactly count bytes. Return None if there are fewer."""
        end = self._position + count
        if end > len(self._data):
            if self.buffered < count:
                return None
            self._join()
            end = count
        data = self._data[self._position : end]
        self._position = end
        return data

    def peek(self, count: int) -> bytes | None:
        """Return exactly count bytes without removing them. Return None if there are fewer."""
        data = self.take(count)
        if data is not None:
            self._position -= count
        return data

    def take_size(self) -> int | None:
        """Remove and return a signed 32-bit size; None if there are fewer than four bytes."""
        data = self.take(4)
        return None if data is None else int(_SIZE.unpack(data)[0])

    def take_sized(self, count: int, limit: int) -> list[bytes]:
        """Remove and return bodies that follow their sizes: at most count, those that have arrived completely.

        Stop before a body whose size is not from 1 to limit.
        """
        data, position, end = self._data, self._position, len(self._data)
        bodies: list[bytes] = []
        while len(bodies) < count and (start := position + 4) <= end:
            (size,) = _SIZE.unpack_from(data, position)
            stop = start + size
            if not 0 < size <= limit or stop > end:
                break
            bodies.append(data[start:stop])
            position = stop
        self._position = position
        return bodies

    def take_line(self) -> bytes | None:
        """Remove and return a line, without the newline and a carriage return before it; None if there is no newline.

        Raises:
            ValueError: If a line with its newline is longer than MAX_LINE_SIZE. nsqd closes the connection for such a
                line, without sending an error.
        """
        end = self._data.find(b"\n", self._position, self._position + MAX_LINE_SIZE)
        if end < 0:
            self._join()
            end = self._data.find(b"\n", 0, MAX_LINE_SIZE)
        if end < 0:
            if len(self._data) >= MAX_LINE_SIZE:
                raise ValueError(f"command line exceeds {MAX_LINE_SIZE} bytes")
            return None
        line = self._data[self._position : end]
        self._position = end + 1
        return line.removesuffix(b"\r")

    def take_match(self, pattern: re.Pattern[bytes]) -> bytes:
        """Remove and return the first bytes, as far as a pattern matches them; b"" if it does not match."""
        found = pattern.match(self._data, self._position)
        if found is None:
            return b""
        self._position = found.end()
        return found[0]

    def take_remaining(self) -> bytes:
        """Return and remove all bytes."""
        self._join()
        rest, self._data = self._data, b""
        return rest


def split_multipublish_body(body: bytes) -> Sequence[bytes]:
    """Decode the result of multipublish_body().

    Raises:
        ValueError: If the count or a size does not fit the body.
    """
    decoder = CommandDecoder()
    decoder.feed(body)
    count = decoder.take_size()
    if count is None or count < 0:
        raise ValueError(f"MPUB body of {counted(len(body), 'byte')} has no message count")
    messages: list[bytes] = []
    for index in range(count):
        size = decoder.take_size()
        message = None if size is None or size < 0 else decoder.take(size)
        if message is None:
            raise ValueError(f"MPUB body of {len(body)} bytes ends inside message {index} of {count}")
        messages.append(message)
    if decoder.buffered:
        raise ValueError(f"MPUB body has {counted(decoder.buffered, 'byte')} after its {counted(count, 'message')}")
    return messages
