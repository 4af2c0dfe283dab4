"""Types of arguments: paths, numbers, rates, sizes and durations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["DURATION", "IDLE", "RATE", "SIZE", "FilePath", "Number"]


class FilePath(click.Path):
    """A path. What the system refuses as a path, such as a NUL in it, is a wrong argument like any other."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # Any: click's
        try:
            return super().convert(value, param, ctx)
        except (OSError, ValueError) as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class Number(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # Any: click's
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r:.40} is not a finite number", param, ctx)
        return number


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


RATE = Number(min=0, min_open=True)
# Bytes. As with GNU's programs, M is 1024 * 1024.
SIZE = _Quantity("size", {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}, "500000, 100M or 1G")
# Seconds.
_TIMES = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = _Quantity("duration", _TIMES, "30, 10m, 1h or 1d")
# Time without a message that ends a command: the first message needs some time to come.
IDLE = _Quantity("duration", _TIMES, "30, 10m, 1h or 1d", minimum=0.1)
