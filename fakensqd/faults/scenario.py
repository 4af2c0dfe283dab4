"""Rules in order: which of them strikes, what became of each, and how near it came.

Pure: takes events, which carry the time, and a generator of random numbers. The first armed rule that strikes takes the
event; those behind it do not see it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from fakensqd.effects import Step
from fakensqd.faults.action import Action, Change
from fakensqd.faults.match import Event, Match, Point

__all__ = ["Plan", "Rule", "Scenario"]


class Rule:
    """A condition with its actions, and how often it has struck.

    Args:
        optional: It need not strike.
        name: What a transcript calls it; default: how it is written.

    Attributes:
        fitting: Events that fitted while it was armed.
        fired: How often it has struck.
        armed_at: Since when events are held against it; None if not yet, or no more.
        nearest: What did not fit of the event that came closest, and that event.

    Raises:
        TypeError: If there is no action, or the arguments are in another order.
        ValueError: If one of the actions cannot be done there.
    """

    def __init__(self, match: Match, *actions: Action | Change, optional: bool = False, name: str = "") -> None:
        if not isinstance(match, Match) or not all(map(callable, actions)):
            given = ", ".join(map(_name, (match, *actions)))
            raise TypeError(f"({given}): a condition comes first, as on.reply('PUB'), and actions after it, as drop()")
        if not actions:
            raise TypeError(f"{match}: a rule needs an action")
        for action in actions:
            if isinstance(action, Action) and match.point not in action.points:
                points = ", ".join(sorted(point.value for point in action.points))
                raise ValueError(f"{match}: {action} is for {points}")
        self.match = match
        self.actions = actions
        self.optional = optional
        self.name = name or f"{match}, {', '.join(map(_name, actions))}"
        self.fitting = 0
        self.fired = 0
        self.armed_at: float | None = None
        self.nearest: tuple[list[str], Event] | None = None
        self._distance = 0
        self._early = 0

    @property
    def over(self) -> bool:
        """Whether it can strike nothing any more."""
        return self.match.times.over_after(self.fitting)

    @property
    def done(self) -> bool:
        """Whether the next one of a scenario is to be armed: it is over, or has struck and is never over."""
        return self.over or (self.match.times.endless and self.fired > 0)

    def strikes(self, event: Event, chance: Callable[[], float]) -> bool:
        """Hold an event against it, and count it if it fits."""
        times = self.match.times
        if self.armed_at is None or self.over:
            return False
        if event.point is not self.match.point:
            return False
        if misses := self.match.mismatches(event):
            self._note_miss(misses, event)
            return False
        if event.now < self.armed_at + times.after:
            self._early += 1
            return False
        self.fitting += 1
        if not times.strikes(self.fitting, chance() if times.chance < 1 else 0.0):
            return False
        self.fired += 1
        return True

    def apply(self, steps: Sequence[Step], event: Event) -> list[Step]:
        """Let its actions say what is to happen."""
        changed = list(steps)
        for action in self.actions:
            changed = list(action(changed, event))
        return changed

    def account(self) -> str:
        """Say why it has never struck."""
        if self.armed_at is None:
            return f"{self.name}: never armed, those before it have not fired"
        if self.fitting or self._early:
            return f"{self.name}: {self.fitting + self._early} fitted, and its time did not come"
        if self.nearest is None:
            return f"{self.name}: nothing of that kind happened"
        misses, event = self.nearest
        return f"{self.name}: nearest was {_event_text(event)}: {'; '.join(misses)}"

    def _note_miss(self, misses: list[str], event: Event) -> None:
        # The kind is what a rule is about: another command is farther away than another topic.
        distance = len(misses) + 10 * any(miss.startswith("kind") for miss in misses)
        if not self.fired and (self.nearest is None or distance < self._distance):
            self.nearest = misses, event
            self._distance = distance


class Scenario:
    """Rules in sequence, each armed when the one before has fired as often as it may (once, if that has no end)."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def then(self, match: Match, *actions: Action | Change, optional: bool = False, name: str = "") -> Self:
        """Append a rule."""
        self.rules.append(Rule(match, *actions, optional=optional, name=name))
        return self


class Plan:
    """All rules of one server.

    Args:
        seed: Of its random numbers.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        self._sequences: list[list[Rule]] = []
        self._points: frozenset[Point] = frozenset()

    @property
    def rules(self) -> list[Rule]:
        """All, in order."""
        return [rule for sequence in self._sequences for rule in sequence]

    def watches(self, point: Point) -> bool:
        """Whether any rule is about such events."""
        return point in self._points

    def add(self, rules: Sequence[Rule], now: float) -> None:
        """Append a sequence of rules and arm its first."""
        sequence = list(rules)
        self._sequences.append(sequence)
        self._changed()
        _arm(sequence, now)

    def remove(self, rules: Iterable[Rule]) -> None:
        """Forget rules."""
        gone = set(map(id, rules))
        self._sequences = [
            kept for sequence in self._sequences if (kept := [rule for rule in sequence if id(rule) not in gone])
        ]
        self._changed()

    def change(self, event: Event, steps: Sequence[Step]) -> tuple[Rule | None, Sequence[Step]]:
        """Give back what is to happen where the steps would, and the rule that wanted it so."""
        if event.point not in self._points:
            return None, steps
        for sequence in self._sequences:
            for rule in sequence:
                if rule.strikes(event, self._random.random):
                    _arm(sequence, event.now)
                    return rule, rule.apply(steps, event)
        return None, steps

    def _changed(self) -> None:
        self._points = frozenset(rule.match.point for rule in self.rules)


def _arm(sequence: list[Rule], now: float) -> None:
    for rule in sequence:
        if rule.armed_at is None:
            rule.armed_at = now
        if not rule.done:
            return


def _name(action: object) -> str:
    return str(action) if isinstance(action, (Action, Match)) else str(getattr(action, "__name__", repr(action)))


def _event_text(event: Event) -> str:
    words = [event.kind or event.point.value]
    words += [f"{name}={value!r}" for name, value in (("topic", event.topic), ("channel", event.channel)) if value]
    return f"{' '.join(words)} on connection {event.connection}" if event.connection else " ".join(words)
