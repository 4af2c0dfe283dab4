"""The data path of a FakeNsqd: ``nsqd.dat`` in nsqd's format, with the messages in it, and the lock of the directory.

Topics and channels are written after each change, messages only when the nsqd stops: a test server need not keep them
when it is killed. nsqd has one diskqueue per topic and channel; it ignores the messages in this file. Source: nsqd
nsqd.go LoadMetadata, PersistMetadata; dirlock.go.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from fakensqd.nsqd.broker import Broker, QueuedMessage
from fakensqd.options import NSQ_VERSION
from fakensqd.transcript import decode_bytes, encode_bytes
from gnsq.protocol.names import valid_channel_name, valid_topic_name

__all__ = ["DataPath", "DataPathError", "encode", "restore"]

logger = logging.getLogger(__name__)

_FILE = "nsqd.dat"


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
        """At the first start, fill a broker from the file. At later starts the broker already has everything.

        Raises:
            DataPathError: If the file exists and can't be read or decoded.
        """
        if self._is_loaded:
            return
        try:
            with open(self._file, "rb") as file:
                restore(broker, file.read(), now)
        except FileNotFoundError:
            pass
        except OSError as error:
            text = f"failed to load metadata - failed to read metadata from {self._file} - {error}"
            raise DataPathError(text) from error
        except ValueError as error:
            text = f"failed to load metadata - failed to parse metadata in {self._file} - {error}"
            raise DataPathError(text) from error
        self._is_loaded = True

    def save_topics(self, broker: Broker) -> None:
        """Write topics and channels, except ephemeral ones. Does nothing before lock() and load().

        Messages of an earlier stop are in the file no more: if this nsqd is killed, the next one must not deliver them.
        """
        if self._lock is not None and self._is_loaded:
            self._write(encode(broker))

    def close(self, broker: Broker) -> None:
        """Write everything, and unlock the directory."""
        self._write(encode(broker, with_messages=True))
        self.unlock()

    @property
    def _file(self) -> str:
        return os.path.join(self._path, _FILE)

    def _write(self, data: bytes) -> None:
        """Replace the file's content atomically. Log errors of the file system."""
        temporary = f"{self._file}.{os.getpid()}.tmp"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, self._file)
        except OSError as error:
            logger.error("failed to persist %s - %s", self._file, error)


# --- the file ---------------------------------------------------------------------------------------------------------


def encode(broker: Broker, *, with_messages: bool = False) -> bytes:
    """Encode nsqd.dat, without ephemeral topics and channels. An empty list becomes null, as in Go.

    Messages are encoded with their attempts, but without their delays, which nsqd loses, too. Source: nsqd.go Metadata.
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
        for topic in broker.topics.values()
        if not topic.ephemeral
    ]
    document: dict[str, object] = {"topics": documents or None, "version": NSQ_VERSION}
    if with_messages and (messages := list(_messages(broker))):
        document["messages"] = messages
    # json.dumps() is enough, since names need none of Go's escapes; and it is fast: each new channel writes the file.
    return json.dumps(document, separators=(",", ":")).encode()


def _messages(broker: Broker) -> Iterator[dict[str, object]]:
    for topic in broker.topics.values():
        channels = [channel for channel in topic.channels.values() if not channel.ephemeral]
        for holder in () if topic.ephemeral else (topic, *channels):
            for message in holder.stored():
                yield {
                    "topic": topic.name,
                    "channel": None if holder is topic else holder.name,
                    "id": message.id.decode(),
                    "timestamp": message.timestamp,
                    "attempts": message.attempts,
                    "body": encode_bytes(message.body),
                }


def restore(broker: Broker, data: bytes, now: float) -> None:
    """Fill a broker from nsqd.dat. Skips topics and channels with names that nsqd refuses.

    Raises:
        ValueError: If the data is not JSON, the topics or a name is missing, or a field has a wrong type.
    """
    try:
        document = json.loads(data)
        for row in document["topics"] or []:
            if valid_topic_name(row["name"]):
                topic = broker.ensure_topic(row["name"])
                topic.set_paused(bool(row.get("paused")), now)
                for channel in row.get("channels") or []:
                    if valid_channel_name(str(channel["name"])):
                        topic.ensure_channel(channel["name"], now).set_paused(bool(channel.get("paused")))
        for (topic_name, name), rows in itertools.groupby(document.get("messages", ()), itemgetter("topic", "channel")):
            topic, messages = broker.ensure_topic(topic_name), list(map(_message, rows))
            if name is None:
                topic.restore(messages, now)
            else:
                topic.ensure_channel(name, now).restore(messages)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the metadata of an nsqd: {error!r}") from error


def _message(row: dict[str, Any]) -> QueuedMessage:  # Any: JSON
    message = QueuedMessage(str(row["id"]).encode(), decode_bytes(row["body"]), row["timestamp"])
    message.attempts = row["attempts"]
    return message
