"""Connections: reader and writer, effects and errors, transports, clients that do not read or are half-closed."""

import gevent
import pytest
from gevent import socket
from gevent.event import AsyncResult

from fakensqd import on
from fakensqd.clock import ManualClock, RealClock
from fakensqd.daemon.connection import Connection, TransportStack
from fakensqd.effects import AskAuth, Close, Send, StartCompression, StartTLS, TlsEstablished, TlsFailed
from fakensqd.faults import delay, disconnect
from gnsq.protocol import commands
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE
from gnsq.tls import TlsTransport
from gnsq.transport import CompressedTransport, TcpTransport
from tests.kit import wait_until
from tests.kit.wire import Client, consumer


class Script:
    """A session whose effects the test sets."""

    def __init__(self, wake):
        self.wake = wake
        self.due = float("inf")
        self.received = b""
        self.ended = False
        self.gone = False
        self.pumped = []
        self.ticked = []
        self.answers = []
        self.resumed = []
        self.after = []

    def receive(self, data, now):
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
def asked():
    """The requests for AUTH of a connection, and the answer to each."""
    return [], AsyncResult()


@pytest.fixture
def pair(clock, asked):
    """A connection that runs, its session, its client's socket, and errors."""
    ours, theirs = socket.socketpair()
    errors = []
    io_requests, answer = asked

    def ask(io_request):
        io_requests.append(io_request)
        return answer.get()

    connection = Connection(TransportStack(TcpTransport(ours, "client"), clock), clock, Script, errors.append, ask)
    greenlet = gevent.spawn(connection.run)
    theirs.settimeout(10)
    yield connection.session, theirs, errors, greenlet
    theirs.close()
    greenlet.join(timeout=10)
    assert greenlet.dead
    assert connection.session.gone


def test_wake_returns_false_while_the_writer_sends(pair):
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


def test_client_that_does_not_read_is_not_read_from(pair):
    session, client, _, _ = pair
    session.answers = [Send(b"x" * 20_000_000)]
    client.sendall(b"first")
    wait_until(lambda: session.received == b"first")

    client.sendall(b"second")
    for _ in range(3):
        gevent.sleep(1e-6)  # not 0: the loop looks at its sockets
    assert session.received == b"first"

    left = 20_000_000
    while left:
        left -= len(client.recv(left))
    wait_until(lambda: session.received == b"firstsecond")


def test_earlier_deadline_replaces_a_later_one(pair, clock):
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


def test_late_timer_is_set_once_more_before_tick():
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
    # Data that was received before the retry sets the timer for the old deadline again.
    connection.session.due = 1.0
    connection._perform([])
    clock.time = 5.01
    clock.timers[-1][1]()

    assert (seen_late, times) == ([], [5.01])
    assert [round(due, 2) for due, _ in clock.timers] == [1.0, 5.01, 1.0]
    ours.close()
    theirs.close()


def test_exception_of_the_session_is_recorded_and_ends_the_connection(pair):
    session, client, errors, _ = pair
    session.receive = None

    client.sendall(b"x")

    assert client.recv(100) == b""
    assert [type(error) for error in errors] == [TypeError]


# --- requests for I/O -------------------------------------------------------------------------------------------------

REQUEST = AskAuth(b"secret", "127.0.0.1", "", False)


def test_io_request_is_performed_before_more_data_is_read(pair, asked):
    (session, client, _, _), (io_requests, answer) = pair, asked
    session.answers = [Send(b"wait "), REQUEST]
    session.after = [[Send(b"done")]]

    client.sendall(b"first")
    assert client.recv(100) == b"wait "
    client.sendall(b"second")
    session.pumped = [Send(b"news ")]
    session.wake()
    assert client.recv(100) == b"news "
    assert (io_requests, session.received) == ([REQUEST], b"first")

    answer.set("yes")
    assert client.recv(100) == b"done"
    wait_until(lambda: session.received == b"firstsecond")
    assert session.resumed == ["yes"]


def test_session_that_closes_during_an_io_request_is_not_resumed(pair, asked):
    (session, client, _, _), (io_requests, answer) = pair, asked
    session.answers = [REQUEST]
    session.after = [[REQUEST]]
    client.sendall(b"x")
    wait_until(lambda: io_requests)
    session.pumped = [Close()]
    session.wake()
    assert client.recv(100) == b""

    answer.set("yes")

    wait_until(lambda: session.gone)
    assert io_requests == [REQUEST]


def test_data_sent_while_compression_starts_is_compressed(pair):
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


def test_client_that_disconnects_while_compression_starts_is_no_error(pair):
    session, client, errors, greenlet = pair
    session.answers = [Send(b"x" * 10_000_000), StartCompression(Deflate())]
    client.sendall(b"x")
    wait_until(lambda: session.received)

    client.close()

    greenlet.join(timeout=10)
    assert (session.resumed, errors) == ([], [])


def test_data_that_cannot_be_decompressed_ends_the_input(pair):
    session, client, errors, _ = pair
    session.answers = [StartCompression(Deflate())]
    session.after = [[Send(b"go")]]
    client.sendall(b"x")
    client.recv(100)

    client.sendall(b"\xff\xff\xff\xff")

    wait_until(lambda: session.ended)
    assert client.recv(100) == b""
    assert errors == []


# --- effects of faults, states ----------------------------------------------------------------------------------------


def test_close_waits_for_a_client_that_does_not_read_for_five_seconds(clock):
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


# --- transport stack --------------------------------------------------------------------------------------------------


def test_second_compression_replaces_the_first(ends, server_context, client_context):
    stack = TransportStack(ends[0], RealClock(), context=server_context)
    starting = gevent.spawn(stack.start, StartTLS())
    client = TlsTransport(ends[1], client_context, server_hostname="localhost")
    client.handshake()
    assert isinstance(starting.get(timeout=10), TlsEstablished)
    stack.start(StartCompression(Snappy()))

    stack.start(StartCompression(Deflate()))

    client = CompressedTransport(client, Deflate())
    stack.top.sendall(b"hello")
    assert client.recv(100) == b"hello"
    client.sendall(b"back")
    assert stack.top.recv(100) == b"back"


def test_handshake_times_out_after_five_seconds(ends, server_context):
    clock = ManualClock()
    stack = TransportStack(ends[0], clock, context=server_context)
    starting = gevent.spawn(stack.start, StartTLS())
    gevent.sleep(0)
    gevent.sleep(0)

    clock.advance(4.9)
    assert not starting.ready()
    clock.advance(0.1)

    assert starting.get(timeout=10) == TlsFailed("i/o timeout")
    stack.top.sendall(b"in clear")
    assert ends[1].recv(100) == b"in clear"


# --- half-closed clients ----------------------------------------------------------------------------------------------


OK = (RESPONSE, b"OK")
PUB = commands.publish("t", b"body")


LATE = [
    pytest.param(PUB, on.reply("PUB"), [delay(3.0, alone=True)], OK, id="a reply, alone"),
    pytest.param(PUB, on.reply("PUB"), [delay(3.0), disconnect(after=True)], OK, id="a reply and the end"),
    pytest.param(
        b"PUB t\n\0\0",
        on.command("PUB"),
        [delay(3.0)],
        (ERROR, b"E_BAD_MESSAGE PUB failed to read message body size"),
        id="half a command",
    ),
]


@pytest.mark.parametrize(("sent", "match", "actions", "expected"), LATE)
def test_delayed_reply_reaches_a_half_closed_client(nsqd, clock, sent, match, actions, expected):
    nsqd.add(match, *actions)
    client = Client(nsqd.tcp_address)

    client.send(sent)
    client.socket.shutdown(socket.SHUT_WR)
    reader = gevent.spawn(lambda: (client.frame(), client.ended()))
    wait_until(lambda: nsqd.transcript.fired())
    clock.advance(2.9)
    assert not reader.ready()
    clock.advance(0.2)

    assert reader.get(timeout=10) == (expected, True)


def test_disconnected_client_with_a_delayed_reply_gets_no_message(nsqd, clock):
    nsqd.add(on.reply("PUB", topic="other"), delay(3.0))
    gone = consumer(nsqd.tcp_address)
    gone.send(commands.publish("other", b"x"))
    gone.socket.close()
    wait_until(lambda: not nsqd.broker.topics["t"].channels["c"].subscribers)

    reader = consumer(nsqd.tcp_address)
    nsqd.broker.topics["t"].publish([b"x"], nsqd.now())

    assert reader.frame()[0] == MESSAGE
    clock.advance(3.0)
    wait_until(lambda: len(nsqd.transcript.connected()) == 1)


def test_stop_does_not_wait_for_delayed_replies(nsqd):
    nsqd.add(on.reply("PUB"), delay(3.0))
    client = Client(nsqd.tcp_address)
    client.send(PUB)
    client.socket.shutdown(socket.SHUT_WR)
    wait_until(lambda: nsqd.transcript.fired())

    with gevent.Timeout(5.0):
        nsqd.stop()

    assert client.ended()
