"""How many bytes stand behind the line of a command: size and body, as far as the first of them tell.

Pure. What a server refuses by the line or a size alone has no body here: it is never read. Source: nsqd protocol_v2.go,
the checks in front of each body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from fakensqd import parameters
from fakensqd.options import NsqdOptions
from fakensqd.reader import Refusal

__all__ = ["SIZE", "Measure", "body_of", "measure_of"]

SIZE = struct.Struct(">i")
# Given the first bytes behind the line, 4 at least: how many there are; more than were given: ask again with so many.
# None if the server refuses them.
Measure = Callable[[bytes], int | None]


def measure_of(words: list[bytes], options: NsqdOptions) -> Measure | None:
    """Give what measures the body of a command to nsqd; None if it has none, or is refused without."""
    try:
        return _MEASURES[words[0]](words, options)
    except (KeyError, Refusal):
        return None


def body_of(limit: int) -> Measure:
    """Give what measures a size and one body of so many bytes at most, and of one at least."""

    def measure(data: bytes) -> int | None:
        (size,) = SIZE.unpack_from(data)
        return SIZE.size + int(size) if 0 < size <= limit else None

    return measure


def _messages(options: NsqdOptions) -> Measure:
    # nsqd goes by the count and each message's size; that of the whole is checked and forgotten.
    position, left = 2 * SIZE.size, -1

    def measure(data: bytes) -> int | None:
        nonlocal position, left
        if not 0 < int(SIZE.unpack_from(data)[0]) <= options.max_body_size:
            return None
        if len(data) < position:
            return position
        if left < 0:
            left = int(SIZE.unpack_from(data, SIZE.size)[0])
            if not 0 < left <= (options.max_body_size - 4) // 5:
                return None
        while left:
            if len(data) < position + SIZE.size:
                return position + SIZE.size
            size = int(SIZE.unpack_from(data, position)[0])
            if not 0 < size <= options.max_msg_size:
                return None
            if len(data) < position + SIZE.size + size:
                return position + SIZE.size + size
            position += SIZE.size + size
            left -= 1
        return position

    return measure


def _of_auth(words: list[bytes], options: NsqdOptions) -> Measure:
    if len(words) != 1:
        raise Refusal(b"E_INVALID AUTH invalid number of parameters")
    return body_of(options.max_body_size)


def _of_publish(words: list[bytes], options: NsqdOptions) -> Measure:
    parameters.publish_topic(words, release=options.emulated)
    return body_of(options.max_msg_size)


def _of_defer(words: list[bytes], options: NsqdOptions) -> Measure:
    parameters.publish_topic(words, 3, options.emulated)
    parameters.defer_delay(words, options.max_req_timeout)
    return body_of(options.max_msg_size)


def _of_multipublish(words: list[bytes], options: NsqdOptions) -> Measure:
    parameters.publish_topic(words, release=options.emulated)
    return _messages(options)


_MEASURES: dict[bytes, Callable[[list[bytes], NsqdOptions], Measure]] = {
    b"IDENTIFY": lambda words, options: body_of(options.max_body_size),
    b"AUTH": _of_auth,
    b"PUB": _of_publish,
    b"DPUB": _of_defer,
    b"MPUB": _of_multipublish,
}
