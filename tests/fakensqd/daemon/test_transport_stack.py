"""The stack of transports of one connection: what lies on what, and the time of a handshake."""

import gevent
import pytest

from fakensqd.clock import ManualClock, RealClock
from fakensqd.daemon.connection import TransportStack
from fakensqd.effects import StartCompression, StartTLS, TlsEstablished, TlsFailed
from gnsq.errors import NSQConnectionClosed
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.tls import TlsTransport
from gnsq.transport import CompressedTransport


def exchange(one, other):
    one.sendall(b"hello")
    assert other.recv(100) == b"hello"
    other.sendall(b"back")
    assert one.recv(100) == b"back"


@pytest.fixture
def secured(ends, server_context, client_context):
    """TransportStack with TLS on, and the client's end inside TLS."""
    stack = TransportStack(ends[0], RealClock(), context=server_context)
    starting = gevent.spawn(stack.start, StartTLS())
    client = TlsTransport(ends[1], client_context, server_hostname="localhost")
    client.handshake()
    assert isinstance(starting.get(timeout=10), TlsEstablished)
    return stack, client


def test_tls(secured):
    stack, client = secured

    exchange(stack.top, client)


def test_compression_on_tcp(ends):
    stack = TransportStack(ends[0], RealClock())

    assert stack.start(StartCompression(Snappy())) is None

    exchange(stack.top, CompressedTransport(ends[1], Snappy()))


def test_compression_on_tls(secured):
    stack, client = secured

    stack.start(StartCompression(Deflate()))

    exchange(stack.top, CompressedTransport(client, Deflate()))


def test_another_compression_takes_the_place_of_the_first(secured):
    stack, client = secured
    stack.start(StartCompression(Snappy()))

    stack.start(StartCompression(Deflate()))

    exchange(stack.top, CompressedTransport(client, Deflate()))


def test_a_handshake_that_fails_leaves_what_was(ends, server_context):
    stack = TransportStack(ends[0], RealClock(), context=server_context)
    ends[1].sendall(b"NOP\nNOP\n")

    assert stack.start(StartTLS()) == TlsFailed("tls: first record does not look like a TLS handshake")

    stack.top.sendall(b"in clear")
    assert ends[1].recv(100) == b"in clear"


def test_a_handshake_has_five_seconds(ends, server_context):
    clock = ManualClock()
    stack = TransportStack(ends[0], clock, addresses=("127.0.0.1:4150", "127.0.0.1:1000"), context=server_context)
    starting = gevent.spawn(stack.start, StartTLS())
    gevent.sleep(0)
    gevent.sleep(0)

    clock.advance(4.9)
    assert not starting.ready()
    clock.advance(0.1)

    assert starting.get(timeout=10) == TlsFailed("read tcp 127.0.0.1:4150->127.0.0.1:1000: i/o timeout")
    stack.top.sendall(b"in clear")
    assert ends[1].recv(100) == b"in clear"


def test_close_closes_the_lowest(secured):
    stack, client = secured

    stack.close()

    assert client.recv(100) == b""
    with pytest.raises(NSQConnectionClosed):
        stack.top.recv(100)
