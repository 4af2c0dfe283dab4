"""Types of arguments: topics and channels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gnsq.cli.parameters import Parsed
from gnsq.protocol.names import checked_names

__all__ = ["CHANNEL", "REFRESH", "TOPIC", "Topics", "topic_pattern"]

# Seconds between two questions for new topics.
REFRESH = 15.0

TOPIC = Parsed("topic", lambda name: checked_names([name], "topic")[0])
CHANNEL = Parsed("channel", lambda name: checked_names([name], "channel")[0])


@dataclass(frozen=True)
class Topics:
    """Topics by their names, and all that match a pattern.

    Attributes:
        names: Topics that need not exist yet.
        pattern: Regular expression for others that exist; also those that are created later.
        refresh: Seconds between two questions for those.
    """

    names: Sequence[str]
    pattern: re.Pattern[str] | None = None
    refresh: float = REFRESH

    def __str__(self) -> str:
        return ", ".join(self.names) if self.pattern is None else f"topics that match {self.pattern.pattern}"

    @property
    def only(self) -> str | None:
        """The name, if it is the only topic; else None."""
        return self.names[0] if len(self.names) == 1 and self.pattern is None else None

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return the topics that the pattern chooses."""
        return [each for each in sorted(names) if self.pattern and self.pattern.search(each)]


def topic_pattern(text: str) -> re.Pattern[str]:
    """Read a regular expression for topics. Raises ValueError."""
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
