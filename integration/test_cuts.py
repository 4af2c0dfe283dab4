"""A bad network before a real nsqd: what is cut, held up or cut to pieces is published and processed all the same."""

import gevent
import pytest

from fakensqd import Relay
from fakensqd.faults.toxics import reset, slice_bytes, stall
from gnsq import Consumer, Producer
from tests.helpers import wait_until

pytestmark = pytest.mark.real

LIMIT = 40.0
EAGER = {"reconnect_initial": 0.05, "reconnect_maximum": 0.2, "heartbeat_interval": 1}


@pytest.fixture
def relay(real_nsqd):
    with Relay(real_nsqd.tcp_address) as made:
        yield made
    assert made.errors == []


@pytest.fixture
def streaming(relay, topic, account):
    """Publishes and processes through the relay; called with how many bodies, it waits until all are confirmed."""
    with (
        Producer(relay.address, allow_duplicates=True, **EAGER) as producer,
        Consumer(topic, "c", relay.address, message_handler=account.process, max_in_flight=10, msg_timeout=1, **EAGER),
    ):

        def publish(name, count):
            jobs = [
                gevent.spawn(account.publish, producer, topic, b"%s %d" % (name, number)) for number in range(count)
            ]
            gevent.joinall(jobs, timeout=LIMIT, raise_error=True)

        publish(b"before", 50)
        yield publish
        wait_until(lambda: not account.lost, LIMIT)


def test_every_byte_comes_alone(relay, streaming):
    with relay.link.add(slice_bytes(1)):
        streaming(b"sliced", 100)


@pytest.mark.parametrize("upstream", [True, False], ids=["what clients send", "what clients are sent"])
def test_connections_are_reset_inside_of_frames(relay, streaming, upstream):
    connections = relay.link.connections
    # Each connection is good for some frames, and ends inside of one.
    with relay.link.add(reset(after=1001), upstream=upstream):
        job = gevent.spawn(streaming, b"reset", 300)
        wait_until(lambda: relay.link.connections >= connections + 6, LIMIT)
    job.join(LIMIT)
    streaming(b"after", 50)

    assert job.successful()


def test_network_that_stalls_is_given_up_and_comes_back(relay, streaming):
    connections = relay.link.connections
    with relay.link.add(stall()):
        job = gevent.spawn(streaming, b"stalled", 100)
        # Both have taken the silence for the end, and try anew.
        wait_until(lambda: relay.link.connections >= connections + 2, LIMIT)
    job.join(LIMIT)
    streaming(b"after", 50)

    assert job.successful()
