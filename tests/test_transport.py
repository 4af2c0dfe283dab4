"""A TCP transport: what is read past, what ends a wait, what can be sent at once."""

import socket as stdlib_socket

import gevent
import pytest
from gevent import socket

from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.transport import TcpTransport
from tests.helpers import wait_until


@pytest.fixture
def pair():
    """A transport, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    transport = TcpTransport(ours, "peer:1")
    yield transport, theirs
    transport.close()
    theirs.close()


def test_what_is_taken_is_read_past(pair):
    transport, peer = pair
    taken = []

    def take(data):
        taken.append(data)
        return data != b"other"

    reading = gevent.spawn(transport.recv_unless_handled, 100, take)
    for chunk in (b"ok", b"okok", b"other"):
        peer.sendall(chunk)
        wait_until(lambda chunk=chunk: chunk in taken)

    assert reading.get(timeout=5) == b"other"
    assert taken == [b"ok", b"okok", b"other"]


def test_end_of_the_stream_is_not_offered(pair):
    transport, peer = pair
    peer.shutdown(stdlib_socket.SHUT_WR)

    assert transport.recv_unless_handled(100, lambda data: pytest.fail("offered")) == b""


def test_close_ends_the_wait(pair):
    transport, _ = pair
    reading = gevent.spawn(transport.recv_unless_handled, 100, lambda data: True)
    gevent.sleep(0)

    transport.close()

    with pytest.raises(NSQConnectionClosed, match="peer:1: connection was closed"):
        reading.get(timeout=5)
    with pytest.raises(NSQConnectionClosed):
        transport.recv_unless_handled(100, lambda data: True)


def test_reader_that_is_killed_leaves_nothing_behind(pair):
    transport, peer = pair
    reading = gevent.spawn(transport.recv_unless_handled, 100, lambda data: True)
    gevent.sleep(0)

    reading.kill()
    peer.sendall(b"later")

    assert transport.recv(100) == b"later"


def test_what_taking_raises_is_raised_by_the_reader(pair):
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


def test_sending_at_once_takes_what_there_is_room_for(pair):
    transport, _ = pair

    assert transport.send_nowait(b"few") == 3
    assert 0 < transport.send_nowait(b"x" * 10_000_000) < 10_000_000
    assert transport.send_nowait(b"x") == 0


def test_peer_that_has_closed_is_seen_before_anything_is_read(pair):
    transport, peer = pair
    assert not transport.peer_has_closed()

    peer.close()

    assert transport.peer_has_closed()
