"""Click events for the demo: the same seed gives the same events. Knows no NSQ."""

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
# Time from the first event to the last, by the events' own times. Publishing them all takes seconds.
SPAN = dt.timedelta(hours=2, minutes=30)
START = dt.datetime(2026, 1, 15, 9, 0, tzinfo=dt.UTC)
MALFORMED = 0.004
# Share of events of phones that were offline, and the longest time by which such events come late.
OFFLINE, OFFLINE_DELAY = 0.01, dt.timedelta(minutes=45)


def generate(count: int, seed: int) -> Iterator[bytes]:
    """Yield count bodies in the order in which they arrive. A few are malformed, and a few are late."""
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
            "browser": rng.choice(BROWSERS),
            "milliseconds": round(rng.lognormvariate(6, 1)),
        }
        body = json.dumps(event, separators=(",", ":")).encode()
        yield _malformed(event, body, rng) if rng.random() < MALFORMED else body


def _malformed(event: dict[str, object], body: bytes, rng: random.Random) -> bytes:
    """Make a malformed body of an event, in one of the ways that occur with real clients."""
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
    """Yield the lines of a file as bodies. Empty lines are left out, since nsqd refuses empty messages.

    Raises:
        OSError: If the file can't be read.
    """
    with open(path, "rb") as file:
        for line in file:
            body = line.rstrip(b"\r\n")
            if body:
                yield body
