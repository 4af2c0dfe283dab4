"""What went in and what came out: published, confirmed, processed, duplicated, lost."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Account:
    """Keeps the books of one test; bodies are unique.

    Attributes:
        published: Bodies that were given to a producer.
        confirmed: Those that nsqd has confirmed.
        processed: How often each was handled to the end.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.published: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.processed: Counter[bytes] = Counter()

    def publish(self, producer: Any, topic: str, body: bytes, **options: Any) -> None:
        """Publish a body, and take note of both."""
        self.published.add(body)
        producer.publish(topic, body, **options)
        self.confirmed.add(body)

    def process(self, consumer: object, message: Any) -> None:
        """Take note of a message: a handler."""
        self.processed[bytes(message.body)] += 1

    @property
    def lost(self) -> set[bytes]:
        """What was confirmed and never processed."""
        return self.confirmed - self.processed.keys()

    @property
    def duplicated(self) -> int:
        """How many messages were processed beyond the first time."""
        return self.processed.total() - len(self.processed)

    def __str__(self) -> str:
        return (
            f"{self.title}: published {len(self.published)}, confirmed {len(self.confirmed)}, "
            f"processed {len(self.processed)}, duplicated {self.duplicated}, lost {len(self.lost)}"
        )
