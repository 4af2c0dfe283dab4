"""The order of a connection's first steps: magic, then IDENTIFY and what its answer settles.

Pure: a generator that yields what is to be done (Write, ReadFrame) and returns the Identity. Who performs the steps
owns the socket. Frames are taken one at a time: bytes behind an answer may belong to a layer that begins there.
Source: the V2 specification, IDENTIFY; nsqd protocol_v2.go IDENTIFY.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from gnsq.errors import NSQBadBody, NSQErrorCode, NSQException, NSQProtocolError, make_error
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, HEARTBEAT, OK, RESPONSE, Frame

__all__ = ["Handshake", "Identity", "ReadFrame", "Write", "handshake", "identification"]

# What a server that does not negotiate allows. Source: the client guide, "nsqd Max RDY Count".
DEFAULT_MAX_RDY_COUNT = 2500


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """Wait for one whole frame and send it into the generator."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What IDENTIFY settled. Durations in seconds; None where the server did not say."""

    version: str | None = None
    max_rdy_count: int = DEFAULT_MAX_RDY_COUNT
    msg_timeout: float | None = None
    max_msg_timeout: float | None = None
    auth_required: bool = False
    # The server's answer as it came; empty when it was a plain OK.
    answer: Mapping[str, object] = field(default_factory=dict)


Handshake = Generator[Write | ReadFrame, Frame | None, Identity]


def handshake(options: ConnectionOptions) -> Handshake:
    """Yield the steps from the first byte to a connection that may SUB and PUB; return its Identity.

    Raises:
        NSQErrorCode: What nsqd said instead.
        NSQProtocolError: If the answer is none of IDENTIFY's.
        NSQException: If nsqd requires AUTH.
    """
    yield Write(commands.MAGIC_V2)
    return (yield from identification(options))


def identification(options: ConnectionOptions) -> Handshake:
    """Yield the steps of handshake() behind the magic; nsqd takes IDENTIFY more than once, until SUB."""
    yield Write(commands.identify(options.identify_body()))
    identity = _identity((yield from _read_response()))
    if identity.auth_required:
        raise NSQException("nsqd requires AUTH (--auth-http-address), which this version of gnsq can't send yet")
    return identity


def _read_response() -> Generator[Write | ReadFrame, Frame | None, bytes]:
    """Read the next response; heartbeats may come in front of it once IDENTIFY has started them."""
    while True:
        frame = yield ReadFrame()
        assert frame is not None  # what the performer sends in answer to ReadFrame
        frame_type, data = frame
        if frame_type == ERROR:
            raise _explained(make_error(data))
        if frame_type != RESPONSE:
            raise NSQProtocolError(f"frame of type {frame_type} in answer to IDENTIFY; a response was due")
        if data != HEARTBEAT:
            return data
        yield Write(commands.NOP)


def _identity(data: bytes) -> Identity:
    if data == OK:
        return Identity()
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NSQProtocolError(f"answer {data[:80]!r} to IDENTIFY is neither OK nor a JSON object")
    if not isinstance(answer.get("max_rdy_count", 0), int):
        raise NSQProtocolError(f"max_rdy_count {answer['max_rdy_count']!r} in the answer to IDENTIFY is no integer")
    return Identity(
        version=answer.get("version"),
        max_rdy_count=answer.get("max_rdy_count", DEFAULT_MAX_RDY_COUNT),
        msg_timeout=_seconds(answer.get("msg_timeout")),
        max_msg_timeout=_seconds(answer.get("max_msg_timeout")),
        auth_required=bool(answer.get("auth_required")),
        answer=answer,
    )


def _explained(error: NSQErrorCode) -> NSQErrorCode:
    if isinstance(error, NSQBadBody):
        error.text += (
            " (nsqd's flags --max-heartbeat-interval, --max-output-buffer-size, --max-output-buffer-timeout and "
            "--max-msg-timeout set the limits of these options)"
        )
    return error


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else None
