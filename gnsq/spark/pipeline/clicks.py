"""Click events for the demo: the same ones for the same seed. Knows no NSQ."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

__all__ = ["generate", "read_lines"]

USERS = 5_000
PAGES = ["/", "/search", "/cart", "/checkout", "/login", "/help", *(f"/products/{number}" for number in range(1, 35))]
BROWSERS = ["firefox", "chrome", "safari", "edge"]
# The events' own time that the whole run covers; publishing it takes seconds.
SPAN = dt.timedelta(hours=2, minutes=30)
START = dt.datetime(2026, 1, 15, 9, 0, tzinfo=dt.UTC)
MALFORMED = 0.004
# Phones that were offline: their events come up to this much later.
OFFLINE, OFFLINE_DELAY = 0.01, dt.timedelta(minutes=45)


def generate(count: int, seed: int) -> Iterator[bytes]:
    """Yield so many bodies, in the order in which they arrive; a few are malformed, a few late."""
    rng = random.Random(seed)
    # Pages are not equally popular; users neither.
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
            "browser": rng.choice(BROWSERS),
            "milliseconds": round(rng.lognormvariate(6, 1)),
        }
        body = json.dumps(event, separators=(",", ":")).encode()
        yield _malformed(event, body, rng) if rng.random() < MALFORMED else body


def _malformed(event: dict[str, object], body: bytes, rng: random.Random) -> bytes:
    """Break an event in one of the ways in which clients do."""
    kind = rng.randrange(5)
    if kind == 0:
        return body[: rng.randrange(1, len(body) - 1)]
    if kind == 1:
        return b"\xff\xfe" + body
    if kind == 2:
        return b"GET /favicon.ico HTTP/1.1"
    if kind == 3:
        return json.dumps({**event, "time": "yesterday"}).encode()
    return json.dumps({**event, "page": None}).encode()


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield a file's lines as bodies; empty ones are left out, since NSQ takes no empty message.

    Raises:
        OSError: If it can't be read.
    """
    with open(path, "rb") as file:
        for line in file:
            body = line.rstrip(b"\r\n")
            if body:
                yield body
