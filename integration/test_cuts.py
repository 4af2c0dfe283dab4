"""A broken network before a real nsqd: with cut, stalled or sliced connections, no message is lost."""

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


@pytest.fixture
def streaming(relay, topic, account):
    """Publish and process through the relay. The function waits until all its bodies are confirmed."""
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


def test_link_that_slices_every_byte_loses_no_message(relay, streaming):
    with relay.link.add(slice_bytes(1)):
        streaming(b"sliced", 100)


@pytest.mark.parametrize("upstream", [True, False], ids=["upstream", "downstream"])
def test_connections_are_reset_inside_of_frames(relay, streaming, upstream):
    connections = relay.link.connections
    # Each connection passes some frames, and ends inside a frame.
    with relay.link.add(reset(after=1001), upstream=upstream):
        job = gevent.spawn(streaming, b"reset", 300)
        wait_until(lambda: relay.link.connections >= connections + 6, LIMIT)
    job.join(LIMIT)
    streaming(b"after", 50)

    assert job.successful()


def test_stalled_connections_are_closed_and_opened_again(relay, streaming):
    connections = relay.link.connections
    with relay.link.add(stall()):
        job = gevent.spawn(streaming, b"stalled", 100)
        # Both connections have ended without heartbeats, and are opened again.
        wait_until(lambda: relay.link.connections >= connections + 2, LIMIT)
    job.join(LIMIT)
    streaming(b"after", 50)

    assert job.successful()
