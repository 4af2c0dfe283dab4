"""What every server has for faults and for looking back: rules are added here, and the transcript is asked for here.

A shell: knows the clock and the sockets. Which rule strikes is Plan's, what is recorded is Watch's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from fakensqd.clock import Clock
from fakensqd.daemon.connection import ConnectionSession
from fakensqd.effects import Close, Open, Reset, Wait
from fakensqd.faults.http import WatchedApplication
from fakensqd.faults.injector import ConnectionTap, Watch
from fakensqd.faults.link import reset_socket
from fakensqd.faults.rules import NSQD_COMMANDS, Action, Change, Match, Plan, Point, Rule, Scenario
from fakensqd.http.server import Application
from fakensqd.transcript import Transcript, wait_for

__all__ = ["Added", "Watched", "rules_of"]

_Value = TypeVar("_Value")
# How long wait_until() waits, seconds.
_LIMIT = 10.0
# How much of a transcript goes into the report of a failure.
_REPORTED = 200


class Added:
    """Rules that have been added; as a ``with`` block they are removed at its end."""

    def __init__(self, rules: Sequence[Rule], forget: Callable[[Sequence[Rule]], None]) -> None:
        self.rules = list(rules)
        self._forget = forget

    @property
    def fired(self) -> int:
        """How often they have struck."""
        return sum(rule.fired for rule in self.rules)

    def remove(self) -> None:
        """Take them out. Those that have never struck are still told of, unless they are optional."""
        self._forget(self.rules)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class Watched:
    """The part of a server that is about faults and the transcript.

    Attributes:
        seed: Of its random numbers.
    """

    clock: Clock
    # Where rules may act, on which commands, and how many bytes stand in front of what an answer says: those of nsqd.
    points: frozenset[Point] = frozenset(Point)
    commands: Sequence[str] = NSQD_COMMANDS
    header = 8

    def _watch_as(
        self, *, record: bool, seed: int | None, faults_over_http: bool, faults_http_address: str = ""
    ) -> None:
        """Begin, before anything else does."""
        self.seed = random.randrange(2**32) if seed is None else seed
        self._watch = Watch(Plan(self.seed), Transcript() if record else None)
        self._steered = faults_over_http
        # Where the port of ``/faults`` is; empty without one.
        self._faults_bind = faults_http_address if faults_over_http else ""
        self._numbers: dict[ConnectionSession, int] = {}
        self._added: list[Rule] = []
        self._sequences: dict[int, list[Rule]] = {}
        self._sequence_numbers = itertools.count(1)

    # --- rules --------------------------------------------------------------------------------------------------------

    def add(self, match: Match | Scenario, *actions: Action | Change, optional: bool = False, name: str = "") -> Added:
        """Add a rule, or a scenario: ``add(on.reply("PUB", topic="orders").nth(3), disconnect())``.

        It holds for connections that are open, too. The first armed rule that strikes takes an event.

        Args:
            optional: It need not strike.
            name: What the transcript calls it.

        Raises:
            TypeError: If the arguments are in another order.
            ValueError: If it can't be done there, or not on this server.
        """
        rules = rules_of(match, actions, optional=optional, name=name)
        self.add_rules(rules)
        return Added(rules, self.forget)

    def add_rules(self, rules: Sequence[Rule]) -> int:
        """Add a sequence of rules; give back its number.

        Raises:
            ValueError: If one of them is about what this server does not have.
        """
        for rule in rules:
            self._check(rule)
        number = next(self._sequence_numbers)
        self._sequences[number] = list(rules)
        self._added += rules
        self._watch.plan.add(rules, self.clock.monotonic())
        self._listen()
        return number

    def _check(self, rule: Rule) -> None:
        match, server = rule.match, type(self).__name__
        if match.point not in self.points:
            raise ValueError(f"{rule.name}: {server} has no {match.point.value} to act on")
        if match.point in (Point.COMMAND, Point.REPLY) and match.kind not in (None, *self.commands):
            raise ValueError(f"{rule.name}: {server} has no {match.kind}; it has {', '.join(self.commands)}")
        for action in rule.actions:
            if self.commands is not NSQD_COMMANDS and isinstance(action, Action) and action.nsqd_only:
                raise ValueError(f"{rule.name}: {action} is for nsqd only")

    def forget(self, rules: Sequence[Rule]) -> None:
        """Take rules out."""
        self._watch.plan.remove(rules)
        for number, sequence in list(self._sequences.items()):
            if any(rule in rules for rule in sequence):
                del self._sequences[number]

    def remove_rules(self, number: int | None = None) -> bool:
        """Take out the sequence of that number, or all; say whether there were any."""
        numbers = [each for each in self._sequences if number in (None, each)]
        for each in numbers:
            self.forget(self._sequences[each])
        return bool(numbers)

    def numbered_rules(self) -> list[tuple[int, Rule]]:
        """All that are in force, each with the number of its sequence."""
        return [(number, rule) for number, rules in self._sequences.items() for rule in rules]

    def unfired(self) -> list[str]:
        """Say of each rule that has never struck, and was to, what came nearest."""
        return [rule.account() for rule in self._added if not rule.fired and not rule.optional]

    # --- transcript ---------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """Begin to record, if it does not yet: ``record=True`` begins at once."""
        if self._watch.transcript is None:
            self._watch.transcript = Transcript()
            self._listen()

    @property
    def transcript(self) -> Transcript:
        """What has happened.

        Raises:
            RuntimeError: If nothing is recorded.
        """
        if self._watch.transcript is None:
            raise RuntimeError(
                f"nothing is recorded: make it with {type(self).__name__}(record=True), or call record()"
            )
        return self._watch.transcript

    def wait_until(
        self,
        predicate: Callable[[Self], _Value],
        expected: object = True,
        *,
        limit: float | None = None,
        timeout: float | None = None,
    ) -> _Value:
        """Wait until this server answers a question as expected: ``wait_until(lambda nsqd: nsqd.depth("t"), 3)``.

        Args:
            question: Is given this server, on its thread.
            expected: A value; True: anything that is true.
            limit: Seconds of real time; default: 10.
            timeout: Another name of limit.

        Raises:
            AssertionError: If it has not by then; says what was expected, what came nearest, and what happened.
            TypeError: If both limit and timeout are given.
        """
        __tracebackhide__ = True
        if limit is not None and timeout is not None:
            raise TypeError(f"limit={limit!r} and timeout={timeout!r} mean the same: give one of them")
        seconds = limit if limit is not None else timeout if timeout is not None else _LIMIT
        return wait_for(lambda: predicate(self), expected, limit=seconds, transcript=self._watch.transcript)

    def report(self) -> str:
        """Tell the seed and the end of the transcript, for the report of a failed test."""
        lines = [f"{type(self).__name__}, seed={self.seed}"]
        if self._watch.transcript is not None:
            lines.append(self._watch.transcript.text(_REPORTED) or "(nothing happened)")
        return "\n".join(lines)

    # --- for the server -----------------------------------------------------------------------------------------------

    def _admitted(self, sock: Any, address: str) -> int | None:  # Any: gevent has no types
        """Take note of a connection; give back its number, None if a fault has dealt with it."""
        number, steps = self._watch.connect(address, self.clock.monotonic())
        for step in steps:
            match step:
                case Wait(seconds):
                    self.clock.sleep(seconds)
                case Open():
                    return number
                case Close() | Reset():
                    if isinstance(step, Reset):
                        reset_socket(sock)
                    self._ended(number)
                    return None
        try:
            while sock.recv(65536):  # says nothing until the client has had enough
                pass
        except OSError:
            pass
        self._ended(number)
        return None

    def _tapped(self, session: ConnectionSession, number: int) -> ConnectionSession:
        """Take note of the session of a connection."""
        self._numbers[session] = number
        self._listen()
        return session

    def _ended(self, number: int, session: ConnectionSession | None = None) -> None:
        """Take note of the end of a connection."""
        if session is not None:
            del self._numbers[session]
        self._watch.end(number, self.clock.monotonic())

    def _listen(self) -> None:
        if self._watch.active:
            for session, number in self._numbers.items():
                session.attach(ConnectionTap(self._watch, number, session, self.header))

    def _watched_http(self, application: Application) -> Application:
        return WatchedApplication(application, self._watch, self.clock)


def rules_of(
    match: Match | Scenario, actions: Sequence[Action | Change], *, optional: bool = False, name: str = ""
) -> list[Rule]:
    """Give the rules that add() was given.

    Raises:
        TypeError: If there are actions beside a scenario, none beside a match, or they are in another order.
        ValueError: If an action can't be done there.
    """
    if not isinstance(match, Scenario):
        return [Rule(match, *actions, optional=optional, name=name)]
    if actions:
        raise TypeError("a scenario has its own actions")
    return match.rules
