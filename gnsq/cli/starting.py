"""Starts the consumers of a command. Says before what they find or take away; fails if no server can be reached."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from logging.handlers import MemoryHandler

import click
import gevent

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import until_signal
from gnsq.cli.nodes import NodePoller
from gnsq.cli.snapshot import Snapshot
from gnsq.cli.table import failures
from gnsq.concurrency.greenlets import spawn
from gnsq.consumer import Consumer
from gnsq.errors import NSQException
from gnsq.protocol.names import is_ephemeral
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["start"]

# Seconds. nsqds that take longer to answer are not waited for.
QUESTION_LIMIT = 1.0
# Seconds between two looks whether a consumer has a connection.
READY_CHECK_INTERVAL = 0.02


def start(cluster: Cluster, consumers: Sequence[Consumer], stop: StopSignals) -> None:
    """Start the consumers, and return when one of them can receive, or a signal has come.

    Before, asks the nsqds at their HTTP ports, and writes to stderr which topics do not exist, and how many waiting
    messages an ephemeral channel takes away: afterwards it would be too late.

    Raises:
        NSQException: If none of the consumers can reach a server.
    """
    if not consumers:
        return  # of topics that do not exist yet
    with _held_log() as log:
        if (error := until_signal(stop, _start, cluster, consumers)) is not None:
            log.buffer.clear()  # the error says the same, and nothing is tried again
            raise error


def _start(cluster: Cluster, consumers: Sequence[Consumer]) -> NSQException | None:
    """Ask, start, and return why no server can be reached; None if one can."""
    snapshot = NodePoller(cluster, consumers[0].topic if len(consumers) == 1 else None).poll(QUESTION_LIMIT)
    unknown = []
    for consumer in consumers:
        note, is_known = _note(snapshot, consumer, is_given=bool(cluster.nsqds))
        if is_known and note:
            click.echo(note, err=True)
        elif note:
            unknown.append(note)
    starts = [spawn("gnsq-start", consumer.start, False, on_failure=None) for consumer in consumers]
    gevent.joinall(starts, raise_error=True)
    deadline = time.monotonic() + cluster.timeout
    while not any(consumer.is_ready for consumer in consumers):
        if time.monotonic() > deadline or all(_has_failed(consumer) for consumer in consumers):
            reasons = dict.fromkeys(consumer.stats().not_ready for consumer in consumers)
            return NSQException(f"no nsqd can be reached: {'; '.join(reasons)}")
        gevent.sleep(READY_CHECK_INTERVAL)
    # Only now: if no nsqd can be reached, the error says why.
    for note in unknown:
        click.echo(note, err=True)
    return None


def _has_failed(consumer: Consumer) -> bool:
    """Return True if the attempts to reach each server have failed."""
    stats = consumer.stats()
    named = stats.failures.keys() - consumer.nsqd_tcp_addresses
    has_no_nsqd = len(stats.lookupd_failures) == len(consumer.lookupds)
    return consumer.nsqd_tcp_addresses <= stats.failures.keys() and (has_no_nsqd or bool(named))


def _note(snapshot: Snapshot, consumer: Consumer, *, is_given: bool) -> tuple[str, bool]:
    """Return what to say about the topic of a consumer, if anything, and whether the answers suffice to know it."""
    topic = next((row for row in snapshot.topics if row.topic == consumer.topic), None)
    if topic is not None:
        with_channel = {address for channel in topic.channels for address in channel.by_nsqd}
        waiting = sum(counts["depth"] for address, counts in topic.by_nsqd.items() if address not in with_channel)
        if waiting > 0 and is_ephemeral(consumer.channel):
            return (
                f"topic {topic.topic} has no channel: {counted(waiting, 'waiting message', spec=',')} will come here, "
                "and what is not shown is lost at the end. With --channel NAME it would stay in that channel",
                True,
            )
        return "", True
    is_known = bool(snapshot.reached) or (bool(snapshot.lookupds) and not any(snapshot.lookupds.values()))
    if is_known:
        where = " on the nsqds that have answered" if snapshot.unreached else ""
        then = "nsqd creates it" if is_given else "this waits for an nsqd that has it"
        return f"topic {consumer.topic} does not exist{where}; {then}", True
    reasons = "; ".join(failures(snapshot)) or f"no answer within {QUESTION_LIMIT:g} s"
    return f"not known whether topic {consumer.topic} exists: {reasons}", False


@contextlib.contextmanager
def _held_log() -> Iterator[MemoryHandler]:
    """Hold log lines back in a block, and write at its end those that are still in the buffer."""
    logger = logging.getLogger("gnsq")
    before = logger.handlers
    held = MemoryHandler(1000, flushLevel=logging.CRITICAL + 1, target=before[0] if before else None)
    if logger.isEnabledFor(logging.INFO):  # -v: for people who want to see when
        yield held
        return
    logger.handlers = [held]
    try:
        yield held
    finally:
        logger.handlers = before
        held.close()
