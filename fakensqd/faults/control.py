"""Fault rules and transcript of one server, and their use on its connections.

Sleeps by the clock and resets sockets. FaultInjector decides which rule acts, and records events.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Self

from fakensqd.clock import Clock
from fakensqd.effects import Close, Execute, Reset, Wait
from fakensqd.faults.injector import ConnectionInjector, FaultInjector, InjectableSession
from fakensqd.faults.link import reset_socket, wait_for_end
from fakensqd.faults.rules import NSQD, Action, ActionFunction, Match, Point, Rule, Scenario, ServerProtocol
from fakensqd.transcript import Entry, Transcript

__all__ = ["AddedRules", "FaultControl", "make_rules"]


class AddedRules:
    """Rules that were added to a server. remove() or the end of a ``with`` block removes them."""

    def __init__(self, rules: Sequence[Rule], remove: Callable[[Sequence[Rule]], None]) -> None:
        self.rules = list(rules)
        self._remove = remove

    @property
    def fired(self) -> int:
        """How often the rules have fired, all together."""
        return sum(rule.fired for rule in self.rules)

    def remove(self) -> None:
        """Remove the rules. The server's unfired() still reports required rules that have never fired."""
        self._remove(self.rules)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class FaultControl:
    """Fault rules and transcript of one server.

    Args:
        server: Name of the server's class, for error texts.
        seed: Seed for random numbers; None: a random seed.
        record: Record a transcript from the beginning.
        protocol: Events of the server.

    Attributes:
        injector: Decides on the rules, and has the transcript.
    """

    def __init__(
        self,
        server: str,
        clock: Clock,
        *,
        seed: int | None = None,
        record: bool = False,
        protocol: ServerProtocol = NSQD,
    ) -> None:
        self.seed = random.randrange(2**32) if seed is None else seed
        self.injector = FaultInjector(self.seed, Transcript() if record else None)
        self._server = server
        self._clock = clock
        self._protocol = protocol
        self._sessions: dict[InjectableSession, int] = {}

    # --- rules and transcript -----------------------------------------------------------------------------------------

    def add_rules(self, rules: Sequence[Rule]) -> int:
        """Add a sequence of rules; return its number.

        Raises:
            ValueError: If a rule needs an event that this server does not have.
        """
        for rule in rules:
            self._check(rule)
        number = self.injector.add(rules, self._clock.monotonic())
        self._attach()
        return number

    def _check(self, rule: Rule) -> None:
        match, protocol = rule.match, self._protocol
        if match.point not in protocol.points:
            raise ValueError(f"{rule.name}: {self._server} has no {match.point.value} to act on")
        if match.point in (Point.COMMAND, Point.REPLY) and match.kind not in (None, *protocol.commands):
            raise ValueError(f"{rule.name}: {self._server} has no {match.kind}; it has {', '.join(protocol.commands)}")
        for action in rule.actions:
            if protocol is not NSQD and isinstance(action, Action) and action.nsqd_only:
                raise ValueError(f"{rule.name}: {action} is for nsqd only")

    def remove_rules(self, number: int | None = None) -> bool:
        """Remove the sequence of rules with this number, or all rules; return whether there was one."""
        found = [rule for each, rules in self.injector.sequences.items() if number in (None, each) for rule in rules]
        self.injector.remove(found)
        return bool(found)

    def record(self) -> None:
        """Begin to record a transcript. Does nothing if one is recorded already."""
        if self.injector.transcript is None:
            self.injector.transcript = Transcript()
            self._attach()

    # --- connections --------------------------------------------------------------------------------------------------

    def admit(self, sock: Any, address: str) -> int | None:  # Any: gevent has no types
        """Record a new connection, and apply the rules about connections.

        Returns:
            The number of the connection; None if a rule has closed it, or has dropped it and the client has closed it.
        """
        number, steps = self.injector.open_connection(address, self._clock.monotonic())
        for step in steps:
            match step:
                case Wait(seconds):
                    self._clock.sleep(seconds)
                case Execute():
                    return number
                case Close() | Reset():
                    if isinstance(step, Reset):
                        reset_socket(sock)
                    self.end_connection(number)
                    return None
        wait_for_end(sock)
        self.end_connection(number)
        return None

    def open_session(self, session: InjectableSession, number: int) -> None:
        """Let rules act on the session of an admitted connection."""
        self._sessions[session] = number
        self._attach()

    def end_connection(self, number: int, session: InjectableSession | None = None) -> None:
        """Record the end of a connection, and release its session."""
        if session is not None:
            del self._sessions[session]
        self.injector.record(Entry(self._clock.monotonic(), number, "end"))

    def _attach(self) -> None:
        if self.injector.is_active:
            for session, number in self._sessions.items():
                session.attach(ConnectionInjector(self.injector, number, session, self._protocol.header_size))


def make_rules(
    match: Match | Scenario, actions: Sequence[Action | ActionFunction], *, optional: bool = False, name: str = ""
) -> list[Rule]:
    """Make the rules from the arguments of add().

    Raises:
        TypeError: If there are actions after a scenario, no actions after a match, or the order is another one.
        ValueError: If an action is not allowed for events of that kind.
    """
    if not isinstance(match, Scenario):
        return [Rule(match, *actions, optional=optional, name=name)]
    if actions:
        raise TypeError("a scenario has its own actions: give no other actions with it")
    return match.rules
