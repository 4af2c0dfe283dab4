"""Types of arguments: names of topics and channels, and rates."""

from __future__ import annotations

import click

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


TOPIC = _Name("topic")
CHANNEL = _Name("channel")
RATE = click.FloatRange(min=0, min_open=True)
