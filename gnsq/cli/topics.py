"""Types of arguments: topics and channels. A shell completes their names from those that the servers know."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from gnsq.cli.cluster import given_settings, load_cluster
from gnsq.cli.nodes import NodePoller
from gnsq.cli.parameters import PAUSE, Parsed
from gnsq.protocol.names import checked_names

__all__ = ["CHANNEL", "TOPIC", "Topics", "topics_argument"]

# Seconds after the questions that a person waits for the answers. The start of Python does not count: on a busy machine
# it takes longer than the answers.
LIMIT = 2.0
# Seconds between two questions for new topics.
REFRESH = 15.0


class _Name(Parsed):
    """The name of a topic or channel."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete from the names that the servers know. Errors give no names."""
        topic = None
        if self.name == "channel":
            topics = [ctx.params.get(each.name or "") for each in ctx.command.params if each.type is TOPIC]
            topic = next((name for name in topics if isinstance(name, str)), None)
            if topic is None:
                return []
        return [CompletionItem(name) for name in _server_names(ctx, topic) if name.startswith(incomplete)]


def _server_names(context: click.Context, topic: str | None) -> Iterator[str]:
    """Ask for the names of all topics, or of a topic's channels."""
    values = context.params
    try:
        cluster = load_cluster(values.get("cluster"), values.get("config_file"), given_settings(context))
    except click.UsageError:
        return
    import gnsq.http.connections  # noqa: F401  # its import would count for the first question

    logger = logging.getLogger("gnsq.discovery")
    logger.disabled = True  # the shell would show its lines
    try:
        snapshot = NodePoller(cluster, topic).poll(LIMIT)
    finally:
        logger.disabled = False
    for row in snapshot.topics:
        yield from [row.topic] if topic is None else [channel.channel for channel in row.channels]


TOPIC = _Name("topic", lambda name: checked_names([name], "topic")[0])
CHANNEL = _Name("channel", lambda name: checked_names([name], "channel")[0])


# --- several topics


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
