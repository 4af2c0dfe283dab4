"""The data path of a FakeNsqd: locked while it runs, what exists is written at once, messages when it stops, or when
there is no room for them in memory.

Owns the lock and the files. What is in them is disk.py's, what is loaded goes into a Broker. Files are written without
fsync: they are to outlive the process, not the machine. Source: nsqd nsqd.go LoadMetadata, PersistMetadata; dirlock.go.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Sequence

from fakensqd.broker import Broker, Channel, Message, Topic
from fakensqd.disk import (
    ChannelRecord,
    DiskError,
    Queue,
    TopicRecord,
    decode_messages,
    decode_metadata,
    encode_messages,
    encode_metadata,
    encode_removed,
    encode_stored,
)
from gnsq.protocol.names import is_ephemeral
from gnsq.texts import counted

__all__ = ["DataPath", "DataPathError"]

logger = logging.getLogger(__name__)

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

    def _write_messages(self, listed: Callable[[Topic | Channel], list[Message]]) -> None:
        """Write the file of messages anew, what is ephemeral excepted; there is none if there are no messages."""
        queues = [] if self._broker is None else _queues(self._broker, listed)
        self._live = self._told = sum(len(queue.messages) for queue in queues)
        if queues:
            self._try_write(_MESSAGES, encode_messages(queues))
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._file(_MESSAGES))

    def _stored(self, topic: str, channel: str | None, messages: Sequence[Message]) -> None:
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


def _all(queue: Topic | Channel) -> list[Message]:
    return queue.stored()


def _on_disk(queue: Topic | Channel) -> list[Message]:
    return queue.on_disk()


def _queues(broker: Broker, listed: Callable[[Topic | Channel], list[Message]]) -> list[Queue]:
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
