"""Bodies published to the topics of a server, and assert_published().

PublishedBodies keeps the bodies of one nsqd; MessageAssertions is the base class of servers whose messages tests
ask for.
"""

from __future__ import annotations

import contextlib
import difflib
import uuid
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps, loads

from fakensqd.transcript import UnknownChannel, failure, shown_body, wait_until
from gnsq.texts import counted, nearest

__all__ = [
    "AnyNsqd",
    "MessageAssertions",
    "PublishedBodies",
    "check_body_types",
    "published_difference",
    "unmet",
]

# How many bodies, and how many bytes of them, are kept for each topic.
MAX_MESSAGES = 100_000
MAX_BYTES = 64 * 1024 * 1024
# How many topics and bodies a failure shows; how many of the newest, and bytes of each, are compared with a missing
# body.
_SHOWN_TOPICS = 10
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

    def kept(self) -> dict[str, list[bytes]]:
        """Return the bodies of each topic, without those that were dropped."""
        return {topic: list(record.bodies) for topic, record in self._records.items()}


Matcher = Callable[[bytes], bool]
_NOTHING: object = object()  # None is JSON's null


@dataclass(frozen=True, eq=False)
class AsJson:
    """Returns True for a body that is this value as JSON."""

    value: object

    def __call__(self, body: bytes) -> bool:
        try:
            return bool(loads(body) == self.value)
        except ValueError:
            return False


class MessageAssertions(ABC):
    """Base class of servers whose messages tests ask for."""

    @abstractmethod
    def messages(self, topic: str, channel: str | None = None) -> list[bytes]:
        """List the bodies published to a topic so far, or the bodies that one of its channels still has."""

    @abstractmethod
    def _numbers(self, name: str, topic: str, channel: str | None) -> list[int]:
        """Return a number of nsqd's statistics of a topic or channel, on each nsqd that has it."""

    @abstractmethod
    def _channel_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of the channels of each topic."""

    def depth(self, topic: str, channel: str | None = None) -> int:
        """Count the messages queued in a topic, or in one of its channels, on all nsqds. A topic that nothing was
        published to has none.

        Raises:
            UnknownChannel: If a channel is given that does not exist.
        """
        return self._sum("depth", topic, channel)

    def in_flight(self, topic: str, channel: str) -> int:
        """Count the messages in flight in a channel, on all nsqds.

        Raises:
            UnknownChannel: If the channel does not exist.
        """
        return self._sum("in_flight_count", topic, channel)

    def _sum(self, name: str, topic: str, channel: str | None) -> int:
        found = self._numbers(name, topic, channel)
        if channel is not None and not found:
            raise UnknownChannel(topic, channel, self._channel_names())
        return sum(found)

    def topic(self, prefix: str = "test") -> str:
        """Make up the name of a topic that no other test uses. On a real nsqd that is not the test's own, the fixture
        deletes the topic after the test."""
        return f"{prefix}-{uuid.uuid4().hex[:12]}"

    @abstractmethod
    def _kept_bodies(self) -> Mapping[str, Sequence[bytes]]:
        """Return the bodies published to each topic, without those that were dropped."""

    @abstractmethod
    def _transcript_end(self) -> str:
        """Return the end of the transcript as text; empty if nothing is recorded."""

    def assert_published(
        self,
        topic: str,
        *bodies: bytes | Matcher,
        json: object = _NOTHING,
        count: int | None = None,
        timeout: float = 0.0,
    ) -> None:
        """Assert that messages were published to a topic, in any order, and maybe with others between them.

        Use ``assert nsqd.messages("orders") == [b"1", b"2"]`` to compare all messages and their order.

        Args:
            bodies: Without count, each must have been published at least as often as given here. Default: any message.
                In place of a body, a function that gets one and returns whether it is wanted.
            json: A value that a wanted body has as JSON, compared as Python does: 1, 1.0 and true are equal.
            count: How often exactly each body must have been published; without bodies, how many messages in all.
            timeout: Seconds of real time to wait until the assertion is true.

        Raises:
            AssertionError: If the assertion is false. The text has the last bodies of this topic or of the one with the
                most similar name, the body that is nearest to the missing one, and the transcript's end.
            TypeError: If a body is neither bytes nor a function.
            RuntimeError: If bodies of the topic were dropped, see messages().
        """
        __tracebackhide__ = True
        check_body_types([body for body in bodies if not callable(body)])
        wanted = bodies if json is _NOTHING else (*bodies, AsJson(json))

        def is_met() -> bool:
            return next(unmet(self.messages(topic), wanted, count), None) is None

        if timeout:
            with contextlib.suppress(AssertionError):
                wait_until(is_met, timeout=timeout)
        if not is_met():
            text = published_difference(topic, self._kept_bodies(), wanted, count)
            raise failure(f"{text}\n(after {timeout:g} s)" if timeout else text, self._transcript_end())


class AnyNsqd(MessageAssertions):
    """Base class of the nsqds, emulated and real."""

    @property
    @abstractmethod
    def tcp_address(self) -> str:
        """``host:port`` for clients of the TCP protocol."""

    @abstractmethod
    def publish(self, topic: str, *bodies: bytes, delay: float = 0.0) -> None:
        """Publish messages, see FakeNsqd.publish()."""

    @abstractmethod
    def _check_publish(self, topic: str, bodies: Sequence[bytes], delay: float) -> None:
        """Raise the errors of publish() that need no nsqd."""

    @abstractmethod
    def report(self) -> str:
        """Describe the server, for the report of a failed test."""


def check_body_types(bodies: Sequence[object]) -> None:
    """Check that bodies are bytes.

    Raises:
        TypeError: If a body is not bytes. The text has the body and its type.
    """
    for body in bodies:
        if not isinstance(body, bytes):
            raise TypeError(f"body {body!r} is {type(body).__name__}, not bytes")


def unmet(
    published: Sequence[bytes], wanted: Sequence[bytes | Matcher], count: int | None
) -> Iterator[tuple[bytes | Matcher | None, int, int]]:
    """List what is published too rarely or too often: the body (None: any), how often it is, how often it must be.

    Args:
        count: How often exactly each wanted body must be there; if none is wanted, any body. None: at least as often.
    """
    if not wanted and (len(published) != count if count is not None else not published):
        yield None, len(published), 1 if count is None else count
    found = Counter(published)
    for body, least in Counter(wanted).items():
        number = sum(1 for each in published if body(each)) if callable(body) else found[body]
        if number != count if count is not None else number < least:
            yield body, number, least if count is None else count


def published_difference(
    topic: str, kept: Mapping[str, Sequence[bytes]], wanted: Sequence[bytes | Matcher], count: int | None
) -> str:
    """Explain the first thing that unmet() lists for a topic, by what was published to it and to other topics.

    Args:
        kept: The bodies of each topic.
    """
    published = kept.get(topic, ())
    body, found, expected = next(unmet(published, wanted, count))
    at_least = " or more" if count is None else ""
    if body is None:
        head = f"expected {counted(expected, 'message') if expected else 'none'}{at_least} in topic {topic!r}"
    elif found:
        times = "once" if found == 1 else f"{found} times"
        head = f"{_shown(body)} was published {times} to topic {topic!r}, expected {expected}{at_least}"
    else:
        head = f"{_shown(body)} was not published to topic {topic!r}{_nearest(body, published)}"
        matches = body if callable(body) else body.__eq__
        elsewhere = [repr(name) for name, bodies in kept.items() if name != topic and any(map(matches, bodies))]
        if elsewhere:
            head += f"\nit was published to topic {', '.join(elsewhere[:_SHOWN_TOPICS])}"
    return f"{head}\n{_describe(topic, kept)}"


def _describe(topic: str, kept: Mapping[str, Sequence[bytes]]) -> str:
    """Describe what was published: the last bodies of the topic, or of the topic with the most similar name."""
    published, head = kept.get(topic, ()), "published"
    if not published:
        others = [name for name, bodies in kept.items() if bodies]
        text = f"nothing was published to topic {topic!r}"
        if not others:
            return f"{text}, nor to any other"
        similar = difflib.get_close_matches(topic, others, n=_SHOWN_TOPICS, cutoff=0.0)
        text += nearest([topic], similar, "topics with messages are")
        text += f" and {len(others) - len(similar)} more" if len(others) > len(similar) else ""
        published, head = kept[similar[0]], f"{text}\npublished to topic {similar[0]!r}"
    shown = published[-_SHOWN_MESSAGES:]
    last = f", the last {len(shown)}" if len(shown) < len(published) else ""
    return "\n  ".join([f"{head} ({counted(len(published), 'message')}{last}):", *map(shown_body, shown)])


def _shown(body: bytes | Matcher) -> str:
    if isinstance(body, AsJson):
        return f"JSON {_json_text(body.value)}"
    return f"a body for which {getattr(body, '__name__', repr(body))} is true" if callable(body) else shown_body(body)


def _json_text(value: object) -> str:
    return dumps(value, default=repr)


def _nearest(body: bytes | Matcher, published: Sequence[bytes]) -> str:
    """Describe the published body that is most similar to the wanted one, and the first byte that differs."""
    if isinstance(body, AsJson):
        body = _json_text(body.value).encode()
    if callable(body):
        return ""
    others = {other[:_COMPARED_BYTES].decode("latin-1"): other for other in reversed(published[-_COMPARED_MESSAGES:])}
    similar = difflib.get_close_matches(body[:_COMPARED_BYTES].decode("latin-1"), others, n=1, cutoff=1e-9)
    if not similar:
        return ""
    found = others[similar[0]]
    shorter = min(len(body), len(found))
    differs = next((index for index in range(shorter) if body[index] != found[index]), shorter)
    return f"\nnearest is {shown_body(found, differs)}, which differs from byte {differs} on"
