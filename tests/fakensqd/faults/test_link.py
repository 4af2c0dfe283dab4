"""Toxics on a link: on one transport, on a server, and between a server and gnsq's clients."""

import gc

import gevent
import pytest

from fakensqd.faults.link import Link
from fakensqd.faults.toxics import corrupt_bytes, latency, reset, slice_bytes, stall
from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.protocol.frames import RESPONSE
from tests.kit import MemoryTransport, wait_until
from tests.kit.wire import Client

OK = (RESPONSE, b"OK")


def greenlets():
    found = [item for item in gc.get_objects() if isinstance(item, gevent.Greenlet)]
    return {item for item in found if not item.dead and "link" in item.name}


@pytest.fixture
def wrapped(clock):
    """A link, a connection on it, the transport below, and its resets."""
    link, inner, resets = Link(clock), MemoryTransport(), []
    transport = link.wrap(inner, lambda: resets.append(True))
    yield link, transport, inner, resets
    link.abort()
    assert resets or inner.closed


# --- as a transport ---------------------------------------------------------------------------------------------------


def test_link_without_toxics_passes_calls_through(wrapped):
    _, transport, inner, _ = wrapped
    others = greenlets()
    inner.feed(b"in")

    transport.sendall(b"out")

    assert (transport.recv(100), inner.sends) == (b"in", [b"out"])
    transport.shutdown_write()
    assert inner.ended
    assert transport.recv(100) == b""
    transport.close()
    assert inner.closed
    assert greenlets() <= others


def test_latency_delays_each_chunk_and_the_end(wrapped, clock):
    link, transport, inner, _ = wrapped
    link.add(latency(1.0), upstream=False)

    transport.sendall(b"a")
    transport.sendall(b"")
    clock.advance(0.5)
    transport.sendall(b"b")
    transport.shutdown_write()
    clock.advance(0.4)
    assert inner.sends == []
    clock.advance(0.1)
    assert (inner.sends, inner.ended) == ([b"a"], False)
    clock.advance(0.5)
    assert (inner.sends, inner.ended) == ([b"a", b"b"], True)


def test_recv_returns_one_slice(wrapped):
    link, transport, inner, _ = wrapped
    link.add(slice_bytes(2), upstream=True)
    inner.feed(b"abcde")

    assert [transport.recv(1), transport.recv(1), transport.recv(100), transport.recv(100)] == [b"a", b"b", b"cd", b"e"]


def test_toxic_applies_to_data_of_a_recv_that_waits_already(wrapped, clock):
    link, transport, inner, _ = wrapped
    received = []
    reader = gevent.spawn(lambda: [received.append(transport.recv(100)) for _ in range(3)])
    clock.advance(0)

    active = link.add(latency(1.0))
    inner.feed(b"ab")
    inner.feed(b"")
    clock.advance(0.9)
    assert received == []
    clock.advance(0.1)
    assert received == [b"ab", b""]

    active.remove()
    reader.kill()


def test_error_of_the_transport_is_raised_after_delayed_data(clock):
    class Failing(MemoryTransport):
        def recv(self, size):
            if not self._chunks:
                raise NSQSocketError(104, "gone")
            return self._chunks.pop(0)

    link = Link(clock)
    transport = link.wrap(Failing(b"data"), lambda: None)
    link.add(latency(1.0))
    reader = gevent.spawn(lambda: (transport.recv(100), transport.recv(100)))
    clock.advance(1.0)

    with pytest.raises(NSQSocketError, match="gone"):
        reader.get(timeout=10)
    link.abort()


def test_sendall_waits_for_capacity(wrapped, clock):
    link, transport, inner, _ = wrapped
    active = link.add(stall(), upstream=False)
    sender = gevent.spawn(transport.sendall, b"x" * 2_000_000)
    clock.advance(0)
    assert not sender.ready()

    active.remove()

    sender.get(timeout=10)
    wait_until(lambda: len(inner.sent) == 2_000_000)


def test_close_waits_for_delayed_data(wrapped, clock):
    link, transport, inner, _ = wrapped
    link.add(latency(1.0))
    reader = gevent.spawn(transport.recv, 100)
    transport.sendall(b"bye")

    transport.close()
    transport.close()
    with pytest.raises(NSQConnectionClosed):
        reader.get(timeout=10)
    clock.advance(0.9)
    assert not inner.closed
    clock.advance(0.2)
    transport.wait_closed()

    assert (inner.sent, inner.closed) == (b"bye", True)


def test_abort_loses_delayed_data(wrapped, clock):
    link, transport, inner, _ = wrapped
    link.add(stall())
    sender = gevent.spawn(transport.sendall, b"x" * 2_000_000)
    reader = gevent.spawn(transport.recv, 100)
    clock.advance(0)

    link.abort()

    for greenlet in (sender, reader):
        with pytest.raises(NSQConnectionClosed):
            greenlet.get(timeout=10)
    assert (inner.sent, inner.closed) == (b"", True)
    transport.abort()


def test_failed_send_of_delayed_data_closes_the_connection(clock):
    class Failing(MemoryTransport):
        def sendall(self, data):
            raise NSQSocketError(32, "broken pipe")

    link, inner = Link(clock), Failing()
    transport = link.wrap(inner, lambda: None)
    link.add(latency(1.0))

    transport.sendall(b"x")
    clock.advance(1.0)

    assert inner.closed
    with pytest.raises(NSQSocketError):
        transport.sendall(b"y")


def test_reset_downstream_resets_the_connection(wrapped, clock):
    link, transport, inner, resets = wrapped
    link.add(reset(after=2), upstream=False)

    transport.sendall(b"abc")
    clock.advance(0)

    assert (inner.sent, resets) == (b"ab", [True])


# --- as a place for toxics --------------------------------------------------------------------------------------------


def test_toxic_is_for_one_direction_of_one_connection(clock):
    link = Link(clock)
    inners = [MemoryTransport(b"up") for _ in range(2)]
    one, two = (link.wrap(inner, lambda: None) for inner in inners)
    assert link.connections == 2

    link.add(corrupt_bytes(1.0), connection=2, upstream=True)
    two.sendall(b"down")

    assert one.recv(100) == b"up"
    assert two.recv(100) not in (b"up", b"")
    assert inners[1].sends == [b"down"]
    link.abort()


def test_toxic_is_removed_at_the_end_of_its_block(wrapped, clock):
    link, transport, inner, _ = wrapped

    with link.add(stall()) as active:
        transport.sendall(b"a")
        clock.advance(0)
        assert inner.sends == []
        assert repr(active) == "<ActiveToxic 1: stall(after=0)>"
    clock.advance(0)

    assert inner.sends == [b"a"]
    active.remove()


def test_clear_leaves_kept_toxics(wrapped, clock):
    link, transport, inner, _ = wrapped
    link.add(stall())
    kept = link.add(latency(1.0), kept=True)
    transport.sendall(b"a")

    link.clear()
    clock.advance(0.9)
    assert inner.sends == []
    clock.advance(0.1)
    assert inner.sends == [b"a"]
    kept.remove()


# --- on a server ------------------------------------------------------------------------------------------------------


def test_stop_does_not_wait_for_a_stalled_link(nsqd, clock):
    others = greenlets()
    nsqd.link.add(stall())
    client = Client(nsqd.tcp_address)
    client.send(b"FOO\n")
    clock.advance(0)

    nsqd.stop()

    assert client.ended()
    gevent.sleep(0)
    assert greenlets() <= others
