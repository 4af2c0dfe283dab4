"""Responses of nsqd and nsqlookupd over HTTP: parse a result, or build the error with the server's text and a hint.

Pure: sends nothing, reads nothing. Old servers wrap a result in an envelope: a JSON object with status_code,
status_txt and data. Sources: nsq internal/http_api; for the envelope, nsq 0.2's util.ApiResponse.
"""

from __future__ import annotations

import gc
import json
import reprlib
from dataclasses import dataclass
from typing import Any

from gnsq.addresses import is_port
from gnsq.errors import NSQHttpError
from gnsq.texts import MAX_SHOWN, printable, without_secrets

__all__ = ["Response", "is_unknown_path", "parse_result", "shown"]


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response, read to its end."""

    status: int
    reason: str
    content_type: str
    body: bytes
    location: str = ""

    @property
    def is_json(self) -> bool:
        """True if the body is declared as JSON."""
        return self.content_type.partition(";")[0].strip().lower() == "application/json"


def parse_result(response: Response) -> Any:  # Any: any JSON
    """Return the result in a response: JSON as Python objects, without an old server's envelope; otherwise the bytes.

    Raises:
        NSQHttpError: If the status is not 200, in HTTP or in the envelope, or a body declared as JSON is not JSON.
    """
    if response.status != 200:
        data = _error(response.body)
        text = _text(data.get("message") or data.get("status_txt") or "") or _plain_text(response)
        raise _refusal(response, response.status, text or printable(response.reason))
    if not response.is_json:
        return response.body
    try:
        data = _parsed(response.body)
    except ValueError as error:
        why = f" ({error})" if type(error) is ValueError else ""
        text = f"body is not JSON{why}: {response.body[:MAX_SHOWN]!r}"
        raise NSQHttpError(text, response.status, response.body) from error
    if not _is_envelope(data):
        return data
    if data["status_code"] != 200:
        raise _refusal(response, data["status_code"], _text(data.get("status_txt", "")))
    inner = data.get("data")
    # Return what a new server sends: bytes in place of a str, and b"" in place of null.
    return inner.encode() if isinstance(inner, str) else b"" if inner is None else inner


def _error(body: bytes) -> dict[str, object]:
    """Return the JSON object in the body of an error, or an empty one."""
    try:
        data = _parsed(body)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def is_unknown_path(error: NSQHttpError) -> bool:
    """Return True if the server does not know the path, or the method for this path. Then it has executed nothing.

    An error for a missing topic or channel has status 404 as well, but its code ends with _NOT_FOUND.
    """
    return error.status == 405 or (error.status == 404 and not error.code.endswith("_NOT_FOUND"))


def shown(value: object) -> str:
    """Format a value of a response for an error text: cut and printable, even if it is deeply nested or very long."""
    return ascii(value[:MAX_SHOWN]) if isinstance(value, (str, bytes)) else _SHORT.repr(value)[:MAX_SHOWN]


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 80


def _parsed(body: bytes) -> Any:  # Any: any JSON
    """Parse JSON in UTF-8.

    Raises:
        ValueError: If the body is not JSON; if it has half of a surrogate pair, which can't be encoded; or if it has
            more levels, or a number with more digits, than Python accepts.
    """
    # Decode here: if json.loads() got the bytes, it would guess their encoding, and accept surrogates.
    text = body.decode()
    collects = gc.isenabled()
    # The collector would run again and again while many lists are made, of which none can be garbage: 16 MB of empty
    # lists would block the hub for 2.0 s in place of 0.3 s.
    gc.disable()
    try:
        data = json.loads(text)
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    finally:
        if collects:
            gc.enable()
    return data


def _is_envelope(data: object) -> bool:
    if not isinstance(data, dict) or not {"data", "status_txt"} & data.keys():
        return False
    return type(data.get("status_code")) is int


def _refusal(response: Response, status: int, text: str) -> NSQHttpError:
    code = text if text.isupper() and " " not in text else ""
    hint = _hint(status, text, response.body)
    if response.location:
        # Not followed: another server must not get messages and passwords.
        hint = f"redirects to {shown(without_secrets(response.location))}: give the client that address if it is right"
    reason = f"http error <{status}> {text}".rstrip()
    error = NSQHttpError(reason, status, response.body, code=code, hint=hint)
    if status == 413 or text in _OF_MESSAGE:
        error.at_fault = "message"
    elif 400 <= status < 500:
        error.at_fault = "setup"
    return error


# Source: nsqd http.go, doPUB and doMPUB.
_OF_MESSAGE = {"MSG_EMPTY", "INVALID_DEFER"}


def _hint(status: int, text: str, body: bytes) -> str:
    """Return a hint about an error; empty if there is none. Source: nsqd http.go, options.go."""
    if status == 413 and text == "BODY_TOO_BIG":
        return "more than nsqd's --max-body-size in one request: publish fewer messages in one call, or raise it"
    if status == 413 and text != "INVALID_VALUE":
        return "a message is longer than nsqd's --max-msg-size, or all together than --max-body-size"
    if status == 403 and text == "TLS_REQUIRED":
        port = _error(body).get("https_port")
        return f"use https and {f'port {port}' if is_port(port) else 'its port'}"
    if status == 400 and "HTTP request to an HTTPS server" in text:
        return "use https"
    return _HINTS.get(text, "")


_HINTS = {
    "TOPIC_NOT_FOUND": "the topic does not exist there yet",
    "CHANNEL_NOT_FOUND": "the channel does not exist there yet",
    "INVALID_DEFER": "not a number of milliseconds within nsqd's --max-req-timeout",
    "INVALID_OPTION": "nsqd has no such option, or does not allow to change it",
    "EXITING": "nsqd is shutting down, or could not write to its disk",
}


def _text(value: object) -> str:
    return printable(value if isinstance(value, str) else shown(value))


def _plain_text(response: Response) -> str:
    # A body without a content type counts as text: Go's response to plain HTTP on a TLS port has no type.
    if response.content_type and not response.content_type.lower().startswith("text/plain"):
        return ""
    return printable(response.body)
