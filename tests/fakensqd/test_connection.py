"""The greenlet pair of a connection: what it does with effects, errors, and clients that do not read."""

import gevent
import pytest
from gevent import socket

from fakensqd.clock import ManualClock
from fakensqd.connection import Connection
from fakensqd.effects import Close, Send
from tests.helpers import wait_until


class Script:
    """A session that does as it is told."""

    def __init__(self, wake):
        self.wake = wake
        self.due = float("inf")
        self.received = b""
        self.ended = False
        self.gone = False
        self.pumped = []
        self.ticked = []
        self.broken = False
        self.answers = []

    def receive(self, data, now):
        if self.broken:
            raise RuntimeError("broken")
        self.received += data
        answers, self.answers = self.answers, []
        return answers

    def end_of_input(self, now):
        self.ended = True
        return [Close()]

    def pump(self, now):
        pumped, self.pumped = self.pumped, []
        return pumped

    def tick(self, now):
        self.due = float("inf")
        return self.ticked

    def disconnected(self):
        self.gone = True


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def pair(clock):
    """A connection that runs, its session, its client's socket, and errors."""
    ours, theirs = socket.socketpair()
    errors = []
    connection = Connection(ours, clock, Script, errors.append)
    greenlet = gevent.spawn(connection.run)
    theirs.settimeout(10)
    yield connection.session, theirs, errors, greenlet
    theirs.close()
    greenlet.join(timeout=10)
    assert greenlet.dead
    assert connection.session.gone


def test_bytes_in_and_effects_out(pair):
    session, client, errors, _ = pair
    session.answers = [Send(b"one "), Send(b"two")]

    client.sendall(b"hello")

    assert client.recv(100) == b"one two"
    assert session.received == b"hello"
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b""
    assert session.ended
    assert errors == []


def test_a_close_sends_what_is_queued_first(pair):
    session, client, _, _ = pair
    session.answers = [Send(b"bye"), Close()]

    client.sendall(b"x")

    assert client.recv(100) == b"bye"
    assert client.recv(100) == b""


def test_a_wake_up_pumps(pair):
    session, client, _, _ = pair
    gevent.sleep(0)
    session.pumped = [Send(b"news")]

    assert session.wake()

    assert client.recv(100) == b"news"


def test_one_that_is_still_sending_cannot_come_at_once(pair):
    session, client, _, _ = pair
    gevent.sleep(0)
    session.pumped = [Send(b"x" * 10_000_000)]
    session.wake()
    wait_until(lambda: not session.pumped)

    assert not session.wake()

    left = 10_000_000
    while left:
        left -= len(client.recv(left))
    wait_until(session.wake)


def test_a_client_that_does_not_read_is_not_read_from(pair):
    session, client, _, _ = pair
    session.answers = [Send(b"x" * 20_000_000)]
    client.sendall(b"first")
    wait_until(lambda: session.received == b"first")

    client.sendall(b"second")
    gevent.sleep(0.01)
    assert session.received == b"first"

    left = 20_000_000
    while left:
        left -= len(client.recv(left))
    wait_until(lambda: session.received == b"firstsecond")


def test_time_ticks(pair, clock):
    session, client, _, _ = pair
    session.due = 5.0
    session.ticked = [Send(b"tick")]
    client.sendall(b"x")
    wait_until(lambda: session.received)
    gevent.sleep(0)

    clock.advance(4.9)
    assert session.due == 5.0
    clock.advance(0.2)

    assert client.recv(100) == b"tick"


def test_an_earlier_deadline_takes_the_place_of_a_later_one(pair, clock):
    session, client, _, _ = pair
    session.ticked = [Close()]
    for due in (50.0, 5.0):
        session.due = due
        session.received = b""
        client.sendall(b"x")
        wait_until(lambda: session.received)
        gevent.sleep(0)

    clock.advance(5.0)

    assert client.recv(100) == b""


def test_an_internal_error_is_kept_and_ends_the_connection(pair):
    session, client, errors, _ = pair
    session.broken = True

    client.sendall(b"x")

    assert client.recv(100) == b""
    assert [str(error) for error in errors] == ["broken"]


def test_a_client_that_is_gone_is_no_error(pair):
    session, client, errors, greenlet = pair
    gevent.sleep(0)
    client.close()
    session.pumped = [Send(b"x" * 10_000_000)]
    session.wake()

    greenlet.join(timeout=10)

    assert errors == []


def test_a_killed_reader_takes_the_writer_along(pair):
    session, client, errors, greenlet = pair
    gevent.sleep(0)

    greenlet.kill()

    assert session.gone
    assert client.recv(100) == b""
    assert errors == []
