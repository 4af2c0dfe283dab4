"""QueueHandler and ChannelHandler: messages into a queue, for greenlets of the user's own to take and answer.

    messages = QueueHandler()
    consumer = Consumer("clicks", "archive", address, message_handler=messages, max_in_flight=100)
    consumer.on_close.connect(lambda consumer: messages.put(StopIteration), weak=False)
    consumer.start(block=False)
    for message in messages:  # until the consumer has closed
        ...
        message.finish()

A message that failed is given back with ``message.requeue()``: it comes again after the consumer's delay for its
attempts, as if a handler had raised, and ``requeue(0)`` at once.

A queue can be given to the ``imap_unordered()`` of a gevent Pool, too. When the consumer closes, it waits for what was
delivered until its close_timeout is over, so go on answering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from gevent.queue import Channel, Queue

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.message import Message

__all__ = ["ChannelHandler", "QueueHandler"]


class QueueHandler(Queue):  # type: ignore[misc]  # gevent has no types
    """A gevent Queue, for ``on_message``: each message is made asynchronous and put into it.

    Args:
        maxsize: Messages; with more, handlers wait. None: no limit but the consumer's ``max_in_flight``.
    """

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Put a message in; waits while the queue is full."""
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
    """A gevent Channel, for ``on_message``: a queue without room, each message waits until somebody takes it."""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Give a message to the next who asks."""
        message.enable_async()
        self.put(message)

    if TYPE_CHECKING:  # gevent's own

        def get(self, block: bool = True, timeout: float | None = None) -> Message: ...
        def get_nowait(self) -> Message: ...
        def __iter__(self) -> Self: ...
        def __next__(self) -> Message: ...
