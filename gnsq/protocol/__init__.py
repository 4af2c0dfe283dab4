"""The V2 protocol as pure code, shared by the client and the emulator.

``frames`` cuts and builds frames, ``commands`` builds and decodes commands, ``names`` knows what a topic may be
called, ``handshake`` knows the order of a connection's first steps. The functions of gnsq 1.0's ``gnsq.protocol`` are
re-exported here.
"""

from gnsq.protocol.commands import (
    MAGIC_V2,
    Command,
    CommandDecoder,
    auth,
    close,
    deferpublish,
    finish,
    identify,
    multipublish,
    multipublish_body,
    nop,
    publish,
    ready,
    requeue,
    subscribe,
    touch,
)
from gnsq.protocol.frames import (
    CLOSE_WAIT,
    ERROR,
    HEARTBEAT,
    MESSAGE,
    OK,
    RESPONSE,
    FrameDecoder,
    FrameType,
    decode_message,
    encode_frame,
    encode_message,
)
from gnsq.protocol.names import (
    VALID_NAME_RE,
    assert_valid_channel_name,
    assert_valid_topic_name,
    valid_channel_name,
    valid_topic_name,
)

FRAME_TYPE_RESPONSE = RESPONSE
FRAME_TYPE_ERROR = ERROR
FRAME_TYPE_MESSAGE = MESSAGE


def unpack_size(data: bytes) -> int:
    """Read the four bytes of a frame's size."""
    return int.from_bytes(data[:4], "big", signed=True)


def unpack_response(data: bytes) -> tuple[int, bytes]:
    """Split what follows a frame's size into type and data."""
    return int.from_bytes(data[:4], "big", signed=True), data[4:]


unpack_message = decode_message

# The command words, under the names of 1.0.
AUTH = b"AUTH"
CLS = b"CLS"
DPUB = b"DPUB"
FIN = b"FIN"
IDENTIFY = b"IDENTIFY"
MPUB = b"MPUB"
NOP = b"NOP"
PUB = b"PUB"
RDY = b"RDY"
REQ = b"REQ"
SUB = b"SUB"
TOUCH = b"TOUCH"

__all__ = [
    "AUTH",
    "CLOSE_WAIT",
    "CLS",
    "Command",
    "CommandDecoder",
    "DPUB",
    "ERROR",
    "FIN",
    "FRAME_TYPE_ERROR",
    "FRAME_TYPE_MESSAGE",
    "FRAME_TYPE_RESPONSE",
    "FrameDecoder",
    "FrameType",
    "HEARTBEAT",
    "IDENTIFY",
    "MAGIC_V2",
    "MESSAGE",
    "MPUB",
    "NOP",
    "OK",
    "PUB",
    "RDY",
    "REQ",
    "RESPONSE",
    "SUB",
    "TOUCH",
    "VALID_NAME_RE",
    "assert_valid_channel_name",
    "assert_valid_topic_name",
    "auth",
    "close",
    "decode_message",
    "deferpublish",
    "encode_frame",
    "encode_message",
    "finish",
    "identify",
    "multipublish",
    "multipublish_body",
    "nop",
    "publish",
    "ready",
    "requeue",
    "subscribe",
    "touch",
    "unpack_message",
    "unpack_response",
    "unpack_size",
    "valid_channel_name",
    "valid_topic_name",
]
