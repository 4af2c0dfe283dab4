"""Give-up handlers, for ``on_giving_up``: they store messages that a Consumer gives up elsewhere than in a topic.

Each handler returns after the message is stored; then the Consumer finishes the message. If a message can't be stored,
the handler raises, and the Consumer requeues the message. So a message may be stored twice, but is not lost.

For a topic there is the Consumer's option ``dead_letter_topic``. It also says why a message was given up.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gnsq.addresses import parse_address
from gnsq.errors import NSQException
from gnsq.nsqd import NsqdHTTPClient
from gnsq.texts import id_text

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.message import Message

__all__ = [
    "JSONLogGiveupHandler",
    "LogGiveupHandler",
    "NsqdGiveupHandler",
]


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
        record: dict[str, object] = {
            "timestamp": message.timestamp,
            "attempts": message.attempts,
            "id": id_text(message.id),
        }
        try:
            record["body"] = message.body.decode()
        except UnicodeDecodeError:
            record |= {"body": base64.b64encode(message.body).decode(), "encoding": "base64"}
        return json.dumps(record)


class NsqdGiveupHandler:
    """Publish the body of each message to a topic, over HTTP, unless the topic is the consumer's ``dead_letter_topic``.

    Each message goes to the next of the hosts. If this host fails, the others are tried. A host that did not answer may
    have stored the message, so the message may be stored twice.

    Args:
        topic: Topic of given up messages.
        nsqd_hosts: ``host``, ``host:port`` (the HTTP port) or a URL, or a sequence of them.
        nsqd_class: A class whose objects have ``publish(topic, data)``. If the class has ``from_url()``, that is called
            with each host; otherwise the class is called with the host and, if given, the port.

    Raises:
        ValueError: If no host is given, or a host is not valid.
    """

    def __init__(
        self,
        topic: str,
        nsqd_hosts: str | Sequence[str] = ("localhost",),
        nsqd_class: Callable[..., Any] = NsqdHTTPClient,  # Any: any class with publish()
    ) -> None:
        hosts = [nsqd_hosts] if isinstance(nsqd_hosts, str) else list(nsqd_hosts)
        if not hosts:
            raise ValueError("nsqd_hosts is empty; give at least one nsqd")
        self.topic = topic
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
        if consumer.options.dead_letter_topic == self.topic:
            return  # the consumer has published it
        body = self.format_message(message)
        first = self._turn % len(self.nsqds)
        self._turn += 1
        failures: list[str] = []
        with message.touching():
            for host, nsqd in self.nsqds[first:] + self.nsqds[:first]:
                try:
                    nsqd.publish(self.topic, body)
                except (NSQException, OSError) as error:
                    failures.append(f"{host}: {error}")
                else:
                    return
        raise NSQException(f"no nsqd has taken a given-up message for topic {self.topic}: {'; '.join(failures)}")


def _client(nsqd_class: Callable[..., Any], host: str) -> Any:  # Any: any object with publish()
    from_url = getattr(nsqd_class, "from_url", None)
    if from_url is not None:
        return from_url(host)
    # Port 0 means that no port is given. Then nsqd_class uses its own default.
    name, port = parse_address(host, default_port=0)
    return nsqd_class(name, port) if port else nsqd_class(name)
