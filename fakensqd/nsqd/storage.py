"""The data path of a FakeNsqd: locked while it runs, what exists is written at once, messages when it stops, or when
there is no room for them in memory.

Owns the lock and the files. What is in them is disk.py's, what is loaded goes into a Broker. Files are written without
fsync: they are to outlive the process, not the machine. Source: nsqd nsqd.go LoadMetadata, PersistMetadata; dirlock.go.

What FakeNsqd writes to its data path: nsqd's own ``nsqd.dat``, and a file of messages in a format of our own.

Pure: values to bytes and back. Source of nsqd.dat: nsqd.go Metadata. nsqd keeps messages in one diskqueue per topic and
channel; here all are in one file, which is appended to:

    magic, then records: int32 size and CRC-32 of what follows; int32 size and JSON {"topic", "channel" (null: the topic
    itself), "count", "removed" (ids)}; then count times int32 size and the message as a message frame has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fakensqd.golang import encoding_json
from fakensqd.nsqd.broker import Broker, Channel, QueuedMessage, Topic
from fakensqd.options import NSQ_VERSION
from gnsq.protocol.frames import decode_message, encode_message
from gnsq.protocol.names import is_ephemeral, valid_channel_name, valid_topic_name
from gnsq.texts import counted

__all__ = [
    "ChannelRecord",
    "DataPath",
    "DataPathError",
    "DiskError",
    "Queue",
    "TopicRecord",
    "decode_messages",
    "decode_metadata",
    "encode_messages",
    "encode_metadata",
    "encode_removed",
    "encode_stored",
]

logger = logging.getLogger(__name__)


_MAGIC = b"fakensqd messages 2\n"
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">iI")


class DiskError(ValueError):
    """A file that is not what it should be; the text says how."""


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """What nsqd.dat says of a channel."""

    name: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What nsqd.dat says of a topic."""

    name: str
    paused: bool = False
    channels: tuple[ChannelRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Queue:
    """The messages of one channel, or of a topic that has none (channel None)."""

    topic: str
    channel: str | None
    messages: Sequence[QueuedMessage]


def encode_metadata(topics: Iterable[TopicRecord]) -> bytes:
    """Write nsqd.dat; empty lists are null in it, as Go writes what was never filled."""
    documents = [
        {
            "name": topic.name,
            "paused": topic.paused,
            "channels": [{"name": channel.name, "paused": channel.paused} for channel in topic.channels] or None,
        }
        for topic in topics
    ]
    # Names need none of Go's escapes, and this is written with each new channel.
    return json.dumps({"topics": documents or None, "version": NSQ_VERSION}, separators=(",", ":")).encode()


def decode_metadata(data: bytes) -> list[TopicRecord]:
    """Read nsqd.dat; topics and channels with names that nsqd does not take are skipped.

    Raises:
        DiskError: If it is no JSON of the right shape.
    """
    try:
        topics = json.loads(data)["topics"] or []
        return [
            TopicRecord(topic["name"], bool(topic.get("paused")), _channels(topic.get("channels") or []))
            for topic in topics
            if valid_topic_name(topic["name"])
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DiskError(f"no metadata of nsqd: {error!r}") from error


def _channels(documents: list[dict[str, object]]) -> tuple[ChannelRecord, ...]:
    return tuple(
        ChannelRecord(str(document["name"]), bool(document.get("paused")))
        for document in documents
        if valid_channel_name(str(document["name"]))
    )


def encode_messages(queues: Iterable[Queue]) -> bytes:
    """Write the file of messages. Attempts are kept, a delay that was left is not: nsqd loses it, too."""
    return _MAGIC + b"".join(map(encode_stored, queues))


def encode_stored(queue: Queue) -> bytes:
    """Write a record of messages that have come, to be appended."""
    messages = [
        _sized(encode_message(message.timestamp, message.attempts, message.id, message.body))
        for message in queue.messages
    ]
    return _record({"topic": queue.topic, "channel": queue.channel, "count": len(messages), "removed": []}, messages)


def encode_removed(topic: str, channel: str | None, ids: Iterable[bytes]) -> bytes:
    """Write a record of messages that have gone, to be appended."""
    removed = [message_id.decode("latin-1") for message_id in ids]
    return _record({"topic": topic, "channel": channel, "count": 0, "removed": removed}, [])


def decode_messages(data: bytes) -> tuple[list[Queue], int]:
    """Read the file of messages.

    Returns:
        What is there, and how many bytes of a last record that is not whole: its writer was killed.

    Raises:
        DiskError: If it is damaged, or no such file.
    """
    if not data.startswith(_MAGIC):
        raise DiskError("no file of fakensqd's messages")
    queues: dict[tuple[str, str | None], dict[bytes, QueuedMessage]] = {}
    position = len(_MAGIC)
    while (start := position + _HEADER.size) <= len(data):
        size, checksum = _HEADER.unpack_from(data, position)
        if size < 0 or len(data) < start + size:
            break
        content = data[start : start + size]
        if zlib.crc32(content) != checksum:
            raise DiskError(f"the checksum of {counted(size, 'byte')} of messages is wrong")
        # What has the right checksum was written by _record().
        reader = _Reader(content, 0)
        document = json.loads(reader.sized())
        messages = queues.setdefault((document["topic"], document["channel"]), {})
        for message_id in document["removed"]:
            messages.pop(message_id.encode("latin-1"), None)
        for _ in range(document["count"]):
            message = _message(reader.sized())
            messages[message.id] = message
        position = start + size
    found = [Queue(topic, channel, list(messages.values())) for (topic, channel), messages in queues.items()]
    return found, len(data) - position


def _record(document: dict[str, object], messages: list[bytes]) -> bytes:
    content = b"".join([_sized(encoding_json.encode(document)), *messages])
    return _HEADER.pack(len(content), zlib.crc32(content)) + content


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _message(data: bytes) -> QueuedMessage:
    timestamp, attempts, message_id, body = decode_message(data)
    message = QueuedMessage(message_id, body, timestamp)
    message.attempts = attempts
    return message


class _Reader:
    """Cuts pieces with their sizes in front out of bytes."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def sized(self) -> bytes:
        start = self._position + _SIZE.size
        (size,) = _SIZE.unpack_from(self._data, self._position)
        self._position = start + size
        return self._data[start : start + size]


_METADATA = "nsqd.dat"
_MESSAGES = "fakensqd.messages"
# The file of messages is written anew when it tells of so many, and of four times those that are left.
_MAX_PAST = 1000


class DataPathError(OSError):
    """A data path that cannot be used; the text is as nsqd's."""


class DataPath:
    """One directory; made for one FakeNsqd.

    Args:
        path: The directory, which must exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock: int | None = None
        self._loaded = False
        self._broker: Broker | None = None
        # Messages in the file that are still on disk, and all that it tells of.
        self._live = 0
        self._told = 0

    def lock(self) -> None:
        """Take the directory, so that no other nsqd, real or fake, does.

        Raises:
            DataPathError: If there is no such directory, or another has it.
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
        """Let others have it. Does nothing if it is not locked."""
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def load(self, broker: Broker, now: float) -> None:
        """Fill a broker with what is on disk, at the first start; later the broker itself is what counts.

        Raises:
            DataPathError: If nsqd.dat is there and cannot be read.
        """
        if not self._loaded:
            self._load_topics(broker, now)
            self._load_messages(broker, now)
            self._loaded = True
        # Others are in memory from here on; killed now, nsqd loses those.
        self._broker = broker
        self._write_messages(_on_disk)
        broker.on_stored = self._stored
        broker.on_removed = self._removed

    def save_topics(self, broker: Broker) -> None:
        """Write which topics and channels there are, ephemeral ones excepted.

        Does nothing while the directory is not ours, or not loaded yet.
        """
        if self._lock is not None and self._loaded:
            self._try_write(_METADATA, encode_metadata(_records(broker)))

    def close(self, broker: Broker) -> None:
        """Write everything, and let others have the directory."""
        self.save_topics(broker)
        self._write_messages(_all)
        self.unlock()

    def _write_messages(self, listed: Callable[[Topic | Channel], list[QueuedMessage]]) -> None:
        """Write the file of messages anew, what is ephemeral excepted; there is none if there are no messages."""
        queues = [] if self._broker is None else _queues(self._broker, listed)
        self._live = self._told = sum(len(queue.messages) for queue in queues)
        if queues:
            self._try_write(_MESSAGES, encode_messages(queues))
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._file(_MESSAGES))

    def _stored(self, topic: str, channel: str | None, messages: Sequence[QueuedMessage]) -> None:
        if self._lock is not None and not is_ephemeral(topic):
            self._live += len(messages)
            self._append(encode_stored(Queue(topic, channel, messages)), len(messages))

    def _removed(self, topic: str, channel: str | None, ids: Sequence[bytes]) -> None:
        if self._lock is None or is_ephemeral(topic):
            return
        self._live -= len(ids)
        if self._live <= 0 or self._told > _MAX_PAST + 4 * self._live:
            self._write_messages(_on_disk)
        else:
            self._append(encode_removed(topic, channel, ids), len(ids))

    def _append(self, record: bytes, told: int) -> None:
        self._told += told
        name = self._file(_MESSAGES)
        try:
            # Unbuffered: what was accepted survives the end of the process.
            with open(name, "ab", buffering=0) as file:
                file.write(record if file.tell() else encode_messages([]) + record)
        except OSError as error:
            logger.error("failed to persist %s - %s", name, error)

    def _load_topics(self, broker: Broker, now: float) -> None:
        name = self._file(_METADATA)
        try:
            with open(name, "rb") as file:
                records = decode_metadata(file.read())
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataPathError(f"failed to load metadata - failed to read metadata from {name} - {error}") from error
        except DiskError as error:
            raise DataPathError(f"failed to load metadata - failed to parse metadata in {name} - {error}") from error
        for record in records:
            topic = broker.ensure_topic(record.name)
            topic.set_paused(record.paused, now)
            for channel in record.channels:
                topic.ensure_channel(channel.name, now).set_paused(channel.paused)

    def _load_messages(self, broker: Broker, now: float) -> None:
        name = self._file(_MESSAGES)
        try:
            with open(name, "rb") as file:
                queues, torn = decode_messages(file.read())
        except FileNotFoundError:
            return
        except DiskError as error:
            os.replace(name, f"{name}.damaged")
            logger.error("messages in %s.damaged are not read: %s", name, error)
            return
        if torn:
            logger.warning("%s: the end is not whole, and not read: %s", name, counted(torn, "byte"))
        for queue in queues:
            # The file may be of another time than nsqd.dat: what it names is made.
            topic = broker.ensure_topic(queue.topic)
            if queue.channel is None:
                topic.restore(queue.messages, now)
            else:
                topic.ensure_channel(queue.channel, now).restore(queue.messages)

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _try_write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole: whoever reads it finds the old or the new one. If it fails, life goes on."""
        try:
            self._write(name, data)
        except OSError as error:
            logger.error("failed to persist %s - %s", self._file(name), error)

    def _write(self, name: str, data: bytes) -> None:
        target = self._file(name)
        temporary = f"{target}.{os.getpid()}.tmp"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, target)


def _all(queue: Topic | Channel) -> list[QueuedMessage]:
    return queue.stored()


def _on_disk(queue: Topic | Channel) -> list[QueuedMessage]:
    return queue.on_disk()


def _queues(broker: Broker, listed: Callable[[Topic | Channel], list[QueuedMessage]]) -> list[Queue]:
    queues = []
    for topic in broker.topics.values():
        if topic.ephemeral:
            continue
        queues.append(Queue(topic.name, None, listed(topic)))
        queues += [
            Queue(topic.name, channel.name, listed(channel))
            for channel in topic.channels.values()
            if not channel.ephemeral
        ]
    return [queue for queue in queues if queue.messages]


def _records(broker: Broker) -> list[TopicRecord]:
    return [
        TopicRecord(
            topic.name,
            topic.paused,
            tuple(
                ChannelRecord(channel.name, channel.paused)
                for channel in topic.channels.values()
                if not channel.ephemeral
            ),
        )
        for topic in broker.topics.values()
        if not topic.ephemeral
    ]
