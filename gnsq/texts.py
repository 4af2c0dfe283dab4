"""Texts: what log lines and errors have in common. Pure: computes strings."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["counted", "nearest", "without_address"]


def counted(number: int, noun: str, plural: str | None = None, *, spec: str = "") -> str:
    """Write a number of things: ``1 message``, ``2 messages``.

    Args:
        plural: Of a noun that takes more than an s.
        spec: How to write the number, as format() takes it.
    """
    return f"{number:{spec}} {noun if number == 1 else plural or noun + 's'}"


def nearest(unknown: Iterable[str], known: Iterable[str], what: str = "known are") -> str:
    """End a text that refuses names: say which ones were probably meant, then all that are known."""
    import difflib  # 2 ms, for an error that ends most programs

    names = list(known)
    by_lower = {name.lower(): name for name in names}
    meant = [by_lower[close] for name in unknown for close in difflib.get_close_matches(name.lower(), by_lower, 1)]
    question = f" did you mean {' and '.join(meant)}?" if meant else ""
    return f";{question} {what} {', '.join(names)}"


def without_address(error: object, address: str) -> str:
    """Write an error without the address that its text begins with, for a text that names the address itself."""
    # The number that str() puts before an OSError's text says nothing more.
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    for begin in (f"{address}: ", f"{address} "):
        if text.startswith(begin):
            return without_address(text[len(begin) :], address)
    verb, _, rest = text.partition(" ")
    # Of HTTP: "GET http://host:port/ping: ...".
    url = address if "://" in address else f"http://{address}"
    return f"{verb} {rest.removeprefix(url)}" if rest.startswith(f"{url}/") else text
