"""``make bench``: measure gnsq and fakensqd beside the NSQ clients that are installed.

Each client runs in a process of its own against the same nsqd, all in turns. The nsqd is a real one if there is one
(NSQD, or on PATH), else fakensqd, which is slower than its clients: then the figures say little. Peers are looked for
in this interpreter and in those that BENCH_PYTHONS names (colon-separated): gnsq 1.0.2 needs one of its own. Clients in
other languages are programs that BENCH_PROGRAMS names (NAME=PATH, colon-separated). They are called with WORKLOAD
HOST:PORT TOPIC COUNT SETTING, and print what clients.py prints: a line of JSON with "rate", "cpu" and "latency"; exit
status 3 says that they do not know the workload. BENCH_ROUNDS (5) is how often each client is measured.

Parts, all with bodies of 200 bytes where no other size is said; ``make bench ONLY=consume,latency`` measures these:

- consume: messages that wait in a channel, handled by a function that counts; the setting is max_in_flight.
- waiting: the handler yields once, or makes a round trip to an echo server on connections that it keeps; "greenlets"
  makes the same calls without NSQ.
- publish: each message waits for its OK; the setting is how many wait at once. Ours is measured with batches, too:
  "batches" with as many greenlets, "async" with as many results of publish_async().
- latency: percentiles; the handler's clock is the publisher's.
- layers: what TLS, snappy and deflate cost our consumer.
- curves: connections, publishing greenlets, sizes of bodies and consumer processes; see curves.py.
- fakensqd: messages through the emulator in one process; see emulator.py.
- spark: the data source, the batch writer and the receiver; see spark.py.
- pipeline: gnsq-pipeline beside plain Spark; see pipeline.py.

At the end the folder bench/ has results.md, with tables, machine, versions and commit, and plots.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fakensqd.certificates import Certificates
from integration.bench import compare, curves, emulator, layers, pipeline, report, spark
from integration.bench.figures import Results
from integration.bench.servers import Nsqd, nsqd

OUTPUT = Path("bench")

# Each part: what measures it. The file is the CA of the server's certificate.
PARTS: dict[str, Callable[[Results, Nsqd, str], None]] = {
    "consume": lambda results, server, ca: compare.compare(results, server, "consume", compare.CONSUME),
    "waiting": lambda results, server, ca: compare.compare(results, server, "waiting", compare.WAITING),
    "publish": lambda results, server, ca: compare.compare(results, server, "publish", compare.PUBLISH),
    "latency": lambda results, server, ca: compare.compare(results, server, "latency", compare.LATENCY),
    "layers": layers.measure,
    "curves": lambda results, server, ca: curves.measure(results, server),
    "fakensqd": lambda results, server, ca: emulator.measure(results),
    "spark": lambda results, server, ca: spark.measure(results, server),
    "pipeline": lambda results, server, ca: pipeline.measure(results, server),
}


def main() -> int:
    wanted = " ".join(sys.argv[1:]).replace(",", " ").split() or list(PARTS)
    for name in wanted:
        if name not in PARTS:
            print(f"ONLY={name}: there is no such part; the parts are {', '.join(PARTS)}", file=sys.stderr)
            return 2
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates(folder)
        with nsqd(certificates.server()) as server:
            for name in wanted:
                PARTS[name](results, server, str(certificates.ca))
            machine = report.machine(server.name)
    print(report.write(results, machine, OUTPUT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
