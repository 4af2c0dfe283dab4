"""What an HTTP answer of nsqd or nsqlookupd means: a result, or an error with the server's words and what to do.

Decides only: sends nothing, reads nothing. Sources: nsq internal/http_api (bare answers); nsq 0.2's util.ApiResponse
(wrapped in status_code, status_txt and data).
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass
from typing import Any

from gnsq.errors import MAX_SHOWN, NSQHttpError, printable

__all__ = ["Answer", "Words", "error_words", "is_unknown_path", "printable", "result_of", "shown"]

# Digits of a number. nsqd's have 20 at most; to convert one takes time with the square of its digits.
_MAX_DIGITS = 100
_ANY_DIGIT, _TOO_MANY_DIGITS = bytes.maketrans(b"123456789", b"0" * 9), b"0" * (_MAX_DIGITS + 1)
_REDIRECTS = {"GET": {301, 302, 303, 307, 308}}
# Others would be turned into a GET, or leave open whether the method stays.
_REDIRECTS_OF_OTHERS = {307, 308}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    reason: str
    content_type: str
    body: bytes
    location: str = ""

    def redirects(self, method: str) -> bool:
        """Whether the same request is to be made elsewhere; a POST only where it stays a POST."""
        return bool(self.location) and self.status in _REDIRECTS.get(method, _REDIRECTS_OF_OTHERS)

    @property
    def is_json(self) -> bool:
        """Whether the server says that the body is JSON."""
        return self.content_type.partition(";")[0].strip().lower() == "application/json"


@dataclass(frozen=True, slots=True)
class Words:
    """What a server says about an error: its text, and the port it wants HTTPS on."""

    text: str = ""
    https_port: int | None = None


def result_of(call: str, answer: Answer) -> Any:  # Any: whatever JSON the server sends
    """Take the result out of an answer: JSON as Python objects, an old server's envelope taken off; all else as bytes.

    Args:
        call: What was asked, for the texts of errors.

    Raises:
        NSQHttpError: If the status is not 200, in HTTP or in the envelope, or what is called JSON is none.
    """
    if answer.status != 200:
        words = error_words(answer.body)
        text = words.text or _plain_text(answer) or printable(answer.reason)
        raise _refusal(call, answer, answer.status, text, words.https_port)
    if not answer.is_json:
        return answer.body
    try:
        data = _parsed(answer.body)
    except ValueError as error:
        why = f" ({error})" if type(error) is ValueError else ""
        text = f"{call}: body is not JSON{why}: {answer.body[:MAX_SHOWN]!r}"
        raise NSQHttpError(text, answer.status, answer.body) from error
    if not _is_envelope(data):
        return data
    if data["status_code"] != 200:
        raise _refusal(call, answer, data["status_code"], _text(data.get("status_txt", "")), None)
    inner = data.get("data")
    # Where new servers send text or nothing.
    return inner.encode() if isinstance(inner, str) else b"" if inner is None else inner


def error_words(body: bytes) -> Words:
    """Find nsqd's own words in the body of an error: ``message``, or an old server's ``status_txt``."""
    try:
        data = _parsed(body)
    except ValueError:
        return Words()
    if not isinstance(data, dict):
        return Words()
    text = data.get("message") or data.get("status_txt") or ""
    port = data.get("https_port")
    is_number = isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= 65535
    return Words(_text(text), port if is_number else None)


def is_unknown_path(error: NSQHttpError) -> bool:
    """Whether a server said that it knows no such path, or not with this method; so it has done nothing.

    A topic or channel that is not there is 404 as well, but says so.
    """
    return error.status == 405 or (error.status == 404 and not error_words(error.body).text.endswith("_NOT_FOUND"))


def shown(value: object) -> str:
    """Show a value of an answer in a text: cut and printable, however deep or long it is."""
    return ascii(value[:MAX_SHOWN]) if isinstance(value, (str, bytes)) else _SHORT.repr(value)[:MAX_SHOWN]


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, _MAX_DIGITS


def _parsed(body: bytes) -> Any:  # Any: whatever JSON the server sends
    """Parse JSON in UTF-8.

    Raises:
        ValueError: If it is none; or holds what would fail later, or take long: half of a surrogate pair, which can't
            be encoded; a number of more than _MAX_DIGITS digits; more levels than Python can follow.
    """
    # json.loads() would guess the encoding of bytes, and let surrogates through.
    text = body.decode()
    try:
        if not _may_be_refused(body):
            return json.loads(text)
        data = json.loads(text, parse_int=_short_int, parse_float=_short_float)
        json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    return data


def _may_be_refused(body: bytes) -> bool:
    """Whether JSON may hold a long number or half of a surrogate pair."""
    # 2 to 3 ms for 1 MB, which takes 7 to 15 ms to parse.
    return b"\\ud" in body or b"\\uD" in body or _TOO_MANY_DIGITS in body.translate(_ANY_DIGIT)


def _short_int(digits: str) -> int:
    _check_digits(digits)
    return int(digits)


def _short_float(digits: str) -> float:
    _check_digits(digits)
    return float(digits)


def _check_digits(digits: str) -> None:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"number of {len(digits)} digits, at most {_MAX_DIGITS} are taken")


def _is_envelope(data: object) -> bool:
    if not isinstance(data, dict) or not {"data", "status_txt"} & data.keys():
        return False
    return type(data.get("status_code")) is int


def _refusal(call: str, answer: Answer, status: int, text: str, https_port: int | None) -> NSQHttpError:
    advice = _advice(status, text, https_port)
    parts = f"{call}: http error <{status}> {text}".rstrip()
    return NSQHttpError(f"{parts} ({advice})" if advice else parts, status, answer.body)


def _advice(status: int, text: str, https_port: int | None) -> str:
    """Say what to do about an error, where that is known. Source: nsqd http.go, options.go."""
    if status == 413 and text == "BODY_TOO_BIG":
        return "more than nsqd's --max-body-size in one request: publish fewer messages at once, or raise it"
    if status == 413 and text != "INVALID_VALUE":
        return "a message is longer than nsqd's --max-msg-size, or all together than --max-body-size"
    if status == 403 and text == "TLS_REQUIRED":
        return f"use https{f' and port {https_port}' if https_port else ' and its port'}"
    if status == 400 and "HTTP request to an HTTPS server" in text:
        return "use https"
    return _ADVICE.get(text, "")


_ADVICE = {
    "TOPIC_NOT_FOUND": "nobody has created that topic there yet",
    "CHANNEL_NOT_FOUND": "nobody has created that channel there yet",
    "INVALID_DEFER": "not a number of milliseconds within nsqd's --max-req-timeout",
    "INVALID_OPTION": "nsqd has no such option, or does not let it be changed",
    "EXITING": "nsqd is shutting down",
}


def _text(value: object) -> str:
    return printable(value if isinstance(value, str) else shown(value))


def _plain_text(answer: Answer) -> str:
    # Go's answer to plain HTTP on a TLS port has no type.
    if answer.content_type and not answer.content_type.lower().startswith("text/plain"):
        return ""
    return printable(answer.body)
