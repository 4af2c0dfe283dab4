"""Publishes an iterable of messages in chunks. Each chunk is an MPUB, and several chunks are pending at the same time.

Messages are taken from the iterable for one chunk at a time, while fewer than MAX_CONCURRENT_CHUNKS are pending.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gnsq.errors import NSQException, NSQNotSentClosed
from gnsq.logs import LogOwner
from gnsq.producer.options import ProducerOptions
from gnsq.producer.result import PublishResult
from gnsq.protocol.commands import check_messages
from gnsq.texts import counted, not_bytes

__all__ = ["Chunk", "NSQManyFailed", "publish_chunks"]

logger = logging.getLogger(__name__)

# Limits of a chunk (but one message alone may be longer), and of the number of pending chunks.
MAX_CHUNK_MESSAGES = 1000
MAX_CHUNK_BYTES = 1024 * 1024
MAX_CONCURRENT_CHUNKS = 8


class Chunk(NamedTuple):
    """Outcome of some consecutive messages.

    Attributes:
        first: Index of the first message, from 0.
        messages: Number of messages. 0: the iterable has raised ``error`` after the messages of the earlier chunks.
        error: Why the messages were not confirmed; None if they were. NSQUnknown: nsqd may have some or all.
    """

    first: int
    messages: int
    error: Exception | None = None


class NSQManyFailed(NSQException):
    """Some chunks of publish_many() were not confirmed, or its iterable raised an exception. In the second case
    ``__cause__`` is the exception of the iterable.

    What to do: publish the messages of those ``chunks`` again whose error is an NSQNotSent.

    Attributes:
        chunks: All chunks in the order of the messages, including confirmed ones.
    """

    def __init__(self, chunks: list[Chunk]) -> None:
        failed = [chunk for chunk in chunks if chunk.error is not None]
        confirmed = sum(chunk.messages for chunk in chunks if chunk.error is None)
        first, error = failed[0].first, failed[0].error
        if failed[0].messages:
            where, text = f"from message {first}", str(error)
        else:
            where = f"the iterable, after message {first - 1}" if first else "the iterable, at message 0"
            text = repr(error)
        super().__init__(
            f"{counted(sum(chunk.messages for chunk in failed), 'message')} not confirmed, {confirmed} confirmed; "
            f"first failure, {where}: {text}"
        )
        self.chunks = chunks
        faults = [getattr(chunk.error, "at_fault", "message") for chunk in failed]
        # Somebody must correct the set-up before the rest can be sent again, so that is said first.
        self.at_fault = next((fault for fault in ("setup", "nsqd") if fault in faults), "message")

    def __reduce__(self) -> tuple[type[NSQManyFailed], tuple[list[Chunk]]]:
        return type(self), (self.chunks,)


def publish_chunks(
    submit: Callable[[list[bytes]], PublishResult],
    messages: Iterable[bytes],
    options: ProducerOptions,
    *,
    raise_error: bool,
    owner: LogOwner,
) -> list[Chunk]:
    """Publish messages in chunks.

    Args:
        submit: Function that submits a chunk.
        owner: The producer, for log lines.

    Raises:
        NSQManyFailed: If a chunk failed; no chunk is submitted once this is known. If raise_error is False, only if the
            iterable raised an exception or the producer was closed. Raised after all submitted chunks have ended.
        ValueError, TypeError: If no message can be published at all, for example because the topic is invalid.
    """
    check_messages(messages)
    many = _ChunkedPublish()
    cause: Exception | None = None
    is_closed = False
    try:
        for count, chunk in _split(messages, options):
            outcome: PublishResult | Exception
            try:
                outcome = chunk if isinstance(chunk, Exception) else submit(chunk)
            except NSQException as error:
                outcome = error
                is_closed = isinstance(error, NSQNotSentClosed)
            if isinstance(chunk, Exception) and not count:
                cause = chunk
            many.add(count, outcome)
            if is_closed or (many.has_failed and raise_error):
                break
        many.wait()
    except BaseException:
        # For example, the caller was killed, or interrupted by a gevent.Timeout.
        if many.pending:
            text = "publish_many was interrupted with %s pending: their outcomes are not reported"
            what = counted(sum(messages for _, messages, _ in many.pending), "message")
            owner.log(logger).warning(text, what)
        raise
    if cause is not None or is_closed or (many.has_failed and raise_error):
        raise NSQManyFailed(many.chunks) from cause
    return many.chunks


class _ChunkedPublish:
    """The outcomes of chunks that have ended, and the pending chunks.

    Attributes:
        chunks: The outcomes, in the order of the messages.
        pending: The chunks that are not in ``chunks`` yet. Each has the index of its first message, the number of its
            messages, and its result or, if it could not be submitted, the error.
        has_failed: True if a chunk is known to have failed.
    """

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.pending: deque[tuple[int, int, PublishResult | Exception]] = deque()
        self.has_failed = False
        self._number = 0

    def add(self, messages: int, result: PublishResult | Exception) -> None:
        """Add a chunk with its number of messages. Then wait until fewer than MAX_CONCURRENT_CHUNKS are pending."""
        self.has_failed = self.has_failed or isinstance(result, Exception)
        self.pending.append((self._number, messages, result))
        self._number += messages
        self.wait(MAX_CONCURRENT_CHUNKS - 1)

    def wait(self, limit: int = 0) -> None:
        """Record outcomes of chunks, the oldest first. Wait until at most ``limit`` chunks are pending."""
        while self.pending:
            first, messages, result = self.pending[0]
            error = result if isinstance(result, Exception) else None
            if not isinstance(result, Exception):
                if len(self.pending) <= limit and not result.ready():
                    return
                try:
                    result.get()
                except Exception as raised:  # noqa: BLE001  # reported in the chunk
                    error = raised
            self.has_failed = self.has_failed or error is not None
            self.pending.popleft()
            self.chunks.append(Chunk(first, messages, error))


def _split(messages: Iterable[bytes], options: ProducerOptions) -> Iterator[tuple[int, list[bytes] | Exception]]:
    """Split messages into chunks.

    Yields:
        (number of bodies, bodies) for a chunk; (1, error) for a message that can't be published; and (0, error) at the
        end if the iterable raised an exception.
    """
    limit = MAX_CHUNK_BYTES if options.max_body_size is None else min(MAX_CHUNK_BYTES, options.max_body_size - 4)
    bodies: list[bytes] = []
    size = 0
    raised: Exception | None = None
    try:
        for number, body in enumerate(messages):
            refusal = _refusal(body, number, options)
            if bodies and (refusal or len(bodies) == MAX_CHUNK_MESSAGES or size + len(body) + 4 > limit):
                yield len(bodies), bodies
                bodies, size = [], 0
            if refusal is not None:
                yield 1, refusal
            else:
                bodies.append(body)
                size += len(body) + 4
    except Exception as error:  # noqa: BLE001  # the caller's iterable may raise anything
        raised = error
    if bodies:
        yield len(bodies), bodies
    if raised is not None:
        yield 0, raised


def _refusal(body: object, number: int, options: ProducerOptions) -> Exception | None:
    """Return why a message can't be published; None if it can."""
    if not isinstance(body, bytes):
        return TypeError(not_bytes(f"message {number}", body))
    if not body:
        return ValueError(f"message {number} is empty")
    limit = options.max_msg_size
    if limit is not None and len(body) > limit:
        return ValueError(f"message {number} of {len(body)} bytes exceeds max_msg_size {limit}")
    limit = options.max_body_size
    if limit is not None and len(body) + 8 > limit:
        return ValueError(f"message {number} of {len(body)} bytes exceeds max_body_size {limit}")
    return None
