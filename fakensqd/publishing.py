"""PUB, DPUB and MPUB of one client.

Pure. Each is a generator that reads what it needs, puts messages into topics, and answers through a callable. Source:
nsqd protocol_v2.go PUB, DPUB, MPUB.
"""

from __future__ import annotations

from collections.abc import Callable

from fakensqd import parameters
from fakensqd.bodies import Measure, measure_of
from fakensqd.broker import Broker
from fakensqd.opening import OK_FRAME, Opening
from fakensqd.reader import Input, Reading, Refusal

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
        self._release = broker.options.emulated
        self._input = source
        self._opening = opening
        self._respond = respond
        self._now = now
        self._auth_required = bool(broker.options.auth_http_addresses)

    def measure(self, words: list[bytes]) -> Measure | None:
        """Give what measures the body behind a command; None if it has none, or is refused without."""
        if words[0] == b"MPUB" and self._auth_required and self._opening.authorization is None:
            return None
        return measure_of(words, self._options)

    def publish(self, words: list[bytes]) -> Reading[None]:
        """Do PUB."""
        topic_name = parameters.publish_topic(words, release=self._release)
        body = yield from self._input.read_message(b"PUB", self._options.max_msg_size)
        if self._auth_required:
            yield from self._opening.authorize(b"PUB", topic_name)
        self._put(topic_name, [body])

    def defer(self, words: list[bytes]) -> Reading[None]:
        """Do DPUB."""
        if not self._release.since(0, 3, 6):
            raise Refusal(b"E_INVALID invalid command DPUB")
        topic_name = parameters.publish_topic(words, 3, self._release)
        delay = parameters.defer_delay(words, self._options.max_req_timeout)
        body = yield from self._input.read_message(b"DPUB", self._options.max_msg_size)
        if self._auth_required:
            yield from self._opening.authorize(b"DPUB", topic_name)
        self._put(topic_name, [body], delay)

    def multipublish(self, words: list[bytes]) -> Reading[None]:
        """Do MPUB."""
        topic_name = parameters.publish_topic(words, release=self._release)
        if self._auth_required:
            yield from self._opening.authorize(b"MPUB", topic_name)
        # nsqd makes the topic before it has read anything.
        self._broker.ensure_topic(topic_name)
        size = yield from self._input.read_size(b"E_BAD_BODY MPUB failed to read body size")
        limit = self._options.max_body_size
        if size <= 0:
            raise Refusal(b"E_BAD_BODY MPUB invalid body size %d" % size)
        if size > limit:
            raise Refusal(b"E_BAD_BODY MPUB body too big %d > %d" % (size, limit))
        bodies = yield from self._input.read_messages(self._options.max_msg_size, limit)
        self._put(topic_name, bodies)

    def _put(self, topic_name: str, bodies: list[bytes], delay: float = 0.0) -> None:
        self._broker.ensure_topic(topic_name).publish(bodies, self._now(), delay)
        self.count_by_topic[topic_name] = self.count_by_topic.get(topic_name, 0) + len(bodies)
        self._respond(OK_FRAME)
