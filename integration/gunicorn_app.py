"""A web application with a consumer and a producer in each gunicorn worker.

Run ``gunicorn -k gevent -c integration/gunicorn_conf.py integration.gunicorn_app:app``, with or without ``--preload``.
A consumer may be made before the fork and started after it. A producer that was made before the fork connects in each
worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import BinaryIO, cast

import gevent

import gnsq
from gnsq import Message
from gnsq.errors import NSQException


class App:
    """Answers GET / with 200 while its consumer is healthy, else 503. Answers POST /ID with 200 and the id after nsqd
    has confirmed the body, else with 503 and the error.
    """

    def __init__(self) -> None:
        address = os.environ["NSQD_TCP_ADDRESS"]
        self.producer = gnsq.Producer(address)
        self.consumer = gnsq.Consumer(
            os.environ["TOPIC"], "web", address, message_handler=self.handle, max_in_flight=20
        )

    def start(self) -> None:
        """Start the consumer; called in each worker. The first publish starts the producer."""
        self.consumer.start(block=False)

    def close(self) -> None:
        """Handle all delivered messages, wait for pending publishes, and end."""
        self.consumer.close(timeout=20)
        self.producer.close(timeout=20)

    def handle(self, consumer: gnsq.Consumer, message: Message) -> None:
        """Wait, and print the body."""
        gevent.sleep(0.05)
        _say(f"handled {message.body.decode()}")

    def __call__(
        self, environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        status, answer = self._publish(environ) if environ["REQUEST_METHOD"] == "POST" else self._health()
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(answer.encode())))])
        return [answer.encode()]

    def _health(self) -> tuple[str, str]:
        healthy = self.consumer.is_healthy
        return "200 OK" if healthy else "503 Service Unavailable", str(self.consumer.stats().counts.finished)

    def _publish(self, environ: dict[str, object]) -> tuple[str, str]:
        name = str(environ["PATH_INFO"]).strip("/")
        _say(f"begun {name} {os.getpid()}")
        body = cast(BinaryIO, environ["wsgi.input"]).read()  # as WSGI defines it
        try:
            self.producer.publish(os.environ["BODIES_TOPIC"], body)
        except NSQException as error:
            return "503 Service Unavailable", str(error)
        return "200 OK", name


def _say(line: str) -> None:
    # In one write, since other workers print, too.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


app = App()
