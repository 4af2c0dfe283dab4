"""Measure the CPU time of TLS, snappy and deflate in the client, and the share of their codecs.

A run consumes messages through one layer and measures this process's own CPU time for each, since with deflate it is
nsqd that sets the pace; and in the same run the part of it that is spent inside the codec (zlib, python-snappy, the
TLS library). One process for each layer: LAYER TCP_ADDRESS TOPIC COUNT CA_FILE; prints messages a second and both times
in microseconds.
"""

from __future__ import annotations

import hashlib
import subprocess
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
from integration.bench.compare import LIMIT, ROUNDS
from integration.bench.figures import CPU, RATE, Figure, Results
from integration.bench.servers import Nsqd

COUNT = 100_000
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


def measure(results: Results, nsqd: Nsqd, ca: str) -> None:
    """Measure all layers in turns."""
    setting = f"{MAX_IN_FLIGHT:,} in flight, {COUNT:,} messages"
    print(f"layers, {setting}", flush=True)
    for _ in range(ROUNDS):
        for layer in LAYERS:
            with nsqd.topic() as topic:
                nsqd.fill(topic, COUNT + COUNT * 15 // 100, body)
                command = [sys.executable, "-m", "integration.bench.layers", layer, nsqd.tcp, topic, str(COUNT), ca]
                done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
            rate, whole, alone = map(float, done.stdout.split())
            results.add(Figure("layers", setting, layer, RATE, "messages/s"), rate)
            results.add(Figure("layers", setting, layer, CPU, "us a message"), whole)
            if layer != "plain":
                results.add(Figure("layers", setting, layer, "in the codec", "us a message"), alone)


def consume(layer: str, tcp: str, topic: str, count: int, ca: str) -> tuple[float, float]:
    """Consume messages; returns messages per second and microseconds of CPU time per message."""
    left, done = count, Event()

    def handle(consumer: Consumer, message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    consumer = Consumer(topic, "bench", tcp, message_handler=handle, max_in_flight=MAX_IN_FLIGHT, **options(layer, ca))
    consumer.start(block=False)
    # After connecting, so the handshake is not counted.
    Timed.spent, before, started = 0.0, time.process_time(), time.perf_counter()
    done.wait()
    spent, seconds = time.process_time() - before, time.perf_counter() - started
    consumer.close()
    return count / seconds, spent / count * 1e6


def main() -> None:
    # Where a connection looks for them: it imports TlsTransport when it needs one.
    gnsq.tls.TlsTransport, gnsq.nsqd.connect.CompressedTransport = TimedTls, TimedCompression
    layer, tcp, topic, count, ca = sys.argv[1:]
    print(*consume(layer, tcp, topic, int(count), ca), Timed.spent / int(count) * 1e6)


if __name__ == "__main__":
    main()
