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


def valid_topic_name(name: str, max_length: int = MAX_NAME_LENGTH) -> bool:
    """Return True if this is a valid name of a topic. The oldest servers have a max_length of 32."""
    return isinstance(name, str) and 1 <= len(name) <= max_length and VALID_NAME_RE.match(name) is not None


def valid_channel_name(name: str, max_length: int = MAX_NAME_LENGTH) -> bool:
    """Return True if this is a valid name of a channel. The rules are those for names of topics."""
    return valid_topic_name(name, max_length)


def assert_valid_topic_name(name: str, max_length: int = MAX_NAME_LENGTH) -> None:
    """Raise ValueError if this is not a valid name of a topic."""
    if not valid_topic_name(name, max_length):
        raise ValueError(_refusal("topic", name, max_length))


def assert_valid_channel_name(name: str, max_length: int = MAX_NAME_LENGTH) -> None:
    """Raise ValueError if this is not a valid name of a channel."""
    if not valid_channel_name(name, max_length):
        raise ValueError(_refusal("channel", name, max_length))


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
            raise ValueError(_refusal(kind, name, MAX_NAME_LENGTH))
    return names


def is_ephemeral(name: str) -> bool:
    """Return True if nsqd deletes a topic or channel of this name when its last channel or consumer is gone."""
    return name.endswith("#ephemeral")


def _refusal(kind: str, name: object, max_length: int) -> str:
    if not isinstance(name, str):
        return f"{kind} name must be a str, not {shown_argument(name)}"
    shown = shown_argument(name if len(name) <= 2 * max_length or "@" in name else f"{name[:max_length]}...")
    if len(name) > max_length:
        return f"{kind} name {shown} has {len(name)} characters, the limit is {max_length}"
    return (
        f"{kind} name {shown} is not valid: 1 to {max_length} of the characters . a-z A-Z 0-9 _ - "
        "are allowed, then perhaps #ephemeral"
    )
