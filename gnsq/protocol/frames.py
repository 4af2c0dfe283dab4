"""Encodes and decodes frames, and the messages in frames. Pure: knows no commands, sockets or clocks.

Source: the V2 specification, "Data Format"; nsq internal/protocol/protocol.go SendFramedResponse; nsqd message.go.
"""

from __future__ import annotations

import io
import struct
from typing import Final, TypeVar

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
    "MessageFields",
    "OK",
    "RESPONSE",
    "decode_message",
    "decode_messages",
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

# Bytes; two reads of READ_SIZE. If a larger message arrives in several reads, its body is collected in a BytesIO, which
# returns it without a copy.
LARGE_FRAME_SIZE = 128 * 1024

Frame = tuple[int, bytes]


class MessageFields:
    """What a message frame contains. gnsq.message.Message, a subclass, describes these attributes and adds others."""

    __slots__ = ("attempts", "body", "id", "timestamp")

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


_Message = TypeVar("_Message", bound=MessageFields)
_new = object.__new__
_unpack_message = MESSAGE_FRAME.unpack_from
_MESSAGE_FRAME_HEADER_SIZE = MESSAGE_FRAME.size


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


def decode_messages(kind: type[_Message], data: bytes, start: int, max_size: int, messages: list[_Message]) -> int:
    """Append an object for each message frame to a list. Stop before a frame that is not a message, not complete or not
    valid, as decode_message() is. Return the index in the data at which the last of these messages ends.

    Args:
        kind: Class of the objects. Only the attributes of MessageFields are set: without a call of the constructor, a
            message takes 0.5 us in place of 0.8 us.
        start: Index at which the first frame begins.
        max_size: Limit of the size in the header of a frame.
    """
    append = messages.append
    end = len(data)
    while end - start >= _MESSAGE_FRAME_HEADER_SIZE:
        size, frame_type, timestamp, attempts, message_id = _unpack_message(data, start)
        stop = start + 4 + size
        body = start + _MESSAGE_FRAME_HEADER_SIZE
        if frame_type != MESSAGE or size > max_size or not body <= stop <= end or not message_id.isalnum():
            break
        message = _new(kind)
        message.timestamp = timestamp
        message.attempts = attempts
        message.id = message_id
        message.body = data[body:stop]
        append(message)
        start = stop
    return start


class FrameDecoder:
    """Splits a stream of bytes into frames. Keeps the bytes of an incomplete frame, and reserves no memory for bytes
    that have not arrived.

    Args:
        max_frame_size: Bytes; a frame with a larger size in its header is an error. May be changed later.
        large_frame_size: Bytes; the body of a larger message that arrives in several reads is collected apart.

    Attributes:
        failure: The error of a malformed frame, at which feed() has stopped; None: no error.
    """

    __slots__ = ("_body", "_large_size", "_tail", "_wanted", "failure", "max_frame_size")

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE, large_frame_size: int = LARGE_FRAME_SIZE) -> None:
        self.max_frame_size = max_frame_size
        self.failure: NSQFrameError | None = None
        self._large_size = large_frame_size
        # The bytes of an incomplete frame, and how many it must have before it is looked at again.
        self._tail = bytearray()
        self._wanted = 0
        # The body of a large message, whose headers are in _tail then. getvalue() makes no copy.
        self._body: io.BytesIO | None = None

    def feed(
        self,
        data: bytes,
        messages: list[_Message] | None = None,
        kind: type[_Message] = MessageFields,  # type: ignore[assignment]  # the default for a list of any class
    ) -> list[Frame]:
        """Add received bytes, and return all frames that are complete now, in order. An error is stored in ``failure``:
        of a size as soon as its four bytes have arrived, since a server that is not nsqd may send no more.

        Args:
            messages: If given, message frames are not returned: decode_messages() appends them to this list. Then a
                frame of an unknown type is an error, too.
            kind: Class of these messages.
        """
        frames: list[Frame] = []
        if self._body is not None:
            missing = self._wanted - self._body.tell()
            self._body.write(data[:missing])
            if len(data) < missing or messages is None:
                return frames
            self._append_large(self._body.getvalue(), messages, kind)
            data = data[missing:]
        elif self._tail:
            self._tail += data
            if len(self._tail) < self._wanted:
                return frames
            data = bytes(self._tail)
            self._tail.clear()
        try:
            start = self._read_frames(data, frames, messages, kind)
            if start < len(data):
                self._tail += data[start:]
                self._check_partial(may_be_large=messages is not None)
        except NSQFrameError as error:
            self.failure = error
        return frames

    def _read_frames(
        self, data: bytes, frames: list[Frame], messages: list[_Message] | None, kind: type[_Message]
    ) -> int:
        """Read the complete frames in the data. Return the index at which the last one ends."""
        start, end = 0, len(data)
        while end - start >= _HEADER.size:
            size, frame_type = _HEADER.unpack_from(data, start)
            stop = start + 4 + size
            if stop > end or not 4 <= size <= self.max_frame_size:
                break
            if messages is None or frame_type in (RESPONSE, ERROR):
                frames.append((frame_type, data[start + 8 : stop]))
                start = stop
            elif frame_type == MESSAGE:
                first, start = start, decode_messages(kind, data, start, self.max_frame_size, messages)
                if start == first:
                    decode_message(data[start + 8 : stop])  # raises
            else:
                raise NSQFrameError(f"frame type {frame_type} is not one of 0, 1, 2")
        return start

    def _append_large(self, body: bytes, messages: list[_Message], kind: type[_Message]) -> None:
        message = _new(kind)
        message.timestamp, message.attempts, message.id, _ = decode_message(bytes(self._tail[8:]))
        message.body = body
        messages.append(message)
        self._tail.clear()
        self._body = None

    def next_frame(self, data: bytes = b"") -> Frame | None:
        """Add received bytes, and return only the first frame; None if it is not complete.

        The handshake uses this method: bytes after a response, which take_remaining() returns, may be encrypted.

        Raises:
            NSQFrameError: If the size of this frame is below 4 or above max_frame_size.
        """
        self._tail += data
        self._check_partial()
        stop = self._wanted
        if len(self._tail) < max(stop, _HEADER.size):
            return None
        frame_type = _HEADER.unpack_from(self._tail)[1]
        frame = frame_type, bytes(self._tail[8:stop])
        del self._tail[:stop]
        self._wanted = 0
        return frame

    def _check_partial(self, *, may_be_large: bool = False) -> None:
        """Check the size of the frame whose first bytes are in _tail, and set _wanted. Begin _body for a large message.

        Raises:
            NSQFrameError: If the size is not valid.
        """
        self._wanted = 4
        if len(self._tail) < 4:
            return
        (size,) = _SIZE.unpack_from(self._tail)
        if not 4 <= size <= self.max_frame_size:
            raise self._size_error(bytes(self._tail[:4]), size)
        self._wanted += size
        if may_be_large and self._wanted > max(self._large_size, MESSAGE_FRAME.size):
            if len(self._tail) < MESSAGE_FRAME.size:
                self._wanted = MESSAGE_FRAME.size
            elif _HEADER.unpack_from(self._tail)[1] == MESSAGE:
                decode_message(bytes(self._tail[8 : MESSAGE_FRAME.size]))  # raises if the id is not valid
                self._body = io.BytesIO()
                self._body.write(self._tail[MESSAGE_FRAME.size :])
                self._wanted -= MESSAGE_FRAME.size
                del self._tail[MESSAGE_FRAME.size :]

    def take_remaining(self) -> bytes:
        """Return and remove all bytes after the last frame that next_frame() has returned."""
        rest = bytes(self._tail)
        self._tail.clear()
        self._wanted = 0
        return rest

    @property
    def pending(self) -> int:
        """Number of received bytes after the last frame that was returned or read."""
        return len(self._tail) + (0 if self._body is None else self._body.tell())

    def _size_error(self, head: bytes, size: int) -> NSQFrameError:
        text = f"frame size {size} (bytes {head!r}) is not within 4 to {self.max_frame_size}"
        if head == b"HTTP":
            text += ": the peer speaks HTTP; is this nsqd's HTTP port (4151) in place of its TCP port (4150)?"
        elif head[:2] == b"\x15\x03" or head[:2] == b"\x16\x03":
            text += ": the peer speaks TLS; nsqd starts TLS inside its own protocol, after IDENTIFY"
        return NSQFrameError(text)
