"""Measure what TLS, snappy and deflate cost our consumer in CPU time: with deflate it is nsqd that sets the pace."""

from __future__ import annotations

import hashlib
import json
import sys

from integration.bench import compare
from integration.bench.compare import Task
from integration.bench.figures import Results
from integration.bench.servers import Nsqd

COUNT, MAX_IN_FLIGHT = 100_000, 2500


def body(number: int) -> bytes:
    """Return 200 bytes that compress like events: equal names, different values."""
    user = hashlib.sha256(b"%d" % number).hexdigest()
    event = b'{"event":"page_view","id":%010d,"user":"%s","page":"/articles/%04d","agent":"Mozilla/5.0 (X11; Linux)"'
    return (event % (number, user.encode(), number % 1000)).ljust(199) + b"}"


def layers(ca: str) -> dict[str, dict[str, object]]:
    """Return the options with which a Consumer uses each layer."""
    tls = {"tls_v1": True, "tls_options": {"ca_certs": ca}}
    return {"plain": {}, "tls": tls, "snappy": {"snappy": True}, "deflate": {"deflate": True}}


def measure(results: Results, nsqd: Nsqd, ca: str, count: int = COUNT) -> None:
    """Measure all layers in turns."""
    task = Task("consume", MAX_IN_FLIGHT, count, f"{MAX_IN_FLIGHT:,} in flight, {count:,} messages")
    print(f"layers, {task.name}", flush=True)
    command = [sys.executable, str(compare.CLIENTS), "gnsq"]
    for _ in range(compare.ROUNDS):
        for layer, options in layers(ca).items():
            said = compare.once(nsqd, task, command, count, "", body, BENCH_OPTIONS=json.dumps(options))
            if said:
                compare.note(results, "layers", task, layer, said)
