"""Types of arguments: topics and channels. A shell completes their names from those that the servers know."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

from gnsq.cli.cluster import given_settings, load_cluster
from gnsq.cli.nodes import NodePoller
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["CHANNEL", "TOPIC"]

# Seconds after the questions that a person waits for the answers. The start of Python does not count: on a busy machine
# it takes longer than the answers.
LIMIT = 2.0


class _Name(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            (assert_valid_topic_name if self.name == "topic" else assert_valid_channel_name)(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value

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


TOPIC = _Name("topic")
CHANNEL = _Name("channel")
