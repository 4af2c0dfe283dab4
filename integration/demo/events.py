"""Events of the demo: clicks as clients of a website would publish them, or the lines of a file."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

# Limits of one MPUB: nsqd refuses an MPUB of more than 5 MiB.
MPUB_ROWS, MPUB_BYTES = 500, 1024 * 1024

USERS = 5_000
PAGES = ["/", "/search", "/cart", "/checkout", "/login", "/help", *(f"/products/{number}" for number in range(1, 35))]
# Time from the first arrival of an event to the last, in the events' own time. Publishing them all takes seconds.
SPAN = dt.timedelta(hours=2, minutes=30)
START = dt.datetime(2026, 1, 15, 9, 0, tzinfo=dt.UTC)
MALFORMED = 0.004
# Share of events of phones that were offline, and the longest time by which such events come late.
OFFLINE, OFFLINE_DELAY = 0.01, dt.timedelta(minutes=45)


def generate(count: int, seed: int) -> Iterator[bytes]:
    """Yield count click events in the order in which they arrive: the same events for the same seed. A few events are
    malformed, and a few are late."""
    rng = random.Random(seed)
    # Some pages and users are more frequent than others.
    page_weights = list(itertools.accumulate(1 / rank for rank in range(1, len(PAGES) + 1)))
    for number in range(count):
        arrived = START + SPAN * (number / max(count, 1))
        time = arrived - dt.timedelta(seconds=rng.expovariate(1 / 5))
        if rng.random() < OFFLINE:
            time -= OFFLINE_DELAY * rng.random()
        event = {
            "time": time.isoformat(timespec="milliseconds"),
            "user": f"u{int(USERS * rng.random() ** 2):05}",
            "page": rng.choices(PAGES, cum_weights=page_weights)[0],
            "milliseconds": round(rng.lognormvariate(6, 1)),
        }
        body = json.dumps(event, separators=(",", ":")).encode()
        yield rng.choice(_malformed(event, body)) if rng.random() < MALFORMED else body


def _malformed(event: dict[str, object], body: bytes) -> list[bytes]:
    """Make malformed bodies of an event, in ways that occur with real clients."""
    changed = [json.dumps({**event, **change}).encode() for change in ({"time": "yesterday"}, {"page": None})]
    return [body[: len(body) // 2], b"\xff\xfe" + body, b"GET /favicon.ico HTTP/1.1", *changed]


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as bodies. Empty lines are left out, since nsqd refuses empty messages.

    Raises:
        OSError: If the file can't be read.
    """
    with open(path, "rb") as file:
        for line in file:
            body = line.rstrip(b"\r\n")
            if body:
                yield body


def batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Divide bodies into lists that each fit into one MPUB."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) == MPUB_ROWS or size + len(body) > MPUB_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch
