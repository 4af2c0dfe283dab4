"""What is queued together is sent together, by one greenlet."""

import time

import gevent
import pytest
from gevent import socket

from gnsq.errors import NSQConnectionClosed
from gnsq.nsqd.pending import PendingCall
from gnsq.nsqd.writer import FINISH_ROUNDS, Writer
from gnsq.transport import TcpTransport
from tests.kit import LIMIT, MemoryTransport, wait_until


def refuse():
    raise NSQConnectionClosed("closed")


@pytest.fixture
def transport():
    return MemoryTransport()


@pytest.fixture
def writer():
    made = Writer(time.monotonic, refuse)
    yield made
    made.close()


@pytest.fixture
def running_writer(transport):
    """A running writer."""
    made = Writer(time.monotonic, refuse)
    made.running = gevent.spawn(made.run, transport)
    made.wait_flushed()
    yield made
    made.close()


def finish_in_rounds(writer, *rounds, unfinished=1):
    """Finish messages, those of each round one after another and a round of the event loop later."""
    for ids in rounds:
        for message_id in ids:
            writer.finish(message_id, unfinished)
        gevent.sleep(0)


def test_finishes_of_handlers_that_yield_are_sent_together(running_writer, transport):
    finish_in_rounds(running_writer, [b"a", b"b"], [b"c"], [], [b"d"])
    running_writer.wait_flushed()

    assert transport.sends == [b"FIN a\nFIN b\nFIN c\n", b"FIN d\n"]


def test_command_between_finishes_that_are_waited_for_is_sent_after_them(running_writer, transport):
    finish_in_rounds(running_writer, [b"a", b"b"])
    running_writer.send(b"RDY 0\n")
    running_writer.wait_flushed()

    assert transport.sends == [b"FIN a\nFIN b\nRDY 0\n"]


def test_finishes_are_not_waited_for_in_many_rounds(running_writer, transport):
    finish_in_rounds(running_writer, *([b"%d" % number, b"x"] for number in range(FINISH_ROUNDS + 2)))
    running_writer.wait_flushed()

    assert [data.count(b"FIN") for data in transport.sends] == [2 * (FINISH_ROUNDS + 1), 2]


def test_finishes_are_sent_at_once_if_no_message_is_in_flight(running_writer, transport):
    finish_in_rounds(running_writer, [b"a", b"b"], [b"c"], unfinished=0)
    running_writer.wait_flushed()

    assert transport.sends == [b"FIN a\nFIN b\n", b"FIN c\n"]


def test_writer_that_is_closed_while_it_waits_for_finishes_ends(running_writer, transport):
    finish_in_rounds(running_writer, [b"a", b"b"])
    running_writer.close()
    with pytest.raises(NSQConnectionClosed):
        running_writer.finish(b"c")
    running_writer.running.join(LIMIT)

    assert running_writer.running.successful()
    assert transport.sends == []


def test_broken_send_is_raised_by_run(writer, transport):
    transport.close()
    running = gevent.spawn(writer.run, transport)
    writer.send(b"x")
    wait_until(running.ready)

    assert isinstance(running.exception, NSQConnectionClosed)


def test_long_commands_go_out_in_pieces_each_with_its_own_deadline(transport):
    times = iter(range(100))
    writer = Writer(lambda: next(times), refuse)
    writer.send(b"x" * 600_000)
    sent = []
    transport.sendall = lambda data: sent.append((len(data), writer.sending_since))
    gevent.spawn(writer.run, transport)
    writer.wait_flushed()

    assert sent == [(262_144, 0), (262_144, 1), (75_712, 2)]
    assert writer.sending_since is None
    writer.close()


@pytest.mark.parametrize("number", [1, 2], ids=["alone", "one of two"])
def test_request_is_not_sent_to_a_peer_that_closed_while_nothing_was_sent(number):
    local, remote = socket.socketpair()
    transport = TcpTransport(local, "peer:1")
    writer = Writer(lambda: now[0], refuse)
    now = [10.0]
    running = gevent.spawn(writer.run, transport)
    writer.wait_flushed()
    writer.submit(PendingCall(b"first"))
    writer.pending.resolve(b"OK")

    remote.close()
    now[0] += 1.1
    for _ in range(number):
        writer.submit(PendingCall(b"x"))
    writer.wait_flushed()

    assert len(writer.pending.unsent) == number
    writer.close()
    running.join()
    transport.close()


# --- held commands


@pytest.fixture
def direct():
    """A transport that can send without waiting, its peer, and a writer that runs on it."""
    local, remote = socket.socketpair()
    transport = TcpTransport(local, "peer:1")
    writer = Writer(time.monotonic, refuse)
    running = gevent.spawn(writer.run, transport)
    writer.wait_flushed()
    yield transport, remote, writer
    writer.close()
    running.join(LIMIT)
    assert running.ready()
    transport.close()
    remote.close()


def test_held_commands_share_a_send_without_the_greenlet(direct):
    _, peer, writer = direct

    assert writer.hold()
    writer.finish(b"a", 1)
    writer.send(b"RDY 1\n")
    writer.finish(b"b", 0)
    writer.release()

    with gevent.Timeout(0):
        assert peer.recv(100) == b"FIN a\nRDY 1\nFIN b\n"


def test_held_commands_that_the_socket_does_not_accept_are_sent_by_the_greenlet(direct):
    transport, peer, writer = direct
    full = transport.send_nowait(b"x" * 10_000_000)

    assert writer.hold()
    writer.finish(b"a", 0)
    writer.submit(PendingCall(b"PUB"))
    writer.release()
    assert not writer.hold()
    received = b""
    while not received.endswith(b"PUBFIN a\n"):
        received += peer.recv(100_000)

    assert len(received) == full + len(b"FIN a\nPUB")
    assert writer.unsent == 0


def test_writer_that_is_closed_while_it_holds_commands_ends(direct):
    _, _, writer = direct
    waiting = gevent.spawn(writer.wait_flushed)

    writer.hold()
    gevent.sleep(0)
    writer.finish(b"a", 0)
    writer.close()
    with pytest.raises(NSQConnectionClosed):
        writer.finish(b"b", 0)
    writer.release()

    waiting.get(timeout=LIMIT)


def test_flush_of_held_commands_is_waited_for(direct):
    _, peer, writer = direct

    writer.hold()
    writer.finish(b"a", 0)
    waiting = gevent.spawn(writer.wait_flushed)
    gevent.sleep(0)
    assert not waiting.ready()
    writer.release()

    waiting.get(timeout=LIMIT)
    assert peer.recv(100) == b"FIN a\n"
