"""A link between clients and a server: straight through without toxics, and what they do to live connections."""

import gc
import socket

import gevent
import pytest

from fakensqd import FakeNsqd
from fakensqd.clock import RealClock
from fakensqd.faults.link import Link
from fakensqd.faults.toxics import corrupt_bytes, latency, limit_bytes, reset, slice_bytes, stall
from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.protocol import commands
from gnsq.protocol.frames import MESSAGE, RESPONSE
from tests.fakensqd.wire import Client, request
from tests.helpers import MemoryTransport, wait_until

OK = (RESPONSE, b"OK")


@pytest.fixture
def nsqd(clock):
    others = greenlets()
    with FakeNsqd(clock=clock) as nsqd:
        yield nsqd
    assert nsqd.errors == []
    gevent.sleep(0)
    assert greenlets() <= others


def greenlets():
    found = [item for item in gc.get_objects() if isinstance(item, gevent.Greenlet)]
    return {item for item in found if not item.dead and "link" in item.name}


@pytest.fixture
def wrapped(clock):
    """A link, a connection on it, and what lies below."""
    link, inner, resets = Link(clock), MemoryTransport(), []
    transport = link.wrap(inner, lambda: resets.append(True))
    yield link, transport, inner, resets
    link.abort()
    assert resets or inner.closed


# --- as a transport ---------------------------------------------------------------------------------------------------


def test_without_toxics_calls_go_straight_through(wrapped):
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


def test_latency_delays_without_thinning_out(wrapped, clock):
    link, transport, inner, _ = wrapped
    link.add(latency(1.0), upstream=False)

    transport.sendall(b"a")
    transport.sendall(b"")
    clock.advance(0.5)
    transport.sendall(b"b")
    clock.advance(0.4)
    assert inner.sends == []
    clock.advance(0.1)
    assert inner.sends == [b"a"]
    clock.advance(0.5)
    assert inner.sends == [b"a", b"b"]


def test_slices_are_received_one_by_one_however_much_is_asked_for(wrapped):
    link, transport, inner, _ = wrapped
    link.add(slice_bytes(2), upstream=True)
    inner.feed(b"abcde")

    assert [transport.recv(1), transport.recv(1), transport.recv(100), transport.recv(100)] == [b"a", b"b", b"cd", b"e"]


def test_a_toxic_meets_what_comes_while_somebody_waits(wrapped, clock):
    link, transport, inner, _ = wrapped
    received = []
    reader = gevent.spawn(lambda: [received.append(transport.recv(100)) for _ in range(3)])
    clock.advance(0)

    placed = link.add(latency(1.0))
    inner.feed(b"ab")
    inner.feed(b"")
    clock.advance(0.9)
    assert received == []
    clock.advance(0.1)
    assert received == [b"ab", b""]

    placed.remove()
    reader.kill()


def test_an_end_that_comes_while_somebody_waits(wrapped, clock):
    link, transport, inner, _ = wrapped
    reader = gevent.spawn(transport.recv, 100)
    clock.advance(0)
    link.add(latency(1.0))

    inner.feed(b"")
    clock.advance(1.0)

    assert reader.get(timeout=10) == b""


def test_a_failure_below_is_raised_in_its_turn(clock):
    class Failing(MemoryTransport):
        def recv(self, size):
            if not self._chunks:
                raise NSQSocketError(104, "gone")
            return self._chunks.pop(0)

    link = Link(clock)
    transport = link.wrap(Failing(b"last words"), lambda: None)
    link.add(latency(1.0))
    reader = gevent.spawn(lambda: (transport.recv(100), transport.recv(100)))
    clock.advance(1.0)

    with pytest.raises(NSQSocketError, match="gone"):
        reader.get(timeout=10)
    link.abort()


def test_who_sends_more_than_a_link_holds_waits(wrapped, clock):
    link, transport, inner, _ = wrapped
    placed = link.add(stall(), upstream=False)
    sender = gevent.spawn(transport.sendall, b"x" * 2_000_000)
    clock.advance(0)
    assert not sender.ready()

    placed.remove()

    sender.get(timeout=10)
    wait_until(lambda: len(inner.sent) == 2_000_000)


def test_close_is_behind_what_was_sent(wrapped, clock):
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


def test_end_is_behind_what_was_sent(wrapped, clock):
    link, transport, inner, _ = wrapped
    link.add(latency(1.0), upstream=False)
    transport.sendall(b"bye")

    transport.shutdown_write()
    clock.advance(0.9)
    assert (inner.sent, inner.ended) == (b"", False)
    clock.advance(0.2)
    assert (inner.sent, inner.ended) == (b"bye", True)

    transport.close()
    assert inner.closed


def test_cut_loses_what_is_on_its_way(wrapped, clock):
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


def test_a_send_that_fails_below_ends_the_connection(clock):
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


def test_resets(wrapped):
    link, transport, inner, resets = wrapped
    link.add(reset(after=2), upstream=True)
    inner.feed(b"abc")

    assert transport.recv(100) == b"ab"
    with pytest.raises(NSQSocketError, match="reset by a toxic"):
        transport.recv(100)
    assert resets == [True]


def test_downstream_resets(wrapped, clock):
    link, transport, inner, resets = wrapped
    link.add(reset(after=2), upstream=False)

    transport.sendall(b"abc")
    clock.advance(0)

    assert (inner.sent, resets) == (b"ab", [True])


# --- as a place for toxics --------------------------------------------------------------------------------------------


def test_directions_and_numbers_of_connections_are_filters(clock):
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


def test_with_takes_a_toxic_off_again(wrapped, clock):
    link, transport, inner, _ = wrapped

    with link.add(stall()) as placed:
        transport.sendall(b"a")
        clock.advance(0)
        assert inner.sends == []
        assert repr(placed) == "<ActiveToxic 1: stall(after=0)>"
    clock.advance(0)

    assert inner.sends == [b"a"]
    placed.remove()


def test_clear_takes_all_off_but_those_that_are_kept(wrapped, clock):
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


def test_the_seed_is_shown_and_decides():
    def corrupted(seed):
        link = Link(RealClock(), seed)
        link.add(corrupt_bytes(0.5))
        transports = [link.wrap(MemoryTransport(bytes(50)), lambda: None) for _ in range(2)]
        data = [transport.recv(100) for transport in transports]
        link.abort()
        return data

    assert corrupted(7) == corrupted(7) != corrupted(8)
    assert corrupted(7)[0] != corrupted(7)[1]
    assert repr(Link(RealClock(), 7)) == "<Link seed=7 toxics=[]>"
    assert Link(RealClock()).seed != Link(RealClock()).seed


# --- on a server ------------------------------------------------------------------------------------------------------


def test_a_server_under_latency_both_ways(nsqd, clock):
    client = Client(nsqd.tcp_address)
    with nsqd.link.add(latency(0.2)):
        client.send(commands.publish("t", b"x"))
        clock.advance(0.1)
        assert nsqd.broker.topics == {}
        clock.advance(0.1)
        assert nsqd.broker.topics["t"].depth == 1
        clock.advance(0.2)
        assert client.frame() == OK


def test_last_words_pass_before_the_connection_ends(nsqd, clock):
    nsqd.link.add(latency(0.2))
    client = Client(nsqd.tcp_address)
    client.send(b"FOO\n")
    clock.advance(0.5)

    assert client.frame() == (1, b"E_INVALID invalid command FOO")
    assert client.ended()
    wait_until(lambda: not nsqd.sessions)


def test_a_limit_ends_the_stream_for_the_client(nsqd):
    nsqd.link.add(limit_bytes(13), upstream=False)
    client = Client(nsqd.tcp_address)
    client.send(commands.publish("t", b"x") * 2)

    assert client.frame() == OK
    assert client.ended()


def test_stop_does_not_wait_for_a_stalled_link(nsqd, clock):
    nsqd.link.add(stall())
    client = Client(nsqd.tcp_address)
    client.send(b"FOO\n")
    clock.advance(0)

    nsqd.stop()

    assert client.ended()


def test_blocking_code_meets_toxics_of_a_server_on_a_thread():
    with FakeNsqd(threaded=True) as nsqd:
        nsqd.link.add(limit_bytes(3), upstream=False)
        with socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=10) as sock:
            sock.sendall(b"  V2FOO\n")
            assert sock.recv(100) == b"\0\0\0"
            assert sock.recv(100) == b""


def test_messages_all_the_way_under_everything_harmless(nsqd, clock):
    nsqd.link.add(slice_bytes(7, variation=6))
    nsqd.link.add(latency(0.05, jitter=0.05))
    client = Client(nsqd.tcp_address)
    client.send(commands.subscribe("t", "c") + commands.ready(100) + commands.multipublish("t", [b"m"] * 50))
    clock.advance(30.0)

    kinds = [client.frame()[0] for _ in range(52)]

    assert sorted(kinds) == [RESPONSE] * 2 + [MESSAGE] * 50
    assert request(nsqd.http_address, "GET", "/ping") == "OK"
