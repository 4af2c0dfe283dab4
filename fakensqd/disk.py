"""What FakeNsqd writes to its data path: nsqd's own ``nsqd.dat``, and a file of messages in a format of our own.

Pure: values to bytes and back. Source of nsqd.dat: nsqd.go Metadata. nsqd keeps messages in one diskqueue per topic and
channel; here all are in one file, written when the server stops:

    magic, then per queue: int32 size and JSON {"topic", "channel" (null: the topic itself), "count"}, then count times
    int32 size and the message as a message frame has it; int32 0; CRC-32 of all that is before it.
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

__all__ = [
    "ChannelRecord",
    "DiskError",
    "Queue",
    "TopicRecord",
    "decode_messages",
    "decode_metadata",
    "encode_messages",
    "encode_metadata",
]

_MAGIC = b"fakensqd messages 1\n"
_SIZE = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")


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
    parts = [_MAGIC]
    for queue in queues:
        head = {"topic": queue.topic, "channel": queue.channel, "count": len(queue.messages)}
        parts.append(_sized(gojson.encode(head)))
        parts += [
            _sized(encode_message(message.timestamp, message.attempts, message.id, message.body))
            for message in queue.messages
        ]
    parts.append(_SIZE.pack(0))
    data = b"".join(parts)
    return data + _CHECKSUM.pack(zlib.crc32(data))


def decode_messages(data: bytes) -> list[Queue]:
    """Read the file of messages.

    Raises:
        DiskError: If it is damaged, or no such file.
    """
    if not data.startswith(_MAGIC):
        raise DiskError("no file of fakensqd's messages")
    content, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if _CHECKSUM.pack(zlib.crc32(content)) != checksum:
        raise DiskError(f"the checksum of {len(data)} bytes of messages is wrong")
    # What has the right checksum was written by encode_messages().
    reader = _Reader(content, len(_MAGIC))
    queues = []
    while head := reader.sized():
        document = json.loads(head)
        messages = [_message(reader.sized()) for _ in range(document["count"])]
        queues.append(Queue(document["topic"], document["channel"], messages))
    return queues


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
