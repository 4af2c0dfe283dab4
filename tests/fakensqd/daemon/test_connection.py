"""The greenlet pair of a connection: what it does with effects, errors, and clients that do not read."""

import gevent
import pytest
from gevent import socket
from gevent.event import AsyncResult

from fakensqd.clock import ManualClock
from fakensqd.daemon.connection import Connection, DaemonState, TransportStack
from fakensqd.effects import AskAuth, Close, Reset, Send, StartCompression, Wait
from gnsq.protocol.compression import Deflate
from gnsq.transport import CompressedTransport, TcpTransport
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
        self.resumed = []
        self.after = []

    def receive(self, data, now):
        if self.broken:
            raise RuntimeError("broken")
        self.received += data
        answers, self.answers = self.answers, []
        return answers

    def resume(self, answer, now):
        self.resumed.append(answer)
        return self.after.pop(0)

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
def pair(clock):
    """A connection that runs, its session, its client's socket, and errors."""
    ours, theirs = socket.socketpair()
    errors = []
    stack = TransportStack(TcpTransport(ours, "client"), clock)
    connection = Connection(stack, clock, Script, errors.append)
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


class LateClock(ManualClock):
    """One whose timers fire when the test says, however late."""

    def __init__(self):
        super().__init__()
        self.time, self.timers = 0.0, []

    def monotonic(self):
        return self.time

    def call_later(self, seconds, function):
        self.timers.append((self.time + seconds, function))
        return super().call_later(seconds, lambda: None)


def test_a_deadline_that_is_seen_late_is_looked_at_once_more():
    clock = LateClock()
    ours, theirs = socket.socketpair()
    connection = Connection(TransportStack(TcpTransport(ours, "client"), clock), clock, Script, [].append)
    times = []
    tick = connection.session.tick
    connection.session.tick = lambda now: times.append(now) or tick(now)
    connection.session.due = 1.0
    connection._perform([])

    clock.time = 5.0
    clock.timers[-1][1]()
    seen_late = list(times)
    # In between, what the client has sent meanwhile is read; which leads to the old deadline being looked at again.
    connection.session.due = 1.0
    connection._perform([])
    clock.time = 5.01
    clock.timers[-1][1]()

    assert (seen_late, times) == ([], [5.01])
    assert [round(due, 2) for due, _ in clock.timers] == [1.0, 5.01, 1.0]
    ours.close()
    theirs.close()


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


# --- questions --------------------------------------------------------------------------------------------------------

QUESTION = AskAuth(b"secret", "127.0.0.1", "", False)


@pytest.fixture
def asked(clock):
    """A connection whose questions the test answers: session, client, what was asked, the answer, errors."""
    ours, theirs = socket.socketpair()
    errors, io_requests, answer = [], [], AsyncResult()

    def ask(io_request):
        io_requests.append(io_request)
        return answer.get()

    connection = Connection(TransportStack(TcpTransport(ours, "client"), clock), clock, Script, errors.append, ask)
    greenlet = gevent.spawn(connection.run)
    theirs.settimeout(10)
    yield connection.session, theirs, io_requests, answer
    theirs.close()
    greenlet.kill()
    assert errors == []


def test_a_question_is_answered_before_anything_else_is_read(asked):
    session, client, io_requests, answer = asked
    session.answers = [Send(b"wait "), QUESTION]
    session.after = [[Send(b"done")]]

    client.sendall(b"first")
    assert client.recv(100) == b"wait "
    client.sendall(b"second")
    session.pumped = [Send(b"news ")]
    session.wake()
    assert client.recv(100) == b"news "
    assert (io_requests, session.received) == ([QUESTION], b"first")

    answer.set("yes")
    assert client.recv(100) == b"done"
    wait_until(lambda: session.received == b"firstsecond")
    assert session.resumed == ["yes"]


def test_one_question_may_follow_the_other(asked):
    session, client, _, answer = asked
    session.answers = [QUESTION]
    session.after = [[QUESTION], [Send(b"done")]]
    answer.set("yes")

    client.sendall(b"x")

    assert client.recv(100) == b"done"
    assert session.resumed == ["yes", "yes"]


def test_who_closes_meanwhile_is_not_answered(asked):
    session, client, io_requests, answer = asked
    session.answers = [QUESTION]
    session.after = [[QUESTION]]
    client.sendall(b"x")
    wait_until(lambda: io_requests)
    session.pumped = [Close()]
    session.wake()
    assert client.recv(100) == b""

    answer.set("yes")

    wait_until(lambda: session.gone)
    assert io_requests == [QUESTION]


def test_compression_begins_behind_what_was_said_before(pair):
    session, client, errors, _ = pair
    session.answers = [Send(b"plain"), StartCompression(Deflate())]
    session.after = [[Send(b"compressed")]]

    client.sendall(b"x")

    peer = CompressedTransport(TcpTransport(client, "server"), Deflate(), client.recv(100).removeprefix(b"plain"))
    assert peer.recv(100) == b"compressed"
    peer.sendall(b"back")
    wait_until(lambda: session.received == b"xback")
    assert (session.resumed, errors) == ([None], [])


def test_what_is_said_while_a_layer_is_put_on_goes_through_it(pair):
    session, client, _, _ = pair
    session.answers = [Send(b"x" * 10_000_000), StartCompression(Deflate())]
    session.after = [[Send(b"done")]]
    client.sendall(b"x")
    wait_until(lambda: session.received)
    session.pumped = [Send(b"news ")]
    gevent.sleep(0)
    session.wake()

    received = b""
    while len(received) <= 10_000_000:
        received += client.recv(1 << 20)

    peer = CompressedTransport(TcpTransport(client, "server"), Deflate(), received[10_000_000:])
    data = peer.recv(100)
    while not data.endswith(b"done"):
        data += peer.recv(100)
    assert data in (b"news done", b"donenews ")


def test_a_client_that_goes_while_a_layer_is_put_on(pair):
    session, client, errors, greenlet = pair
    session.answers = [Send(b"x" * 10_000_000), StartCompression(Deflate())]
    client.sendall(b"x")
    wait_until(lambda: session.received)

    client.close()

    greenlet.join(timeout=10)
    assert (session.resumed, errors) == ([], [])


def test_what_cannot_be_decompressed_is_the_end(pair):
    session, client, errors, _ = pair
    session.answers = [StartCompression(Deflate())]
    session.after = [[Send(b"go")]]
    client.sendall(b"x")
    client.recv(100)

    client.sendall(b"\xff\xff\xff\xff")

    wait_until(lambda: session.ended)
    assert client.recv(100) == b""
    assert errors == []


# --- what faults ask for, and states ----------------------------------------------------------------------------------


def test_a_wait_is_a_question_that_time_answers(pair, clock):
    session, client, _, _ = pair
    session.answers = [Wait(5.0)]
    session.after = [[Send(b"done")]]
    client.sendall(b"x")
    wait_until(lambda: session.received)
    session.pumped = [Send(b"news ")]
    session.wake()
    assert client.recv(100) == b"news "

    clock.advance(4.9)
    assert session.resumed == []
    clock.advance(0.1)

    assert client.recv(100) == b"done"


def test_a_reset_comes_behind_what_is_queued(clock):
    ours, theirs = socket.socketpair()
    resets = []
    stack = TransportStack(TcpTransport(ours, "client"), clock, reset=lambda: resets.append(True))
    connection = Connection(stack, clock, Script, print)
    greenlet = gevent.spawn(connection.run)
    connection.session.answers = [Send(b"bye"), Reset()]

    theirs.sendall(b"x")

    assert theirs.recv(100) == b"bye"
    assert theirs.recv(100) == b""
    greenlet.join(timeout=10)
    assert resets == [True]
    theirs.close()


def test_without_a_way_to_reset_it_is_a_close(clock):
    ours, theirs = socket.socketpair()
    connection = Connection(TransportStack(TcpTransport(ours, "client"), clock), clock, Script, print)
    greenlet = gevent.spawn(connection.run)
    connection.session.answers = [Reset()]

    theirs.sendall(b"x")

    assert theirs.recv(100) == b""
    greenlet.join(timeout=10)
    theirs.close()


def test_slowness_is_before_the_session(clock):
    ours, theirs = socket.socketpair()
    state = DaemonState(processing_delay=5.0)
    connection = Connection(TransportStack(TcpTransport(ours, "client"), clock), clock, Script, print, None, state)
    greenlet = gevent.spawn(connection.run)
    theirs.sendall(b"x")
    clock.advance(4.9)
    assert connection.session.received == b""

    clock.advance(0.1)

    assert connection.session.received == b"x"
    greenlet.kill()
    theirs.close()


def test_who_does_not_read_is_waited_for_by_the_clock(clock):
    ours, theirs = socket.socketpair()
    connection = Connection(TransportStack(TcpTransport(ours, "client"), clock), clock, Script, print)
    greenlet = gevent.spawn(connection.run)
    connection.session.answers = [Send(b"x" * 10_000_000), Close()]
    theirs.sendall(b"x")
    clock.advance(4.9)
    assert not greenlet.ready()

    clock.advance(0.1)

    greenlet.join(timeout=10)
    assert greenlet.ready()
    theirs.close()
