"""Making: from a call's arguments to a Publish; what nsqd would refuse is refused here, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gnsq.concurrency.threads import NO_TIMEOUT
from gnsq.producer.batches import Member
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import Publish
from gnsq.protocol import commands
from gnsq.protocol.names import MAX_NAME_LENGTH, assert_valid_topic_name
from gnsq.texts import counted

__all__ = ["Making", "check_timeout"]

Key = bytes | str | None
# How many valid names are kept.
MAX_TOPICS = 1000


class Making:
    """Makes publishes of one producer.

    Args:
        max_name_length: Of topics.
        now: Tells monotonic seconds.
    """

    def __init__(self, options: ProducerOptions, max_name_length: int, now: Callable[[], float]) -> None:
        self._timeout = options.publish_timeout
        self._max_msg_size = options.max_msg_size
        self._max_body_size = options.max_body_size
        self._max_name_length = max_name_length
        self._now = now
        # Known to be valid.
        self._topics: set[str] = set()
        self._batches = options.batch_messages is not None
        self._needs_key = options.strategy == "consistent"
        # Whether there is anything to check that the commands' builders do not.
        self._strict = max_name_length < MAX_NAME_LENGTH or options.max_msg_size is not None

    def single(self, topic: str, data: bytes, defer: int | None, timeout: float | None, key: Key) -> Publish:
        """Make a PUB, a DPUB, or a member of a batch.

        Raises:
            ValueError, TypeError: For what nsqd would refuse, or is longer than the options allow.
        """
        if self._strict:
            self._check(topic, data)
        if timeout is None:
            timeout = self._timeout
        else:
            check_timeout(timeout)
        now = self._now()
        deadline = now + timeout
        publish: Publish
        if defer is not None:
            publish = Publish(topic, commands.deferpublish(topic, data, defer), len(data), now, deadline)
            publish.defer = defer
        elif self._batches:
            # What publish() checks; without a call for what nearly always is in order.
            if type(data) is not bytes or not data or topic not in self._topics:
                commands.publish(topic, data)
                self._note(topic)
            publish = Member(topic, data, now, deadline)
        else:
            publish = Publish(topic, commands.publish(topic, data), len(data), now, deadline)
        if key is not None or self._needs_key:
            publish.key = self._checked_key(key)
        return publish

    def _note(self, topic: str) -> None:
        if len(self._topics) == MAX_TOPICS:
            self._topics.clear()
        self._topics.add(topic)

    def multi(self, topic: str, messages: Iterable[bytes], timeout: float | None, key: Key) -> Publish:
        """Make an MPUB.

        Raises:
            ValueError, TypeError: As single().
        """
        if timeout is None:
            timeout = self._timeout
        else:
            check_timeout(timeout)
        bodies = messages if isinstance(messages, (bytes, bytearray, str)) else list(messages)
        command = commands.multipublish(topic, bodies)
        sizes = list(map(len, bodies))
        if self._strict:
            for body in bodies:
                self._check(topic, body)
        together = 4 * (len(sizes) + 1) + sum(sizes)
        limit = self._max_body_size
        if limit is not None and together > limit:
            raise ValueError(
                f"multipublish of {counted(len(sizes), 'message')} is {together} bytes, max_body_size is {limit}"
            )
        now = self._now()
        publish = Publish(topic, command, max(sizes), now, now + timeout)
        publish.together, publish.messages = together, len(sizes)
        if key is not None or self._needs_key:
            publish.key = self._checked_key(key)
        return publish

    def _check(self, topic: str, body: object) -> None:
        if self._max_name_length < MAX_NAME_LENGTH:
            assert_valid_topic_name(topic, self._max_name_length)
        limit = self._max_msg_size
        if limit is not None and isinstance(body, bytes) and len(body) > limit:
            raise ValueError(f"message body of {len(body)} bytes exceeds max_msg_size {limit}")

    def _checked_key(self, key: Key) -> Key:
        if key is None:
            raise ValueError("strategy 'consistent' needs key=")
        if not isinstance(key, (bytes, str)):
            raise TypeError(f"key must be bytes or str, not {key!r}")
        return key


def check_timeout(timeout: float) -> None:
    """Refuse what no clock can wait for.

    Raises:
        ValueError: If it is negative, endless or no number at all.
    """
    if not 0 <= timeout < NO_TIMEOUT:
        raise ValueError(f"timeout {timeout} must be at least 0 and less than {NO_TIMEOUT:g} s")
