"""publish_many: any number of messages, cut into MPUBs, some of them under way at once.

Asks for a message when there is room for it, and never for all.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from gnsq.errors import NSQException, NSQNotSentClosed
from gnsq.producer.options import ProducerOptions
from gnsq.texts import counted

__all__ = ["Chunk", "NSQManyFailed", "Publishing", "publish_chunks"]

logger = logging.getLogger(__name__)

# Messages and bytes of a chunk, below nsqd's usual limits; and how many chunks may have no answer.
CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1024 * 1024
UNDER_WAY = 8


class Chunk(NamedTuple):
    """What became of some messages that followed each other.

    Attributes:
        first: Number of the first of them, from 0.
        messages: How many; 0: it was the iterable that failed, and what it gave before is in the chunks before.
        error: Why they were not confirmed: none of them was taken, unless it is an NSQUnknown. None if they were.
    """

    first: int
    messages: int
    error: Exception | None = None


class NSQManyFailed(NSQException):
    """Some chunks of publish_many() were not confirmed, or its iterable has raised: that is the ``__cause__`` then.

    Attributes:
        chunks: All of them, in order, those that were confirmed, too.
    """

    def __init__(self, chunks: list[Chunk]) -> None:
        failed = [chunk for chunk in chunks if chunk.error is not None]
        confirmed = sum(chunk.messages for chunk in chunks if chunk.error is None)
        first, error = failed[0].first, failed[0].error
        what = "from message" if failed[0].messages else "the iterable, behind message" if first else "the iterable, at"
        number = first - 1 if first and not failed[0].messages else first
        super().__init__(
            f"{counted(sum(chunk.messages for chunk in failed), 'message')} not confirmed, {confirmed} confirmed; "
            f"first failure, {what} {number}: {error if failed[0].messages else repr(error)}"
        )
        self.chunks = chunks


class Publishing(Protocol):
    """A chunk under way."""

    def ready(self) -> bool:
        """Whether it has ended."""

    def get(self) -> object:
        """Wait until it has ended; raise what went wrong."""


class _Raised(NamedTuple):
    """What the iterable raised."""

    error: Exception


class _Refused(NamedTuple):
    """A message that can't be published."""

    error: Exception


def publish_chunks(
    begin: Callable[[list[bytes]], Publishing],
    messages: Iterable[bytes],
    options: ProducerOptions,
    *,
    raise_error: bool,
    label: str,
) -> list[Chunk]:
    """Publish messages.

    Args:
        begin: Publishes a chunk.
        label: Of the producer, in log lines.

    Raises:
        NSQManyFailed: If a chunk failed; nothing more was begun then. Whatever raise_error says, if messages has
            raised, or the producer was closed. What was begun is waited for first.
        ValueError, TypeError: If nothing at all can be published so: by its topic, for one.
    """
    if isinstance(messages, (bytes, bytearray, str)):
        raise TypeError(f"messages must be an iterable of bytes, not {type(messages).__name__}")
    many = _Many(begin)
    cause: Exception | None = None
    try:
        for piece in _cut(messages, options):
            if isinstance(piece, _Raised):
                cause = piece.error
                many.add(0, _Failed(cause))
            elif isinstance(piece, _Refused):
                many.add(1, _Failed(piece.error))
            else:
                many.begin(piece)
            if many.is_over or (many.has_failed and raise_error):
                break
        many.wait()
    except BaseException:
        # Killed, or a gevent.Timeout.
        if many.under_way:
            text = "%s: publish_many was interrupted with %s pending: their outcomes are not reported"
            logger.warning(text, label, counted(many.under_way, "message"))
        raise
    if cause is not None or many.is_over or (many.has_failed and raise_error):
        raise NSQManyFailed(many.chunks) from cause
    return many.chunks


class _Failed:
    """What was never under way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def ready(self) -> bool:
        return True

    def get(self) -> object:
        raise self._error


class _Many:
    """Chunks under way, and what became of those before.

    Attributes:
        chunks: The latter, in order.
        has_failed: Whether one of them was not confirmed.
        is_over: Whether none can be begun any more.
    """

    def __init__(self, begin: Callable[[list[bytes]], Publishing]) -> None:
        self.chunks: list[Chunk] = []
        self.has_failed = False
        self.is_over = False
        self._begin = begin
        self._number = 0
        self._under_way: deque[tuple[int, int, Publishing]] = deque()

    def begin(self, bodies: list[bytes]) -> None:
        """Begin a chunk."""
        publishing: Publishing
        try:
            publishing = self._begin(bodies)
        except NSQException as error:
            publishing = _Failed(error)
            self.is_over = isinstance(error, NSQNotSentClosed)
        self.add(len(bodies), publishing)

    def add(self, messages: int, publishing: Publishing) -> None:
        """Go on behind so many messages, when there are not too many chunks under way."""
        # Known before those in front of it have ended.
        self.has_failed = self.has_failed or isinstance(publishing, _Failed)
        self._under_way.append((self._number, messages, publishing))
        self._number += messages
        while len(self._under_way) >= UNDER_WAY or (self._under_way and self._under_way[0][2].ready()):
            self._end_first()

    def wait(self) -> None:
        """Wait for those under way."""
        while self._under_way:
            self._end_first()

    @property
    def under_way(self) -> int:
        """How many messages nobody was told of."""
        return sum(messages for _, messages, _ in self._under_way)

    def _end_first(self) -> None:
        first, messages, publishing = self._under_way[0]
        error: Exception | None = None
        try:
            publishing.get()
        except Exception as raised:  # noqa: BLE001  # reported by chunk
            error = raised
            self.has_failed = True
        self._under_way.popleft()
        self.chunks.append(Chunk(first, messages, error))


def _cut(messages: Iterable[bytes], options: ProducerOptions) -> Iterator[list[bytes] | _Refused | _Raised]:
    """Cut messages into what goes in one MPUB each."""
    most = CHUNK_BYTES if options.max_body_size is None else min(CHUNK_BYTES, options.max_body_size - 4)
    bodies: list[bytes] = []
    size = number = 0
    iterator = iter(messages)
    while True:
        try:
            body = next(iterator)
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001  # it is the caller's, and reaches it
            if bodies:
                yield bodies
            yield _Raised(error)
            return
        refusal = _refusal(body, number, options)
        if bodies and (refusal or len(bodies) == CHUNK_MESSAGES or size + len(body) + 4 > most):
            yield bodies
            bodies, size = [], 0
        if refusal is not None:
            yield _Refused(refusal)
        else:
            bodies.append(body)
            size += len(body) + 4
        number += 1
    if bodies:
        yield bodies


def _refusal(body: object, number: int, options: ProducerOptions) -> Exception | None:
    """Say why a message can't be published, if so."""
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
