"""The demo's account: numbers of published events and of results, and whether they agree. Knows no Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass

import gevent
from gevent.event import Event

from gnsq import Consumer, Message

__all__ = ["Account", "drain_topic", "sum_highest_versions"]

QUIET = 1.0
LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Account:
    """Numbers of events."""

    published: int
    archived: int
    dead_lettered: int
    entered: int
    counted: int

    def checks(self) -> list[tuple[str, bool]]:
        """List (description, True if it holds) of each condition that the numbers must fulfil."""
        return [
            (
                f"published {self.published:,} = archived {self.archived:,} + dead-lettered {self.dead_lettered:,}",
                self.published == self.archived + self.dead_lettered,
            ),
            (
                f"archived {self.archived:,} = entered the aggregation {self.entered:,} = counted {self.counted:,}",
                self.archived == self.entered == self.counted,
            ),
        ]


def drain_topic(topic: str, lookupd_http_addresses: list[str], expected: int) -> list[bytes]:
    """Read a topic's messages with a Consumer: as many as are expected, or until nothing comes for a second."""
    bodies: list[bytes] = []
    if not expected:
        return bodies
    arrived = Event()

    def handle(consumer: Consumer, message: Message) -> None:
        bodies.append(message.body)
        arrived.set()

    consumer = Consumer(
        topic,
        "demo",
        lookupd_http_addresses=lookupd_http_addresses,
        message_handler=handle,
        max_in_flight=1000,
        output_buffer_timeout=25,
    )
    deadline = time.monotonic() + LIMIT
    with consumer:
        while time.monotonic() < deadline and len(bodies) < expected:
            arrived.clear()
            if not arrived.wait(QUIET):
                break
        # Wait a little longer: further messages would be duplicates, which the account must show.
        gevent.sleep(0.2)
    return bodies


def sum_highest_versions(bodies: Iterable[bytes]) -> tuple[int, int]:
    """Add up the counts that a job without other aggregates has published. Of each epoch, window and keys only the
    count with the highest version is valid, and is added.

    Returns:
        The sum, and the number of different (window, keys).
    """
    latest: dict[tuple[object, ...], tuple[int, int]] = {}
    for body in bodies:
        row = json.loads(body)
        version, count = row.pop("version"), row.pop("count")
        group = tuple(row.values())
        latest[group] = max(latest.get(group, (-1, 0)), (version, count))
    return sum(count for _, count in latest.values()), len(latest)
