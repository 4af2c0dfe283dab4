"""A relay with toxics before another server."""

import errno
import socket

import gevent.socket
import pytest

from fakensqd.addresses import split_address
from fakensqd.faults.relay import Relay
from fakensqd.faults.toxics import reset, slice_bytes, stall
from gnsq import Consumer, Producer
from gnsq.errors import NSQSocketError
from gnsq.protocol import commands
from tests.kit import peer, refused_port, wait_until
from tests.kit.wire import Client


def test_relay_passes_a_message_in_single_bytes(nsqd):
    got = []
    with Relay(nsqd.tcp_address) as relay:
        relay.link.add(slice_bytes(1))
        with Producer(relay.address) as producer:
            producer.publish("t", b"hello")
        with Consumer("t", "c", relay.address, message_handler=lambda _, message: got.append(message.body)):
            wait_until(lambda: got == [b"hello"])

    wait_until(lambda: not nsqd.sessions)


def test_relay_passes_the_end_of_each_direction():
    def echo_after_the_end(sock):
        data = b""
        while chunk := sock.recv(100):
            data += chunk
        sock.sendall(data)

    with peer(echo_after_the_end) as address, Relay(address) as relay:
        host, port = relay.address.split(":")
        with gevent.socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"hello")
            sock.shutdown(socket.SHUT_WR)

            assert sock.recv(100) == b"hello"
            assert sock.recv(100) == b""


def test_reset_is_seen_by_client_and_server():
    ends = []

    def record_the_end(sock):
        try:
            while sock.recv(100):
                pass
        except OSError as error:
            ends.append(error.errno)

    with peer(record_the_end) as address, Relay(address) as relay:
        relay.link.add(reset(after=6), upstream=True)
        client = Client(relay.address)
        client.send(b"FOO\n")

        with pytest.raises(NSQSocketError) as caught:
            client.frame()
        wait_until(lambda: ends)

    assert caught.value.errno == errno.ECONNRESET
    assert ends == [errno.ECONNRESET]


def test_reset_by_the_server_is_seen_by_the_client():
    def reset_connection(sock):
        sock.recv(100)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with peer(reset_connection) as address, Relay(address) as relay:
        client = Client(relay.address)

        with pytest.raises(NSQSocketError) as caught:
            client.frame()

    assert caught.value.errno == errno.ECONNRESET


def test_client_is_reset_if_the_server_refuses():
    with Relay(f"127.0.0.1:{refused_port()}") as relay:
        host, port = relay.address.split(":")
        with (
            gevent.socket.create_connection((host, int(port)), timeout=10) as sock,
            pytest.raises(ConnectionResetError),
        ):
            sock.recv(100)


def test_relay_that_is_down_closes_stalled_connections_and_nobody_gets_its_port(nsqd):
    relay = Relay(nsqd.tcp_address)
    relay.start()
    relay.start()
    address = relay.address
    relay.link.add(stall())
    client = Client(address)
    wait_until(lambda: relay.link.connections)

    relay.down()
    relay.down()
    assert client.ended()
    with gevent.socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(split_address(address))

    relay.link.clear()
    with relay:
        assert relay.address == address
        client = Client(address)
        client.send(commands.publish("t", b"x"))
        assert client.frame() == (0, b"OK")
