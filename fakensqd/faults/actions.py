"""What a fault does: each action is a function from what would happen to what is to happen.

Pure. Actions compose by order: ``delay(0.2), corrupt("size")``. A function of one's own, from steps and Event to steps
(see fakensqd.effects), is an action, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fakensqd.effects import (
    Close,
    Execute,
    ExpireMessage,
    FaultStep,
    HttpResponse,
    Open,
    Reset,
    Send,
    SendAfterNext,
    SendLater,
    Wait,
)
from fakensqd.faults.rules import Action, Event, Point, Steps
from gnsq.errors import ERROR_CODES
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, RESPONSE, encode_frame

__all__ = [
    "ACTIONS",
    "Action",
    "Steps",
    "answer",
    "corrupt",
    "delay",
    "disconnect",
    "drop",
    "duplicate",
    "error",
    "inject",
    "refuse",
    "reorder",
    "reset",
    "time_out",
]

_HEADER = struct.Struct(">ii")
_SIZE = struct.Struct(">i")
# Size, type, then timestamp, attempts and id of a message.
_BODY_OFFSET = {RESPONSE: 8, ERROR: 8, MESSAGE: 34}

_TCP = frozenset([Point.COMMAND, Point.REPLY, Point.FRAME])
_SENT = frozenset([Point.REPLY, Point.FRAME])
_HTTP = frozenset([Point.HTTP, Point.HTTP_ANSWER])
_EVERYWHERE = frozenset(Point)


def error(code: str, text: str = "") -> Action:
    """Answer with an error frame instead; a fatal one ends the connection, as nsqd ends it; nsqlookupd's all do.

    Args:
        code: As in ``E_FIN_FAILED``.
        text: Behind the code; default: much as nsqd has it.

    Raises:
        ValueError: If nsqd has no such code.
    """
    if code.encode() not in ERROR_CODES:
        raise ValueError(f"{code!r} is no code of nsqd: {', '.join(known.decode() for known in ERROR_CODES)}")

    def change(steps: Steps, event: Event) -> Steps:
        words = text or _error_text(code, event)
        data = f"{code} {words}".encode()
        untyped = event.header_size == _SIZE.size
        said: Steps = [Send(_SIZE.pack(len(data)) + data if untyped else encode_frame(ERROR, data))]
        if untyped or ERROR_CODES[code.encode()].fatal:
            said.append(Close())
        return _instead([step for step in steps if not isinstance(step, Close)], said)

    return Action("error", change, _TCP, _given(code=code, text=text))


def drop() -> Action:
    """Let nothing of it happen: a command is not executed, a frame not sent, a connection not served."""
    return Action("drop", lambda steps, event: _instead(steps, []), _EVERYWHERE)


def delay(seconds: float, *, alone: bool = False) -> Action:
    """Let it happen later, by the emulator's clock.

    Everything behind it waits, as with a slow server: a delayed command keeps later commands of its connection from
    being read, but messages and heartbeats go on; a delayed frame keeps back all that is said on its connection.

    Args:
        alone: Only this frame is late, others overtake it.

    Raises:
        ValueError: If the seconds are negative.
    """
    if not seconds >= 0:
        raise ValueError(f"delay of {seconds!r} seconds is negative")

    def change(steps: Steps, event: Event) -> Steps:
        if not alone:
            return [Wait(seconds), *steps]
        return [SendLater(step.data, seconds) if isinstance(step, Send) else step for step in steps]

    return Action("delay", change, _SENT if alone else _EVERYWHERE, _given(seconds=seconds, alone=alone))


def duplicate(times: int = 2) -> Action:
    """Let it happen so many times: a frame is sent, a command executed and answered, again."""
    if times < 1:
        raise ValueError(f"duplicate({times!r}): at least once")

    def change(steps: Steps, event: Event) -> Steps:
        return [copy for step in steps for copy in [step] * (times if _is_subject(step) else 1)]

    return Action("duplicate", change, _TCP, _given(2, times=times))


def reorder() -> Action:
    """Send it behind the frame that comes next on the connection."""

    def change(steps: Steps, event: Event) -> Steps:
        return [SendAfterNext(step.data) if isinstance(step, Send) else step for step in steps]

    return Action("reorder", change, _SENT)


def corrupt(part: str, to: int | bytes | None = None) -> Action:
    """Spoil a part of it.

    Args:
        part: "size" or "type" of a frame; "body" of a frame, a command (before it is executed) or an HTTP answer;
            "size" of an HTTP answer is its Content-Length.
        to: The value that it gets; default: size -1 (an HTTP answer's: one more than there is), type 9, and a body with
            the bits of its first byte turned.

    Raises:
        ValueError: If there is no such part.
    """
    if part not in ("size", "type", "body"):
        raise ValueError(f"corrupt({part!r}): it has size, type and body")
    if isinstance(to, int) and not -(2**31) <= to < 2**31:
        raise ValueError(f"corrupt({part!r}, {to!r}): a number of 32 bits")

    def change(steps: Steps, event: Event) -> Steps:
        return [_corrupted(step, part, to, event) for step in steps]

    points = {
        "size": _SENT | {Point.HTTP_ANSWER},
        "type": _SENT,
        "body": _TCP | {Point.HTTP_ANSWER},
    }
    return Action("corrupt", change, frozenset(points[part]), _given(part=part, to=to), nsqd_only=part == "type")


def disconnect(*, after: bool = False) -> Action:
    """End the connection instead.

    Args:
        after: Let happen what would happen, then end it.
    """
    return Action("disconnect", lambda steps, event: _ending(steps, Close(), after), _EVERYWHERE, _given(after=after))


def reset(*, after: bool = False) -> Action:
    """End the connection with a TCP RST instead.

    Args:
        after: Let happen what would happen, then end it. What the client has not read by then may be lost.
    """
    return Action("reset", lambda steps, event: _ending(steps, Reset(), after), _EVERYWHERE, _given(after=after))


def refuse() -> Action:
    """Turn a connection away: it is closed before a byte is read. (An address where nobody listens: ``down()``.)"""
    return Action("refuse", lambda steps, event: _ending(steps, Close(), False), frozenset([Point.CONNECT]))


def inject(frame: bytes | str, *, after: bool = False) -> Action:
    """Say something more.

    Args:
        frame: The bytes of a frame, or "heartbeat".
        after: Say it behind what would happen, not in front.

    Raises:
        ValueError: If it is another word.
    """
    if frame != "heartbeat" and not isinstance(frame, bytes):
        raise ValueError(f'inject({frame!r}): the bytes of a frame, or "heartbeat"')
    data = frame if isinstance(frame, bytes) else encode_frame(RESPONSE, HEARTBEAT)

    def change(steps: Steps, event: Event) -> Steps:
        return [*steps, Send(data)] if after else [Send(data), *steps]

    return Action("inject", change, _TCP, _given(frame=frame, after=after), nsqd_only=frame == "heartbeat")


def time_out() -> Action:
    """Take the message back as if its timeout had come: once it is sent, or before its FIN is executed."""

    def change(steps: Steps, event: Event) -> Steps:
        taken: Steps = [ExpireMessage(event.message_id)]
        return taken + steps if event.point is Point.COMMAND else steps + taken

    return Action("time_out", change, _TCP, nsqd_only=True)


def answer(status: int | None = None, body: bytes | None = None) -> Action:
    """Answer an HTTP request with this instead.

    Args:
        status: Default: the one that there is; 200 if the request is not executed.
        body: Default: the one that there is; else nothing.
    """

    def change(steps: Steps, event: Event) -> Steps:
        if event.point is Point.HTTP:
            return _instead(steps, [HttpResponse(status or 200, body or b"")])
        return [
            replace(step, status=status or step.status, body=step.body if body is None else body)
            if isinstance(step, HttpResponse)
            else step
            for step in steps
        ]

    return Action("answer", change, _HTTP, _given(status=status, body=body))


ACTIONS: dict[str, Callable[..., Action]] = {
    function.__name__: function
    for function in (
        *(error, drop, delay, duplicate, reorder, corrupt),
        *(disconnect, reset, refuse, inject, time_out, answer),
    )
}


# --- how steps are changed --------------------------------------------------------------------------------------------


def _is_subject(step: FaultStep) -> bool:
    """Whether a step is what an event is about."""
    return isinstance(step, (Send, SendLater, SendAfterNext, Execute, Open, HttpResponse))


def _instead(steps: Sequence[FaultStep], new: Steps) -> Steps:
    """Put something in the place of what an event is about; behind everything if that is nothing."""
    place = next((index for index, step in enumerate(steps) if _is_subject(step)), len(steps))
    return [*steps[:place], *new, *(step for step in steps[place:] if not _is_subject(step))]


def _ending(steps: Steps, end: Close | Reset, after: bool) -> Steps:
    kept = [step for step in steps if not isinstance(step, (Close, Reset))]
    return [*kept, end] if after else [*_instead(kept, []), end]


def _corrupted(step: FaultStep, part: str, to: int | bytes | None, event: Event) -> FaultStep:
    match step:
        case Send(data) | SendLater(data) | SendAfterNext(data):
            return replace(step, data=_corrupted_frame(data, part, to, event.header_size))
        case Execute():
            return Execute(_corrupted_body(event.raw if step.body is None else step.body, to))
        case HttpResponse() if part == "size":
            return replace(step, size=to if isinstance(to, int) else len(step.body) + 1)
        case HttpResponse():
            return replace(step, body=_corrupted_body(step.body, to))
        case _:
            return step


def _corrupted_frame(data: bytes, part: str, to: int | bytes | None, header: int) -> bytes:
    if part == "size":
        return _SIZE.pack(to if isinstance(to, int) else -1) + data[4:]
    if header == _SIZE.size:
        body = _corrupted_body(data[header:], to)
        return _SIZE.pack(len(body)) + body
    size, kind = _HEADER.unpack_from(data)
    if part == "type":
        return _HEADER.pack(size, to if isinstance(to, int) else 9) + data[8:]
    offset = _BODY_OFFSET.get(kind, 8)
    rest = data[8:offset] + _corrupted_body(data[offset:], to)
    return _HEADER.pack(4 + len(rest), kind) + rest


def _corrupted_body(body: bytes, to: int | bytes | None) -> bytes:
    if isinstance(to, bytes):
        return to
    return bytes([body[0] ^ 0xFF]) + body[1:] if body else b"\xff"


def _error_text(code: str, event: Event) -> str:
    name = event.kind
    if code in ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"):
        return f"{code[2:-7]} {event.message_id.decode('latin-1')} failed ID not in flight"
    if code.endswith("_FAILED"):
        return f"{code[2:-7]} failed exiting"
    return f"{name} failed" if name.isupper() else "failed"


def _given(default: object = None, **arguments: object) -> dict[str, Any]:  # Any: of all types
    """Keep what is not left at its default."""
    return {
        name: value
        for name, value in arguments.items()
        if value is not None and value is not False and value not in ("", default)
    }
