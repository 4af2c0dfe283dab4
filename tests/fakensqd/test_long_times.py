"""Minutes and hours that pass in no time: our own clients and FakeNsqd in one hub, by one clock."""

import contextlib

import gevent
import pytest
from gevent.event import Event

from gnsq import Consumer, Producer
from gnsq.errors import NSQNoConnections, NSQTimeout
from gnsq.nsqd.connection import Connection
from gnsq.options import ConnectionOptions
from tests.helpers import wait_until


@pytest.fixture
def consume(nsqd, clock):
    """Start a consumer of t/c; closed in the end."""
    consumers = []

    def start(handler, **options):
        consumers.append(Consumer("t", "c", nsqd.tcp_address, message_handler=handler, clock=clock, **options))
        consumers[-1].start(block=False)
        return consumers[-1]

    yield start
    for client in consumers:
        client.close()
        client.join()


@pytest.mark.parametrize(("touches", "lasts"), [(False, 60.0), (True, 900.0)], ids=["alone", "touched"])
def test_message_times_out_after_a_minute_or_if_it_is_touched_a_quarter_of_an_hour(
    nsqd, clock, consume, touches, lasts
):
    attempts, forever = [], Event()

    def handle(consumer, message):
        attempts.append((clock.monotonic(), message.attempts))
        if message.attempts == 1:
            with message.touching() if touches else contextlib.nullcontext():
                forever.wait()

    consume(handle, max_in_flight=2)
    nsqd.broker.topics["t"].publish([b"x"], nsqd.now())
    clock.advance(lasts - 0.1)
    assert attempts == [(0.0, 1)]
    clock.advance(0.2)

    assert attempts == [(0.0, 1), (lasts, 2)]
    forever.set()


def test_message_is_deferred_for_an_hour(nsqd, clock, consume):
    got = []
    consume(lambda _, message: got.append(clock.monotonic()))
    with Producer(nsqd.tcp_address, clock=clock) as producer:
        producer.publish("t", b"x", defer=3_600_000)

        clock.advance(3599.9)
        assert got == []
        clock.advance(0.1)

    assert got == [3600.0]


def test_consumer_reconnects_with_a_backoff_of_minutes(nsqd, clock, consume):
    client = consume(lambda _, message: None)
    nsqd.down()
    wait_until(lambda: not client.stats().connections)
    # 8, 16, 32, 64, 128 and again 128 s, the longest; up to 30 % less.
    clock.advance(8.0 + 16.0 + 32.0 + 64.0 + 128.0)
    nsqd.up()

    assert nsqd.link.connections == 1
    clock.advance(128.0)
    wait_until(lambda: client.stats().connections)

    assert nsqd.link.connections == 2


def test_handshake_of_the_client_times_out_after_a_minute(nsqd, clock):
    nsqd.stop_reading()
    host, port = nsqd.tcp_address.split(":")
    connection = Connection(host, int(port), ConnectionOptions(timeout=60.0), clock)
    opening = gevent.spawn(connection.open)
    clock.advance(59.9)
    assert not opening.ready()

    clock.advance(0.1)

    with pytest.raises(NSQTimeout, match=r"within 60 s"):
        opening.get(timeout=10)
    nsqd.resume_reading()


def test_publish_times_out_after_a_minute_without_a_connection(nsqd, clock):
    nsqd.down()
    with Producer(nsqd.tcp_address, clock=clock) as producer:
        publishing = gevent.spawn(producer.publish, "t", b"x")
        clock.advance(59.9)
        assert not publishing.ready()
        clock.advance(0.2)

        with pytest.raises(NSQNoConnections, match=r"no connection to any nsqd within 60 s"):
            publishing.get(timeout=10)
