"""What an action is, apart from the actions there are: a server needs to know no more until it is given one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fakensqd.effects import Step
from fakensqd.faults.match import Event, Point

__all__ = ["Action", "Change", "Steps"]

Steps = list[Step]
Change = Callable[[Steps, Event], Steps]


@dataclass(frozen=True, slots=True)
class Action:
    """An action of the table below, with what it was called with.

    Attributes:
        points: Where it can be done.
        nsqd_only: Whether it is about what nsqlookupd does not have: messages, heartbeats, types of frames.
    """

    name: str
    change: Change = field(compare=False, repr=False)
    points: frozenset[Point]
    arguments: dict[str, Any] = field(default_factory=dict)  # Any: of all types
    nsqd_only: bool = False

    def __call__(self, steps: Steps, event: Event) -> Steps:
        """Give back what is to happen."""
        return self.change(steps, event)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"
