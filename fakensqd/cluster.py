"""Nsqds that are registered with nsqlookupds: what tests ask of any cluster, and the emulated one."""

from __future__ import annotations

import dataclasses
import os
import random
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from fakensqd.addresses import join_address
from fakensqd.clock import Clock
from fakensqd.faults.control import AddedRules, make_rules, tell_unfired
from fakensqd.faults.rules import Action, ActionFunction, Match, Point, Rule, Scenario
from fakensqd.lookupd.server import FakeLookupd
from fakensqd.nsqd.published import AnyNsqd, MessageAssertions
from fakensqd.nsqd.server import FakeNsqd
from fakensqd.options import NsqdOptions
from fakensqd.server import Server
from fakensqd.transcript import UnknownChannel, wait_until
from gnsq.tracebacks import clears_locals

__all__ = ["Cluster", "FakeCluster"]

# TCP port of nsqd N: base_port + _NSQD_PORT + N * _PORT_STEP; of nsqlookupd N: with _LOOKUPD_PORT. _PORTS: added to it.
_NSQD_PORT, _LOOKUPD_PORT = 0, 10
_PORT_STEP = 100
_PORTS = {"tcp_address": 0, "http_address": 1}
_MAX_PORT = 65535


class _AnyLookupd(Protocol):
    @property
    def http_address(self) -> str: ...
    def report(self) -> str: ...


_Nsqd = TypeVar("_Nsqd", bound=AnyNsqd)
_Lookupd = TypeVar("_Lookupd", bound=_AnyLookupd)
_Item = TypeVar("_Item")


class Cluster(MessageAssertions, Generic[_Nsqd, _Lookupd]):
    """Nsqds that are registered with nsqlookupds, and what tests ask of all of them together.

    Attributes:
        nsqds, lookupds: The servers.
    """

    nsqds: list[_Nsqd]
    lookupds: list[_Lookupd]
    # Index of the nsqd that gets the next message of publish().
    _next_nsqd = 0

    def publish(self, topic: str, *bodies: bytes, delay: float = 0.0) -> None:
        """Publish each message to the next nsqd in turn; the first of all messages goes to nsqd 0.

        Use ``cluster.nsqds[1].publish(...)`` to choose the nsqd. Arguments and errors are those of FakeNsqd.publish().
        """
        self.nsqds[0]._check_publish(topic, bodies, delay)
        for body in bodies:
            self.nsqds[self._next_nsqd].publish(topic, body, delay=delay)
            self._next_nsqd = (self._next_nsqd + 1) % len(self.nsqds)

    def wait_until(
        self, predicate: Callable[[Self], _Item], expected: object = True, *, timeout: float = 10.0
    ) -> _Item:
        """Wait until a function, called with this cluster, returns the expected value, see FakeNsqd.wait_until()."""
        __tracebackhide__ = True
        return wait_until(lambda: predicate(self), expected, timeout=timeout)

    def messages(self, topic: str, channel: str | None = None) -> list[bytes]:
        """Return the bodies that FakeNsqd.messages() lists for nsqd 0, then those of nsqd 1, and so on. A channel need
        not exist on all nsqds."""
        having = [nsqd for nsqd in self.nsqds if channel is None or channel in nsqd._channel_names().get(topic, ())]
        if channel is not None and not having:
            raise UnknownChannel(topic, channel, self._channel_names())
        return [body for nsqd in having for body in nsqd.messages(topic, channel)]

    def _numbers(self, name: str, topic: str, channel: str | None) -> list[int]:
        return [number for nsqd in self.nsqds for number in nsqd._numbers(name, topic, channel)]

    def _channel_names(self) -> Mapping[str, Collection[str]]:
        return self._together(nsqd._channel_names() for nsqd in self.nsqds)

    def _kept_bodies(self) -> Mapping[str, Sequence[bytes]]:
        return self._together(nsqd._kept_bodies() for nsqd in self.nsqds)

    @staticmethod
    def _together(found: Iterable[Mapping[str, Iterable[_Item]]]) -> dict[str, list[_Item]]:
        together: dict[str, list[_Item]] = {}
        for each in found:
            for topic, items in each.items():
                together.setdefault(topic, []).extend(items)
        return together

    def _transcript_end(self) -> str:
        ends = [(nsqd, nsqd._transcript_end()) for nsqd in self.nsqds]
        return "\n".join(f"nsqd {nsqd.tcp_address}:\n{end}" for nsqd, end in ends if end)

    def report(self) -> str:
        """Return what is known of each server as text, for the report of a failed test."""
        reports = [*(nsqd.report() for nsqd in self.nsqds), *(lookupd.report() for lookupd in self.lookupds)]
        return "\n\n".join(reports)

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        """``host:port`` of each nsqd."""
        return [nsqd.tcp_address for nsqd in self.nsqds]

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """``host:port`` of the HTTP API of each nsqlookupd, for consumers."""
        return [lookupd.http_address for lookupd in self.lookupds]


class FakeCluster(Cluster[FakeNsqd, FakeLookupd], Server):
    """Fake nsqds and nsqlookupds; each nsqd is registered with every nsqlookupd. Call start() or use ``with``.

    Args:
        nsqds: Number of nsqds.
        lookupds: Number of nsqlookupds.
        clock: Clock of all servers; default: real time.
        host: Where all servers listen: an IP address, or 0.0.0.0 for all of this machine.
        base_port: TCP port of nsqd 0; 0: all servers take free ports. The HTTP port of a server is its TCP port + 1.
            The ports of nsqd N are 100 above those of nsqd N - 1, and the ports of nsqlookupd N are 10 above those of
            nsqd N. With 4150, nsqd 0 and nsqlookupd 0 have NSQ's usual ports.
        options: Options of the nsqds, as in FakeNsqd, except addresses; record and seed are options of the nsqlookupds,
            too. broadcast_address is the name or address under which consumers reach the nsqds, which nsqlookupd gives
            to them. Default: the host; with 0.0.0.0, the name of this machine.

    Raises:
        TypeError, ValueError, OSError: As in FakeNsqd; ValueError also if base_port gives ports outside of 1 to 65535.
    """

    @clears_locals
    def __init__(
        self,
        nsqds: int = 2,
        lookupds: int = 1,
        *,
        clock: Clock | None = None,
        host: str = "127.0.0.1",
        base_port: int = 0,
        **options: Any,  # of all types; NsqdOptions checks them
    ) -> None:
        NsqdOptions.from_keywords(FakeCluster, options)  # raises TypeError or ValueError for bad options
        if base_port:
            _check_ports(base_port, nsqds, lookupds)
        is_everywhere = host in ("0.0.0.0", "::")
        self.broadcast_address = options.setdefault("broadcast_address", os.uname().nodename if is_everywhere else host)
        given = options.get("seed")
        self.seed = options["seed"] = random.randrange(2**32) if given is None else given
        common: dict[str, Any] = {  # Any: of all types
            name: value for name, value in options.items() if name in ("record", "seed")
        }
        # Only the nsqds of this process use it, and they may not reach their own broadcast_address.
        common["broadcast_address"] = "127.0.0.1" if is_everywhere else host
        self.lookupds = [
            FakeLookupd(clock=clock, **common, **_addresses(host, base_port, _LOOKUPD_PORT, number))
            for number in range(lookupds)
        ]
        own: dict[str, Any] = {"https_address": join_address(host, 0), **options}  # Any: of all types
        self.nsqds = [
            FakeNsqd(node_id=number, clock=clock, **(_addresses(host, base_port, _NSQD_PORT, number) | own))
            for number in range(nsqds)
        ]

    def start(self) -> Self:
        """Start all servers that do not run, wait until the nsqds are registered, and return this cluster.

        Raises:
            OSError: If a server can't listen on an address; then no server runs.
        """
        try:
            for lookupd in self.lookupds:
                lookupd.start()
            addresses = tuple(lookupd.tcp_address for lookupd in self.lookupds)
            for nsqd in self.nsqds:
                if not nsqd.options.lookupd_tcp_addresses:
                    # In the options, from which also reset() of a single nsqd takes them.
                    nsqd.options = dataclasses.replace(nsqd.options, lookupd_tcp_addresses=addresses)
                    nsqd.lookupd_tcp_addresses = addresses
                nsqd.start()
            for nsqd in self.nsqds:
                nsqd.wait_registered()
        except BaseException:  # also after ctrl-C or a timeout, no server may keep running
            self._shut_down()
            raise
        return self

    def reset(self) -> None:
        """Become a new cluster on the same ports, with all nsqds registered; see FakeNsqd.reset().

        Raises:
            RuleNeverActed, RuntimeError: As FakeNsqd.reset().
        """
        rules = self._added_rules()
        daemons = (*self.nsqds, *self.lookupds)
        for daemon in daemons:
            daemon.down()
        try:
            for daemon in daemons:
                daemon._begin_again()
        finally:
            self._next_nsqd = 0
            self.start()
        tell_unfired(rules, sys.exception())

    def _shut_down(self) -> None:
        for daemon in (*self.nsqds, *self.lookupds):
            daemon._shut_down()

    def _added_rules(self) -> Sequence[Rule]:
        return [rule for daemon in (*self.nsqds, *self.lookupds) for rule in daemon.faults.added]

    def add(
        self,
        match: Match | Scenario,
        *actions: Action | ActionFunction,
        optional: bool = False,
        name: str = "",
    ) -> AddedRules:
        """Add a rule or a scenario to all nsqds; if it is only about HTTP, add it to all nsqlookupds, too.

        A rule counts the events of all servers together.

        Raises:
            TypeError, ValueError: As in FakeNsqd.add().
        """
        rules = make_rules(match, actions, optional=optional, name=name)
        is_http = all(rule.match.point in (Point.HTTP, Point.HTTP_ANSWER) for rule in rules)
        for daemon in (*self.nsqds, *(self.lookupds if is_http else ())):
            daemon.faults.add(rules, daemon.now())
        return AddedRules(rules, self._remove_rules)

    def _remove_rules(self, rules: Sequence[Rule]) -> None:
        for daemon in (*self.nsqds, *self.lookupds):
            daemon.faults.remove(rules)

    def unfired(self) -> list[str]:
        """Describe each required rule that never fired, and the event that came closest to a match."""
        found = [line for daemon in (*self.nsqds, *self.lookupds) for line in daemon.unfired()]
        return list(dict.fromkeys(found))

    @property
    def errors(self) -> list[BaseException]:
        """The ``errors`` of all servers: exceptions that show a bug of the emulator, or of a test's own action."""
        return [error for daemon in (*self.nsqds, *self.lookupds) for error in daemon.errors]


def _addresses(host: str, base_port: int, offset: int, number: int) -> dict[str, Any]:  # Any: as **options
    port = base_port + offset + _PORT_STEP * number
    return {name: join_address(host, port + distance if base_port else 0) for name, distance in _PORTS.items()}


def _check_ports(base_port: int, nsqds: int, lookupds: int) -> None:
    highest = max(_NSQD_PORT + _PORT_STEP * (nsqds - 1), _LOOKUPD_PORT + _PORT_STEP * (lookupds - 1) if lookupds else 0)
    most = _MAX_PORT - highest - max(_PORTS.values())
    if not 1 <= base_port <= most:
        raise ValueError(f"base_port {base_port} must be from 1 to {most} with nsqds={nsqds}, lookupds={lookupds}")
