"""What nsqd reads behind a command's line: sizes, bodies, messages, each checked in nsqd's order.

Pure. The readers are generators: they pause where bytes are missing and return what they were to read. Source: nsqd
protocol_v2.go: readLen, readMPUB and the beginnings of IDENTIFY, AUTH, PUB and DPUB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import TypeVar

from fakensqd.effects import IoRequest, IoResult
from gnsq.errors import ERROR_CODES
from gnsq.protocol.commands import CommandDecoder
from gnsq.protocol.frames import ERROR, encode_frame

__all__ = ["SIZE", "BodyReader", "InputBuffer", "Read", "CommandError"]

SIZE = struct.Struct(">i")

_Value = TypeVar("_Value")

# A step of reading that returns a value in the end; paused with None while bytes are missing, or with what it asks.
Read = Generator[IoRequest | None, IoResult, _Value]


class CommandError(Exception):
    """A command is answered with an error frame.

    Args:
        data: Code and text, as in the frame.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data

    @property
    def fatal(self) -> bool:
        """Whether the connection ends with it."""
        return ERROR_CODES[self.data.partition(b" ")[0]].fatal

    @property
    def frame(self) -> bytes:
        """The error frame."""
        return encode_frame(ERROR, self.data)


class InputBuffer:
    """The bytes of one client, and whether more may come.

    A failure, below, is what is refused with when the input ends too early.
    """

    __slots__ = ("decoder", "ended")

    def __init__(self, decoder: CommandDecoder | None = None) -> None:
        self.decoder = decoder or CommandDecoder()
        self.ended = False

    def unread(self, data: bytes) -> None:
        """Put bytes in front of what is still to be read."""
        if not data:
            return
        rest = self.decoder.take_remaining()
        self.decoder.feed(data + rest)

    def read(self, count: int, failure: bytes) -> Read[bytes]:
        """Read that many bytes."""
        take = self.decoder.take
        while (data := take(count)) is None:
            if self.ended:
                raise CommandError(failure)
            yield None
        return data

    def read_size(self, failure: bytes) -> Read[int]:
        """Read a signed 32-bit size."""
        take_size = self.decoder.take_size
        while (size := take_size()) is None:
            if self.ended:
                raise CommandError(failure)
            yield None
        return size

    def read_body(self, name: bytes, limit: int) -> Read[bytes]:
        """Read the body of IDENTIFY or AUTH."""
        size = yield from self.read_size(b"E_BAD_BODY %s failed to read body size" % name)
        if size > limit:
            raise CommandError(b"E_BAD_BODY %s body too big %d > %d" % (name, size, limit))
        if size <= 0:
            raise CommandError(b"E_BAD_BODY %s invalid body size %d" % (name, size))
        return (yield from self.read(size, b"E_BAD_BODY %s failed to read body" % name))

    def read_message(self, name: bytes, limit: int) -> Read[bytes]:
        """Read the message of PUB or DPUB."""
        size = yield from self.read_size(b"E_BAD_MESSAGE %s failed to read message body size" % name)
        if size <= 0:
            raise CommandError(b"E_BAD_MESSAGE %s invalid message body size %d" % (name, size))
        if size > limit:
            raise CommandError(b"E_BAD_MESSAGE %s message too big %d > %d" % (name, size, limit))
        return (yield from self.read(size, b"E_BAD_MESSAGE %s failed to read message body" % name))

    def read_messages(self, limit: int, body_limit: int) -> Read[list[bytes]]:
        """Read the count and the messages of MPUB."""
        count = yield from self.read_size(b"E_BAD_BODY MPUB failed to read message count")
        # 4 bytes of count, then at least 5 per message.
        if not 0 < count <= (body_limit - 4) // 5:
            raise CommandError(b"E_BAD_BODY MPUB invalid message count %d" % count)
        take, take_size = self.decoder.take, self.decoder.take_size
        messages: list[bytes] = []
        for index in range(count):
            # Asked directly first: a generator for each size and body doubles what an MPUB costs.
            size = take_size()
            if size is None:
                size = yield from self.read_size(b"E_BAD_MESSAGE MPUB failed to read message(%d) body size" % index)
            if size <= 0:
                raise CommandError(b"E_BAD_MESSAGE MPUB invalid message(%d) body size %d" % (index, size))
            if size > limit:
                raise CommandError(b"E_BAD_MESSAGE MPUB message too big %d > %d" % (size, limit))
            message = take(size)
            if message is None:
                message = yield from self.read(size, b"E_BAD_MESSAGE MPUB failed to read message body")
            messages.append(message)
        return messages


# Reads what follows the line of one command.
BodyReader = Callable[[InputBuffer], Read[object]]
