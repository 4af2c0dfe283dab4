"""Actions of rules. Each action is a function that gets the steps for an event, and returns the steps to take instead.

Pure. Several actions act one after another: ``delay(0.2), corrupt("size")``. A function of the user may be an action,
too: it gets the steps (see fakensqd.effects) and the Event, and returns steps.
"""

from __future__ import annotations

import functools
import inspect
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, ParamSpec

from fakensqd.effects import (
    Close,
    Execute,
    ExpireMessage,
    FaultStep,
    HttpResponse,
    Reset,
    Send,
    Wait,
)
from fakensqd.faults.rules import Action, ActionFunction, Event, Point, Steps
from fakensqd.input_buffer import SIZE
from gnsq.errors import ERROR_CODES
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, RESPONSE, encode_frame
from gnsq.texts import nearest

__all__ = [
    "answer",
    "corrupt",
    "delay",
    "disconnect",
    "drop",
    "duplicate",
    "error",
    "expire_message",
    "inject",
    "refuse",
    "reorder",
    "reset",
]

_P = ParamSpec("_P")
_Arguments = dict[str, Any]  # Any: of all types
_Points = frozenset[Point]
Part = Literal["size", "type", "body"]
Frame = bytes | Literal["heartbeat"]

_HEADER = struct.Struct(">ii")
# Offset of the body in a frame: 8 bytes of size and type; in a message, also timestamp, attempts and id.
_BODY_OFFSET = {RESPONSE: 8, ERROR: 8, MESSAGE: 34}

_TCP = frozenset([Point.COMMAND, Point.REPLY, Point.FRAME])
_SENT = frozenset([Point.REPLY, Point.FRAME])
_HTTP = frozenset([Point.HTTP, Point.HTTP_ANSWER])
_EVERYWHERE = frozenset(Point)
_CORRUPTIBLE = {
    "size": _SENT | {Point.HTTP_ANSWER},
    "type": _SENT,
    "body": _TCP | {Point.HTTP_ANSWER},
}


def action(
    *,
    points: _Points | Callable[[_Arguments], _Points],
    nsqd_only: Callable[[_Arguments], bool] = lambda arguments: False,
) -> Callable[[Callable[_P, ActionFunction]], Callable[_P, Action]]:
    """Decorate a function that returns an ActionFunction: let it return an Action.

    Args:
        points: The kinds of events that the action can change; a function if they depend on the action's arguments.
        nsqd_only: Returns True if the action needs messages, heartbeats or frame types, which nsqlookupd does not have.
    """

    def register(make: Callable[_P, ActionFunction]) -> Callable[_P, Action]:
        signature = inspect.signature(make)

        @functools.wraps(make)
        def make_action(*args: _P.args, **kwargs: _P.kwargs) -> Action:
            function = make(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            arguments = {name: value for name, value in given.items() if value != signature.parameters[name].default}
            allowed = points(arguments) if callable(points) else points
            return Action(make.__name__, function, allowed, arguments, nsqd_only(arguments))

        return make_action

    return register


ErrorCode = Literal[
    "E_AUTH_DISABLED", "E_AUTH_ERROR", "E_AUTH_FAILED", "E_AUTH_FIRST", "E_BAD_BODY", "E_BAD_CHANNEL", "E_BAD_MESSAGE",
    "E_BAD_PROTOCOL", "E_BAD_TOPIC", "E_DPUB_FAILED", "E_FINISH_FAILED", "E_FIN_FAILED", "E_IDENTIFY_FAILED",
    "E_INVALID", "E_MPUB_FAILED", "E_PUB_FAILED", "E_PUT_FAILED", "E_REQUEUE_FAILED", "E_REQ_FAILED", "E_SUB_FAILED",
    "E_TOUCH_FAILED", "E_UNAUTHORIZED",
]  # fmt: skip


@action(points=_TCP)
def error(code: ErrorCode, text: str = "") -> ActionFunction:
    """Send an error frame instead of the frame that the rule matches, or instead of executing the command. Close the
    connection if the error is fatal; on nsqlookupd, every error is fatal.

    Args:
        code: A code of nsqd, such as "E_FIN_FAILED".
        text: The text after the code; default: a text like nsqd's.

    Raises:
        ValueError: If nsqd has no such code.
    """
    if code.encode() not in ERROR_CODES:
        codes = nearest([code], (known.decode() for known in ERROR_CODES), "codes are")
        raise ValueError(f"{code!r} is not a code of nsqd{codes}")

    def change(steps: Steps, event: Event) -> Steps:
        data = f"{code} {text or _error_text(code, event)}".encode()
        has_type = event.header_size > SIZE.size
        sent: Steps = [Send(encode_frame(ERROR, data) if has_type else SIZE.pack(len(data)) + data)]
        if not has_type or ERROR_CODES[code.encode()].fatal:
            sent.append(Close())
        return _replace_subject([step for step in steps if not isinstance(step, Close)], sent)

    return change


@action(points=_EVERYWHERE)
def drop() -> ActionFunction:
    """Do not execute the command or HTTP request, send the frame or response, or serve the connection."""
    return lambda steps, event: _replace_subject(steps, [])


@action(points=lambda arguments: _SENT if arguments.get("alone") else _EVERYWHERE)
def delay(seconds: float, *, alone: bool = False) -> ActionFunction:
    """Execute the command or HTTP request, send the frame or response, or serve the connection some seconds later.

    The emulator's clock measures the seconds. While a command is delayed, later commands of its connection wait, but
    messages and heartbeats are pushed. A delayed frame delays all later output of its connection, unless ``alone``.

    Args:
        alone: Delay only this frame; later frames do not wait for it.

    Raises:
        TypeError: If the seconds are not a number.
        ValueError: If the seconds are negative or NaN.
    """
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"delay must be a number of seconds, not {seconds!r}")
    if not seconds >= 0:
        raise ValueError(f"delay of {seconds!r} seconds is negative")

    def change(steps: Steps, event: Event) -> Steps:
        if not alone:
            return [Wait(seconds), *steps]
        return [replace(step, delay=seconds) if isinstance(step, Send) else step for step in steps]

    return change


@action(points=_TCP)
def duplicate(times: int = 2) -> ActionFunction:
    """Send the frame several times, or execute the command several times and send each reply."""
    if times < 1:
        raise ValueError(f"duplicate({times!r}): times must be 1 or more")
    return lambda steps, event: [copy for step in steps for copy in [step] * (times if _is_subject(step) else 1)]


@action(points=_SENT)
def reorder() -> ActionFunction:
    """Send the frame after the next frame of the connection."""
    return lambda steps, event: [replace(step, after_next=True) if isinstance(step, Send) else step for step in steps]


@action(
    points=lambda arguments: _CORRUPTIBLE[arguments["part"]],
    nsqd_only=lambda arguments: bool(arguments["part"] == "type"),
)
def corrupt(part: Part, to: int | bytes | None = None) -> ActionFunction:
    """Change a part of a frame, a command or an HTTP response.

    Args:
        part: "size" or "type" of a frame; "body" of a frame, a command (before its execution) or an HTTP response;
            "size" of an HTTP response is its Content-Length.
        to: The new value. Default: for a size -1, for a Content-Length the correct value + 1, for a type 9, for a body
            the same body with the bits of its first byte inverted, or the byte 0xff if the body is empty.

    Raises:
        ValueError: If the part or the new value is not allowed.
    """
    if part not in _CORRUPTIBLE:
        raise ValueError(f"corrupt({part!r}): the part must be one of size, type, body")
    if isinstance(to, int) and not -(2**31) <= to < 2**31:
        raise ValueError(f"corrupt({part!r}, {to!r}): the new value must be a number of 32 bits")
    return lambda steps, event: [_corrupted(step, part, to, event) for step in steps]


@action(points=_EVERYWHERE)
def disconnect(*, after: bool = False) -> ActionFunction:
    """Close the connection, and do not execute the command or HTTP request, or send the frame or response.

    Args:
        after: First execute the command, send the frame or respond over HTTP, then close the connection.
    """
    return lambda steps, event: _end(steps, Close(), after)


@action(points=_EVERYWHERE)
def reset(*, after: bool = False) -> ActionFunction:
    """Reset the connection with a TCP RST. Do not execute the command or HTTP request, or send the frame or response.

    Args:
        after: First execute the command, send the frame or respond over HTTP, then reset the connection. Bytes that
            the client has not read before the reset may be lost.
    """
    return lambda steps, event: _end(steps, Reset(), after)


@action(points=frozenset([Point.CONNECT]))
def refuse() -> ActionFunction:
    """Close an accepted connection before any byte is read.

    Use ``down()`` of the server if clients must not be able to connect to the port at all.
    """
    return lambda steps, event: _end(steps, Close(), False)


@action(points=_TCP, nsqd_only=lambda arguments: bool(arguments["frame"] == "heartbeat"))
def inject(frame: Frame, *, after: bool = False) -> ActionFunction:
    """Send an additional frame.

    Args:
        frame: The bytes of a frame, or "heartbeat".
        after: Send the frame after the other steps, not before them.

    Raises:
        ValueError: If the frame is neither bytes nor "heartbeat".
    """
    if frame != "heartbeat" and not isinstance(frame, bytes):
        raise ValueError(f'inject({frame!r}): the frame must be bytes or "heartbeat"')
    send = Send(frame if isinstance(frame, bytes) else encode_frame(RESPONSE, HEARTBEAT))
    return lambda steps, event: [*steps, send] if after else [send, *steps]


@action(points=_TCP, nsqd_only=lambda arguments: True)
def expire_message() -> ActionFunction:
    """Let a message time out: when it is pushed, or before (on a reply: after) its FIN, REQ or TOUCH is executed."""

    def change(steps: Steps, event: Event) -> Steps:
        expired: Steps = [ExpireMessage(event.message_id)]
        return expired + steps if event.point is Point.COMMAND else steps + expired

    return change


@action(points=_HTTP)
def answer(status: int | None = None, body: bytes | None = None) -> ActionFunction:
    """Send this response to an HTTP request in place of the server's response.

    Args:
        status: Default: the status of the original response; 200 if the request is not executed.
        body: Default: the body of the original response; empty if the request is not executed.

    Raises:
        ValueError: If the status is not within 100 to 599.
    """
    if status is not None and not 100 <= status <= 599:
        raise ValueError(f"status {status!r} must be within 100 to 599")

    def change(steps: Steps, event: Event) -> Steps:
        if event.point is Point.HTTP:
            return _replace_subject(steps, [HttpResponse(status or 200, body or b"")])
        return [
            replace(step, status=status or step.status, body=step.body if body is None else body)
            if isinstance(step, HttpResponse)
            else step
            for step in steps
        ]

    return change


# --- changes of steps -------------------------------------------------------------------------------------------------


def _is_subject(step: FaultStep) -> bool:
    """Return True if a step sends a frame, responds to HTTP, executes a command or request, or serves a connection."""
    return isinstance(step, (Send, Execute, HttpResponse))


def _replace_subject(steps: Steps, new: Steps) -> Steps:
    """Replace the steps for which _is_subject() is true. If no step is replaced, put the new steps at the end."""
    place = next((index for index, step in enumerate(steps) if _is_subject(step)), len(steps))
    return [*steps[:place], *new, *(step for step in steps[place:] if not _is_subject(step))]


def _end(steps: Steps, end: Close | Reset, after: bool) -> Steps:
    kept: Steps = [step for step in steps if not isinstance(step, (Close, Reset))]
    return [*kept, end] if after else [*_replace_subject(kept, []), end]


def _corrupted(step: FaultStep, part: str, to: int | bytes | None, event: Event) -> FaultStep:
    match step:
        case Send(data):
            return replace(step, data=_corrupted_frame(data, part, to, event.header_size))
        case Execute():
            return Execute(_corrupted_body(event.raw if step.body is None else step.body, to))
        case HttpResponse() if part == "size":
            return replace(step, size=to if isinstance(to, int) else len(step.body) + 1)
        case HttpResponse():
            return replace(step, body=_corrupted_body(step.body, to))
        case _:
            return step


def _corrupted_frame(data: bytes, part: str, to: int | bytes | None, header_size: int) -> bytes:
    if part == "size":
        return SIZE.pack(to if isinstance(to, int) else -1) + data[4:]
    if header_size == SIZE.size:
        body = _corrupted_body(data[header_size:], to)
        return SIZE.pack(len(body)) + body
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
