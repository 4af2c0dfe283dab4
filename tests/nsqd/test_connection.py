"""Connection against a peer made of lists: replies in order, heartbeats, errors, the end."""

import logging
import re

import gevent
import gevent.socket
import pytest
from gevent.event import Event

from gnsq.addresses import parse_address
from gnsq.clock import RealClock
from gnsq.errors import (
    NSQBadMessage,
    NSQBadTopic,
    NSQConnectionClosed,
    NSQException,
    NSQFrameError,
    NSQInvalid,
    NSQProtocolError,
    NSQSocketError,
    NSQTimeout,
)
from gnsq.nsqd.connection import ERROR_FRAME_GRACE, MAX_UNSENT, Connection, ConnectionListener, ConnectionState
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, RESPONSE, encode_frame, encode_message
from gnsq.transport import TcpTransport
from tests.kit import LIMIT, MemoryTransport, peer, wait_until

OK = encode_frame(RESPONSE, b"OK")
ID = b"0123456789abcdef"


def message_frame(body=b"body", message_id=ID):
    return encode_frame(MESSAGE, encode_message(1, 1, message_id, body))


@pytest.fixture
def transport():
    return MemoryTransport(OK)


class Listener(ConnectionListener):
    """Notes what it is told."""

    wants_answers = wants_finishes = True

    def __init__(self):
        self.reads, self.messages, self.errors, self.answers = [], [], [], []

    def on_messages(self, connection, messages):
        self.reads.append(messages)
        self.messages.extend(messages)

    def on_error(self, connection, error):
        self.errors.append(error.code)

    def before_answer(self, connection, count):
        self.answers.append(("answered", connection.in_flight))

    def on_finish(self, connection, *args):
        self.answers.append(("finish", *args))

    def on_requeue(self, connection, *args):
        self.answers.append(("requeue", *args))


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def connection(transport, listener):
    made = Connection("nsqd", 4150, ConnectionOptions(timeout=2), listener=listener)
    made.open(transport)
    gevent.sleep(0)  # its greenlets begin
    del transport.sends[:]
    yield made
    made.abort()


@pytest.fixture
def messages(connection, transport, listener):
    """Subscribe and receive one message."""
    transport.answer(OK)
    connection.subscribe("t", "c")
    transport.feed(message_frame())
    wait_until(lambda: listener.messages)
    return listener.messages


def test_replies_resolve_in_order_and_a_heartbeat_is_answered_and_is_none(connection, transport):
    first = connection.request(commands.publish("t", b"1"))
    second = connection.request(commands.publish("t", b"2"))

    transport.feed(encode_frame(RESPONSE, HEARTBEAT) + OK + encode_frame(RESPONSE, b"SECOND"))

    assert [first.get(timeout=LIMIT), second.get(timeout=LIMIT)] == [b"OK", b"SECOND"]
    wait_until(lambda: transport.sent.endswith(b"NOP\n"))


def test_subscribe_refused_raises_and_closes(connection, transport):
    transport.answer(encode_frame(ERROR, b'E_BAD_TOPIC SUB topic name "t" is not valid'))

    with pytest.raises(NSQBadTopic, match="SUB topic name"):
        connection.subscribe("t", "c")
    assert connection.state is ConnectionState.CLOSED


def test_subscribe_answered_by_something_else_is_a_protocol_error(connection, transport):
    transport.answer(encode_frame(RESPONSE, b"HM"))

    with pytest.raises(NSQProtocolError, match="b'HM' to SUB"):
        connection.subscribe("t", "c")


def test_finish_and_requeue_are_sent_and_call_back(connection, transport, listener):
    transport.feed(message_frame() + message_frame())
    wait_until(lambda: len(listener.messages) == 2)
    first, second = listener.messages

    first.touch()
    first.finish()
    second.requeue(100)
    wait_until(lambda: transport.sends)

    assert transport.sent == b"TOUCH %s\nFIN %s\nREQ %s 100\n" % (ID, ID, ID)
    assert listener.answers == [("answered", 1), ("finish", ID), ("answered", 0), ("requeue", ID, 100, True)]


@pytest.mark.parametrize("code", [b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"])
def test_failed_answer_is_an_event_and_the_connection_stays(connection, transport, listener, code):
    reply = connection.request(commands.publish("t", b"1"))

    transport.feed(encode_frame(ERROR, code + b" FIN x failed") + OK)

    assert reply.get(timeout=LIMIT) == b"OK"
    assert listener.errors == [code.decode()]
    assert connection.is_open


def test_fatal_error_fails_the_oldest_with_it_and_the_others_with_the_loss(connection, transport):
    first = connection.request(commands.publish("t", b"1"))
    second = connection.request(commands.publish("t", b"2"))

    transport.feed(encode_frame(ERROR, b"E_INVALID no"))

    with pytest.raises(NSQInvalid, match="E_INVALID no"):
        first.get(timeout=LIMIT)
    with pytest.raises(NSQConnectionClosed, match=r"refused a command before this one .*E_INVALID no.* not executed"):
        second.get(timeout=LIMIT)
    with pytest.raises(NSQConnectionClosed, match="nsqd:4150"):
        connection.send(commands.NOP)


def test_frames_before_a_malformed_one_count(connection, transport):
    reply = connection.request(commands.publish("t", b"1"))

    transport.feed(OK + b"\x00\x00\x00\x00")

    assert reply.get(timeout=LIMIT) == b"OK"
    assert connection.wait_closed(LIMIT)
    assert isinstance(connection.error, NSQFrameError)
    assert connection.error.address == "nsqd:4150"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"\xff\xff\xff\xff", NSQFrameError, id="frame"),
        pytest.param(message_frame(message_id=b"id with\nline end"), NSQFrameError, id="newline in an id"),
        pytest.param(
            message_frame() + message_frame(message_id=b"id with one space"[:16]), NSQFrameError, id="space in an id"
        ),
        pytest.param(OK, NSQProtocolError, id="answer to nothing"),
    ],
)
def test_broken_peer_ends_the_connection(connection, transport, data, error):
    transport.feed(data)

    assert connection.wait_closed(LIMIT)
    assert isinstance(connection.error, error)


def test_answer_that_never_comes_is_a_timeout(transport):
    connection = Connection("nsqd", 4150, ConnectionOptions(timeout=0.05))
    connection.open(transport)

    with pytest.raises(NSQTimeout, match=r"nsqd:4150: no response to SUB within 0.05 s"):
        connection.subscribe("t", "c")
    connection.abort()


def test_ready_above_nsqds_limit_is_refused_before_it_is_sent(connection):
    with pytest.raises(ValueError, match="RDY 2501 exceeds max_rdy_count 2500 of nsqd:4150"):
        connection.ready(2501)


def test_close_waits_for_pending_replies(connection, transport):
    reply = connection.request(commands.publish("t", b"1"))

    closing = gevent.spawn(connection.close, 2 * LIMIT)
    wait_until(lambda: transport.sends)
    assert not transport.ended
    transport.feed(OK)
    closing.join(LIMIT)

    assert reply.get(timeout=0) == b"OK"


class StepClock(RealClock):
    """A clock that each pause of the liveness check moves by the same step, whatever it asks for.

    Args:
        events: Functions to call at the end of a pause, by its number from 1.
    """

    def __init__(self, step, events=()):
        self.now = 0.0
        self._step = step
        self._events = dict(events)
        self._pauses = 0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        # For the event loop to come round.
        gevent.sleep(0)
        gevent.sleep(0)
        self.now += seconds

    def wait(self, waitable, seconds):
        gevent.sleep(0)
        if not waitable.ready():
            self.now += self._step
            self._pauses += 1
            self._events.pop(self._pauses, lambda: None)()
        return waitable.ready()


@pytest.mark.parametrize(
    ("step", "heartbeat", "end"),
    [
        pytest.param(15.0, None, 60.0, id="two intervals"),
        pytest.param(15.0, 2, 90.0, id="from the last bytes"),
        # The bytes lie in the socket when nsqd would count as dead, since this process did not run before.
        pytest.param(15.0, 4, 120.0, id="of which this process has not read"),
        pytest.param(500.0, None, 2000.0, id="in which the process ran"),
    ],
)
def test_silent_peer_is_dead_after_two_intervals(transport, step, heartbeat, end):
    clock = StepClock(step, {heartbeat: lambda: transport.feed(encode_frame(RESPONSE, HEARTBEAT))})
    connection = Connection("nsqd", 4150, ConnectionOptions(heartbeat_interval=30), clock)
    connection.open(transport)

    assert connection.wait_closed(LIMIT)

    assert "no word from nsqd for 60 s, 2 heartbeat intervals" in str(connection.error)
    assert clock.now == pytest.approx(end, abs=0.2)


@pytest.mark.parametrize(
    ("ready", "refused", "why"),
    [(1, 1, "no message for 30 s with RDY 1, after nsqd has refused 1 answer"), (2, 1, "no word"), (1, 0, "no word")],
)
def test_connection_whose_nsqd_may_count_a_message_too_many_ends(transport, ready, refused, why):
    clock = StepClock(15.0)
    connection = Connection("nsqd", 4150, ConnectionOptions(heartbeat_interval=30), clock)
    connection.open(transport)
    connection.ready(ready)
    if refused:
        transport.feed(encode_frame(ERROR, b"E_FIN_FAILED FIN x failed"))

    assert connection.wait_closed(LIMIT)

    assert why in str(connection.error)


@pytest.mark.parametrize("interval", [30.0, -1])
def test_send_that_does_not_end_is_a_timeout(transport, interval):
    clock = StepClock(5.0)
    connection = Connection("nsqd", 4150, ConnectionOptions(heartbeat_interval=interval, timeout=10.0), clock)
    connection.open(transport)
    transport.sendall = lambda data: Event().wait()
    connection.send(commands.NOP)

    assert connection.wait_closed(LIMIT)

    assert isinstance(connection.error, NSQTimeout)
    assert re.search("nsqd has not read what was sent for 10 s, timeout is 10.0 s", str(connection.error))


def test_tcp_port_of_nsqlookupd_is_named_in_the_error(fakelookupd):
    host, port = fakelookupd.tcp_address.split(":")

    with pytest.raises(NSQProtocolError, match=r"is this nsqlookupd's TCP port \(4160\)"):
        Connection(host, int(port), ConnectionOptions(timeout=5)).open()


def test_reason_that_comes_while_a_send_breaks_is_not_lost(connection, transport):
    def broken(data):
        transport.feed(encode_frame(ERROR, b"E_BAD_MESSAGE PUB message too big 11 > 10"))
        raise NSQConnectionClosed("Connection reset by peer")

    transport.sendall = broken

    with pytest.raises(NSQBadMessage, match="message too big 11 > 10"):
        connection.call(commands.publish("t", b"x" * 11))


def test_broken_send_without_a_reason_ends_the_connection(transport, clock):
    def broken(data):
        raise NSQConnectionClosed("Connection reset by peer")

    connection = Connection("nsqd", 4150, clock=clock)
    connection.open(transport)
    transport.sendall = broken
    reply = connection.request(commands.NOP)
    clock.advance(ERROR_FRAME_GRACE)

    with pytest.raises(NSQConnectionClosed, match="reset by peer"):
        reply.get(timeout=LIMIT)


def test_close_while_subscribing_does_not_leave_it_subscribed(connection, transport):
    subscribing = gevent.spawn(connection.subscribe, "t", "c")
    wait_until(lambda: transport.sends)
    closing = gevent.spawn(connection.close, 2 * LIMIT)
    gevent.sleep(0)

    transport.feed(OK)
    gevent.joinall([subscribing, closing], timeout=LIMIT)

    assert isinstance(subscribing.exception, NSQConnectionClosed)
    assert connection.state is ConnectionState.CLOSED


def test_close_ends_when_the_connection_is_lost_while_draining(connection, transport, messages):
    closing = gevent.spawn(connection.close, 2 * LIMIT)
    wait_until(lambda: transport.sent.endswith(b"CLS\n"))
    transport.feed(encode_frame(RESPONSE, b"CLOSE_WAIT"))
    gevent.sleep(0)

    transport.feed(b"")

    closing.get(timeout=LIMIT)


def test_message_that_comes_with_close_wait_is_waited_for(connection, transport, messages):
    closing = gevent.spawn(connection.close, 2 * LIMIT)
    wait_until(lambda: transport.sent.endswith(b"CLS\n"))
    messages[0].finish()

    transport.feed(message_frame() + encode_frame(RESPONSE, b"CLOSE_WAIT"))
    wait_until(lambda: len(messages) == 2)
    gevent.sleep(0)
    assert not transport.ended
    messages[1].finish()
    closing.get(timeout=LIMIT)

    assert transport.sent.count(b"FIN ") == 2
    assert (transport.ended, connection.error) == (True, None)


def test_connection_aborted_while_it_connects_stays_closed():
    received = []

    def resolve(host, port):
        connection.abort()
        return parse_address(address)

    with peer(lambda sock: received.append(sock.recv(100))) as address:
        connection = Connection("nsqd", 4150, ConnectionOptions(address_resolver=resolve))

        with pytest.raises(NSQConnectionClosed, match="nsqd:4150"):
            connection.open()
        wait_until(lambda: received)

    assert connection.state is ConnectionState.CLOSED
    assert received == [b""]


def test_killed_reader_closes_the_connection(connection):
    gevent.sleep(0)
    for greenlet in connection._greenlets:
        if greenlet.name.startswith("gnsq-read"):
            greenlet.kill()

    assert connection.state is ConnectionState.CLOSED


def test_invalid_host_name_is_a_socket_error():
    with pytest.raises(NSQSocketError, match=r"host name 'a\.\.b' is not valid"):
        Connection("a..b", 4150).open()


# --- peers that mean no good


def test_peer_that_sends_and_does_not_read_is_given_up():
    transport = MemoryTransport(OK)
    connection = Connection("nsqd", 4150)
    connection.open(transport)
    transport.sendall = lambda data: gevent.sleep(LIMIT)

    transport.feed(encode_frame(RESPONSE, HEARTBEAT) * 200_000)

    assert connection.wait_closed(LIMIT)
    assert "nsqd does not read: 200000 commands wait to be sent" in str(connection.error)


def test_peer_that_sends_one_message_at_a_time_and_does_not_read_is_given_up():
    class Handling(Listener):
        def may_handle_in_hub(self):
            return True

    ours, theirs = gevent.socket.socketpair()
    with theirs:
        theirs.sendall(OK)
        connection = Connection("nsqd", 4150, listener=Handling())
        transport = TcpTransport(ours, "nsqd:4150")
        connection.open(transport)
        transport.sendall, transport.send_nowait = lambda data: gevent.sleep(LIMIT), lambda data: 0
        for _ in range(MAX_UNSENT + 1):
            connection.send(commands.NOP)
        theirs.sendall(message_frame())
        wait_until(lambda: not connection.is_open)

    assert "nsqd does not read: 125001 commands wait to be sent" in str(connection.error)


def test_long_answer_is_refused_before_sub(connection, transport):
    reply = connection.request(commands.publish("t", b"x"))

    transport.feed((65537).to_bytes(4, "big"))

    with pytest.raises(NSQConnectionClosed, match=r"frame size 65537 .* is not within 4 to 65536"):
        reply.get(timeout=LIMIT)


def test_long_frames_are_read_after_sub(connection, transport, messages):
    for start in range(0, len(LONG), 50_000):
        transport.feed(LONG[start : start + 50_000])

    wait_until(lambda: len(messages) == 3)
    assert [(len(message.body), message.id, message.attempts) for message in messages] == [
        (4, ID, 1),
        (1_000_000, ID, 1),
        (4, ID, 1),
    ]
    assert connection.in_flight == 3


LONG = message_frame(bytes(1_000_000)) + message_frame()


def test_peer_can_not_forge_log_lines(caplog):
    caplog.set_level(logging.INFO)
    transport = MemoryTransport(encode_frame(RESPONSE, b'{"version":"1\\n\\u001b[2J"}'))
    connection = Connection("nsqd", 4150)
    connection.open(transport)

    transport.feed(encode_frame(ERROR, b"E_REQ_FAILED x\nroot: \x1b[2J") + encode_frame(ERROR, b"E_INVALID \x07\r\n"))

    assert connection.wait_closed(LIMIT)
    assert len(caplog.messages) == 2
    assert all(message.isprintable() for message in caplog.messages)
    assert str(connection.error).isprintable()


# --- life in the wrong order


def test_abort_from_a_receiver_in_the_handshake_is_final():
    transport = MemoryTransport(OK)

    class Aborter(ConnectionListener):
        def on_response(self, connection, data):
            connection.abort()

    connection = Connection("nsqd", 4150, listener=Aborter())

    with pytest.raises(NSQConnectionClosed):
        connection.open(transport)

    assert connection.state is ConnectionState.CLOSED
    assert transport.closed
    assert connection._greenlets == []


def test_connection_is_opened_once_and_closed_at_once_if_it_was_not(connection):
    with pytest.raises(NSQException, match="nsqd:4150: connection was opened before"):
        connection.open(MemoryTransport(OK))
    assert connection.is_open

    unopened = Connection("nsqd", 4150)
    with gevent.Timeout(LIMIT):
        unopened.close(2 * LIMIT)
    assert unopened.state is ConnectionState.CLOSED
