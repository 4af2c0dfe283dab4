"""Transports over TCP, and with compression on top."""

import socket as stdlib_socket

import gevent
import pytest
from gevent import socket

from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.transport import CompressedTransport, TcpTransport
from tests.kit import LIMIT, MemoryTransport, wait_until


@pytest.fixture
def pair():
    """A transport, and the socket of its peer."""
    local, remote = socket.socketpair()
    transport = TcpTransport(local, "peer:1")
    yield transport, remote
    transport.close()
    remote.close()


def test_handled_bytes_are_not_returned(pair):
    transport, peer = pair
    taken = []

    def take(data):
        taken.append(data)
        return data != b"other"

    reading = gevent.spawn(transport.recv_unless_handled, 100, take)
    for chunk in (b"ok", b"okok", b"other"):
        peer.sendall(chunk)
        wait_until(lambda chunk=chunk: chunk in taken)

    assert reading.get(timeout=LIMIT) == b"other"
    assert taken == [b"ok", b"okok", b"other"]


def test_socket_that_its_handler_closes_is_not_polled(pair):
    transport, peer = pair
    expected = []
    reading = gevent.spawn(
        transport.recv_unless_handled, 100, lambda data: not transport.close(), lambda: expected.append(1)
    )
    peer.sendall(b"x")

    with pytest.raises(NSQConnectionClosed):
        reading.get(timeout=LIMIT)
    assert not expected


def test_what_a_poll_finds_and_nobody_handles_is_returned_to_the_reader(pair):
    transport, peer = pair

    def take(data):
        return gevent.getcurrent() is not test and b"x" not in data

    test = gevent.getcurrent()
    reading = gevent.spawn(transport.recv_unless_handled, 100, take)
    # Let replies come at once until a poll is worth it.
    while not transport._poller.polls:
        transport.poll_reply()
        peer.sendall(b"ok")
        gevent.sleep(1e-6)
    while not reading.ready():
        peer.sendall(b"ok")
        transport.poll_reply()
        peer.sendall(b"later")
        gevent.sleep(1e-6)

    assert b"ok" in reading.get()


def test_killed_reader_leaves_no_watcher(pair):
    transport, peer = pair
    reading = gevent.spawn(transport.recv_unless_handled, 100, lambda data: True)
    gevent.sleep(0)

    reading.kill()
    peer.sendall(b"later")

    assert transport.recv(100) == b"later"


def test_exception_of_the_handler_is_raised_in_the_reader(pair):
    transport, peer = pair

    def take(data):
        raise ZeroDivisionError

    peer.sendall(b"x")

    with pytest.raises(ZeroDivisionError):
        transport.recv_unless_handled(100, take)


def test_reset_is_an_error_of_the_reader():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    transport = TcpTransport(client, "peer:1")
    accepted.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    accepted.close()

    with pytest.raises(NSQSocketError, match="peer:1: Connection reset"):
        transport.recv_unless_handled(100, lambda data: True)
    transport.close()
    listener.close()


def test_send_nowait_sends_as_much_as_the_socket_accepts(pair):
    transport, _ = pair

    assert transport.send_nowait(b"few") == 3
    assert 0 < transport.send_nowait(b"x" * 10_000_000) < 10_000_000
    assert transport.send_nowait(b"x") == 0


def test_peer_that_has_closed_is_seen_before_anything_is_read(pair):
    transport, peer = pair
    assert not transport.peer_has_closed()

    peer.close()

    assert transport.peer_has_closed()


# --- compression

CODECS = pytest.mark.parametrize("codec", [Deflate, Snappy])


@CODECS
def test_bytes_that_came_early_are_read_first(codec):
    sender = codec()
    first, then = sender.compress(b"OK"), sender.compress(b"more")
    transport = CompressedTransport(MemoryTransport(then, b""), codec(), first)

    assert [transport.recv(100), transport.recv(100), transport.recv(100)] == [b"OK", b"more", b""]
