"""Our own client on a bad link: single bytes through all layers, stalls, resets, corruption."""

import pytest

from fakensqd import FakeNsqd
from fakensqd.faults.toxics import corrupt_bytes, reset, slice_bytes, stall
from gnsq import Consumer, Producer
from gnsq.nsqd.connection import Connection
from gnsq.options import ConnectionOptions
from tests.helpers import wait_until

LAYERS = [
    pytest.param({}, id="plain"),
    pytest.param({"deflate": True}, id="deflate"),
    pytest.param({"tls": True}, id="tls"),
    pytest.param({"tls": True, "deflate": True}, id="tls and deflate"),
    pytest.param({"tls": True, "snappy": True}, id="tls and snappy"),
]


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("upstream", [True, False], ids=["what it sends", "what it is sent"])
def test_our_client_takes_single_bytes_through_all_layers(certificates, tls_options, layers, upstream):
    options = dict(layers)
    if options.pop("tls", False):
        options |= {"tls_v1": True, "tls_options": {"ca_certs": certificates.ca}}
    bodies = [b"%d" % number * 20 for number in range(20)]
    got = []
    with FakeNsqd(**tls_options) as nsqd:
        nsqd.link.add(slice_bytes(1), upstream=upstream)
        with Producer(nsqd.tcp_address, **options) as producer:
            producer.multipublish("t", bodies)
        with Consumer(
            "t",
            "c",
            nsqd.tcp_address,
            message_handler=lambda _, message: got.append(message.body),
            max_in_flight=20,
            **options,
        ):
            wait_until(lambda: len(got) == 20)

    assert sorted(got) == sorted(bodies)
    assert nsqd.errors == []


def test_our_client_finds_a_stalled_peer_dead_by_its_heartbeats(nsqd, clock):
    host, port = nsqd.tcp_address.split(":")
    connection = Connection(host, int(port), ConnectionOptions(heartbeat_interval=30.0), clock)
    connection.open()
    clock.advance(300.0)
    assert connection.is_open

    with nsqd.link.add(stall(), upstream=False):
        clock.advance(45.0)
        assert connection.is_open
        clock.advance(45.0)
        assert connection.wait_closed(10)

    assert "no word from nsqd for" in str(connection.error)


def test_our_client_is_reset_inside_of_a_frame_and_comes_back(nsqd, clock):
    got = []
    nsqd.broker.ensure_topic("t").publish([b"x" * 1000], 0.0)
    # Behind the answers to IDENTIFY and SUB: inside of the message.
    nsqd.link.add(reset(after=700), upstream=False, connection=1)
    with Consumer(
        "t", "c", nsqd.tcp_address, message_handler=lambda _, message: got.append(message.attempts), clock=clock
    ) as client:
        wait_until(lambda: nsqd.link.connections == 1 and not client._pool.connections)
        assert got == []

        clock.advance(60.0)

        assert nsqd.link.connections == 2
        wait_until(lambda: got == [2])


def test_our_client_gives_up_a_corrupted_stream_and_comes_back(nsqd, clock):
    got = []
    channel = nsqd.broker.ensure_topic("t").ensure_channel("c", 0.0)
    with Consumer(
        "t", "c", nsqd.tcp_address, message_handler=lambda _, message: got.append(message.body), clock=clock
    ) as client:
        # Of the frame: what is no type.
        nsqd.link.add(corrupt_bytes(at=(4,)), upstream=False, connection=1)
        nsqd.broker.topics["t"].publish([b"x"], 0.0)
        wait_until(lambda: not client._pool.connections)
        assert channel.in_flight_count == 1

        clock.advance(61.0)

        wait_until(lambda: got == [b"x"])
