"""Checks names of topics and channels. Pure.

A name has 1 to 64 bytes, including ``#ephemeral``. nsqd 0.2.21 allowed only 32. Source: nsq internal/protocol/names.go.
"""

from __future__ import annotations

import re
import reprlib

from gnsq.texts import shown_argument

__all__ = [
    "MAX_NAME_LENGTH",
    "VALID_NAME_RE",
    "assert_valid_channel_name",
    "assert_valid_topic_name",
    "checked_names",
    "is_ephemeral",
    "valid_channel_name",
    "valid_topic_name",
]

MAX_NAME_LENGTH = 64
# Ends with \Z, since $ would accept a newline at the end. A newline in a name would end the line of a command.
VALID_NAME_RE = re.compile(r"\A[.a-zA-Z0-9_-]+(#ephemeral)?\Z")


def valid_topic_name(name: str) -> bool:
    """Return True if this is a valid name of a topic."""
    return isinstance(name, str) and 1 <= len(name) <= MAX_NAME_LENGTH and VALID_NAME_RE.match(name) is not None


def valid_channel_name(name: str) -> bool:
    """Return True if this is a valid name of a channel. The rules are those for names of topics."""
    return valid_topic_name(name)


def assert_valid_topic_name(name: str) -> None:
    """Raise ValueError if this is not a valid name of a topic."""
    if not valid_topic_name(name):
        raise ValueError(_refusal("topic", name))


def assert_valid_channel_name(name: str) -> None:
    """Raise ValueError if this is not a valid name of a channel."""
    if not valid_channel_name(name):
        raise ValueError(_refusal("channel", name))


def checked_names(names: object, kind: str) -> list[str]:
    """Return the list of names that a server has sent, in which null stands for no names.

    A server may send anything, and a name that is not checked could be a command for a shell that completes it, or move
    the cursor of a terminal.

    Args:
        kind: ``topic`` or ``channel``.

    Raises:
        ValueError: If it is not a list of valid names.
    """
    if names is None:  # Go writes a list that was never filled as null
        return []
    if not isinstance(names, list):
        raise ValueError(f"{kind}s are no list: {reprlib.repr(names)}")
    for name in names:
        if not valid_topic_name(name):
            raise ValueError(_refusal(kind, name))
    return names


def is_ephemeral(name: str) -> bool:
    """Return True if nsqd deletes a topic or channel of this name when its last channel or consumer is gone."""
    return name.endswith("#ephemeral")


def _refusal(kind: str, name: object) -> str:
    if not isinstance(name, str):
        return f"{kind} name must be a str, not {shown_argument(name)}"
    shown = shown_argument(name if len(name) <= 2 * MAX_NAME_LENGTH or "@" in name else f"{name[:MAX_NAME_LENGTH]}...")
    if len(name) > MAX_NAME_LENGTH:
        return f"{kind} name {shown} has {len(name)} characters, the limit is {MAX_NAME_LENGTH}"
    return (
        f"{kind} name {shown} is not valid: 1 to {MAX_NAME_LENGTH} of the characters . a-z A-Z 0-9 _ - "
        "are allowed, then perhaps #ephemeral"
    )
