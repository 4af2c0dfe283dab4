"""Encodes and decodes frames, and the messages in frames. Pure: knows no commands, sockets or clocks.

Source: the V2 specification, "Data Format"; nsq internal/protocol/protocol.go SendFramedResponse; nsqd message.go.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Final

from gnsq.errors import NSQFrameError
from gnsq.texts import counted

__all__ = [
    "CLOSE_WAIT",
    "DEFAULT_MAX_FRAME_SIZE",
    "ERROR",
    "Frame",
    "FrameDecoder",
    "HEARTBEAT",
    "LARGE_FRAME_SIZE",
    "MESSAGE",
    "MESSAGE_FRAME",
    "MESSAGE_HEADER",
    "MESSAGE_ID_SIZE",
    "OK",
    "RESPONSE",
    "decode_message",
    "encode_frame",
    "encode_message",
]

# Types of frames. Not an IntEnum: to make a member takes 0.35 us for each frame, half of the time to decode a frame.
RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2

OK: Final = b"OK"
HEARTBEAT: Final = b"_heartbeat_"
CLOSE_WAIT: Final = b"CLOSE_WAIT"

MESSAGE_ID_SIZE: Final = 16
# Header of a message: timestamp (ns), attempts, id. The body follows.
MESSAGE_HEADER: Final = struct.Struct(">qH16s")
# Header of a message frame: size and type of the frame, then the header of the message.
MESSAGE_FRAME: Final = struct.Struct(">iiqH16s")

# Bytes. No reasonable max-msg-size is larger. The limit detects the two most common wrong servers: as a size,
# "HTTP" is 1.2 GB, and a TLS alert is 353 MB.
DEFAULT_MAX_FRAME_SIZE: Final = 256 * 1024 * 1024

_HEADER = struct.Struct(">ii")
_SIZE = struct.Struct(">i")

# Bytes; two reads of READ_SIZE. If a larger frame arrives in several reads, its bytes are collected in a BytesIO,
# which returns them without a copy.
LARGE_FRAME_SIZE = 128 * 1024

Frame = tuple[int, bytes]
# Type of a function that reads message frames; see FrameDecoder.feed().
ReadMessages = Callable[[bytes, int, int, bytes | None], int]


def encode_frame(frame_type: int, data: bytes) -> bytes:
    """Build a frame: the size (of type and data together), the type, the data."""
    return _HEADER.pack(len(data) + 4, frame_type) + data


def encode_message(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """Build the data of a message frame, with the timestamp in nanoseconds and attempts modulo 65536."""
    return MESSAGE_HEADER.pack(timestamp, attempts & 0xFFFF, message_id) + body


def decode_message(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Split the data of a message frame into timestamp (ns), attempts, id (16 bytes) and body.

    Raises:
        NSQFrameError: If the data is shorter than the 26 bytes of a message's header, or if the id has other bytes than
            letters and digits. All versions of nsqd send 16 hex digits (nsqd guid.go, Hex). A peer that sends a newline
            would get it back in FIN, as another command.
    """
    try:
        timestamp, attempts, message_id = MESSAGE_HEADER.unpack_from(data)
    except struct.error:
        raise NSQFrameError(
            f"message frame of {counted(len(data), 'byte')}, at least {MESSAGE_HEADER.size} wanted"
        ) from None
    if not message_id.isalnum():
        raise NSQFrameError(f"message id {message_id!r} is not one of nsqd's, which are hex digits")
    return timestamp, attempts, message_id, data[MESSAGE_HEADER.size :]


class FrameDecoder:
    """Splits a stream of bytes into frames. Keeps the bytes of an incomplete frame, and reserves no memory for bytes
    that have not arrived.

    Args:
        max_frame_size: Bytes; a frame with a larger size in its header is an error.
        large_frame_size: Bytes; a larger frame that arrives in several reads is collected in its own buffer.

    Attributes:
        failure: The error of a malformed frame, if feed() has stored it and not raised it; None: no error.
    """

    __slots__ = ("_large", "_large_size", "_max_size", "_tail", "_wanted", "failure")

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE, large_frame_size: int = LARGE_FRAME_SIZE) -> None:
        self._max_size = max_frame_size
        # At least the size of the headers: _begin_large() expects that a large frame is longer than its headers.
        self._large_size = max(large_frame_size, MESSAGE_FRAME.size)
        self._tail = bytearray()
        # The bytes of a large frame after its headers; the headers are in _tail. getvalue() makes no copy.
        self._large: io.BytesIO | None = None
        self._wanted = 0
        self.failure: NSQFrameError | None = None

    def feed(self, data: bytes, read_messages: ReadMessages | None = None) -> list[Frame]:
        """Add received bytes, and return all frames that are complete now, in order.

        An error of a frame's size is stored in ``failure`` if this call has read frames before it, otherwise raised.

        Args:
            read_messages: Function that reads message frames, so that they are not returned. If a complete message
                frame begins at an index start, read_messages(data, start, max_size, None) is called. It reads this and
                the next valid message frames, and returns the index at which the last of them ends. If it raises an
                NSQFrameError, or a frame has an unknown type, the error is stored in ``failure``. For a large message
                that arrived in several reads, read_messages(headers, 0, max_size, body) is called.

        Raises:
            NSQFrameError: If a size is below 4 or above max_frame_size.
        """
        frames: list[Frame] = []
        is_first = True
        if self._large is not None:
            ended = self._feed_large(self._large, data)
            if ended is None:
                return frames
            headers, rest, data = ended
            frame_type = _HEADER.unpack_from(headers)[1]
            is_first = False
            if read_messages is None or frame_type in (RESPONSE, ERROR):
                frames.append((frame_type, headers[8:] + rest))
            elif len(headers) == MESSAGE_FRAME.size:
                read_messages(headers, 0, self._max_size, rest)
            else:
                data, is_first = headers + rest + data, True
        elif self._tail:
            self._tail += data
            if len(self._tail) < self._wanted:
                self._check_partial()
                return frames
            data = bytes(self._tail)
            self._tail.clear()
        append = frames.append
        unpack = _HEADER.unpack_from
        start, end = 0, len(data)
        self._wanted = 8
        while end - start >= 8:
            size, frame_type = unpack(data, start)
            if not 4 <= size <= self._max_size:
                break
            stop = start + 4 + size
            if stop > end:
                self._wanted = stop - start
                break
            if read_messages is None or frame_type in (RESPONSE, ERROR):
                append((frame_type, data[start + 8 : stop]))
                start = stop
                continue
            if frame_type != MESSAGE:
                self.failure = NSQFrameError(f"frame type {frame_type} is not one of 0, 1, 2")
                break
            try:
                start = read_messages(data, start, self._max_size, None)
            except NSQFrameError as error:
                self.failure = error
                break
        if start < end:
            self._tail += data[start:]
            if self._wanted > self._large_size:
                self._begin_large(read_messages is not None)
                return frames
            try:
                self._check_partial()
            except NSQFrameError as error:
                if is_first and not start:
                    raise
                self.failure = error
        return frames

    def next_frame(self, data: bytes = b"", read_messages: ReadMessages | None = None) -> Frame | None:
        """Add received bytes, and return only the first frame; None if it is not complete.

        The handshake uses this method: bytes after a response, which take_remaining() returns, may be encrypted.

        Args:
            read_messages: Function that reads a large message that arrived in several reads, as in feed(): its body is
                not copied. Then the data of the returned frame is empty.

        Raises:
            NSQFrameError: If the size of this frame is below 4 or above max_frame_size.
        """
        if self._large is not None:
            ended = self._feed_large(self._large, data)
            if ended is None:
                return None
            headers, rest, data = ended
            self._tail += data
            if read_messages is not None and len(headers) == MESSAGE_FRAME.size:
                read_messages(headers, 0, self._max_size, rest)
                return MESSAGE, b""
            return _HEADER.unpack_from(headers)[1], headers[8:] + rest
        self._tail += data
        self._check_partial()
        if len(self._tail) < 8:
            return None
        size, frame_type = _HEADER.unpack_from(self._tail)
        if len(self._tail) < 4 + size:
            if 4 + size > self._large_size:
                self._wanted = 4 + size
                self._begin_large(read_messages is not None)
            return None
        frame = (frame_type, bytes(self._tail[8 : 4 + size]))
        del self._tail[: 4 + size]
        # An earlier feed() may have set _wanted to the size of this frame.
        self._wanted = 0
        return frame

    def _begin_large(self, reads_messages: bool) -> None:
        """If the headers of a large frame are complete, collect the bytes after them in their own buffer."""
        frame_type = _HEADER.unpack_from(self._tail)[1]
        size = MESSAGE_FRAME.size if reads_messages and frame_type == MESSAGE else _HEADER.size
        if len(self._tail) < size:
            self._wanted = size
            return
        self._large = io.BytesIO()
        self._large.write(self._tail[size:])
        del self._tail[size:]

    def _feed_large(self, large: io.BytesIO, data: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Add received bytes to a large frame. If the frame is complete, return its headers, the rest of the frame, and
        the bytes after the frame; otherwise None."""
        missing = self._wanted - len(self._tail) - large.tell()
        large.write(data[:missing])
        if len(data) < missing:
            return None
        headers = bytes(self._tail)
        self._tail.clear()
        self._large = None
        self._wanted = 0
        return headers, large.getvalue(), data[missing:]

    def take_remaining(self) -> bytes:
        """Return and remove all bytes after the last frame that was returned or read."""
        rest = bytes(self._tail)
        if self._large is not None:
            rest += self._large.getvalue()
            self._large = None
        self._tail.clear()
        return rest

    @property
    def max_frame_size(self) -> int:
        """Limit of the size in the header of a frame, bytes."""
        return self._max_size

    def set_max_frame_size(self, max_frame_size: int) -> int:
        """Change max_frame_size, and return the old value."""
        before, self._max_size = self._max_size, max_frame_size
        return before

    @property
    def pending(self) -> int:
        """Number of received bytes after the last frame that was returned or read."""
        return len(self._tail) + (0 if self._large is None else self._large.tell())

    def _check_partial(self) -> None:
        """Raise an error for an invalid size as soon as its four bytes have arrived: a server that is not nsqd may send
        fewer than the eight bytes of a frame's header."""
        if len(self._tail) >= 4:
            (size,) = _SIZE.unpack_from(self._tail)
            if not 4 <= size <= self._max_size:
                raise self._size_error(bytes(self._tail[:4]), size)

    def _size_error(self, head: bytes, size: int) -> NSQFrameError:
        text = f"frame size {size} (bytes {head!r}) is not within 4 to {self._max_size}"
        if head == b"HTTP":
            text += ": the peer speaks HTTP; is this nsqd's HTTP port (4151) in place of its TCP port (4150)?"
        elif head[:2] == b"\x15\x03" or head[:2] == b"\x16\x03":
            text += ": the peer speaks TLS; nsqd starts TLS inside its own protocol, after IDENTIFY"
        return NSQFrameError(text)
