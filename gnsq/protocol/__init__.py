"""The V2 protocol as pure code, for the client and fakensqd. This module itself only has the names of gnsq 1.0."""

from gnsq.protocol.commands import MAGIC_V2 as MAGIC_V2
from gnsq.protocol.commands import auth as auth
from gnsq.protocol.commands import close as close
from gnsq.protocol.commands import deferpublish as deferpublish
from gnsq.protocol.commands import finish as finish
from gnsq.protocol.commands import identify as identify
from gnsq.protocol.commands import multipublish as multipublish
from gnsq.protocol.commands import multipublish_body as multipublish_body
from gnsq.protocol.commands import nop as nop
from gnsq.protocol.commands import publish as publish
from gnsq.protocol.commands import ready as ready
from gnsq.protocol.commands import requeue as requeue
from gnsq.protocol.commands import subscribe as subscribe
from gnsq.protocol.commands import touch as touch
from gnsq.protocol.frames import CLOSE_WAIT as CLOSE_WAIT
from gnsq.protocol.frames import ERROR as ERROR
from gnsq.protocol.frames import HEARTBEAT as HEARTBEAT
from gnsq.protocol.frames import MESSAGE as MESSAGE
from gnsq.protocol.frames import OK as OK
from gnsq.protocol.frames import RESPONSE as RESPONSE
from gnsq.protocol.frames import decode_message as decode_message
from gnsq.protocol.names import VALID_NAME_RE as VALID_NAME_RE
from gnsq.protocol.names import assert_valid_channel_name as assert_valid_channel_name
from gnsq.protocol.names import assert_valid_topic_name as assert_valid_topic_name
from gnsq.protocol.names import valid_channel_name as valid_channel_name
from gnsq.protocol.names import valid_topic_name as valid_topic_name

FRAME_TYPE_RESPONSE = RESPONSE
FRAME_TYPE_ERROR = ERROR
FRAME_TYPE_MESSAGE = MESSAGE
unpack_message = decode_message

# The names of the commands.
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


def unpack_size(data: bytes) -> int:
    """Read the four bytes of a frame's size."""
    return int.from_bytes(data[:4], "big", signed=True)


def unpack_response(data: bytes) -> tuple[int, bytes]:
    """Split the bytes that follow a frame's size into type and data."""
    return unpack_size(data), data[4:]
