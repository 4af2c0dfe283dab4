"""QueueHandler and ChannelHandler: put messages into a queue. The program takes them from the queue and answers them.

    messages = QueueHandler()
    consumer = Consumer("clicks", "archive", address, message_handler=messages, max_in_flight=100)
    consumer.on_close.connect(lambda consumer: messages.put(StopIteration), weak=False)
    consumer.start(block=False)
    for message in messages:  # until the consumer has closed
        ...
        message.finish()

For a message that failed, call ``message.requeue()``: nsqd delivers it again after a delay that the consumer computes
from its attempts. After ``requeue(0)``, nsqd delivers it immediately. ``consumer.give_up(message, "bad")`` gives it
up, as a handler does that raises NSQGiveUp.

A queue can also be an argument of ``imap_unordered()`` of a gevent Pool. When the consumer closes, it waits for the
answers to delivered messages up to its close_timeout, so the program should continue to answer. A greenlet that takes
messages calls close() in ``with consumer.answering():``, where close() does not wait for the answers of this greenlet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from gevent.queue import Channel, Queue

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.message import Message

__all__ = ["ChannelHandler", "QueueHandler"]


class QueueHandler(Queue):  # type: ignore[misc]  # gevent has no types
    """A gevent Queue, for ``on_message``. Each message becomes async and is put into the queue.

    Args:
        maxsize: Highest number of messages in the queue. While it is full, each call of this handler waits. None:
            only ``max_in_flight`` limits the messages.
    """

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Put a message into the queue. Waits while the queue is full."""
        message.enable_async()
        self.put(message)

    if TYPE_CHECKING:  # gevent's own

        def get(self, block: bool = True, timeout: float | None = None) -> Message: ...
        def get_nowait(self) -> Message: ...
        def peek(self, block: bool = True, timeout: float | None = None) -> Message: ...
        def peek_nowait(self) -> Message: ...
        def __iter__(self) -> Self: ...
        def __next__(self) -> Message: ...


class ChannelHandler(Channel):  # type: ignore[misc]  # gevent has no types
    """A gevent Channel, for ``on_message``: a queue of size 0. Each call waits until its message is taken."""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Wait for the next get(), and pass the message to it."""
        message.enable_async()
        self.put(message)

    if TYPE_CHECKING:  # gevent's own

        def get(self, block: bool = True, timeout: float | None = None) -> Message: ...
        def get_nowait(self) -> Message: ...
        def __iter__(self) -> Self: ...
        def __next__(self) -> Message: ...
