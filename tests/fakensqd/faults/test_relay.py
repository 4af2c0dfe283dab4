"""A relay with toxics before another server: HTTP, nsqd, whatever speaks TCP."""

import errno
import socket
from http.client import BadStatusLine

import gevent.socket
import pytest

from fakensqd import FakeNsqd
from fakensqd.clock import ManualClock
from fakensqd.faults.relay import Relay
from fakensqd.faults.toxics import latency, limit_bytes, reset, slice_bytes, stall
from gnsq import Consumer, NsqdHTTPClient, Producer
from gnsq.errors import NSQSocketError
from gnsq.protocol import commands
from tests.fakensqd.wire import Client, request
from tests.helpers import peer, refused_port, wait_until


@pytest.fixture
def nsqd():
    with FakeNsqd() as nsqd:
        yield nsqd
    assert nsqd.errors == []


def test_a_message_all_the_way_in_single_bytes(nsqd):
    got = []
    with Relay(nsqd.tcp_address) as relay:
        relay.link.add(slice_bytes(1))
        with Producer(relay.address) as producer:
            producer.publish("t", b"hello")
        with Consumer("t", "c", relay.address, message_handler=lambda _, message: got.append(message.body)):
            wait_until(lambda: got == [b"hello"])

    wait_until(lambda: not nsqd.sessions)


def test_http_is_passed_on(nsqd):
    with Relay(nsqd.http_address) as relay:
        relay.link.add(slice_bytes(10))

        assert NsqdHTTPClient.from_url(relay.address).publish("t", b"x") == b"OK"

    assert nsqd.broker.topics["t"].depth == 1


def test_waits_go_by_the_clock(nsqd):
    clock = ManualClock()
    with Relay(nsqd.tcp_address, clock=clock) as relay:
        relay.link.add(latency(60.0), upstream=True)
        client = Client(relay.address)
        client.send(commands.publish("t", b"x"))
        clock.advance(59.0)
        assert nsqd.sessions == [] or nsqd.broker.topics == {}

        clock.advance(1.0)

        wait_until(lambda: nsqd.broker.topics)


def test_ends_are_passed_on_one_way_at_a_time():
    def echo_behind_the_end(sock):
        data = b""
        while chunk := sock.recv(100):
            data += chunk
        sock.sendall(data)

    with peer(echo_behind_the_end) as address, Relay(address) as relay:
        host, port = relay.address.split(":")
        with gevent.socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"hello")
            sock.shutdown(socket.SHUT_WR)

            assert sock.recv(100) == b"hello"
            assert sock.recv(100) == b""


def test_a_reset_is_seen_on_both_sides():
    ends = []

    def note_the_end(sock):
        try:
            while sock.recv(100):
                pass
        except OSError as error:
            ends.append(error.errno)

    with peer(note_the_end) as address, Relay(address) as relay:
        relay.link.add(reset(after=6), upstream=True)
        client = Client(relay.address)
        client.send(b"FOO\n")

        with pytest.raises(NSQSocketError) as caught:
            client.frame()
        wait_until(lambda: ends)

    assert caught.value.errno == errno.ECONNRESET
    assert ends == [errno.ECONNRESET]


def test_a_server_that_breaks_off_is_no_orderly_end():
    def break_off(sock):
        sock.recv(100)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with peer(break_off) as address, Relay(address) as relay:
        client = Client(relay.address)

        with pytest.raises(NSQSocketError) as caught:
            client.frame()

    assert caught.value.errno == errno.ECONNRESET


def test_a_server_that_is_not_there():
    with Relay(f"127.0.0.1:{refused_port()}") as relay:
        host, port = relay.address.split(":")
        with (
            gevent.socket.create_connection((host, int(port)), timeout=10) as sock,
            pytest.raises(ConnectionResetError),
        ):
            sock.recv(100)


def test_a_limit_downstream_is_the_end_for_the_client(nsqd):
    with Relay(nsqd.http_address) as relay:
        relay.link.add(limit_bytes(10), upstream=False)

        with pytest.raises(BadStatusLine, match=r"HTTP/1\.1 2"):
            request(relay.address, "GET", "/ping")


def test_stop_cuts_what_is_stalled_and_start_takes_the_same_port(nsqd):
    relay = Relay(nsqd.tcp_address)
    relay.start()
    relay.start()
    address = relay.address
    relay.link.add(stall())
    client = Client(address)
    wait_until(lambda: relay.link.connections)

    relay.stop()
    relay.stop()
    assert client.ended()

    relay.link.clear()
    with relay:
        assert relay.address == address
        client = Client(address)
        client.send(commands.publish("t", b"x"))
        assert client.frame() == (0, b"OK")


def test_on_a_thread_of_its_own():
    with FakeNsqd(threaded=True) as nsqd, Relay(nsqd.http_address, threaded=True) as relay:
        host, port = relay.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_the_seed_is_the_links():
    assert Relay("127.0.0.1:1", seed=7).link.seed == 7


def test_addresses_are_checked():
    with pytest.raises(ValueError, match="is not host:port"):
        Relay("nowhere")
