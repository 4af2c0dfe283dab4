"""Fixtures: a producer and consumers of one topic, on an nsqd in real time or on a manual clock."""

import gevent
import pytest

from fakensqd import FakeNsqd
from gnsq import Producer
from tests.kit import channel_stats


@pytest.fixture
def publish(fakensqd):
    with Producer(fakensqd.tcp_address) as producer:
        yield lambda *bodies: producer.multipublish("t", list(bodies))


@pytest.fixture
def still_nsqd(clock):
    """An nsqd in this hub, on the manual clock."""
    with FakeNsqd(clock=clock) as nsqd:
        yield nsqd


@pytest.fixture
def still_consume(still_nsqd, clock, consume):
    """Start consumers on the manual clock."""
    made = []

    def start(handler, **options):
        consumer = consume(handler, still_nsqd.tcp_address, clock=clock, **options)
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        gevent.spawn(consumer.close)
        clock.advance(60)


@pytest.fixture
def still_publish(still_nsqd, clock):
    """Publish without a connection; the consumer must be subscribed."""

    def publish(*bodies):
        still_nsqd.broker.topics["t"].publish(list(bodies), still_nsqd.now())
        clock.advance(0)

    return publish


def settled(nsqd):
    """Return True if no message of the channel is left."""
    stats = channel_stats(nsqd, "t", "c")
    return (stats["in_flight_count"], stats["depth"], stats["deferred_count"]) == (0, 0, 0)
