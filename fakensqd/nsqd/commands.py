"""Commands: one row for each, with its words, its body and what it names. All is checked in nsqd's order.

Pure. ``words`` is a command's line, split at its spaces, its name first. Source: nsqd protocol_v2.go; what is counted
as "params" there and what as "parameters" is nsqd's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from fakensqd.golang.text import base10, int64, quote
from fakensqd.input_buffer import CommandError, InputBuffer, Read
from fakensqd.options import LATEST, NsqdOptions, Release
from gnsq.protocol.frames import MESSAGE_ID_SIZE

__all__ = [
    "LOOKUPD_ROWS",
    "NSQD_ROWS",
    "CommandRow",
    "ROWS",
    "message_id",
    "publish_topic",
    "read_auth",
    "read_defer",
    "read_identify",
    "read_multipublish",
    "read_publish",
    "ready_count",
    "requeue_delay",
    "subscription",
]


# --- words ------------------------------------------------------------------------------------------------------------


def subscription(words: list[bytes], release: Release = LATEST) -> tuple[str, str]:
    """Read topic and channel of SUB."""
    _check_count(words, b"parameters")
    topic = _topic_name(words[1], release)
    if topic is None:
        raise CommandError(b"E_BAD_TOPIC SUB topic name %s is not valid" % _quoted(words[1], release))
    channel = words[2].decode("latin-1")
    if not release.is_channel_name(channel):
        raise CommandError(b"E_BAD_CHANNEL SUB channel name %s is not valid" % _quoted(words[2], release))
    return topic, channel


def ready_count(words: list[bytes], limit: int) -> int:
    """Read the count of RDY; 1 if there is none."""
    if len(words) < 2:
        return 1
    try:
        count = int64(base10(words[1]))
    except ValueError:
        raise CommandError(b"E_INVALID RDY could not parse count %s" % words[1]) from None
    if not 0 <= count <= limit:
        raise CommandError(b"E_INVALID RDY count %d out of range 0-%d" % (count, limit))
    return count


def message_id(words: list[bytes]) -> bytes:
    """Read the id of FIN, REQ or TOUCH."""
    _check_count(words, b"params")
    if len(words[1]) != MESSAGE_ID_SIZE:
        raise CommandError(b"E_INVALID invalid message ID")
    return words[1]


def requeue_delay(words: list[bytes], limit: float, release: Release = LATEST) -> float:
    """Read the delay of REQ, in seconds; more than the limit is cut, an overflow to below zero is none. Releases before
    1.1.0 refuse both."""
    try:
        delay_ms = base10(words[2])
    except ValueError:
        raise CommandError(b"E_INVALID REQ could not parse timeout %s" % words[2]) from None
    delay_ns, limit_ns = int64(delay_ms * 10**6), round(limit * 1000) * 10**6
    if not release.cuts_requeue_delay and not 0 <= delay_ns <= limit_ns:
        # nsqd really says nanoseconds.
        raise CommandError(b"E_INVALID REQ timeout %d out of range 0-%d" % (delay_ns, limit_ns))
    return min(max(delay_ns / 1e9, 0.0), limit)


def publish_topic(words: list[bytes], release: Release = LATEST) -> str:
    """Read the topic of PUB, MPUB or DPUB."""
    _check_count(words, b"parameters")
    topic = _topic_name(words[1], release)
    if topic is None:
        name = words[0]
        # MPUB really says its code twice.
        code = b"E_BAD_TOPIC E_BAD_TOPIC" if name == b"MPUB" else b"E_BAD_TOPIC"
        raise CommandError(b"%s %s topic name %s is not valid" % (code, name, _quoted(words[1], release)))
    return topic


def _defer_delay(words: list[bytes], limit: float) -> float:
    """Read the delay of DPUB, in seconds; more than the limit is refused."""
    try:
        delay_ms = base10(words[2])
    except ValueError:
        raise CommandError(b"E_INVALID DPUB could not parse timeout %s" % words[2]) from None
    delay_ns, limit_ms = int64(delay_ms * 10**6), round(limit * 1000)
    if not 0 <= delay_ns <= limit_ms * 10**6:
        raise CommandError(b"E_INVALID DPUB timeout %d out of range 0-%d" % (delay_ms, limit_ms))
    return delay_ns / 1e9


def _check_count(words: list[bytes], called: bytes) -> None:
    if len(words) < NSQD_ROWS[words[0]].words:
        raise CommandError(b"E_INVALID %s insufficient number of %s" % (words[0], called))


def _quoted(name: bytes, release: Release) -> bytes:
    return quote(name) if release.since(0, 2, 29) else b"'%s'" % name


@functools.lru_cache(maxsize=1024)
def _topic_name(word: bytes, release: Release) -> str | None:
    """Decode a topic's name, None if it is not valid. Cached: a publisher says the same one again and again."""
    name = word.decode("latin-1")
    return name if release.is_topic_name(name) else None


# --- words and body ---------------------------------------------------------------------------------------------------


def read_identify(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[bytes]:
    """Read the body of IDENTIFY."""
    return source.read_body(b"IDENTIFY", options.max_body_size)


def read_auth(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[bytes]:
    """Read the secret of AUTH."""
    if not options.emulated.since(0, 2, 29):
        raise CommandError(b"E_INVALID invalid command AUTH")
    if len(words) != 1:
        raise CommandError(b"E_INVALID AUTH invalid number of parameters")
    return (yield from source.read_body(b"AUTH", options.max_body_size))


def read_publish(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[tuple[str, bytes]]:
    """Read topic and message of PUB."""
    topic_name = publish_topic(words, options.emulated)
    return topic_name, (yield from source.read_message(b"PUB", options.max_msg_size))


def read_defer(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[tuple[str, float, bytes]]:
    """Read topic, delay and message of DPUB."""
    if not options.emulated.since(0, 3, 6):
        raise CommandError(b"E_INVALID invalid command DPUB")
    topic_name = publish_topic(words, options.emulated)
    delay = _defer_delay(words, options.max_req_timeout)
    return topic_name, delay, (yield from source.read_message(b"DPUB", options.max_msg_size))


def read_multipublish(words: list[bytes], options: NsqdOptions, source: InputBuffer) -> Read[list[bytes]]:
    """Read the messages of MPUB."""
    publish_topic(words, options.emulated)
    # nsqd goes by the count and each message's size; the size of the whole is checked and forgotten.
    size = yield from source.read_size(b"E_BAD_BODY MPUB failed to read body size")
    limit = options.max_body_size
    if size <= 0:
        raise CommandError(b"E_BAD_BODY MPUB invalid body size %d" % size)
    if size > limit:
        raise CommandError(b"E_BAD_BODY MPUB body too big %d > %d" % (size, limit))
    return (yield from source.read_messages(options.max_msg_size, limit))


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """Facts about one command.

    Attributes:
        words: How many words its line has at least, with its name.
        has_topic, has_channel: Whether the first word after the name is a topic, and the second one a channel.
        has_message_id: Whether the first word after the name is a message id.
        publishes: Whether it puts messages into a topic.
        details: How many words after the name say nothing but topic, channel or message; None if all do.
        read: Checks the words and reads the body; None if there is no body.
    """

    words: int = 1
    has_topic: bool = False
    has_channel: bool = False
    has_message_id: bool = False
    publishes: bool = False
    details: int | None = None
    read: Callable[[list[bytes], NsqdOptions, InputBuffer], Read[object]] | None = None


NSQD_ROWS = {
    b"IDENTIFY": CommandRow(read=read_identify),
    b"AUTH": CommandRow(read=read_auth),
    b"SUB": CommandRow(words=3, has_topic=True, has_channel=True),
    b"PUB": CommandRow(words=2, has_topic=True, publishes=True, read=read_publish),
    b"MPUB": CommandRow(words=2, has_topic=True, publishes=True, read=read_multipublish),
    b"DPUB": CommandRow(words=3, has_topic=True, publishes=True, details=1, read=read_defer),
    b"RDY": CommandRow(details=0),
    b"FIN": CommandRow(words=2, has_message_id=True),
    b"REQ": CommandRow(words=3, has_message_id=True, details=1),
    b"TOUCH": CommandRow(words=2, has_message_id=True),
    b"CLS": CommandRow(),
    b"NOP": CommandRow(),
}
# Those of nsqlookupd; its session reads the body of IDENTIFY, which has no limit.
LOOKUPD_ROWS = {
    b"IDENTIFY": CommandRow(),
    b"REGISTER": CommandRow(words=2, has_topic=True, has_channel=True),
    b"UNREGISTER": CommandRow(words=2, has_topic=True, has_channel=True),
    b"PING": CommandRow(),
}
ROWS = NSQD_ROWS | LOOKUPD_ROWS
