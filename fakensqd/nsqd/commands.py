"""Parameters and bodies of nsqd's commands: functions that check and read them in nsqd's order.

Pure. ``words`` is the line of a command, split at its spaces: the name, then the parameters. Error texts are nsqd's,
with nsqd's inconsistencies. Source: nsqd protocol_v2.go.
"""

from __future__ import annotations

import functools
import re

from fakensqd.golang.text import base10, int64, quote
from fakensqd.input_buffer import CommandError, InputBuffer, Read
from fakensqd.options import NsqdOptions
from gnsq.protocol.frames import MESSAGE_ID_SIZE
from gnsq.protocol.names import valid_channel_name, valid_topic_name

__all__ = [
    "message_id",
    "topic_name",
    "read_auth",
    "read_defer",
    "read_identify",
    "read_multipublish",
    "read_publish",
    "ready_count",
    "requeue_delay",
    "subscription",
    "take_finishes",
]


# --- parameters -------------------------------------------------------------------------------------------------------


def topic_name(words: list[bytes], count: int = 2) -> str:
    """Parse the topic of SUB, PUB, MPUB or DPUB, which must have this number of words at least."""
    _check_count(words, count, b"parameters")
    topic = _topic_name(words[1])
    if topic is None:
        name = words[0]
        # nsqd writes the code twice in this error of MPUB.
        code = b"E_BAD_TOPIC E_BAD_TOPIC" if name == b"MPUB" else b"E_BAD_TOPIC"
        raise CommandError(b"%s %s topic name %s is not valid" % (code, name, quote(words[1])))
    return topic


def subscription(words: list[bytes]) -> tuple[str, str]:
    """Parse topic and channel of SUB."""
    topic = topic_name(words, 3)
    channel = words[2].decode("latin-1")
    if not valid_channel_name(channel):
        raise CommandError(b"E_BAD_CHANNEL SUB channel name %s is not valid" % quote(words[2]))
    return topic, channel


def ready_count(words: list[bytes], limit: int) -> int:
    """Parse the count of RDY; 1 if the command has no count."""
    if len(words) < 2:
        return 1
    try:
        count = int64(base10(words[1]))
    except ValueError:
        raise CommandError(b"E_INVALID RDY could not parse count %s" % words[1]) from None
    if not 0 <= count <= limit:
        raise CommandError(b"E_INVALID RDY count %d out of range 0-%d" % (count, limit))
    return count


def message_id(words: list[bytes], count: int = 2) -> bytes:
    """Parse the message id of FIN, REQ or TOUCH, which must have this number of words at least."""
    _check_count(words, count, b"params")
    if len(words[1]) != MESSAGE_ID_SIZE:
        raise CommandError(b"E_INVALID invalid message ID")
    return words[1]


# FINs that follow one another, with ids as nsqd makes them. "++" would be a fifth faster, but before Python 3.11.5
# it takes a part of the next command, too.
_FINISHES = re.compile(rb"(?:FIN [0-9a-f]{16}\n)+")


def take_finishes(source: InputBuffer) -> list[bytes]:
    """Take the FINs that come next; return their ids. Leave a FIN whose line or id has another form."""
    run = source.decoder.take_match(_FINISHES)
    return run[4:-1].split(b"\nFIN ") if run else []


def requeue_delay(words: list[bytes], limit: float) -> float:
    """Parse the delay of REQ, in seconds. A delay above the limit becomes the limit; a delay that overflows and becomes
    negative becomes 0."""
    try:
        delay_ms = base10(words[2])
    except ValueError:
        raise CommandError(b"E_INVALID REQ could not parse timeout %s" % words[2]) from None
    return min(max(int64(delay_ms * 10**6) / 1e9, 0.0), limit)


def _defer_delay(words: list[bytes], limit: float) -> float:
    """Parse the delay of DPUB, in seconds. A delay above the limit is refused."""
    try:
        delay_ms = base10(words[2])
    except ValueError:
        raise CommandError(b"E_INVALID DPUB could not parse timeout %s" % words[2]) from None
    delay_ns, limit_ms = int64(delay_ms * 10**6), round(limit * 1000)
    if not 0 <= delay_ns <= limit_ms * 10**6:
        raise CommandError(b"E_INVALID DPUB timeout %d out of range 0-%d" % (delay_ms, limit_ms))
    return delay_ns / 1e9


def _check_count(words: list[bytes], count: int, parameters: bytes) -> None:
    if len(words) < count:
        raise CommandError(b"E_INVALID %s insufficient number of %s" % (words[0], parameters))


@functools.lru_cache(maxsize=1024)
def _topic_name(word: bytes) -> str | None:
    """Decode the name of a topic; None if it is not valid. Cached: a producer repeats the name with each command."""
    name = word.decode("latin-1")
    return name if valid_topic_name(name) else None


# --- bodies -----------------------------------------------------------------------------------------------------------


def read_identify(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[bytes]:
    """Read the body of IDENTIFY."""
    return source.read_body(b"IDENTIFY", options.max_body_size)


def read_auth(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[bytes]:
    """Read the secret of AUTH."""
    if len(words) != 1:
        raise CommandError(b"E_INVALID AUTH invalid number of parameters")
    return (yield from source.read_body(b"AUTH", options.max_body_size))


def read_publish(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[tuple[str, bytes]]:
    """Read topic and message of PUB."""
    topic = topic_name(words)
    return topic, (yield from source.read_body(b"PUB", options.max_msg_size))


def read_defer(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[tuple[str, float, bytes]]:
    """Read topic, delay and message of DPUB."""
    topic = topic_name(words, 3)
    delay = _defer_delay(words, options.max_req_timeout)
    return topic, delay, (yield from source.read_body(b"DPUB", options.max_msg_size))


def read_multipublish(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[list[bytes]]:
    """Read the messages of MPUB."""
    topic_name(words)
    # nsqd checks the size of the whole body, but then ignores this size and reads as many messages as their count says.
    size = yield from source.read_size(b"E_BAD_BODY MPUB failed to read body size")
    limit = options.max_body_size
    if size <= 0:
        raise CommandError(b"E_BAD_BODY MPUB invalid body size %d" % size)
    if size > limit:
        raise CommandError(b"E_BAD_BODY MPUB body too big %d > %d" % (size, limit))
    return (yield from source.read_messages(options.max_msg_size, limit))
