"""The commands of a connection driven by hand: one method each, which checks its arguments and sends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from gnsq.nsqd.answers import Answers
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["Verbs"]


class Verbs(ABC):
    """Base of NsqdTCPClient. Each method raises ValueError or TypeError before a byte is sent, and what send() does.

    Attributes:
        ready_count: The RDY that was sent last.
    """

    options: ConnectionOptions
    ready_count = 0

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send bytes."""

    @property
    @abstractmethod
    def _connected_answers(self) -> Answers:
        """What is in flight."""

    def subscribe(self, topic: str, channel: str) -> None:
        """Send SUB; nsqd answers OK."""
        assert_valid_topic_name(topic, self.options.max_name_length)
        assert_valid_channel_name(channel, self.options.max_name_length)
        self.send(commands.subscribe(topic, channel))

    def publish(self, topic: str, data: bytes, defer: int | None = None) -> None:
        """Send PUB, or DPUB with a delay in milliseconds; nsqd answers OK."""
        assert_valid_topic_name(topic, self.options.max_name_length)
        self.send(commands.publish(topic, data) if defer is None else commands.deferpublish(topic, data, defer))

    def multipublish(self, topic: str, messages: Iterable[bytes]) -> None:
        """Send MPUB; nsqd answers OK."""
        assert_valid_topic_name(topic, self.options.max_name_length)
        self.send(commands.multipublish(topic, messages))

    def ready(self, count: int) -> None:
        """Send RDY."""
        self.send(commands.ready(count))
        self.ready_count = count

    def finish(self, message_id: bytes) -> None:
        """Send FIN. From another thread than that which connected it is sent there, soon."""
        self._connected_answers.finish(message_id)

    def finish_all(self, message_ids: Sequence[bytes]) -> None:
        """Send FIN for each. Threads as finish()."""
        self._connected_answers.finish_all(message_ids)

    def requeue(self, message_id: bytes, timeout: int = 0, backoff: bool = True) -> None:
        """Send REQ; timeout in milliseconds. Threads as finish()."""
        self._connected_answers.requeue(message_id, timeout, backoff)

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH. Threads as finish()."""
        self._connected_answers.touch(message_id)

    def close(self) -> None:
        """Send CLS; nsqd answers CLOSE_WAIT."""
        self.send(commands.close())

    def nop(self) -> None:
        """Send NOP."""
        self.send(commands.NOP)
