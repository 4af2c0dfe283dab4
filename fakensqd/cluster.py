"""FakeCluster: some nsqds, registered with some nsqlookupds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self, Unpack

from fakensqd.clock import Clock
from fakensqd.faults.control import AddedRules, make_rules
from fakensqd.faults.rules import Action, ActionFunction, Match, Point, Rule, Scenario
from fakensqd.lookupd.server import FakeLookupd
from fakensqd.nsqd.published import MessageAssertions
from fakensqd.nsqd.server import FakeNsqd
from fakensqd.options import ClusterOptionsDict, NsqdOptions
from fakensqd.thread import Server
from gnsq.options import parameters_of

__all__ = ["FakeCluster"]

# Above base_port: the first ports of the two kinds, how far a daemon is above the one before, and its own ports.
_NSQD_PORT, _LOOKUPD_PORT = 0, 10
_PORT_STEP = 100
_PORTS = {"tcp_address": 0, "http_address": 1, "faults_http_address": 3}
_MAX_PORT = 65535


class FakeCluster(MessageAssertions, Server):
    """Fake nsqds and nsqlookupds, each nsqd registered with every nsqlookupd: start() or ``with``.

    Args:
        nsqds: How many.
        lookupds: How many.
        clock: What all of them ask for time; default: the machine's.
        record, seed, faults_over_http: For all of them, as FakeNsqd takes them.
        base_port: Of nsqd 0, for TCP; HTTP has the next port, and ``/faults`` the third after. Each further nsqd is 100
            ports higher, and the nsqlookupd of the same number 10 above the nsqd: with 4150, the first of both have
            NSQ's usual ports. 0: all take free ones.
        threaded: Run on a thread of its own. What the constructor gives stands for the cluster then: its methods run on
            that thread, see fakensqd.thread.
        options: For the nsqds, as FakeNsqd takes them; without addresses.

    Raises:
        ValueError: If there are not as many ports above base_port.
    """

    def __init__(
        self,
        nsqds: int = 2,
        lookupds: int = 1,
        *,
        clock: Clock | None = None,
        record: bool = False,
        seed: int | None = None,
        faults_over_http: bool = False,
        base_port: int = 0,
        threaded: bool = False,
        **options: Unpack[ClusterOptionsDict],
    ) -> None:
        self.nsqds: list[FakeNsqd] = []
        self.seed = random.randrange(2**32) if seed is None else seed
        self._common: dict[str, Any] = {  # Any: of all types
            "clock": clock,
            "record": record,
            "seed": self.seed,
            "faults_over_http": faults_over_http,
        }
        self._base_port = base_port
        if base_port:
            _check_ports(base_port, nsqds, lookupds)
        self.lookupds = [
            FakeLookupd(**self._common, **self._addresses(_LOOKUPD_PORT, number)) for number in range(lookupds)
        ]
        # Refused here, not by start().
        NsqdOptions.from_keywords("FakeCluster", options, parameters=parameters_of(FakeCluster.__init__))
        self._count = nsqds
        self._options: dict[str, Any] = {**options}  # Any: of all types
        # Of the nsqd that gets the next message of publish().
        self._next = 0
        # Rules for nsqds, from before there were any.
        self._early: list[list[Rule]] = []

    def start(self) -> Self:
        """Start all, wait until the nsqds are registered, and give back this cluster. Does nothing to those that run.

        Raises:
            OSError: If an address cannot be listened on; none of them runs then.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        for lookupd in self.lookupds:
            lookupd.start()
        addresses = tuple(lookupd.tcp_address for lookupd in self.lookupds)
        if not self.nsqds:
            self.nsqds = [
                FakeNsqd(
                    lookupd_tcp_addresses=addresses,
                    node_id=number,
                    **self._common,
                    **self._addresses(_NSQD_PORT, number),
                    **self._options,
                )
                for number in range(self._count)
            ]
            for rules in self._early:
                self._add_to(self.nsqds, rules)
        for nsqd in self.nsqds:
            nsqd.start()
        for nsqd in self.nsqds:
            nsqd.wait_registered()

    def _addresses(self, offset: int, number: int) -> dict[str, Any]:  # Any: as **options
        """Give the addresses of the daemon of a number, if they are fixed."""
        if not self._base_port:
            return {}
        port = self._base_port + offset + _PORT_STEP * number
        return {name: f"127.0.0.1:{port + distance}" for name, distance in _PORTS.items()}

    def stop(self) -> None:
        """Stop all, at once."""
        for daemon in (*self.nsqds, *self.lookupds):
            daemon.stop()

    def add(
        self,
        match: Match | Scenario,
        *actions: Action | ActionFunction,
        optional: bool = False,
        name: str = "",
    ) -> AddedRules:
        """Add a rule, or a scenario, to all nsqds, which count together; rules about HTTP to the nsqlookupds, too.

        Raises:
            ValueError: If an action can't be done there.
        """
        rules = make_rules(match, actions, optional=optional, name=name)
        if all(rule.match.point in (Point.HTTP, Point.HTTP_ANSWER) for rule in rules):
            self._add_to(self.lookupds, rules)
        if self.nsqds:
            self._add_to(self.nsqds, rules)
        else:
            self._early.append(rules)
        return AddedRules(rules, self._remove_rules)

    def _remove_rules(self, rules: Sequence[Rule]) -> None:
        self._early = [early for early in self._early if early != rules]
        for daemon in (*self.nsqds, *self.lookupds):
            daemon.faults.injector.remove(rules)

    def _add_to(self, daemons: Sequence[FakeNsqd | FakeLookupd], rules: Sequence[Rule]) -> None:
        for daemon in daemons:
            daemon.faults.add_rules(rules)

    def publish(self, topic: str, *bodies: bytes, delay: float = 0.0) -> None:
        """Put messages into a topic, on the nsqds in turn: the first message on nsqd 0, the next one on nsqd 1.

        To choose the nsqd: ``cluster.nsqds[1].publish(...)``. Arguments and errors are those of FakeNsqd.publish().

        Raises:
            RuntimeError: If the cluster has not been started yet.
        """
        if not self.nsqds:
            raise RuntimeError("the cluster has no nsqds: start() makes them")
        self.nsqds[0]._check_publish(topic, bodies, delay)
        for body in bodies:
            self.nsqds[self._next].publish(topic, body, delay=delay)
            self._next = (self._next + 1) % len(self.nsqds)

    def messages(self, topic: str, channel: str | None = None) -> list[bytes]:
        """Give what FakeNsqd.messages() gives, of nsqd 0, then of nsqd 1 and so on."""
        return [body for nsqd in self.nsqds for body in nsqd.messages(topic, channel)]

    def _published_counts(self) -> dict[str, int]:
        return dict(sum((Counter(nsqd._published_counts()) for nsqd in self.nsqds), Counter()))

    def depth(self, topic: str, channel: str | None = None) -> int:
        """Count the messages queued in a topic, or in one of its channels, on all nsqds."""
        return sum(nsqd.depth(topic, channel) for nsqd in self.nsqds)

    def in_flight(self, topic: str, channel: str) -> int:
        """Count the messages of a channel that are delivered and not answered, on all nsqds."""
        return sum(nsqd.in_flight(topic, channel) for nsqd in self.nsqds)

    def unfired(self) -> list[str]:
        """For each required rule that never fired, describe the closest event."""
        found = [line for daemon in (*self.nsqds, *self.lookupds) for line in daemon.unfired()]
        return list(dict.fromkeys(found))

    def report(self) -> str:
        """Tell the seed and the ends of the transcripts, for the report of a failed test."""
        return "\n\n".join(daemon.report() for daemon in (*self.nsqds, *self.lookupds))

    @property
    def errors(self) -> list[BaseException]:
        """What should not have happened, in any of them."""
        return [error for daemon in (*self.nsqds, *self.lookupds) for error in daemon.errors]

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        """``host:port`` of each nsqd."""
        return [nsqd.tcp_address for nsqd in self.nsqds]

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """``host:port`` of each nsqlookupd's HTTP API, what consumers ask."""
        return [lookupd.http_address for lookupd in self.lookupds]


def _check_ports(base_port: int, nsqds: int, lookupds: int) -> None:
    """Check that the last daemon's ports exist.

    Raises:
        ValueError: If they don't.
    """
    highest = max(_NSQD_PORT + _PORT_STEP * (nsqds - 1), _LOOKUPD_PORT + _PORT_STEP * (lookupds - 1) if lookupds else 0)
    most = _MAX_PORT - highest - max(_PORTS.values())
    if not 1 <= base_port <= most:
        raise ValueError(f"base_port {base_port} must be from 1 to {most} with nsqds={nsqds}, lookupds={lookupds}")
