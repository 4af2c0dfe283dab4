"""Measure the CPU time of TLS, snappy and deflate in the client, and the share of their codecs.

A run consumes messages through one layer and measures this process's own CPU time for each, since with deflate it is
nsqd that sets the pace; and in the same run the part of it that is spent inside the codec (zlib, python-snappy, the
TLS library). Run by bench.py, one process for each layer: LAYER TCP_ADDRESS TOPIC COUNT CA_FILE; prints both times in
microseconds.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from typing import Any

from gevent.event import Event

import gnsq.nsqd.connect
import gnsq.tls
from gnsq import Consumer
from gnsq.tls import TlsTransport
from gnsq.transport import CompressedTransport

LAYERS = ("plain", "tls", "snappy", "deflate")
MAX_IN_FLIGHT = 2500


def body(number: int) -> bytes:
    """Return 200 bytes that compress like events: equal names, different values."""
    user = hashlib.sha256(b"%d" % number).hexdigest()
    event = b'{"event":"page_view","id":%010d,"user":"%s","page":"/articles/%04d","agent":"Mozilla/5.0 (X11; Linux)"'
    return (event % (number, user.encode(), number % 1000)).ljust(199) + b"}"


class Timed:
    """Wraps a codec, and sums the CPU time of some of its methods."""

    spent = 0.0

    def __init__(self, codec: object, *names: str) -> None:
        self._codec = codec
        for name in names:
            setattr(self, name, self._timed(getattr(codec, name)))

    def __getattr__(self, name: str) -> Any:  # Any: the codec's
        return getattr(self._codec, name)

    @staticmethod
    def _timed(method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            before = time.process_time()
            try:
                return method(*arguments)
            finally:
                Timed.spent += time.process_time() - before

        return call


class TimedTls(TlsTransport):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.object: Any = Timed(self.object, "read", "write")
        # The buffers of the TLS library.
        self._incoming: Any = Timed(self._incoming, "write")
        self._outgoing: Any = Timed(self._outgoing, "read")


class TimedCompression(CompressedTransport):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._codec: Any = Timed(self._codec, "compress", "decompress")


def options(layer: str, ca: str) -> dict[str, object]:
    """Return the options with which a Consumer uses a layer."""
    if layer == "tls":
        return {"tls_v1": True, "tls_options": {"ca_certs": ca}}
    return {} if layer == "plain" else {layer: True}


def consume(layer: str, tcp: str, topic: str, count: int, ca: str) -> float:
    """Consume messages; returns microseconds of CPU time per message."""
    left, done = count, Event()

    def handle(consumer: Consumer, message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    consumer = Consumer(topic, "bench", tcp, message_handler=handle, max_in_flight=MAX_IN_FLIGHT, **options(layer, ca))
    consumer.start(block=False)
    # After connecting, so the handshake is not counted.
    Timed.spent, before = 0.0, time.process_time()
    done.wait()
    spent = time.process_time() - before
    consumer.close()
    consumer.join()
    return spent / count * 1e6


def main() -> None:
    # Where a connection looks for them: it imports TlsTransport when it needs one.
    gnsq.tls.TlsTransport, gnsq.nsqd.connect.CompressedTransport = TimedTls, TimedCompression
    layer, tcp, topic, count, ca = sys.argv[1:]
    print(consume(layer, tcp, topic, int(count), ca), Timed.spent / int(count) * 1e6)


if __name__ == "__main__":
    main()
