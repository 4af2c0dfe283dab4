"""Programs for docker-compose.yml: ``certificates DIRECTORY`` makes them, ``auth HOST:PORT`` is an auth server.

It is run as a file, in the image of fakensqd, so it must import nothing else of this folder.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import gevent
from gevent.event import Event

from fakensqd import Certificates, FakeAuthServer, Grant

# What each secret allows.
GRANTS = {"all": [Grant()], "other": [Grant(topic="^other$")]}


def make_certificates(directory: Path) -> None:
    """Make ca, server-1 and client-2, each .pem and .key, unless they exist: servers may use them."""
    if not (directory / "client-2.key").exists():
        made = Certificates(directory)
        made.server()
        made.client()


def serve_auth(address: str) -> None:
    """Serve until SIGTERM."""
    over = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, over.set)
    with FakeAuthServer(GRANTS, http_address=address):
        over.wait()  # until a signal comes


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["certificates", directory]:
            make_certificates(Path(directory))
        case ["auth", address]:
            serve_auth(address)
        case _:
            sys.exit(__doc__)
