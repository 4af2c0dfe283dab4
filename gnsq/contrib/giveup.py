"""Give-up handlers, for ``on_giving_up``: they store messages that were delivered more often than ``max_tries``.

Each handler returns after the message is stored; then the Consumer finishes the message. If a message can't be stored,
the handler raises, and the Consumer requeues the message. So a message may be stored twice, but is not lost.

The handlers that publish may write envelopes, which gnsq.contrib.dead_letter describes and reads.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent

from gnsq.addresses import parse_address
from gnsq.contrib.dead_letter import DeadLetter, encode_dead_letter
from gnsq.errors import NSQBadMessage, NSQException, NSQHttpError
from gnsq.localfiles import PRIVATE, check_mode, make_directory, write_file
from gnsq.nsqd import NsqdHTTPClient
from gnsq.texts import id_text

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.message import Message
    from gnsq.producer import Producer

__all__ = [
    "DirectoryGiveupHandler",
    "JSONLogGiveupHandler",
    "LogGiveupHandler",
    "NsqdGiveupHandler",
    "ProducerGiveupHandler",
]

logger = logging.getLogger(__name__)


class LogGiveupHandler:
    """Write the body of each message to a log, as text. Bytes that are not UTF-8 are written as ``\\xNN``.

    A body with newlines takes several lines. JSONLogGiveupHandler writes one line, from which the body can be restored.

    Args:
        log: Function that is called with the text; default: sys.stdout.write. If the function is a method of an object
            with a flush(), such as a file, flush() is called, too.
        newline: Written after each message. If it is bytes, log is called with bytes: the unchanged body and newline.
    """

    def __init__(self, log: Callable[[Any], object] | None = None, newline: str | bytes = "\n") -> None:
        # Any: log takes str, or bytes if newline is bytes
        self.log = log
        self.newline = newline

    def format_message(self, message: Message) -> str | bytes:
        """Return the text of a message, or its body if newline is bytes; may be overridden."""
        return message.body if isinstance(self.newline, bytes) else message.body.decode("utf-8", "backslashreplace")

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Write a message."""
        # Look up sys.stdout at each call, since a program may replace it.
        log: Callable[[Any], object] = sys.stdout.write if self.log is None else self.log
        text = self.format_message(message)
        if isinstance(self.newline, bytes):
            log((text.encode() if isinstance(text, str) else text) + self.newline)
        else:
            log((text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text) + self.newline)
        flush = getattr(getattr(log, "__self__", None), "flush", None)
        if flush is not None:
            flush()


class JSONLogGiveupHandler(LogGiveupHandler):
    """Write each message to a log as a line of JSON: ``timestamp`` (nanoseconds), ``attempts``, ``id``, ``body``.

    A body that is not UTF-8 is written in base64, and the line also has ``"encoding": "base64"``.
    """

    def format_message(self, message: Message) -> str | bytes:
        """Return the JSON of a message, without newline; may be overridden."""
        return json.dumps(_record(message))


class DirectoryGiveupHandler:
    """Write each message to a file of its own: the JSON of JSONLogGiveupHandler, plus topic, channel and nsqd.

    A file gets its name, ``TOPIC.CHANNEL.TIMESTAMP.ID.json``, when it is complete. It is on the disk when the handler
    returns. If a message is given up again, its file is replaced.

    Args:
        directory: Directory of the files. It is created if it does not exist.
        mode: Permissions of the directory if it is created; the files get them without x. The umask has no effect. By
            default only the owner can read the files; with 0o750 the group can read them, too.

    Raises:
        OSError: If the directory can't be created.
        ValueError: If the directory is empty, or the mode does not let the owner read and write, or has bits other than
            rwx and setgid.
    """

    def __init__(self, directory: str | os.PathLike[str], *, mode: int = PRIVATE) -> None:
        if not os.fspath(directory):
            raise ValueError("directory is empty; '.' is the current one")
        self.directory = Path(directory)
        self.mode = check_mode(mode)
        make_directory(self.directory, self.mode)

    def format_message(self, consumer: Consumer, message: Message) -> bytes:
        """Return the content of the file; may be overridden."""
        source = {"topic": consumer.topic, "channel": consumer.channel, "nsqd": message.nsqd}
        return json.dumps({**source, **_record(message)}).encode() + b"\n"

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Write the file of a message, in another thread, since disks may be slow.

        Raises:
            OSError: If the file can't be written.
        """
        name = f"{consumer.topic}.{consumer.channel}.{message.timestamp}.{_file_name(message.id)}.json"
        data = self.format_message(consumer, message)
        with message.touching():
            gevent.get_hub().threadpool.apply(self._write, (name, data))

    def _write(self, name: str, data: bytes) -> None:
        # Two handlers may write the file of the same message at the same time, so their temporary files differ.
        write_file(self.directory / name, self.directory / f".{uuid.uuid4().hex}.tmp", data, self.mode)


class NsqdGiveupHandler:
    """Publish the body of each message to a topic, over HTTP.

    Each message goes to the next of the hosts. If this host fails, the others are tried. A host that did not answer may
    have stored the message, so the message may be stored twice.

    Args:
        topic: Topic of given up messages.
        nsqd_hosts: ``host``, ``host:port`` (the HTTP port) or a URL, or a sequence of them.
        nsqd_class: A class whose objects have ``publish(topic, data)``. If the class has ``from_url()``, that is called
            with each host; otherwise the class is called with the host and, if given, the port.
        envelope: Publish dead letters, as ProducerGiveupHandler does.

    Raises:
        ValueError: If no host is given, or a host is not valid.
    """

    def __init__(
        self,
        topic: str,
        nsqd_hosts: str | Sequence[str] = ("localhost",),
        nsqd_class: Callable[..., Any] = NsqdHTTPClient,  # Any: any class with publish()
        *,
        envelope: bool = False,
    ) -> None:
        hosts = [nsqd_hosts] if isinstance(nsqd_hosts, str) else list(nsqd_hosts)
        if not hosts:
            raise ValueError("nsqd_hosts is empty; give at least one nsqd")
        self.topic = topic
        self.envelope = envelope
        self.nsqds = [(host, _client(nsqd_class, host)) for host in hosts]
        self._turn = 0

    def format_message(self, message: Message) -> bytes | str:
        """Return the body to publish; may be overridden."""
        return message.body

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Publish a message to the next nsqd, or to the first one after it that accepts the message.

        Raises:
            NSQException: If no nsqd accepts it. The text has the error of each nsqd.
        """
        body = self.format_message(message)
        first = self._turn % len(self.nsqds)
        self._turn += 1
        failures: list[str] = []
        with message.touching():
            for host, nsqd in self.nsqds[first:] + self.nsqds[:first]:
                try:
                    publish = functools.partial(nsqd.publish, self.topic)
                    _publish(publish, consumer, message, body, envelope=self.envelope)
                except (NSQException, OSError) as error:
                    failures.append(f"{host}: {error}")
                else:
                    return
        raise NSQException(f"no nsqd has taken a given-up message for topic {self.topic}: {'; '.join(failures)}")


class ProducerGiveupHandler:
    """Publish the body of each message to a topic, with a Producer. A call returns when an nsqd has confirmed the body.

    Args:
        topic: Topic of given up messages.
        producer: The program starts it, and closes it after the consumer. Its option publish_timeout limits each call.
        envelope: Publish dead letters: JSON with the body, why it was given up, its attempts and its origin.
            ``gnsq requeue-dead`` publishes their bodies to their topics again, and
            ``gnsq.contrib.dead_letter.decode_dead_letter()`` reads them. A body whose envelope is larger than nsqd's
            max-msg-size is published without it; then the rest of the envelope is logged as a warning. The body in the
            envelope is the result of format_message().
    """

    def __init__(self, topic: str, producer: Producer, *, envelope: bool = False) -> None:
        self.topic = topic
        self.producer = producer
        self.envelope = envelope

    def format_message(self, message: Message) -> bytes:
        """Return the body to publish; may be overridden."""
        return message.body

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Publish a message.

        Raises:
            NSQException, ValueError, TypeError: As Producer.publish(), if no nsqd has confirmed it, or it is not valid.
        """
        publish = functools.partial(self.producer.publish, self.topic)
        with message.touching():
            _publish(publish, consumer, message, self.format_message(message), envelope=self.envelope)


def _publish(
    publish: Callable[[Any], object], consumer: Consumer, message: Message, body: bytes | str, *, envelope: bool
) -> None:
    """Call a function with the body of a given up message; or with its dead letter, unless that is too large."""
    if not envelope:
        publish(body)
        return
    failure = consumer.last_failure(message)
    letter = DeadLetter(
        topic=consumer.topic,
        channel=consumer.channel,
        nsqd=message.nsqd,
        id=id_text(message.id),
        timestamp=message.timestamp,
        attempts=message.attempts,
        given_up_at=time.time(),
        error=failure.type,
        reason=failure.text,
        body=body.encode() if isinstance(body, str) else body,
    )
    data = encode_dead_letter(letter)
    try:
        publish(data)
    except (NSQException, ValueError) as error:
        if not _is_too_large(error):
            raise
        publish(body)
        logger.warning(
            "message %s of %s: given up and published without its envelope, whose %d bytes are too many (%s); "
            "it came from %s/%s, published at %d ns, delivered %d times; last error: %s %s",
            *(letter.id, letter.nsqd, len(data), error, letter.topic, letter.channel, letter.timestamp),
            *(letter.attempts, letter.error, letter.reason),
            extra={
                "topic": letter.topic,
                "channel": letter.channel,
                "nsqd": letter.nsqd,
                "message_id": letter.id,
                "attempt": letter.attempts,
            },
        )


def _is_too_large(error: Exception) -> bool:
    """Return True if a publish was refused for the size of its body, by nsqd or by the producer's max_msg_size."""
    if isinstance(error, NSQHttpError):
        # Source: nsqd http.go, doPUB.
        return error.status == 413 or error.code == "MSG_TOO_BIG"
    # The body is not empty, and the topic is the same: only the size of the body can be wrong.
    return isinstance(error, (NSQBadMessage, ValueError))


def _record(message: Message) -> dict[str, object]:
    """Return an object for JSON, from which a message's timestamp, attempts, id and body can be restored."""
    record: dict[str, object] = {
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        "id": id_text(message.id),
    }
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body"] = base64.b64encode(message.body).decode()
        record["encoding"] = "base64"
    return record


def _file_name(message_id: bytes) -> str:
    # nsqd's ids are hexadecimal digits. Any other id could contain a path that leads out of the directory.
    return message_id.decode() if message_id.isalnum() else message_id.hex()


def _client(nsqd_class: Callable[..., Any], host: str) -> Any:  # Any: any object with publish()
    from_url = getattr(nsqd_class, "from_url", None)
    if from_url is not None:
        return from_url(host)
    # Port 0 means that no port is given. Then nsqd_class uses its own default.
    name, port = parse_address(host, default_port=0)
    return nsqd_class(name, port) if port else nsqd_class(name)
