"""publish_many: publish an iterable of messages in chunks, each an MPUB, several of them concurrently.

Takes a message from the iterable when it can be published, and never all at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from gnsq.errors import NSQException, NSQNotSentClosed
from gnsq.producer.options import ProducerOptions
from gnsq.texts import counted

__all__ = ["Chunk", "NSQManyFailed", "PublishHandle", "publish_chunks"]

logger = logging.getLogger(__name__)

# Limits of a chunk, below nsqd's usual limits of a body.
MAX_CHUNK_MESSAGES = 1000
MAX_CHUNK_BYTES = 1024 * 1024
MAX_CONCURRENT_CHUNKS = 8


class Chunk(NamedTuple):
    """Outcome of some consecutive messages.

    Attributes:
        first: Number of the first message, from 0.
        messages: How many; 0: the iterable raised. The messages that it gave before are in the chunks before.
        error: Why they were not confirmed; None if they were. Unless it is an NSQUnknown, nsqd has stored none.
    """

    first: int
    messages: int
    error: Exception | None = None


class NSQManyFailed(NSQException):
    """Some chunks of publish_many() were not confirmed, or its iterable raised; that error is the ``__cause__`` then.

    Attributes:
        chunks: All chunks in order, confirmed ones included.
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


class PublishHandle(Protocol):
    """A chunk that was submitted."""

    def ready(self) -> bool:
        """Whether it has ended."""

    def get(self) -> object:
        """Wait until it has ended; raise its error."""


class _Piece(NamedTuple):
    """Bodies of the next chunk.

    Attributes:
        error: Why one message can't be published; or the error that the iterable raised, if is_end.
    """

    bodies: list[bytes]
    error: Exception | None = None
    is_end: bool = False


def publish_chunks(
    submit: Callable[[list[bytes]], PublishHandle],
    messages: Iterable[bytes],
    options: ProducerOptions,
    *,
    raise_error: bool,
    label: str,
) -> list[Chunk]:
    """Publish messages in chunks.

    Args:
        submit: Submits a chunk.
        label: Names the producer in log lines.

    Raises:
        NSQManyFailed: If raise_error is on and a chunk failed; no further chunk was submitted. In any case if the
            iterable raised, or the producer was closed. Submitted chunks are waited for first.
        ValueError, TypeError: If nothing can be published at all, such as to an invalid topic.
    """
    if isinstance(messages, (bytes, bytearray, str)):
        raise TypeError(f"messages must be an iterable of bytes, not {type(messages).__name__}")
    many = _ChunkedPublish(submit)
    cause: Exception | None = None
    try:
        for piece in _split(messages, options):
            if piece.error is None:
                many.submit(piece.bodies)
            else:
                many.add(0 if piece.is_end else 1, _FailedHandle(piece.error))
                cause = piece.error if piece.is_end else None
            if many.is_closed or (many.has_failed and raise_error):
                break
        many.wait()
    except BaseException:
        # Killed, or a gevent.Timeout.
        if many.unreported:
            text = "%s: publish_many was interrupted with %s pending: their outcomes are not reported"
            logger.warning(text, label, counted(many.unreported, "message"))
        raise
    if cause is not None or many.is_closed or (many.has_failed and raise_error):
        raise NSQManyFailed(many.chunks) from cause
    return many.chunks


class _FailedHandle:
    """A chunk that could not be submitted."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def ready(self) -> bool:
        return True

    def get(self) -> object:
        raise self._error


class _ChunkedPublish:
    """Submitted chunks, and the outcomes of those before.

    Attributes:
        chunks: These outcomes, in order.
        has_failed: Whether a chunk was not confirmed.
        is_closed: Whether the producer was closed.
    """

    def __init__(self, submit: Callable[[list[bytes]], PublishHandle]) -> None:
        self.chunks: list[Chunk] = []
        self.has_failed = False
        self.is_closed = False
        self._submit = submit
        self._number = 0
        self._pending: deque[tuple[int, int, PublishHandle]] = deque()

    def submit(self, bodies: list[bytes]) -> None:
        """Submit a chunk."""
        handle: PublishHandle
        try:
            handle = self._submit(bodies)
        except NSQException as error:
            handle = _FailedHandle(error)
            self.is_closed = isinstance(error, NSQNotSentClosed)
        self.add(len(bodies), handle)

    def add(self, messages: int, handle: PublishHandle) -> None:
        """Add a chunk of so many messages, and wait until fewer than MAX_CONCURRENT_CHUNKS are pending."""
        # Known before the chunks in front of it have ended.
        self.has_failed = self.has_failed or isinstance(handle, _FailedHandle)
        self._pending.append((self._number, messages, handle))
        self._number += messages
        while len(self._pending) >= MAX_CONCURRENT_CHUNKS or (self._pending and self._pending[0][2].ready()):
            self._wait_first()

    def wait(self) -> None:
        """Wait for all chunks."""
        while self._pending:
            self._wait_first()

    @property
    def unreported(self) -> int:
        """Messages of chunks whose outcome is not in `chunks`."""
        return sum(messages for _, messages, _ in self._pending)

    def _wait_first(self) -> None:
        first, messages, handle = self._pending[0]
        error: Exception | None = None
        try:
            handle.get()
        except Exception as raised:  # noqa: BLE001  # reported in the chunk
            error = raised
            self.has_failed = True
        self._pending.popleft()
        self.chunks.append(Chunk(first, messages, error))


def _split(messages: Iterable[bytes], options: ProducerOptions) -> Iterator[_Piece]:
    """Split messages into chunks."""
    limit = MAX_CHUNK_BYTES if options.max_body_size is None else min(MAX_CHUNK_BYTES, options.max_body_size - 4)
    bodies: list[bytes] = []
    size = number = 0
    iterator = iter(messages)
    while True:
        try:
            body = next(iterator)
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001  # of the caller's iterable; it is the cause of NSQManyFailed
            if bodies:
                yield _Piece(bodies)
            yield _Piece([], error, is_end=True)
            return
        refusal = _refusal(body, number, options)
        if bodies and (refusal or len(bodies) == MAX_CHUNK_MESSAGES or size + len(body) + 4 > limit):
            yield _Piece(bodies)
            bodies, size = [], 0
        if refusal is not None:
            yield _Piece([], refusal)
        else:
            bodies.append(body)
            size += len(body) + 4
        number += 1
    if bodies:
        yield _Piece(bodies)


def _refusal(body: object, number: int, options: ProducerOptions) -> Exception | None:
    """Return the error of a message that can't be published."""
    if not isinstance(body, bytes):
        return TypeError(f"message {number} must be bytes, not {type(body).__name__}")
    if not body:
        return ValueError(f"message {number} is empty")
    limit = options.max_msg_size
    if limit is not None and len(body) > limit:
        return ValueError(f"message {number} of {len(body)} bytes exceeds max_msg_size {limit}")
    limit = options.max_body_size
    if limit is not None and len(body) + 8 > limit:
        return ValueError(f"message {number} of {len(body)} bytes exceeds max_body_size {limit}")
    return None
