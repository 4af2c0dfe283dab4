"""The words behind a command: counted, read and checked in nsqd's order.

Pure. ``words`` is a command's line, split at its spaces, its name first. Source: nsqd protocol_v2.go; what is counted
as "params" there and what as "parameters" is nsqd's own.
"""

from __future__ import annotations

import functools

from fakensqd.gotext import base10, int64, quote
from fakensqd.options import LATEST, Release
from fakensqd.reader import Refusal
from gnsq.protocol.frames import MESSAGE_ID_SIZE

__all__ = ["defer_delay", "message_id", "publish_topic", "ready_count", "requeue_delay", "subscription"]

Words = list[bytes]


def subscription(words: Words, release: Release = LATEST) -> tuple[str, str]:
    """Read topic and channel of SUB."""
    if len(words) < 3:
        raise Refusal(b"E_INVALID SUB insufficient number of parameters")
    topic = _topic_name(words[1], release)
    if topic is None:
        raise Refusal(b"E_BAD_TOPIC SUB topic name %s is not valid" % _quoted(words[1], release))
    channel = words[2].decode("latin-1")
    if not release.is_channel_name(channel):
        raise Refusal(b"E_BAD_CHANNEL SUB channel name %s is not valid" % _quoted(words[2], release))
    return topic, channel


def ready_count(words: Words, limit: int) -> int:
    """Read the count of RDY; 1 if there is none."""
    if len(words) < 2:
        return 1
    try:
        count = int64(base10(words[1]))
    except ValueError:
        raise Refusal(b"E_INVALID RDY could not parse count %s" % words[1]) from None
    if not 0 <= count <= limit:
        raise Refusal(b"E_INVALID RDY count %d out of range 0-%d" % (count, limit))
    return count


def message_id(words: Words, at_least: int = 2) -> bytes:
    """Read the id of FIN, REQ or TOUCH, which have at least so many words."""
    if len(words) < at_least:
        raise Refusal(b"E_INVALID %s insufficient number of params" % words[0])
    if len(words[1]) != MESSAGE_ID_SIZE:
        raise Refusal(b"E_INVALID invalid message ID")
    return words[1]


def requeue_delay(words: Words, limit: float, release: Release = LATEST) -> float:
    """Read the delay of REQ, in seconds; more than the limit is cut, an overflow to below zero is none. Releases before
    1.1.0 refuse both."""
    try:
        delay_ms = base10(words[2])
    except ValueError:
        raise Refusal(b"E_INVALID REQ could not parse timeout %s" % words[2]) from None
    delay_ns, limit_ns = int64(delay_ms * 10**6), round(limit * 1000) * 10**6
    if not release.cuts_requeue_delay and not 0 <= delay_ns <= limit_ns:
        # nsqd really says nanoseconds.
        raise Refusal(b"E_INVALID REQ timeout %d out of range 0-%d" % (delay_ns, limit_ns))
    return min(max(delay_ns / 1e9, 0.0), limit)


def publish_topic(words: Words, at_least: int = 2, release: Release = LATEST) -> str:
    """Read the topic of PUB, MPUB or DPUB, which have at least so many words."""
    name = words[0]
    if len(words) < at_least:
        raise Refusal(b"E_INVALID %s insufficient number of parameters" % name)
    topic = _topic_name(words[1], release)
    if topic is None:
        # MPUB really says its code twice.
        code = b"E_BAD_TOPIC E_BAD_TOPIC" if name == b"MPUB" else b"E_BAD_TOPIC"
        raise Refusal(b"%s %s topic name %s is not valid" % (code, name, _quoted(words[1], release)))
    return topic


def defer_delay(words: Words, limit: float) -> float:
    """Read the delay of DPUB, in seconds; more than the limit is refused."""
    try:
        delay_ms = base10(words[2])
    except ValueError:
        raise Refusal(b"E_INVALID DPUB could not parse timeout %s" % words[2]) from None
    delay_ns, limit_ms = int64(delay_ms * 10**6), round(limit * 1000)
    if not 0 <= delay_ns <= limit_ms * 10**6:
        raise Refusal(b"E_INVALID DPUB timeout %d out of range 0-%d" % (delay_ms, limit_ms))
    return delay_ns / 1e9


def _quoted(name: bytes, release: Release) -> bytes:
    return quote(name) if release.since(0, 2, 29) else b"'%s'" % name


@functools.lru_cache(maxsize=1024)
def _topic_name(word: bytes, release: Release) -> str | None:
    """Decode a topic's name, None if it is not valid. Cached: a publisher says the same one again and again."""
    name = word.decode("latin-1")
    return name if release.is_topic_name(name) else None
