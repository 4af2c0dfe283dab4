"""Bytes that a client has sent, and generators that read sizes, bodies and messages out of them.

Pure. A generator pauses while bytes are missing, and returns what it has read. Source: nsqd protocol_v2.go: readLen,
readMPUB, and how IDENTIFY, AUTH, PUB and DPUB read their bodies.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Generator
from typing import TypeVar

from fakensqd.effects import IoRequest, IoResult
from gnsq.errors import ERROR_CODES
from gnsq.protocol.commands import CommandDecoder
from gnsq.protocol.frames import ERROR, encode_frame

__all__ = ["SIZE", "BodyReader", "CommandError", "InputBuffer", "Read"]

SIZE = struct.Struct(">i")

_Value = TypeVar("_Value")

# A generator that reads and then returns a value. It yields None to get more bytes, an IoRequest to get its result.
Read = Generator[IoRequest | None, IoResult, _Value]


class CommandError(Exception):
    """A command gets an error frame as its response.

    Args:
        data: Data of the frame: the error code, then the text.
        more: Data of further frames, if commands that were executed together have failed.
    """

    def __init__(self, data: bytes, *more: bytes) -> None:
        super().__init__(data, *more)
        self.data = data
        self._more = more

    @property
    def fatal(self) -> bool:
        """True if nsqd closes the connection after this error."""
        return ERROR_CODES[self.data.partition(b" ")[0]].fatal

    @property
    def frames(self) -> list[bytes]:
        """The error frames."""
        return [encode_frame(ERROR, data) for data in (self.data, *self._more)]


# Made once for each command: formatting the texts costs as much as reading a small body.
@functools.cache
def _body_errors(command: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Build the texts of errors in reading a body: no size, a size of 0 or less, too large, not all of it."""
    is_publish = command not in (b"IDENTIFY", b"AUTH")
    prefix = b"%s %s" % (b"E_BAD_MESSAGE" if is_publish else b"E_BAD_BODY", command)
    body = b"message body" if is_publish else b"body"
    return (
        b"%s failed to read %s size" % (prefix, body),
        b"%s invalid %s size %%d" % (prefix, body),
        b"%s %s too big %%d > %%d" % (prefix, b"message" if is_publish else body),
        b"%s failed to read %s" % (prefix, body),
    )


class InputBuffer:
    """The bytes of one client that are not read yet. ``ended`` is True when the client will send no more.

    The argument ``error`` of methods is the data of the CommandError that they raise if the input ends too early.
    """

    __slots__ = ("decoder", "ended")

    def __init__(self, decoder: CommandDecoder | None = None) -> None:
        self.decoder = decoder or CommandDecoder()
        self.ended = False

    def unread(self, data: bytes) -> None:
        """Put bytes back, before the bytes that are not read yet."""
        if not data:
            return
        rest = self.decoder.take_remaining()
        self.decoder.feed(data + rest)

    def read(self, count: int, error: bytes) -> Read[bytes]:
        """Read ``count`` bytes."""
        take = self.decoder.take
        while (data := take(count)) is None:
            if self.ended:
                raise CommandError(error)
            yield None
        return data

    def read_size(self, error: bytes) -> Read[int]:
        """Read a signed 32-bit size."""
        take_size = self.decoder.take_size
        while (size := take_size()) is None:
            if self.ended:
                raise CommandError(error)
            yield None
        return size

    def read_body(self, command: bytes, limit: int) -> Read[bytes]:
        """Read the body of IDENTIFY or AUTH, or the message of PUB or DPUB: a size, then this number of bytes."""
        # A body that has arrived needs no generators for its size and itself. That saves 10 % of a PUB.
        if bodies := self.decoder.take_sized(1, limit):
            return bodies[0]
        no_size, invalid_size, too_big, no_body = _body_errors(command)
        size = yield from self.read_size(no_size)
        if size <= 0:
            raise CommandError(invalid_size % size)
        if size > limit:
            raise CommandError(too_big % (size, limit))
        return (yield from self.read(size, no_body))

    def read_messages(self, limit: int, body_limit: int) -> Read[list[bytes]]:
        """Read the body of MPUB after its size: the count and the messages. Return the messages."""
        count = yield from self.read_size(b"E_BAD_BODY MPUB failed to read message count")
        # The body has 4 bytes of count, then at least 5 bytes per message: 4 bytes of size, and 1 byte of message.
        if not 0 < count <= (body_limit - 4) // 5:
            raise CommandError(b"E_BAD_BODY MPUB invalid message count %d" % count)
        take_sized = self.decoder.take_sized
        # Take the valid messages that are here in one call: reading each one alone doubles the cost of an MPUB.
        messages = take_sized(count, limit)
        while (index := len(messages)) < count:
            size = yield from self.read_size(b"E_BAD_MESSAGE MPUB failed to read message(%d) body size" % index)
            if size <= 0:
                raise CommandError(b"E_BAD_MESSAGE MPUB invalid message(%d) body size %d" % (index, size))
            if size > limit:
                raise CommandError(b"E_BAD_MESSAGE MPUB message too big %d > %d" % (size, limit))
            messages.append((yield from self.read(size, b"E_BAD_MESSAGE MPUB failed to read message body")))
            messages += take_sized(count - len(messages), limit)
        return messages


# A function that reads the bytes that follow the line of a command.
BodyReader = Callable[[InputBuffer], Read[object]]
