"""Links: what takes publishes to one nsqd, and the one that does it over a connection to its TCP port."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from gnsq.nsqd.connection import Connection
from gnsq.nsqd.requests import Request

if TYPE_CHECKING:
    from gnsq.producer.publish import Publish

__all__ = ["Link", "TcpLink"]


class Link(Protocol):
    """What takes publishes to one nsqd.

    Attributes:
        address: Of the nsqd.
        submit: Takes a publish; it will be told what becomes of it.
        confirmed: Messages that nsqd has taken over it.
    """

    address: str
    submit: Callable[[Publish], None]
    confirmed: int

    @property
    def pending(self) -> int:
        """Publishes that have no answer."""

    @property
    def unsent(self) -> Collection[Request]:
        """Those of them that were not sent."""

    @property
    def sent(self) -> Collection[Request]:
        """The others, the oldest first."""

    def withdraw(self, publishes: Collection[Publish]) -> list[Publish]:
        """Take back those of these publishes that were not sent; gives them."""


class TcpLink:
    """One connection, as the dispatcher sees it: see Link."""

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
