"""The demo's account: what went in and what came out, and whether that agrees. Reads results; knows no Spark."""

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
        """List what has to agree, and whether it does."""
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
        # More than expected would be duplicates: give them their chance to show.
        gevent.sleep(0.2)
    return bodies


def sum_highest_versions(bodies: Iterable[bytes]) -> tuple[int, int]:
    """Add up the counts that a job without other aggregates has published: in each epoch, of each window and its keys
    the one with the highest version.

    Returns:
        The sum, and how many windows and keys there are.
    """
    latest: dict[tuple[object, ...], tuple[int, int]] = {}
    for body in bodies:
        row = json.loads(body)
        version, count = row.pop("version"), row.pop("count")
        group = tuple(row.values())
        latest[group] = max(latest.get(group, (-1, 0)), (version, count))
    return sum(count for _, count in latest.values()), len(latest)
