"""Parts of log lines and error texts. Computes strings only."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    *["MAX_SHOWN", "counted", "duration_text", "id_text", "nearest", "not_bytes", "option_names", "option_text"],
    *["printable", "reason_of", "shown_argument", "without_secrets"],
]

# Limit of the characters of a server's text that a log line or an error shows.
MAX_SHOWN = 200


# How the program calls the options that error texts ask for, by the text for Python: see option_names().
_option_names: Mapping[str, str] = {}


def option_text(python: str) -> str:
    """Return how an error text asks for an option: as Python writes it, unless the program has a name of its own."""
    return _option_names.get(python, python)


@contextlib.contextmanager
def option_names(names: Mapping[str, str]) -> Iterator[None]:
    """Let error texts ask for the options of a program, such as ``--tls``, in a block around the whole program.

    Args:
        names: The program's options by the text for Python, such as ``tls_v1=True``.
    """
    global _option_names
    before, _option_names = _option_names, names
    try:
        yield
    finally:
        _option_names = before


def counted(number: int, noun: str, plural: str | None = None, *, spec: str = "") -> str:
    """Write a number of things: ``1 message``, ``2 messages``.

    Args:
        plural: Plural of the noun; default: the noun with an s.
        spec: Format of the number: the second argument of format().
    """
    return f"{number:{spec}} {noun if number == 1 else plural or noun + 's'}"


def reason_of(error: OSError) -> str:
    """Return what went wrong, without number and file. Errors of libraries may have only a text, and no strerror."""
    return error.strerror or str(error) or type(error).__name__


def duration_text(seconds: float) -> str:
    """Write a duration in the largest unit of which it is a whole number: ``90 s``, ``2 hours``."""
    for noun, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size and not seconds % size:
            return counted(int(seconds // size), noun)
    return f"{seconds:g} s"


def nearest(unknown: Iterable[str], known: Iterable[str], what: str = "known are") -> str:
    """Write the end of an error text about unknown names: similar known names first, then all known names."""
    import difflib  # imported here, since the import takes 2 ms, and most programs do not need it

    names = list(known)
    by_lower = {name.lower(): name for name in names}
    similar = [by_lower[close] for name in unknown for close in difflib.get_close_matches(name.lower(), by_lower, 1)]
    question = f" did you mean {' and '.join(similar)}?" if similar else ""
    return f";{question} {what} {', '.join(names)}"


def printable(text: str | bytes) -> str:
    """Make a server's text safe for a log line.

    Replaces control characters, line ends, terminal escapes and lone surrogates by spaces, escapes bytes that are not
    UTF-8, and cuts the text after MAX_SHOWN characters.
    """
    if isinstance(text, bytes):
        # A character has at most 4 bytes. Decode one more than is shown, to detect a text that is too long.
        text = text[: 4 * (MAX_SHOWN + 1)].decode("utf-8", "backslashreplace")
    shown = "".join(character if character.isprintable() else " " for character in text[:MAX_SHOWN]).strip()
    return shown if len(text) <= MAX_SHOWN else f"{shown}..."


def not_bytes(subject: str, value: object) -> str:
    """Write that a value must be bytes, and how to make them if it is a str."""
    hint = ": give its encode()" if isinstance(value, str) else ""
    return f"{subject} must be bytes, not {type(value).__name__}{hint}"


def id_text(message_id: bytes) -> str:
    """Write a message id. nsqd's are hexadecimal; other bytes of another server are escaped, also spaces."""
    return "".join(chr(byte) if 0x21 <= byte < 0x7F else f"\\x{byte:02x}" for byte in message_id)


def shown_argument(value: object) -> str:
    """Write a wrong argument for an error text, but only its kind if a password may be in it.

    That may be in the URL of a server, and so in any text with an @ or a ?, and in a collection.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if not isinstance(value, str):
        return type(value).__name__
    marks = [name for mark, name in (("@", "an @"), ("?", "a ?")) if mark in value]
    return f"a text with {' and '.join(marks)} (not shown: it may have a password)" if marks else repr(value)


def without_secrets(url: str) -> str:
    """Write a URL, or ``host:port``, without what may be secret: its user and password, and its query."""
    shown = re.sub(r"^([a-z]+://)?.*@", r"\1...@", url, flags=re.IGNORECASE | re.DOTALL)
    return re.sub(r"[?#].*", "?...", shown, flags=re.DOTALL)
