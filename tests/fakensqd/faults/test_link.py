"""Toxics on a link: on one transport, on a server, and between a server and gnsq's clients."""

import gc
import socket

import gevent
import pytest

from fakensqd import FakeNsqd
from fakensqd.clock import RealClock
from fakensqd.faults.link import Link
from fakensqd.faults.toxics import corrupt_bytes, latency, limit_bytes, reset, slice_bytes, stall
from gnsq import Consumer, Producer
from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.nsqd.connection import Connection
from gnsq.options import ConnectionOptions
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


def test_latency_delays_each_chunk(wrapped, clock):
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


def test_toxic_applies_to_the_end_of_a_recv_that_waits_already(wrapped, clock):
    link, transport, inner, _ = wrapped
    reader = gevent.spawn(transport.recv, 100)
    clock.advance(0)
    link.add(latency(1.0))

    inner.feed(b"")
    clock.advance(1.0)

    assert reader.get(timeout=10) == b""


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


def test_shutdown_write_waits_for_delayed_data(wrapped, clock):
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


def test_reset_upstream_is_raised_by_recv(wrapped):
    link, transport, inner, resets = wrapped
    link.add(reset(after=2), upstream=True)
    inner.feed(b"abc")

    assert transport.recv(100) == b"ab"
    with pytest.raises(NSQSocketError, match="reset by a toxic"):
        transport.recv(100)
    assert resets == [True]


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


def test_same_seed_corrupts_the_same_bytes():
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


def test_latency_applies_to_both_directions_of_a_server(nsqd, clock):
    client = Client(nsqd.tcp_address)
    with nsqd.link.add(latency(0.2)):
        client.send(commands.publish("t", b"x"))
        clock.advance(0.1)
        assert nsqd.broker.topics == {}
        clock.advance(0.1)
        assert nsqd.broker.topics["t"].depth == 1
        clock.advance(0.2)
        assert client.frame() == OK


def test_fatal_error_is_delivered_before_the_connection_ends(nsqd, clock):
    nsqd.link.add(latency(0.2))
    client = Client(nsqd.tcp_address)
    client.send(b"FOO\n")
    clock.advance(0.5)

    assert client.frame() == (1, b"E_INVALID invalid command FOO")
    assert client.ended()
    wait_until(lambda: not nsqd.sessions)


def test_limit_bytes_ends_the_stream_of_a_client(nsqd):
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


def test_toxic_of_a_server_on_a_thread_applies_to_blocking_code():
    with FakeNsqd().in_thread() as nsqd:
        nsqd.link.add(limit_bytes(3), upstream=False)
        with socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=10) as sock:
            sock.sendall(b"  V2FOO\n")
            assert sock.recv(100) == b"\0\0\0"
            assert sock.recv(100) == b""


def test_messages_are_delivered_in_late_slices(nsqd, clock):
    nsqd.link.add(slice_bytes(7, variation=6))
    nsqd.link.add(latency(0.05, jitter=0.05))
    client = Client(nsqd.tcp_address)
    client.send(commands.subscribe("t", "c") + commands.ready(100) + commands.multipublish("t", [b"m"] * 50))
    clock.advance(30.0)

    kinds = [client.frame()[0] for _ in range(52)]

    assert sorted(kinds) == [RESPONSE] * 2 + [MESSAGE] * 50
    assert request(nsqd.http_address, "GET", "/ping") == "OK"


STACKS = [
    pytest.param({}, id="plain"),
    pytest.param({"deflate": True}, id="deflate"),
    pytest.param({"tls": True}, id="tls"),
    pytest.param({"tls": True, "deflate": True}, id="tls and deflate"),
    pytest.param({"tls": True, "snappy": True}, id="tls and snappy"),
]


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("upstream", [True, False], ids=["upstream", "downstream"])
def test_client_works_with_single_bytes_through_each_transport_stack(certificates, tls_options, stack, upstream):
    options = dict(stack)
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


def test_client_closes_a_stalled_connection_without_heartbeats(nsqd, clock):
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


def test_consumer_reconnects_after_a_reset_inside_a_frame(nsqd, clock):
    got = []
    nsqd.broker.ensure_topic("t").publish([b"x" * 1000], 0.0)
    # After the replies to IDENTIFY and SUB: inside the message.
    nsqd.link.add(reset(after=700), upstream=False, connection=1)
    with Consumer(
        "t", "c", nsqd.tcp_address, message_handler=lambda _, message: got.append(message.attempts), clock=clock
    ) as client:
        wait_until(lambda: nsqd.link.connections == 1 and not client.stats().connections)
        assert got == []

        clock.advance(60.0)

        assert nsqd.link.connections == 2
        wait_until(lambda: got == [2])


def test_consumer_reconnects_after_a_corrupted_frame(nsqd, clock):
    got = []
    channel = nsqd.broker.ensure_topic("t").ensure_channel("c", 0.0)
    with Consumer(
        "t", "c", nsqd.tcp_address, message_handler=lambda _, message: got.append(message.body), clock=clock
    ) as client:
        # The first byte of the frame type.
        nsqd.link.add(corrupt_bytes(at=(4,)), upstream=False, connection=1)
        nsqd.broker.topics["t"].publish([b"x"], 0.0)
        wait_until(lambda: not client.stats().connections)
        assert channel.in_flight_count == 1

        clock.advance(61.0)

        wait_until(lambda: got == [b"x"])
