"""The demo's account: what went in and what came out, and whether that agrees. Reads results; knows no Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import gevent
import pyarrow.dataset as ds
from gevent.event import Event

from gnsq import Consumer, Message

__all__ = ["Account", "count_rows", "drain_topic", "sum_highest_versions"]

QUIET = 1.0
LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Account:
    """Numbers of events."""

    published: int
    archived: int
    dead_lettered: int
    aggregated: int
    late: int

    def checks(self) -> list[tuple[str, bool]]:
        """List what has to agree, and whether it does."""
        return [
            (
                f"published {self.published:,} = archived {self.archived:,} + dead-lettered {self.dead_lettered:,}",
                self.published == self.archived + self.dead_lettered,
            ),
            (
                f"archived {self.archived:,} = aggregated {self.aggregated:,} + late {self.late:,}",
                self.archived == self.aggregated + self.late,
            ),
        ]


def count_rows(directory: Path) -> int:
    """Count the rows of all Parquet files below a directory; 0 if it does not exist."""
    if not any(directory.rglob("*.parquet")):
        return 0
    return int(ds.dataset(str(directory), format="parquet", partitioning="hive").count_rows())


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
    """Add up the counts in metric rows, of each window and key the one with the highest version.

    Returns:
        The sum, and how many windows and keys there are.
    """
    latest: dict[tuple[str, str], tuple[int, int]] = {}
    for body in bodies:
        row = json.loads(body)
        key = (row["window"], row["key"])
        latest[key] = max(latest.get(key, (-1, 0)), (row["version"], row["count"]))
    return sum(count for _, count in latest.values()), len(latest)
