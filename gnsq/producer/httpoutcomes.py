"""What an HTTP answer other than 200 means for a publish. PURE.

Source: nsqd http.go, doPUB() and doMPUB(); protocol_v2.go for what TCP says of the same.
"""

from __future__ import annotations

from gnsq.errors import (
    NSQBadBody,
    NSQBadMessage,
    NSQBadTopic,
    NSQDPubFailed,
    NSQErrorCode,
    NSQHttpError,
    NSQInvalid,
    NSQMPubFailed,
    NSQPubFailed,
)
from gnsq.http.responses import error_text

__all__ = ["answers", "is_turned_away", "refusal", "too_old"]

# nsqd's words, and what it says over TCP.
_CODES: dict[str, type[NSQErrorCode]] = {
    "MSG_TOO_BIG": NSQBadMessage,
    "MSG_EMPTY": NSQBadMessage,
    "BAD_MESSAGE": NSQBadMessage,
    "BODY_TOO_BIG": NSQBadBody,
    "BAD_BODY": NSQBadBody,
    "INVALID_TOPIC": NSQBadTopic,
    "INVALID_ARG_TOPIC": NSQBadTopic,
    "INVALID_DEFER": NSQInvalid,
    "INVALID_REQUEST": NSQInvalid,
    "TLS_REQUIRED": NSQInvalid,
}
_EXITING = "EXITING"
# A request that had not come whole when a proxy lost patience; it may have handed on what it had.
_REQUEST_TIMEOUT = 408
# What says that this is not where nsqd can be published to, or not now: login, wrong path, too many requests.
_TURNED_AWAY = {401, 403, 404, 405, 407, 421, 429}


def refusal(error: NSQHttpError, *, multi: bool = False, deferred: bool = False) -> NSQErrorCode | None:
    """Make the error of a publish that was certainly not taken; None where nobody knows.

    Args:
        multi, deferred: What was published; decides how TCP would call it.
    """
    words = error_text(error.body).text
    made: NSQErrorCode
    if words == _EXITING:
        made = (NSQMPubFailed if multi else NSQDPubFailed if deferred else NSQPubFailed)(str(error))
    elif words in _CODES:
        # Whatever the status: old servers said 500.
        made = _CODES[words](str(error))
    elif error.status is not None and 300 <= error.status < 500 and error.status != _REQUEST_TIMEOUT:
        made = NSQErrorCode(str(error), f"HTTP_{error.status}")
    else:
        return None
    made.__cause__ = error
    return made


def is_turned_away(error: NSQHttpError) -> bool:
    """Whether something else than nsqd has answered that it does not let this through: nothing was taken, and what is
    wrong is the address, not the publish."""
    status = error.status
    return status is not None and (300 <= status < 400 or status in _TURNED_AWAY) and not _is_nsqds(error)


def too_old(version: tuple[int, ...], *, multi: bool = False, deferred: bool = False) -> str:
    """Say what an nsqd of this version can't do of a publish over HTTP, and what helps; empty if it can.

    Args:
        version: Three numbers; empty if it is not known, which is taken for new enough.
        multi, deferred: What is published.

    Source: nsqd http.go. 0.2.21 does not know /mpub, and 0.2.22 takes a binary body for lines; before 0.3.6 defer is
    ignored.
    """
    if multi and version and version < (0, 2, 23):
        return "binary /mpub came with 0.2.23; publish one by one, or over TCP"
    if deferred and version and version < (0, 3, 6):
        return "deferred messages came with 0.3.6"
    return ""


def answers(error: NSQHttpError) -> bool:
    """Whether nsqd has answered a ping, if not with OK: one whose disk is full says so with a 500, and may yet take
    messages."""
    return error.status == 500 and error.body.startswith(b"NOK")


def _is_nsqds(error: NSQHttpError) -> bool:
    words = error_text(error.body).text
    return words == _EXITING or words in _CODES
