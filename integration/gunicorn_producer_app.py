"""A web application that publishes the bodies of its requests, with a producer in each gunicorn worker.

Run ``gunicorn -k gevent -c integration/gunicorn_conf.py integration.gunicorn_producer_app:app``, with or without
``--preload``. A producer that was made before the fork connects in each worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import BinaryIO, cast

from gnsq import Producer
from gnsq.errors import NSQException


class App:
    """Responds to POST /ID with 200 and the id after nsqd has confirmed the body, else with 503 and the error."""

    def __init__(self) -> None:
        self.producer = Producer(
            os.environ["NSQD_TCP_ADDRESS"], publish_timeout=float(os.environ.get("PUBLISH_TIMEOUT", "10"))
        )

    def start(self) -> None:
        """Do nothing: the first publish connects."""

    def close(self) -> None:
        """Wait for pending publishes, and end."""
        self.producer.close(timeout=20)

    def __call__(
        self, environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        name = str(environ["PATH_INFO"]).strip("/")
        sys.stdout.write(f"begun {name} {os.getpid()}\n")
        sys.stdout.flush()
        body = cast(BinaryIO, environ["wsgi.input"]).read()  # as WSGI defines it
        try:
            self.producer.publish(os.environ["TOPIC"], body)
            status, answer = "200 OK", name
        except ValueError as error:
            status, answer = "400 Bad Request", str(error)
        except NSQException as error:
            status, answer = "503 Service Unavailable", str(error)
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(answer.encode())))])
        return [answer.encode()]


app = App()
