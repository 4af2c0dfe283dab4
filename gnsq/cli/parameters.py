"""Types of arguments: names of topics and channels, rates, sizes and durations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["CHANNEL", "DURATION", "IDLE", "RATE", "SIZE", "TOPIC"]


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
        return [CompletionItem(name) for name in sorted(server_names(ctx, topic)) if name.startswith(incomplete)]


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A number with an optional unit after it.

    Args:
        units: The factor of each unit.
        example: For the error text.
    """

    def __init__(self, name: str, units: Mapping[str, float], example: str, *, minimum: float = 0) -> None:
        self.name = name
        self._units = units
        self._example = example
        self._minimum = minimum

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", value.strip(), re.ASCII)
        number = math.inf
        if match is not None and (not match[2] or match[2] in self._units):
            number = float(match[1]) * self._units.get(match[2], 1)
        if not self._minimum <= number < math.inf:
            least = f"of {self._minimum:g} or more"
            self.fail(f"{value!r} is no {self.name}: give a number {least}, such as {self._example}", param, ctx)
        return number


TOPIC = _Name("topic")
CHANNEL = _Name("channel")
RATE = click.FloatRange(min=0, min_open=True)
# Bytes. As with GNU's programs, M is 1024 * 1024.
SIZE = _Quantity("size", {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}, "500000, 100M or 1G")
# Seconds.
_TIMES = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = _Quantity("duration", _TIMES, "30, 10m, 1h or 1d")
# Time without a message that ends a command: the first message needs some time to come.
IDLE = _Quantity("duration", _TIMES, "30, 10m, 1h or 1d", minimum=0.1)
