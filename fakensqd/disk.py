"""What FakeNsqd writes to its data path: nsqd's own ``nsqd.dat``, and a file of messages in a format of our own.

Pure: values to bytes and back. Source of nsqd.dat: nsqd.go Metadata. nsqd keeps messages in one diskqueue per topic and
channel; here all are in one file, which is appended to:

    magic, then records: int32 size and CRC-32 of what follows; int32 size and JSON {"topic", "channel" (null: the topic
    itself), "count", "removed" (ids)}; then count times int32 size and the message as a message frame has it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fakensqd import gojson
from fakensqd.channel import Message
from fakensqd.options import NSQ_VERSION
from gnsq.protocol.frames import decode_message, encode_message
from gnsq.protocol.names import valid_channel_name, valid_topic_name
from gnsq.texts import counted

__all__ = [
    "ChannelRecord",
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
    messages: Sequence[Message]


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
    queues: dict[tuple[str, str | None], dict[bytes, Message]] = {}
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
    content = b"".join([_sized(gojson.encode(document)), *messages])
    return _HEADER.pack(len(content), zlib.crc32(content)) + content


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _message(data: bytes) -> Message:
    timestamp, attempts, message_id, body = decode_message(data)
    message = Message(message_id, body, timestamp)
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
