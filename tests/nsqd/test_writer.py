"""What is queued together is sent together, by one greenlet."""

import time

import gevent
import pytest
from gevent import socket

from gnsq.errors import NSQConnectionClosed
from gnsq.nsqd.pending import PendingCall
from gnsq.nsqd.writer import Writer
from gnsq.transport import TcpTransport
from tests.helpers import MemoryTransport, wait_until


def refuse():
    raise NSQConnectionClosed("closed")


@pytest.fixture
def transport():
    return MemoryTransport()


@pytest.fixture
def outbox():
    made = Writer(time.monotonic, refuse)
    yield made
    made.close()


def test_commands_queued_before_run_are_sent_at_once(outbox, transport):
    for number in range(3):
        outbox.put(b"%d" % number)
    gevent.spawn(outbox.run, transport)
    outbox.wait_flushed()

    assert transport.sends == [b"012"]


def test_command_is_sent_at_once_while_the_writer_sleeps(outbox, transport):
    gevent.spawn(outbox.run, transport)
    outbox.wait_flushed()
    outbox.put(b"a")
    outbox.put(b"b")
    outbox.wait_flushed()

    assert transport.sends == [b"ab"]


def test_finishes_are_one_run_and_stay_in_their_place(outbox, transport):
    outbox.put(b"RDY 1\n")
    outbox.finish(b"a")
    outbox.finish(b"b")
    outbox.put(b"RDY 2\n")
    outbox.finish(b"c")
    gevent.spawn(outbox.run, transport)
    outbox.wait_flushed()
    outbox.finish(b"d")
    outbox.wait_flushed()

    assert transport.sends == [b"RDY 1\nFIN a\nFIN b\nRDY 2\nFIN c\n", b"FIN d\n"]


def test_closed_writer_refuses_finish(outbox):
    outbox.finish(b"a")
    outbox.close()

    for _ in range(2):
        with pytest.raises(NSQConnectionClosed):
            outbox.finish(b"b")


def test_wait_flushed_of_an_empty_writer_returns_at_once(outbox, transport):
    gevent.spawn(outbox.run, transport)
    gevent.sleep(0)

    outbox.wait_flushed()

    assert transport.sends == []


def test_close_makes_run_and_wait_flushed_return(outbox, transport):
    writer = gevent.spawn(outbox.run, transport)
    gevent.sleep(0)
    outbox.put(b"never sent")
    waiting = gevent.spawn(outbox.wait_flushed)
    outbox.close()

    gevent.joinall([writer, waiting], timeout=2, raise_error=True)

    assert transport.sends == []


def test_broken_send_is_raised_by_run(outbox, transport):
    transport.close()
    writer = gevent.spawn(outbox.run, transport)
    outbox.put(b"x")
    wait_until(writer.ready)

    assert isinstance(writer.exception, NSQConnectionClosed)


def test_long_commands_go_out_in_pieces_each_with_its_own_deadline(transport):
    times = iter(range(100))
    outbox = Writer(lambda: next(times), refuse)
    outbox.put(b"x" * 600_000)
    sent = []
    transport.sendall = lambda data: sent.append((len(data), outbox.sending_since))
    gevent.spawn(outbox.run, transport)
    outbox.wait_flushed()

    assert sent == [(262_144, 0), (262_144, 1), (75_712, 2)]
    assert outbox.sending_since is None
    outbox.close()


@pytest.mark.parametrize("number", [1, 2], ids=["alone", "one of two"])
def test_request_is_not_sent_to_a_peer_that_closed_while_nothing_was_sent(number):
    ours, theirs = socket.socketpair()
    transport = TcpTransport(ours, "peer:1")
    outbox = Writer(lambda: now[0], refuse)
    now = [10.0]
    writer = gevent.spawn(outbox.run, transport)
    outbox.wait_flushed()
    outbox.submit(PendingCall(b"first"))
    outbox.pending.resolve(b"OK")

    theirs.close()
    now[0] += 1.1
    for _ in range(number):
        outbox.submit(PendingCall(b"x"))
    outbox.wait_flushed()

    assert len(outbox.pending.unsent) == number
    outbox.close()
    writer.join()
    transport.close()
