"""Formats of gnsq tail: a message as its body, as a line of JSON, or for people at a terminal. Bytes to bytes."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gnsq.texts import id_text

# rich is loaded for a terminal only; gnsq pub reads records, and needs no consumer.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gnsq.cli.receiving import Received
    from gnsq.message import Message

__all__ = ["Format", "as_json", "as_raw", "for_terminal", "harmless", "message_record", "meta_line", "record_body"]

Format = Callable[["Received"], bytes]

# Bytes. To color a body takes about 1 ms for 4 KiB. A longer body is shown as plain text.
MAX_PRETTY = 64 * 1024
# C0 and C1 controls but tab and newline, and invisible characters that change the order or the end of a text.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
_JSON_HARMFUL = re.compile(_HARMFUL.pattern + "|[\U000e0000-\U000e0fff]")


def as_raw(received: Received) -> bytes:
    """Write the unchanged body and a newline."""
    return received.message.body + b"\n"


def message_record(topic: str, message: Message) -> dict[str, object]:
    """Return an object for JSON with all of a message. ``body_base64`` takes the place of a body that is not UTF-8."""
    record: dict[str, object] = {
        "id": id_text(message.id),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        "nsqd": message.nsqd,
        "topic": topic,
    }
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(message.body).decode()
    return record


def record_body(line: bytes) -> bytes:
    """Return the body in a line that message_record() has made.

    Raises:
        ValueError: If the line has no body.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    body, encoded = (record.get("body"), record.get("body_base64")) if isinstance(record, dict) else (None, None)
    if isinstance(body, str) and encoded is None:
        return body.encode()
    if isinstance(encoded, str) and body is None:
        return base64.b64decode(encoded, validate=True)
    raise ValueError("not an object with a text in either body or body_base64, as gnsq to-file --format json writes it")


def as_json(received: Received) -> bytes:
    """Write message_record() in a line, without control characters."""
    return _harmless_json(json.dumps(message_record(*received), ensure_ascii=False)).encode() + b"\n"


def for_terminal(console: Console) -> Format:
    """Return a format for people: JSON is indented and colored, other text is plain, all control characters escaped."""
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    highlight = JSONHighlighter()

    def write(received: Received) -> bytes:
        body = received.message.body
        pretty = _pretty(body) if len(body) <= MAX_PRETTY else None
        if pretty is None:
            return harmless(body.decode("utf-8", "backslashreplace")).encode() + b"\n"
        return _printed(console, highlight(Text(pretty)))

    return write


def meta_line(received: Received, console: Console | None = None) -> bytes:
    """Write the line of --meta; dimmed if there is a console, that of a terminal."""
    topic, message = received
    time = message.published_at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    text = f"{time} id={id_text(message.id)} attempts={message.attempts} nsqd={message.nsqd} topic={topic}"
    if console is None:
        return text.encode() + b"\n"
    from rich.text import Text

    return _printed(console, Text(text, style="dim"))


def _printed(console: Console, text: Text) -> bytes:
    with console.capture() as capture:
        console.print(text, soft_wrap=True)
    return capture.get().encode()


def harmless(text: str) -> str:
    """Escape characters that could change the state of a terminal, or the order of its text; not tab and newline."""
    return _HARMFUL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _harmless_json(text: str) -> str:
    return _JSON_HARMFUL.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _pretty(body: bytes) -> str | None:
    """Indent an object or a list. Return None for all else, and for JSON that would lose a key or a digit thereby."""
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_float=_exact)
        if not isinstance(value, (dict, list)):
            return None
        # Without NaN, which is not JSON.
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return _harmless_json(text)


def _exact(text: str) -> float:
    number = float(text)
    if Decimal(repr(number)) != Decimal(text):
        raise ValueError(f"{text} has more digits than a float")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: JSON
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields
