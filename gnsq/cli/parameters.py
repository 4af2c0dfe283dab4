"""Types of arguments: names of topics and channels, rates, and durations."""

from __future__ import annotations

import math
import re

import click

from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["CHANNEL", "DURATION", "IDLE", "RATE", "TOPIC"]


class _Name(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            (assert_valid_topic_name if self.name == "topic" else assert_valid_channel_name)(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


class _Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    name = "duration"

    def __init__(self, minimum: float = 0.0) -> None:
        self._minimum = minimum

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if not isinstance(value, str):
            return value
        match = _DURATION.fullmatch(value)
        seconds = float(match[1]) * _UNITS[match[2]] if match is not None else math.inf
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds, or a number with s, m, h or d, such as 10m", param, ctx)
        if seconds < self._minimum:
            self.fail(f"{value!r} is below {self._minimum:g} s: give a longer time", param, ctx)
        return seconds


_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

TOPIC = _Name("topic")
CHANNEL = _Name("channel")
RATE = click.FloatRange(min=0, min_open=True)
DURATION = _Duration()
# Time without a message that ends a command: the first message needs some time to come.
IDLE = _Duration(minimum=0.1)
