"""Fault rules and transcript of one server: decides which rule acts on an event, and records events.

Pure: events carry the time. Only the first armed rule that fires on an event acts; later rules do not see the event.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from fakensqd.effects import FaultStep
from fakensqd.faults.rules import Action, ActionFunction, Event, Match, Rule, Scenario, ServerProtocol
from fakensqd.transcript import Entry, Transcript
from gnsq.texts import nearest

__all__ = ["AddedRules", "FaultControl", "RuleNeverActed", "make_rules", "tell_unfired"]


class RuleNeverActed(AssertionError):
    """A rule that is not optional never acted: the code did not do what the test is about."""


class AddedRules:
    """Rules that were added to a server. remove() or the end of a ``with`` block removes them.

    The end of the block raises RuleNeverActed if one of them never acted and is not optional. If another exception ends
    the block, that one gets a note.
    """

    def __init__(self, rules: Sequence[Rule], remove: Callable[[Sequence[Rule]], None]) -> None:
        self.rules = list(rules)
        self._remove = remove

    @property
    def fired(self) -> int:
        """The number of times that the rules have fired, all together."""
        return sum(rule.fired for rule in self.rules)

    def remove(self) -> None:
        """Remove the rules. The server's unfired() and stop() still report required rules that have never fired."""
        self._remove(self.rules)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.remove()
        tell_unfired(self.rules, error)


class FaultControl:
    """Fault rules and transcript of one server.

    Args:
        server: Name of the server's class, for error texts.
        protocol: The events that rules of this server can act on.
        seed: Seed for random numbers; None: a random seed.
        record: Record a transcript from the beginning.
        on_active: Called after rules were added, and after start_transcript() made a transcript.

    Attributes:
        transcript: The transcript; None while nothing is recorded.
        sequences: The rules that were added and not removed.
        added: All rules that were added, also removed ones.
    """

    def __init__(
        self,
        server: str,
        protocol: ServerProtocol,
        *,
        seed: int | None = None,
        record: bool = False,
        on_active: Callable[[], None] = lambda: None,
    ) -> None:
        self.protocol = protocol
        self.seed = random.randrange(2**32) if seed is None else seed
        self.transcript = Transcript() if record else None
        self.sequences: list[list[Rule]] = []
        self._server = server
        self._on_active = on_active
        self._rng = random.Random(self.seed)
        self.added: list[Rule] = []

    @property
    def is_active(self) -> bool:
        """True if there are rules or a transcript."""
        return self.transcript is not None or bool(self.sequences)

    # --- rules --------------------------------------------------------------------------------------------------------

    def add(self, rules: Sequence[Rule], now: float) -> None:
        """Append a sequence of rules and arm its first rule.

        Raises:
            ValueError: If a rule needs an event that this server does not have, or has an action for nsqd only.
        """
        for rule in rules:
            self._check(rule)
        self.sequences.append(list(rules))
        self.added += rules
        _arm(rules, now)
        self._on_active()

    def _check(self, rule: Rule) -> None:
        match, kinds = rule.match, self.protocol.kinds(rule.match.point)
        if kinds == ():
            raise ValueError(f"{rule.name}: {self._server} has no {match.point.value} to act on")
        if match.kind is not None and kinds is not None and match.kind not in kinds:
            known = nearest([match.kind], list(kinds), "it has")
            raise ValueError(f"{rule.name}: {self._server} has no {match.kind}{known}")
        for action in rule.actions:
            if not self.protocol.has_frame_types and isinstance(action, Action) and action.nsqd_only:
                raise ValueError(f"{rule.name}: {action} is for nsqd only")

    def remove(self, rules: Iterable[Rule]) -> None:
        """Remove rules."""
        removed = set(map(id, rules))
        left = ([rule for rule in sequence if id(rule) not in removed] for sequence in self.sequences)
        self.sequences = [sequence for sequence in left if sequence]

    def unfired(self) -> list[str]:
        """Explain for each required rule that has never fired, even if it was removed, why it has not fired."""
        return [rule.explain() for rule in self.added if not rule.fired and not rule.optional]

    def apply_rules(self, event: Event, steps: Sequence[FaultStep]) -> Sequence[FaultStep]:
        """Let the first rule that fires on an event change the steps, and record its name. Return the steps to take."""
        for sequence in self.sequences:
            for rule in sequence:
                if rule.fires(event, self._rng):
                    _arm(sequence, event.now)
                    changed = rule.apply(steps, event)
                    self.record(Entry(event.now, event.connection, "fault", rule.name))
                    return changed
        return steps

    # --- transcript ---------------------------------------------------------------------------------------------------

    def start_transcript(self) -> None:
        """Begin to record a transcript. Does nothing if one is recorded already."""
        if self.transcript is None:
            self.transcript = Transcript()
            self._on_active()

    def record(self, entry: Entry) -> Entry:
        """Append an entry to the transcript, if there is one. Return the entry."""
        return entry if self.transcript is None else self.transcript.append(entry)


def _arm(sequence: Sequence[Rule], now: float) -> None:
    """Arm the rules of a sequence up to and including the first one that is not finished."""
    for rule in sequence:
        if rule.armed_at is None:
            rule.armed_at = now
        if not rule.is_finished:
            return


def tell_unfired(rules: Iterable[Rule], under_way: BaseException | None) -> None:
    """Tell once for each required rule that it has never fired: as a note of an exception, or by an exception.

    Raises:
        RuleNeverActed: If there is such a rule, and no exception is under way.
    """
    unfired = [rule for rule in rules if not (rule.fired or rule.optional or rule.is_told)]
    for rule in unfired:
        rule.is_told = True
    # A cluster has a rule once for each server.
    text = "\n".join(f"rule never acted: {rule.explain()}" for rule in dict.fromkeys(unfired))
    if text and under_way is None:
        raise RuleNeverActed(text)
    if text and under_way is not None:
        under_way.add_note(text)


def make_rules(
    match: Match | Scenario, actions: Sequence[Action | ActionFunction], *, optional: bool = False, name: str = ""
) -> list[Rule]:
    """Make the rules from the arguments of Daemon.add().

    Raises:
        TypeError: If there are actions after a scenario or no actions after a match, or their order is wrong.
        ValueError: If an action is not allowed for the events of the match.
    """
    if not isinstance(match, Scenario):
        return [Rule(match, *actions, optional=optional, name=name)]
    if actions:
        raise TypeError("a scenario has its own actions: give no other actions with it")
    return match.rules
