"""Fixtures: nsqds and consumers in one hub, on a manual clock."""

import gevent
import pytest

from gnsq import Consumer


@pytest.fixture
def publish(clock):
    """Put messages into an nsqd, and run all that is due at once."""

    def publish(nsqd, *bodies):
        nsqd.broker.ensure_topic("t").publish(list(bodies), nsqd.now())
        clock.advance(0.0)

    return publish


@pytest.fixture
def started(clock):
    """Start consumers that are closed at the end."""
    made = []

    def start(handler, *nsqds, kind=Consumer, **options):
        addresses = [nsqd.tcp_address for nsqd in nsqds]
        consumer = kind("t", "c", addresses, message_handler=handler, clock=clock, **options)
        consumer.start(block=False)
        clock.advance(0.0)
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        gevent.spawn(consumer.close)
        clock.advance(40.0)
        assert not consumer.is_running
