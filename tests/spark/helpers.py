"""Wait in plain threads, make messages without an nsqd, publish, and read spools and statistics."""

import contextlib
import math
import os
import subprocess
import time
from pathlib import Path

import pyarrow as pa

from gnsq import Message, NsqdHTTPClient, Producer
from gnsq.errors import NSQConnectionClosed
from gnsq.spark.pipeline.settings import SESSION
from gnsq.spark.spool.segments import segment_columns, write_crc
from tests.kit import child

# Values of Spark's settings that the job forgets,
LEGACY_SETTINGS = {
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.codingErrorAction": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true",
    "spark.sql.legacy.json.allowEmptyString.enabled": "true",
    "spark.sql.legacy.percentileDiscCalculation": "true",
    "spark.sql.legacy.sizeOfNull": "false",
    "spark.sql.legacy.statisticalAggregate": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}
# of all that it does not have, and of one that it leaves alone.
OTHER_SETTINGS = {
    **{name: {"true": "false", "false": "true"}.get(value, value) for name, value in SESSION.items()},
    "spark.executorEnv.TZ": "Asia/Kathmandu",
    "spark.sql.columnNameOfCorruptRecord": "user",
    **LEGACY_SETTINGS,
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.repl.eagerEval.maxNumRows": "7",
}


def wait_for(condition, limit=math.inf):
    """Wait until the condition holds; fail after limit seconds.

    The limit of the test ends a wait for what never comes: a Spark takes as long as the machine is busy.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < limit, f"not so within {limit} s"
        # Checks take processor time from the awaited program: fewer of them if that takes long.
        time.sleep(min(max(0.005, waited / 20), 0.05))
    return found


class FakeConnection:
    """Records the answers of its message; a lost connection raises, too."""

    nsqd = "127.0.0.1:4150"

    def __init__(self, lost):
        self.answers = []
        self._lost = lost

    def finish_all(self, message_ids):
        self._note("FIN")

    def requeue(self, message_id, timeout, backoff):
        self._note(f"REQ {timeout}")

    def _note(self, answer):
        self.answers.append(answer)
        if self._lost:
            raise NSQConnectionClosed("gone")


class FakeMessage(Message):
    """A message that no nsqd has sent."""

    def __init__(self, number, body=None, lost=False):
        connection = FakeConnection(lost)
        self.answers = connection.answers
        body = b"body %d" % number if body is None else body
        super().__init__(1_700_000_000_000_000_000 + number * 1000, 1, b"%016d" % number, body, connection)


# When the messages of columns() were received, in milliseconds since 1970.
RECEIVED_MS = 1_700_000_001_000


def columns(*numbers, topic="clicks"):
    """The columns of a segment with these messages."""
    messages = [FakeMessage(number) for number in numbers]
    return segment_columns(messages, [topic] * len(messages), RECEIVED_MS * 1_000_000)


def arrow_file(schema, *arrays):
    """An Arrow file with one record batch and a CRC, as a segment is."""
    schema = schema.with_metadata({**(schema.metadata or {}), "gnsq.crc32": "00000000"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
    data = sink.getvalue()
    write_crc(data)
    return data


@contextlib.contextmanager
def unusable(directory):
    """Put a file in the place of a directory, so that all that uses it fails."""
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.write_text("")
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)


def bodies_of(spool):
    """All bodies in a spool, in reading order."""
    segments = sorted(spool.listing().segments, key=lambda segment: (segment.receiver, segment.number))
    return [body for segment in segments for batch in spool.read(segment) for body in batch.column("body").to_pylist()]


def publish(nsqd, topic, bodies):
    """Publish through a Producer of the calling thread."""
    with Producer(nsqd.tcp_address) as producer:
        for first in range(0, len(bodies), 1000):
            producer.multipublish(topic, bodies[first : first + 1000])


def numbered(count, first=0):
    """Different bodies."""
    return [b"%08d" % number for number in range(first, first + count)]


def channel_stats(nsqd, topic, channel):
    """A channel in /stats; None if it does not exist."""
    client = NsqdHTTPClient.from_url(nsqd.http_address)
    topics = client.stats(topic, channel)["topics"]
    client.close()
    channels = topics[0]["channels"] if topics else []
    return channels[0] if channels else None


def is_empty(nsqd, topic, channel):
    """Whether a channel has nothing waiting, in flight or deferred."""
    stats = channel_stats(nsqd, topic, channel)
    return stats is not None and stats["depth"] + stats["in_flight_count"] + stats["deferred_count"] == 0


def running(arguments, **environment):
    """Run a command as child() does; its output is one text, stdout and stderr."""
    return child(*arguments, limit=1200, stderr=subprocess.STDOUT, env={**os.environ, **environment})


def members_of(group):
    """Command lines of the living processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, pgrp = (path / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def pending(segments, start, end=None):
    """The segments after start, up to end, in the order in which they are read, by a plain list."""
    found = [segment for segment in segments if segment.number > start.get(segment.receiver, 0)]
    if end is not None:
        found = [segment for segment in found if segment.number <= end.get(segment.receiver, 0)]
    turns = {}
    ordered = []
    for segment in sorted(found, key=lambda segment: segment.number):
        turn = turns[segment.receiver] = turns.get(segment.receiver, 0) + 1
        ordered.append((turn, segment.receiver, segment))
    return [segment for _, _, segment in sorted(ordered, key=lambda item: item[:2])]


def descendants(pid):
    """Process ids below a process, with their command lines."""
    parents, lines = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            lines[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return {each: lines[each] for each in below - {pid}}


def named(pid, text):
    """Process ids below a process whose command line holds a text, in order."""
    return sorted(each for each, line in descendants(pid).items() if text in line)
