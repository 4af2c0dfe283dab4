"""What an HTTP answer of nsqd or nsqlookupd means: a result, or an error with the server's words and what to do.

Decides only: sends nothing, reads nothing. Sources: nsq internal/http_api (bare answers); nsq 0.2's util.ApiResponse
(wrapped in status_code, status_txt and data).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gnsq.errors import MAX_SHOWN, NSQHttpError, printable

__all__ = ["Answer", "Words", "error_words", "is_unknown_path", "result_of"]

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
        shown = answer.body[:MAX_SHOWN]
        raise NSQHttpError(f"{call}: body is not JSON: {shown!r}", answer.status, answer.body) from error
    if not _is_envelope(data):
        return data
    if data["status_code"] != 200:
        raise _refusal(call, answer, data["status_code"], printable(str(data.get("status_txt", ""))), None)
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
    return Words(printable(str(text)), port if isinstance(port, int) and not isinstance(port, bool) else None)


def is_unknown_path(error: NSQHttpError) -> bool:
    """Whether a server said that it knows no such path, or not with this method; so it has done nothing.

    A topic or channel that is not there is 404 as well, but says so.
    """
    return error.status == 405 or (error.status == 404 and not error_words(error.body).text.endswith("_NOT_FOUND"))


def _parsed(body: bytes) -> Any:  # Any: whatever JSON the server sends
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _is_envelope(data: object) -> bool:
    if not isinstance(data, dict) or not {"data", "status_txt"} & data.keys():
        return False
    return isinstance(data.get("status_code"), int)


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


def _plain_text(answer: Answer) -> str:
    # Go's answer to plain HTTP on a TLS port has no type.
    if answer.content_type and not answer.content_type.lower().startswith("text/plain"):
        return ""
    return printable(answer.body)
