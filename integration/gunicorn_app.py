"""A web application with a consumer in each gunicorn worker.

Run ``gunicorn -k gevent -c integration/gunicorn_conf.py integration.gunicorn_app:app``, with or without ``--preload``.
A consumer may be made before the fork and started after it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

import gevent

import gnsq
from gnsq import Message


class App:
    """Answers GET / with 200 while its consumer is healthy, else 503."""

    def __init__(self) -> None:
        self.consumer = gnsq.Consumer(
            os.environ["TOPIC"],
            "web",
            os.environ["NSQD_TCP_ADDRESS"],
            message_handler=self.handle,
            max_in_flight=20,
        )

    def start(self) -> None:
        """Start the consumer; called in each worker."""
        self.consumer.start(block=False)

    def close(self) -> None:
        """Handle all delivered messages, and end."""
        self.consumer.close(timeout=20)

    def handle(self, consumer: gnsq.Consumer, message: Message) -> None:
        """Wait, and print the body."""
        gevent.sleep(0.05)
        sys.stdout.write(f"handled {message.body.decode()}\n")
        sys.stdout.flush()

    def __call__(
        self, environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        healthy = self.consumer.is_healthy
        start_response("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [f"{os.getpid()} {self.consumer.stats().counts.finished}\n".encode()]


app = App()
