"""Types of arguments: names of topics and channels, and rates."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["CHANNEL", "RATE", "TOPIC"]


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
        """Complete from the names that the servers know."""
        from gnsq.cli.names import server_names  # only a completion needs it

        topic = None
        if self.name == "channel":
            topics = [ctx.params.get(each.name or "") for each in ctx.command.params if each.type is TOPIC]
            topic = next((name for name in topics if isinstance(name, str)), None)
            if topic is None:
                return []
        return [CompletionItem(name) for name in sorted(server_names(ctx.params, topic)) if name.startswith(incomplete)]


TOPIC = _Name("topic")
CHANNEL = _Name("channel")
RATE = click.FloatRange(min=0, min_open=True)
