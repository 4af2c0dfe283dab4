"""FakeCluster: some nsqds, registered with some nsqlookupds."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fakensqd.clock import Clock
from fakensqd.lookupd import FakeLookupd
from fakensqd.server import FakeNsqd

__all__ = ["FakeCluster"]


class FakeCluster:
    """Fake nsqds and nsqlookupds, each nsqd registered with every nsqlookupd: start() or ``with``.

    Args:
        nsqds: How many.
        lookupds: How many.
        clock: What all of them ask for time; default: the machine's.
        options: For the nsqds, as FakeNsqd takes them; without addresses.
    """

    def __init__(self, nsqds: int = 2, lookupds: int = 1, *, clock: Clock | None = None, **options: object) -> None:
        self.nsqds: list[FakeNsqd] = []
        self.lookupds = [FakeLookupd(clock=clock) for _ in range(lookupds)]
        self._count = nsqds
        self._clock = clock
        self._options = options

    def start(self) -> None:
        """Start all, and wait until the nsqds are registered. Does nothing to those that run."""
        for lookupd in self.lookupds:
            lookupd.start()
        addresses = tuple(lookupd.tcp_address for lookupd in self.lookupds)
        if not self.nsqds:
            self.nsqds = [
                FakeNsqd(clock=self._clock, lookupd_tcp_addresses=addresses, node_id=number, **self._options)
                for number in range(self._count)
            ]
        for nsqd in self.nsqds:
            nsqd.start()
        for nsqd in self.nsqds:
            nsqd.wait_registered()

    def stop(self) -> None:
        """Stop all, at once."""
        for daemon in (*self.nsqds, *self.lookupds):
            daemon.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

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
