"""TcpLink: takes publishes to one nsqd over a connection to its TCP port."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gnsq.nsqd.connection import Connection
from gnsq.nsqd.requests import Request
from gnsq.producer.publish import Publish

__all__ = ["TcpLink"]


class TcpLink:
    """One connection, as the dispatcher sees it: see publish.Link."""

    def __init__(self, connection: Connection) -> None:
        self.address = connection.address
        self.confirmed = 0
        self.submit: Callable[[Publish], None] = connection.submit
        self._requests = connection.requests

    @property
    def pending(self) -> int:
        """Publishes that have no answer."""
        return len(self._requests)

    @property
    def unsent(self) -> Collection[Request]:
        """Those that were not sent."""
        return self._requests.unsent

    @property
    def sent(self) -> Collection[Request]:
        """Those that wait for their answer, the oldest first."""
        return self._requests.sent

    def withdraw(self, publishes: Collection[Publish]) -> list[Publish]:
        """Take back those of these publishes that were not sent; gives them."""
        return self._requests.withdraw(publishes)
