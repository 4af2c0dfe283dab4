"""Types of arguments: topics and channels."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click

from gnsq.cli.parameters import PAUSE, Parsed
from gnsq.protocol.names import checked_names

__all__ = ["CHANNEL", "TOPIC", "Topics", "topics_argument"]

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

    names: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    refresh: float = REFRESH

    def __str__(self) -> str:
        return ", ".join(self.names) if self.pattern is None else f"topics that match {self.pattern.pattern}"

    @property
    def only(self) -> str | None:
        """The name, if it is the only topic; else None."""
        return self.names[0] if len(self.names) == 1 and self.pattern is None else None

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return the topics that the pattern chooses. Topics that are called . or .. must be named, because a file of
        such a topic may lie outside of its directory."""
        return [each for each in sorted(names) if self.pattern and self.pattern.search(each) and each.strip(".")]


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


def topics_argument(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: a command's function
    """Add TOPIC... and --topic-pattern to a command's function, which gets ``topics``, a Topics, in their place."""

    @click.argument("names", metavar="TOPIC...", nargs=-1, type=TOPIC)
    @click.option(
        "--topic-pattern",
        metavar="REGEX",
        type=Parsed("pattern", _pattern),
        help="Also all topics in whose names this is found, and those that are created later. ^orders begins the name. "
        "Topics whose names are only dots must be given by name.",
    )
    @click.option(
        "--topic-refresh",
        metavar="TIME",
        default=f"{REFRESH:g}s",
        show_default=True,
        type=PAUSE,
        help="Time between two questions for new topics, with --topic-pattern.",
    )
    @functools.wraps(function)
    def with_topics(**values: Any) -> Any:  # Any: click's
        topics = Topics(
            tuple(dict.fromkeys(values.pop("names"))), values.pop("topic_pattern"), values.pop("topic_refresh")
        )
        if not topics.names and topics.pattern is None:
            raise click.UsageError("no topic is given: give one or more, or --topic-pattern")
        return function(topics=topics, **values)

    return with_topics
