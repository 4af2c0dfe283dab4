"""Count published, confirmed, processed, duplicated and lost messages of a test."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Account:
    """Messages of one test, by their bodies, which are unique.

    Attributes:
        published: Bodies that were passed to a producer.
        confirmed: Bodies that nsqd has confirmed.
        processed: Number of times that each body was handled.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.published: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.processed: Counter[bytes] = Counter()

    def publish(self, producer: Any, topic: str, body: bytes, **options: Any) -> None:
        """Publish a body, and record that it was published and confirmed."""
        self.published.add(body)
        producer.publish(topic, body, **options)
        self.confirmed.add(body)

    def process(self, consumer: object, message: Any) -> None:
        """Record a message; this is a handler."""
        self.processed[bytes(message.body)] += 1

    @property
    def lost(self) -> set[bytes]:
        """Bodies that were confirmed and never processed."""
        return self.confirmed - self.processed.keys()

    @property
    def duplicated(self) -> int:
        """Number of times that a message was processed after the first time."""
        return self.processed.total() - len(self.processed)

    def __str__(self) -> str:
        return (
            f"{self.title}: published {len(self.published)}, confirmed {len(self.confirmed)}, "
            f"processed {len(self.processed)}, duplicated {self.duplicated}, lost {len(self.lost)}"
        )
