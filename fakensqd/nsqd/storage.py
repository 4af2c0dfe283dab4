"""The data path of a FakeNsqd: ``nsqd.dat`` in nsqd's format, a file of messages, and the lock of the directory.

Topics and channels are written after each change. Messages are written when the nsqd stops, or when they exceed the
limit of the memory. There is no fsync: files survive a crash of the process, but maybe not of the machine. Source: nsqd
nsqd.go LoadMetadata, PersistMetadata; dirlock.go.

nsqd has one diskqueue per topic and channel. Here all messages are in one file, to which records are appended. The file
begins with a magic. A record has the size (int32) and the CRC-32 of its content, then the content: the size (int32) and
the text of a JSON object {"topic", "channel" (null: the topic itself), "count", "removed" (ids of messages that left
the queue)}, then "count" messages, each after its size (int32), encoded as in a message frame.
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
from fakensqd.input_buffer import SIZE
from fakensqd.nsqd.broker import Broker, MessageHolder, QueuedMessage, Topic
from fakensqd.options import NSQ_VERSION
from gnsq.protocol.frames import decode_message, encode_message
from gnsq.protocol.names import is_ephemeral, valid_channel_name, valid_topic_name
from gnsq.texts import counted

__all__ = [
    "DataPath",
    "DataPathError",
    "FileFormatError",
    "StoredQueue",
    "decode_messages",
    "decode_metadata",
    "encode_messages",
    "encode_metadata",
    "encode_removed",
    "encode_stored",
]

logger = logging.getLogger(__name__)

_METADATA = "nsqd.dat"
_MESSAGES = "fakensqd.messages"
# The file of messages is rewritten if none is still queued, or it has more entries than this + 4 * those queued.
_MAX_OBSOLETE = 1000

_MAGIC = b"fakensqd messages 2\n"
_HEADER = struct.Struct(">iI")


class DataPathError(OSError):
    """The data path can't be used; the text is nsqd's."""


class FileFormatError(ValueError):
    """A file has another format, or is damaged."""


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """Messages of one channel, or, if the channel is None, of the topic itself."""

    topic: str
    channel: str | None
    messages: Sequence[QueuedMessage]


class DataPath:
    """The directory of one FakeNsqd.

    Args:
        path: The directory, which must exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock: int | None = None
        # The broker whose messages are in the file; None before the first load().
        self._broker: Broker | None = None
        # How many messages in the file are still queued; how many entries (messages and removed ids) the file has.
        self._live_count = 0
        self._named_count = 0

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
            OSError: If a file exists and can't be read; as a DataPathError if nsqd.dat can't be read or decoded.
        """
        if self._broker is None:
            self._load_topics(broker, now)
            self._load_messages(broker, now)
        # Messages that fit into memory leave the file: like nsqd, this server loses them if it is killed.
        self._broker = broker
        self._write_messages(lambda queue: queue.on_disk())

    def save_topics(self) -> None:
        """Write topics and channels, except ephemeral ones. Does nothing before lock() and load()."""
        if self._lock is not None and self._broker is not None:
            self._replace_file(_METADATA, encode_metadata(self._broker.topics.values()))

    def close(self) -> None:
        """Write everything, and unlock the directory."""
        self.save_topics()
        self._write_messages(lambda queue: queue.stored())
        self.unlock()

    def store(self, topic: str, channel: str | None, messages: Sequence[QueuedMessage]) -> None:
        """Append messages, which exceed the limit of the memory, to the file."""
        if self._is_written(topic):
            self._live_count += len(messages)
            self._append(encode_stored(StoredQueue(topic, channel, messages)), len(messages))

    def remove(self, topic: str, channel: str | None, ids: Sequence[bytes]) -> None:
        """Record in the file that these messages have left their queue."""
        if not self._is_written(topic):
            return
        self._live_count -= len(ids)
        if self._live_count <= 0 or self._named_count > _MAX_OBSOLETE + 4 * self._live_count:
            self._write_messages(lambda queue: queue.on_disk())
        else:
            self._append(encode_removed(topic, channel, ids), len(ids))

    def _is_written(self, topic: str) -> bool:
        return self._lock is not None and self._broker is not None and not is_ephemeral(topic)

    def _write_messages(self, messages_of: Callable[[MessageHolder], list[QueuedMessage]]) -> None:
        """Rewrite the file of messages, without ephemeral channels and topics. Without messages, delete the file."""
        queues = [] if self._broker is None else _stored_queues(self._broker, messages_of)
        self._live_count = self._named_count = sum(len(queue.messages) for queue in queues)
        if queues:
            self._replace_file(_MESSAGES, encode_messages(queues))
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._file(_MESSAGES))

    def _append(self, record: bytes, count: int) -> None:
        self._named_count += count
        name = self._file(_MESSAGES)
        try:
            # Unbuffered, so that messages whose PUB got an OK survive a crash of the process.
            with open(name, "ab", buffering=0) as file:
                file.write(record if file.tell() else encode_messages([]) + record)
        except OSError as error:
            logger.error("failed to persist %s - %s", name, error)

    def _load_topics(self, broker: Broker, now: float) -> None:
        name = self._file(_METADATA)
        try:
            with open(name, "rb") as file:
                topics = decode_metadata(file.read())
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataPathError(f"failed to load metadata - failed to read metadata from {name} - {error}") from error
        except FileFormatError as error:
            raise DataPathError(f"failed to load metadata - failed to parse metadata in {name} - {error}") from error
        for topic_name, paused, channels in topics:
            topic = broker.ensure_topic(topic_name)
            topic.set_paused(paused, now)
            for channel_name, channel_paused in channels:
                topic.ensure_channel(channel_name, now).set_paused(channel_paused)

    def _load_messages(self, broker: Broker, now: float) -> None:
        name = self._file(_MESSAGES)
        try:
            with open(name, "rb") as file:
                queues, incomplete = decode_messages(file.read())
        except FileNotFoundError:
            return
        except FileFormatError as error:
            os.replace(name, f"{name}.damaged")
            logger.error("messages in %s.damaged are not read: %s", name, error)
            return
        if incomplete:
            logger.warning("%s: the last record is incomplete, and not read: %s", name, counted(incomplete, "byte"))
        for queue in queues:
            # The file may be newer or older than nsqd.dat, so topics and channels may have to be made.
            topic = broker.ensure_topic(queue.topic)
            if queue.channel is None:
                topic.restore(queue.messages, now)
            else:
                topic.ensure_channel(queue.channel, now).restore(queue.messages)

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _replace_file(self, name: str, data: bytes) -> None:
        """Replace a file's content atomically. Log errors of the file system."""
        target = self._file(name)
        temporary = f"{target}.{os.getpid()}.tmp"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, target)
        except OSError as error:
            logger.error("failed to persist %s - %s", target, error)


def _stored_queues(broker: Broker, messages_of: Callable[[MessageHolder], list[QueuedMessage]]) -> list[StoredQueue]:
    queues = []
    for topic in broker.topics.values():
        if topic.ephemeral:
            continue
        queues.append(StoredQueue(topic.name, None, messages_of(topic)))
        queues += [
            StoredQueue(topic.name, channel.name, messages_of(channel))
            for channel in topic.channels.values()
            if not channel.ephemeral
        ]
    return [queue for queue in queues if queue.messages]


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
        FileFormatError: If the data is not JSON, the topics or a name is missing, or a field has a wrong type.
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
        raise FileFormatError(f"not the metadata of an nsqd: {error!r}") from error


# --- the file of messages ---------------------------------------------------------------------------------------------


def encode_messages(queues: Iterable[StoredQueue]) -> bytes:
    """Encode the whole file. It has the attempts of messages, but not their delays, which nsqd loses, too."""
    return _MAGIC + b"".join(map(encode_stored, queues))


def encode_stored(queue: StoredQueue) -> bytes:
    """Encode new messages, as a record to append to the file."""
    messages = [
        _with_size(encode_message(message.timestamp, message.attempts, message.id, message.body))
        for message in queue.messages
    ]
    return _record({"topic": queue.topic, "channel": queue.channel, "count": len(messages), "removed": []}, messages)


def encode_removed(topic: str, channel: str | None, ids: Iterable[bytes]) -> bytes:
    """Encode the ids of messages that have left their queue, as a record to append to the file."""
    removed = [message_id.decode("latin-1") for message_id in ids]
    return _record({"topic": topic, "channel": channel, "count": 0, "removed": removed}, [])


def decode_messages(data: bytes) -> tuple[list[StoredQueue], int]:
    """Decode the whole file.

    Returns:
        The messages; the size of an incomplete last record, whose writer was killed, or 0 if all are complete.

    Raises:
        FileFormatError: If the file is damaged, or has another format.
    """
    if not data.startswith(_MAGIC):
        raise FileFormatError("not a file of fakensqd's messages")
    queues: dict[tuple[str, str | None], dict[bytes, QueuedMessage]] = {}
    position = len(_MAGIC)
    while (start := position + _HEADER.size) <= len(data):
        size, checksum = _HEADER.unpack_from(data, position)
        if size < 0 or len(data) < start + size:
            break
        content = data[start : start + size]
        if zlib.crc32(content) != checksum:
            raise FileFormatError(f"the checksum of {counted(size, 'byte')} of messages is wrong")
        # The checksum is right, so _record() has written this content, and its fields need no check.
        head, *frames = _split_sized(content)
        document = json.loads(head)
        messages = queues.setdefault((document["topic"], document["channel"]), {})
        for message_id in document["removed"]:
            messages.pop(message_id.encode("latin-1"), None)
        for frame in frames:
            message = _decode_message(frame)
            messages[message.id] = message
        position = start + size
    found = [StoredQueue(topic, channel, list(messages.values())) for (topic, channel), messages in queues.items()]
    return found, len(data) - position


def _record(document: dict[str, object], messages: list[bytes]) -> bytes:
    content = b"".join([_with_size(encoding_json.encode(document)), *messages])
    return _HEADER.pack(len(content), zlib.crc32(content)) + content


def _with_size(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


def _split_sized(data: bytes) -> list[bytes]:
    parts, position = [], 0
    while position < len(data):
        start = position + SIZE.size
        position = start + SIZE.unpack_from(data, position)[0]
        parts.append(data[start:position])
    return parts


def _decode_message(data: bytes) -> QueuedMessage:
    timestamp, attempts, message_id, body = decode_message(data)
    message = QueuedMessage(message_id, body, timestamp)
    message.attempts = attempts
    return message
