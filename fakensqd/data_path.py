"""The data path of a FakeNsqd: locked while it runs, what exists is written at once, messages when it stops.

Owns the lock and the files. What is in them is disk.py's, what is loaded goes into a Broker. Files are written without
fsync: they are to outlive the process, not the machine. Source: nsqd nsqd.go LoadMetadata, PersistMetadata; dirlock.go.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os

from fakensqd.broker import Broker
from fakensqd.disk import (
    ChannelRecord,
    DiskError,
    Queue,
    TopicRecord,
    decode_messages,
    decode_metadata,
    encode_messages,
    encode_metadata,
)

__all__ = ["DataPath", "DataPathError"]

logger = logging.getLogger(__name__)

_METADATA = "nsqd.dat"
_MESSAGES = "fakensqd.messages"


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
        # From here on they are in memory; killed now, nsqd would have some of them twice.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(_MESSAGES))

    def save_topics(self, broker: Broker) -> None:
        """Write which topics and channels there are, ephemeral ones excepted.

        Does nothing while the directory is not ours, or not loaded yet.
        """
        if self._lock is not None and self._loaded:
            self._try_write(_METADATA, encode_metadata(_records(broker)))

    def close(self, broker: Broker) -> None:
        """Write everything, and let others have the directory."""
        self.save_topics(broker)
        self._save_messages(broker)
        self.unlock()

    def _save_messages(self, broker: Broker) -> None:
        """Write what is queued, in flight and deferred, ephemeral topics and channels excepted."""
        queues = []
        for topic in broker.topics.values():
            if topic.ephemeral:
                continue
            queues.append(Queue(topic.name, None, topic.stored()))
            queues += [
                Queue(topic.name, channel.name, channel.stored())
                for channel in topic.channels.values()
                if not channel.ephemeral
            ]
        if queues := [queue for queue in queues if queue.messages]:
            self._try_write(_MESSAGES, encode_messages(queues))

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
                queues = decode_messages(file.read())
        except FileNotFoundError:
            return
        except DiskError as error:
            os.replace(name, f"{name}.damaged")
            logger.error("messages in %s.damaged are not read: %s", name, error)
            return
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
