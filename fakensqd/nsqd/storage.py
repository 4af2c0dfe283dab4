"""The data path of a FakeNsqd: ``nsqd.dat`` in nsqd's format, a file of messages, and the lock of the directory.

Topics and channels are written after each change, messages only when the nsqd stops: a test server need not keep them
when it is killed. nsqd has one diskqueue per topic and channel. Here all messages are in one file, one JSON object per
line, which the next nsqd reads and deletes. Source: nsqd nsqd.go LoadMetadata, PersistMetadata; dirlock.go.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from fakensqd.nsqd.broker import Broker, QueuedMessage, Topic
from fakensqd.options import NSQ_VERSION
from fakensqd.transcript import decode_bytes, encode_bytes
from gnsq.protocol.names import valid_channel_name, valid_topic_name

__all__ = [
    "DataPath",
    "DataPathError",
    "StoredMessage",
    "decode_messages",
    "decode_metadata",
    "encode_messages",
    "encode_metadata",
]

logger = logging.getLogger(__name__)

_METADATA = "nsqd.dat"
_MESSAGES = "fakensqd.messages"

# A message with its topic and channel; the channel is None if the message is in no channel yet.
StoredMessage = tuple[str, str | None, QueuedMessage]
_Decoded = TypeVar("_Decoded")


class DataPathError(OSError):
    """The data path can't be used; the text is nsqd's."""


class DataPath:
    """The directory of one FakeNsqd.

    Args:
        path: The directory, which must exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock: int | None = None
        self._is_loaded = False

    def lock(self) -> None:
        """Lock the directory, so that no other nsqd uses it, fake or real.

        Raises:
            DataPathError: If the directory can't be opened, or another nsqd has locked it.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise DataPathError(f"failed to lock data-path: open {self._path}: {reason}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            reason = (error.strerror or "").lower()
            raise DataPathError(
                f"failed to lock data-path: cannot flock directory {self._path} - {reason} "
                "(possibly in use by another instance of nsqd)"
            ) from error
        self._lock = descriptor

    def unlock(self) -> None:
        """Unlock the directory. Does nothing if it is not locked."""
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def load(self, broker: Broker, now: float) -> None:
        """At the first start, fill a broker from the files. At later starts the broker already has everything.

        Raises:
            DataPathError: If a file exists and can't be read or decoded.
        """
        if not self._is_loaded:
            for topic_name, paused, channels in self._read(_METADATA, decode_metadata):
                topic = broker.ensure_topic(topic_name)
                topic.set_paused(paused, now)
                for channel_name, channel_paused in channels:
                    topic.ensure_channel(channel_name, now).set_paused(channel_paused)
            stored = self._read(_MESSAGES, decode_messages)
            for (topic_name, channel), group in itertools.groupby(stored, lambda each: each[:2]):
                topic, messages = broker.ensure_topic(topic_name), [message for _, _, message in group]
                if channel is None:
                    topic.restore(messages, now)
                else:
                    topic.ensure_channel(channel, now).restore(messages)
            self._is_loaded = True

    def save_topics(self, broker: Broker) -> None:
        """Write topics and channels, except ephemeral ones. Does nothing before lock() and load()."""
        if self._lock is not None and self._is_loaded:
            self._write(_METADATA, encode_metadata(broker.topics.values()))

    def discard_messages(self) -> None:
        """Delete the file of messages, which are in the broker now: a killed nsqd must not deliver them again."""
        with contextlib.suppress(OSError):
            os.unlink(self._file(_MESSAGES))

    def close(self, broker: Broker) -> None:
        """Write everything, and unlock the directory."""
        self.save_topics(broker)
        if messages := encode_messages(broker.topics.values()):
            self._write(_MESSAGES, messages)
        self.unlock()

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _read(self, name: str, decode: Callable[[bytes], list[_Decoded]]) -> list[_Decoded]:
        """Decode a file. Without the file, the list is empty."""
        file = self._file(name)
        try:
            with open(file, "rb") as opened:
                return decode(opened.read())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataPathError(f"failed to load metadata - failed to read metadata from {file} - {error}") from error
        except ValueError as error:
            raise DataPathError(f"failed to load metadata - failed to parse metadata in {file} - {error}") from error

    def _write(self, name: str, data: bytes) -> None:
        """Replace a file's content atomically. Log errors of the file system."""
        target = self._file(name)
        temporary = f"{target}.{os.getpid()}.tmp"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, target)
        except OSError as error:
            logger.error("failed to persist %s - %s", target, error)


# --- nsqd.dat ---------------------------------------------------------------------------------------------------------


def encode_metadata(topics: Iterable[Topic]) -> bytes:
    """Encode nsqd.dat, without ephemeral topics and channels. An empty list becomes null, as in Go.

    Source: nsqd.go Metadata.
    """
    documents = [
        {
            "name": topic.name,
            "paused": topic.paused,
            "channels": [
                {"name": channel.name, "paused": channel.paused}
                for channel in topic.channels.values()
                if not channel.ephemeral
            ]
            or None,
        }
        for topic in topics
        if not topic.ephemeral
    ]
    # json.dumps() is enough, since names need none of Go's escapes; and it is fast: each new channel writes the file.
    return json.dumps({"topics": documents or None, "version": NSQ_VERSION}, separators=(",", ":")).encode()


def decode_metadata(data: bytes) -> list[tuple[str, bool, list[tuple[str, bool]]]]:
    """Decode nsqd.dat. Skips topics and channels with names that nsqd refuses.

    Returns:
        For each topic: its name, whether it is paused, and (name, whether it is paused) of each of its channels.

    Raises:
        ValueError: If the data is not JSON, the topics or a name is missing, or a field has a wrong type.
    """
    try:
        return [
            (
                topic["name"],
                bool(topic.get("paused")),
                [
                    (str(channel["name"]), bool(channel.get("paused")))
                    for channel in topic.get("channels") or []
                    if valid_channel_name(str(channel["name"]))
                ],
            )
            for topic in json.loads(data)["topics"] or []
            if valid_topic_name(topic["name"])
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not the metadata of an nsqd: {error!r}") from error


# --- the file of messages ---------------------------------------------------------------------------------------------


def encode_messages(topics: Iterable[Topic]) -> bytes:
    """Encode the messages with their attempts, but without their delays, which nsqd loses, too."""
    rows = [
        {
            "topic": topic,
            "channel": channel,
            "id": message.id.decode(),
            "timestamp": message.timestamp,
            "attempts": message.attempts,
            "body": encode_bytes(message.body),
        }
        for topic, channel, message in _stored(topics)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def decode_messages(data: bytes) -> list[StoredMessage]:
    """Decode the result of encode_messages().

    Raises:
        ValueError: If the data has another format.
    """
    try:
        return [_decoded(**json.loads(line)) for line in data.splitlines()]
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"not messages of fakensqd: {error!r}") from error


def _decoded(
    topic: str, channel: str | None, id: str, timestamp: int, attempts: int, body: str | dict[str, str]
) -> StoredMessage:
    message = QueuedMessage(id.encode(), decode_bytes(body), timestamp)
    message.attempts = attempts
    return topic, channel, message


def _stored(topics: Iterable[Topic]) -> Iterator[StoredMessage]:
    """Iterate over the messages, without those of ephemeral topics and channels."""
    for topic in topics:
        if not topic.ephemeral:
            yield from ((topic.name, None, message) for message in topic.stored())
            for channel in topic.channels.values():
                if not channel.ephemeral:
                    yield from ((topic.name, channel.name, message) for message in channel.stored())
