"""Bodies published to the topics of a server, and assert_published().

PublishedBodies keeps the bodies of one nsqd; MessageAssertions is the base class of servers that keep bodies.
"""

from __future__ import annotations

import contextlib
import difflib
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fakensqd.transcript import WaitError, shown_body, wait_until
from gnsq.texts import counted, nearest

__all__ = ["MessageAssertions", "PublishedBodies", "published_difference"]

# How many bodies, and how many bytes of them, are kept for each topic.
MAX_MESSAGES = 100_000
MAX_BYTES = 64 * 1024 * 1024
# How many bodies a failure shows; how many of the newest, and bytes of each, are compared with a missing body.
_SHOWN_MESSAGES = 10
_COMPARED_MESSAGES = 1000
_COMPARED_BYTES = 200


@dataclass(slots=True)
class _TopicRecord:
    """The newest bodies of one topic."""

    bodies: deque[bytes] = field(default_factory=deque)
    count: int = 0
    size: int = 0


class PublishedBodies:
    """The bodies published to each topic, in order. Keeps the newest bodies of each topic.

    Args:
        max_messages, max_bytes: Limits for one topic. Beyond them, its oldest bodies are dropped.
    """

    def __init__(self, *, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._records: dict[str, _TopicRecord] = {}
        self._max_messages = max_messages
        self._max_bytes = max_bytes

    def add(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Record bodies published to a topic."""
        record = self._records.get(topic)
        if record is None:
            record = self._records[topic] = _TopicRecord()
        record.bodies.extend(bodies)
        record.count += len(bodies)
        record.size += sum(map(len, bodies))
        while len(record.bodies) > self._max_messages or record.size > self._max_bytes:
            record.size -= len(record.bodies.popleft())

    def of(self, topic: str) -> list[bytes]:
        """List the bodies of a topic; an empty list if nothing was published to it.

        Raises:
            RuntimeError: If bodies of the topic were dropped.
        """
        record = self._records.get(topic)
        if record is None:
            return []
        if len(record.bodies) < record.count:
            raise RuntimeError(
                f"{counted(record.count, 'message')} were published to topic {topic!r}, and only the last "
                f"{len(record.bodies)} are kept: use depth(), or messages() of a channel"
            )
        return list(record.bodies)

    def counts(self) -> dict[str, int]:
        """Count the messages published to each topic."""
        return {topic: record.count for topic, record in self._records.items()}


class MessageAssertions(ABC):
    """Base class of servers that record the messages published to them."""

    @abstractmethod
    def messages(self, topic: str, channel: str | None = None) -> list[bytes]:
        """List the bodies published to a topic so far, or the bodies that one of its channels still has."""

    @abstractmethod
    def _published_counts(self) -> dict[str, int]:
        """Count the messages published to each topic."""

    def assert_published(self, topic: str, *bodies: bytes, count: int | None = None, timeout: float = 0.0) -> None:
        """Assert that messages were published to a topic, in any order, and maybe with others between them.

        Use ``assert nsqd.messages("orders") == [b"1", b"2"]`` to compare all messages and their order.

        Args:
            bodies: Without count, each must have been published at least as often as given here. Default: any message.
            count: How often exactly each body must have been published; without bodies, how many messages in all.
            timeout: Seconds of real time to wait until the assertion is true.

        Raises:
            AssertionError: If the assertion is false. The text has published bodies, and the nearest to a missing body.
            TypeError: If a body is not bytes.
            RuntimeError: If bodies of the topic were dropped, see messages().
        """
        __tracebackhide__ = True
        check_body_types(bodies)

        def difference() -> str:
            return published_difference(topic, self.messages(topic), bodies, count, self._published_counts())

        if timeout:
            with contextlib.suppress(WaitError):
                wait_until(lambda: not difference(), timeout=timeout)
        if text := difference():
            raise AssertionError(f"{text}\n(after {timeout:g} s)" if timeout else text)


def check_body_types(bodies: Sequence[object]) -> None:
    """Check that bodies are bytes.

    Raises:
        TypeError: If a body is not bytes. The text has the body and its type.
    """
    for body in bodies:
        if not isinstance(body, bytes):
            raise TypeError(f"body {body!r} is {type(body).__name__}, not bytes")


def published_difference(
    topic: str, published: Sequence[bytes], wanted: Sequence[bytes], count: int | None, counts: Mapping[str, int]
) -> str:
    """Explain how the bodies published to a topic differ from the wanted bodies.

    Args:
        count: How often exactly each wanted body must be there; if none is wanted, any body. None: at least as often.
        counts: Number of messages published to each topic.

    Returns:
        The explanation; "" if there is no difference.
    """
    found, times = Counter(published), Counter(wanted)
    if not wanted:
        if len(published) == count or (count is None and published):
            return ""
        expected = "none" if count == 0 else counted(count or 1, "message") + (" or more" if count is None else "")
        return f"expected {expected} in topic {topic!r}\n{_describe(topic, published, counts)}"
    for body, least in times.items():
        if found[body] != count if count is not None else found[body] < least:
            expected = f"{count if count is not None else least}"
            times_found = "once" if found[body] == 1 else f"{found[body]} times"
            text = f"{shown_body(body)} was published {times_found} to topic {topic!r}, expected {expected}"
            if not found[body]:
                text = f"{shown_body(body)} was not published to topic {topic!r}{_nearest(body, published)}"
            elif count is None:
                text += " or more"
            return f"{text}\n{_describe(topic, published, counts)}"
    return ""


def _describe(topic: str, published: Sequence[bytes], counts: Mapping[str, int]) -> str:
    """Describe what was published: the first bodies of the topic, or topics with messages if this topic has none."""
    if not published:
        others = [name for name, number in counts.items() if number]
        text = f"nothing was published to topic {topic!r}"
        return text + (nearest([topic], others, "topics with messages are") if others else ", nor to any other")
    lines = [f"published ({counted(len(published), 'message')}):", *map(shown_body, published[:_SHOWN_MESSAGES])]
    if len(published) > _SHOWN_MESSAGES:
        lines.append(f"and {len(published) - _SHOWN_MESSAGES} more")
    return "\n  ".join(lines)


def _nearest(body: bytes, published: Sequence[bytes]) -> str:
    """Describe the published body that is most similar to the wanted one, and the first byte that differs."""
    others = {other[:_COMPARED_BYTES].decode("latin-1"): other for other in reversed(published[-_COMPARED_MESSAGES:])}
    similar = difflib.get_close_matches(body[:_COMPARED_BYTES].decode("latin-1"), others, n=1, cutoff=1e-9)
    if not similar:
        return ""
    found = others[similar[0]]
    shorter = min(len(body), len(found))
    differs = next((index for index in range(shorter) if body[index] != found[index]), shorter)
    return f"\nnearest is {shown_body(found, differs)}, which differs from byte {differs} on"
