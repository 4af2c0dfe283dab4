"""PUB, DPUB and MPUB of one client.

Pure. Each is a generator that reads what it needs, puts messages into topics, and answers through a callable. Source:
nsqd protocol_v2.go PUB, DPUB, MPUB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fakensqd import commands
from fakensqd.broker import Broker
from fakensqd.opening import OK_FRAME, Opening
from fakensqd.reader import BodyReader, Input, Reading

__all__ = ["Publishing"]


class Publishing:
    """What one client publishes.

    Args:
        source: What it sends.
        opening: Knows what it may do.
        respond: Sends it a frame.
        now: Gives the time, seconds.

    Attributes:
        count_by_topic: Messages published so far.
    """

    def __init__(
        self,
        broker: Broker,
        source: Input,
        opening: Opening,
        respond: Callable[[bytes], None],
        now: Callable[[], float],
    ) -> None:
        self.count_by_topic: dict[str, int] = {}
        self._broker = broker
        self._options = broker.options
        self._input = source
        self._opening = opening
        self._respond = respond
        self._now = now
        self._auth_required = bool(broker.options.auth_http_addresses)

    def body_reader(self, words: list[bytes]) -> BodyReader | None:
        """Give what reads the body of a command; None if it has none, or is refused without."""
        row = commands.NSQD_ROWS[words[0]]
        if row.read is None or (words[0] == b"MPUB" and self._auth_required and self._opening.authorization is None):
            return None
        return partial(row.read, words, self._options)

    def publish(self, words: list[bytes]) -> Reading[None]:
        """Do PUB."""
        topic_name, body = yield from commands.read_publish(words, self._options, self._input)
        if self._auth_required:
            yield from self._opening.authorize(b"PUB", topic_name)
        self._put(topic_name, [body])

    def defer(self, words: list[bytes]) -> Reading[None]:
        """Do DPUB."""
        topic_name, delay, body = yield from commands.read_defer(words, self._options, self._input)
        if self._auth_required:
            yield from self._opening.authorize(b"DPUB", topic_name)
        self._put(topic_name, [body], delay)

    def multipublish(self, words: list[bytes]) -> Reading[None]:
        """Do MPUB."""
        topic_name = commands.publish_topic(words, self._options.emulated)
        if self._auth_required:
            yield from self._opening.authorize(b"MPUB", topic_name)
        # nsqd makes the topic before it has read anything.
        self._broker.ensure_topic(topic_name)
        bodies = yield from commands.read_multipublish(words, self._options, self._input)
        self._put(topic_name, bodies)

    def _put(self, topic_name: str, bodies: list[bytes], delay: float = 0.0) -> None:
        self._broker.ensure_topic(topic_name).publish(bodies, self._now(), delay)
        self.count_by_topic[topic_name] = self.count_by_topic.get(topic_name, 0) + len(bodies)
        self._respond(OK_FRAME)
