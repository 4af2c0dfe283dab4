"""What the benchmark measured: one Figure for each quantity of a client in a setting, with the value of each round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

# Quantities, in the order of their columns. A rate is shown with its ratios, the others as they are.
RATE, CPU = "rate", "CPU"
PERCENTILES = ("50", "90", "99", "99.9")
# Clients that all others are compared with.
BASELINES = ("raw", "go-nsq")


@dataclass
class Figure:
    """The values of one quantity.

    Attributes:
        part: As "consume".
        setting: As "10 in flight".
        client: Whose figure it is, as "gnsq 2.0.0".
        quantity: RATE, CPU, a percentile of a latency, or the name of another.
        unit: As "messages/s".
        x: The place of the setting on the axis of a plot.
        values: One for each round.
    """

    part: str
    setting: str
    client: str
    quantity: str
    unit: str
    x: float | None = None
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(min(self.values))} to {number(max(self.values))})"


def number(value: float) -> str:
    """Return a value with three digits at least."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Results:
    """All figures of a run, in the order in which they were first measured."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []

    def add(self, figure: Figure, *values: float) -> None:
        """Add values to the figure of the same part, setting, client and quantity, or the figure itself."""
        for known in self.figures:
            if key(known) == key(figure):
                known.values.extend(values)
                return
        figure.values.extend(values)
        self.figures.append(figure)

    def parts(self) -> list[str]:
        return list(dict.fromkeys(figure.part for figure in self.figures))

    def settings(self, part: str) -> list[str]:
        return list(dict.fromkeys(figure.setting for figure in self.figures if figure.part == part))

    def of(self, part: str, setting: str) -> list[Figure]:
        return [figure for figure in self.figures if (figure.part, figure.setting) == (part, setting)]

    def ratio(self, figure: Figure, baseline: str) -> float | None:
        """Return a figure's median as a multiple of the same figure of another client, if there is one."""
        for other in self.of(figure.part, figure.setting):
            if other.client == baseline and other.quantity == figure.quantity and other.median:
                return figure.median / other.median
        return None


def key(figure: Figure) -> tuple[str, str, str, str]:
    return figure.part, figure.setting, figure.client, figure.quantity
