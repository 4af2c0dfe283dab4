"""gnsq copy: publishes the messages of a topic to another topic, or to another cluster."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable

import click
from gevent import socket

from gnsq.addresses import format_address, parse_address
from gnsq.cli.command import Command
from gnsq.cli.parameters import COUNT, IDLE, RATE
from gnsq.cli.progress import Counter
from gnsq.cli.receiving import Received, Receiver
from gnsq.cli.republish import BATCH, Outcome, Publication, Republisher
from gnsq.cli.servers import Cluster, target_of
from gnsq.cli.topics import CHANNEL, TOPIC, Topics
from gnsq.producer import Producer
from gnsq.producer.publish import is_topic_error
from gnsq.running import StopSignals

__all__ = ["copy"]

MAX_IN_FLIGHT = 1000
# Seconds. A message that could not be published comes again after RETRY_DELAY, but the consumer pauses up to
# MAX_PAUSE. A message that the target refuses, for its size for example, comes again after REFUSED_DELAY.
RETRY_DELAY = 1.0
MAX_PAUSE = 10.0
REFUSED_DELAY = 60.0
# Seconds between two looks at the addresses of the target's nsqds.
LOOP_CHECK_INTERVAL = 1.0
_EXAMPLES = """
    gnsq copy orders orders-test
    gnsq copy orders --cluster production --to-cluster local --rate 100
"""


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument("source", type=TOPIC)
@click.argument("target_topic", metavar="[TARGET]", required=False, type=TOPIC)
@click.option("--channel", default="copy", show_default=True, metavar="NAME", type=CHANNEL, help="Channel of SOURCE.")
@COUNT
@IDLE
@RATE
@click.option("--to-nsqd", multiple=True, metavar="HOST:PORT", help="TCP address of a target nsqd. Repeat.")
@click.option("--to-lookupd", multiple=True, metavar="HOST:PORT", help="Publish to all nsqds of an nsqlookupd.")
@click.option("--to-cluster", metavar="NAME", help="Publish to a cluster of the file.")
def copy(
    cluster: Cluster,
    stop: StopSignals,
    source: str,
    target_topic: str | None,
    channel: str,
    count: int | None,
    idle: float | None,
    rate: float | None,
    to_nsqd: tuple[str, ...],
    to_lookupd: tuple[str, ...],
    to_cluster: str | None,
) -> int:
    """Publish the messages of the topic SOURCE to the topic TARGET, until Ctrl-C.

    With a --to option, the target is another cluster, and TARGET may be left out: then it has the same name.

    A message is finished after nsqd has confirmed its copy. If no response comes, it is copied again, and may be
    doubled. While the target is down, messages are requeued; copying goes on when it is back. Messages that the
    target refuses stay in the channel.

    The channel gets the messages that come after it was created, and those that wait in a topic without any channel.
    It stays, and collects messages while this command does not run: gnsq channel delete SOURCE copy deletes it. At the
    end of --idle, messages may still be deferred, or in flight to another consumer of the channel.
    """
    target = target_of(cluster, to_cluster, to_nsqd, to_lookupd)
    topic = target_topic or source
    if target is None and topic == source:
        raise click.UsageError(
            "source and target are the same topic: give another TARGET, or another cluster with --to-nsqd, "
            "--to-lookupd or --to-cluster"
        )
    if target is not None and topic == source and (same := _resolved(cluster.nsqds) & _resolved(target.nsqds)):
        shown = ", ".join(format_address(*address) for address in sorted(same))
        raise click.UsageError(f"source and target are the same topic of the nsqd {shown}: give another TARGET")
    with (target or cluster).producer(batch_messages=BATCH) as producer:
        receiver = Receiver(
            *(cluster, Topics((source,)), channel, stop, Counter("copied")),
            max_in_flight=MAX_IN_FLIGHT,
            batch=BATCH,
            count=count,
            idle=idle,
            rate=rate,
            max_backoff_duration=MAX_PAUSE,
            reconnect_initial=RETRY_DELAY,
            reconnect_maximum=MAX_PAUSE,
        )
        decide = _Decision(topic, producer if topic == source else None)
        copier = Republisher(
            *(receiver, producer, decide),
            refused_delay=REFUSED_DELAY,
            retry_delay=RETRY_DELAY,
            tries_again=True,
            is_fatal=is_topic_error,
        )
        try:
            copier.run()
        finally:
            click.echo("; ".join([receiver.counter.summary(), *copier.summary()]), err=True)
    return receiver.status() or (1 if copier.counts[Outcome.REFUSED] else 0)


class _Decision:
    """Decides where a message is copied to.

    Args:
        loops_to: The producer, if the topic has the same name: then the target must not have an nsqd of the source.
    """

    def __init__(self, topic: str, loops_to: Producer | None) -> None:
        self._topic = topic
        self._producer = loops_to
        self._targets: set[tuple[str, int]] = set()
        self._checked = -LOOP_CHECK_INTERVAL

    def __call__(self, received: Received) -> Publication:
        """Return the copy.

        Raises:
            click.ClickException: If the nsqd of the message is one of the target's.
        """
        message = received.message
        if self._producer is not None and _resolved((message.nsqd or "",)) & self._target_addresses(self._producer):
            raise click.ClickException(
                f"source and target have the nsqd {message.nsqd}, so its topic {self._topic} would be copied onto "
                "itself: give another TARGET"
            )
        return Publication(self._topic, message.body)

    def _target_addresses(self, producer: Producer) -> set[tuple[str, int]]:
        if (now := time.monotonic()) - self._checked >= LOOP_CHECK_INTERVAL:
            self._checked = now
            self._targets = _resolved(connection.address for connection in producer.stats().connections)
        return self._targets


def _resolved(addresses: Iterable[str]) -> set[tuple[str, int]]:
    """Return the IP addresses and ports of addresses. A host that can't be resolved stands for itself."""
    return {found for address in addresses for found in _resolve(address)}


@functools.cache
def _resolve(address: str) -> frozenset[tuple[str, int]]:
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset([(host, port)])
    return frozenset((str(entry[4][0]), port) for entry in found)
