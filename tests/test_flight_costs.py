"""Costs of a consumer's messages and of a lone publish over a real socket, as numbers of switches, greenlets and sends.

The client has a thread and a hub of its own, and so has the peer: so all greenlets that run there are the client's, and
none was left by another test.
"""

import collections
import functools
import gc
import socket
import sys
import threading
import time

import gevent
import gevent.event
import greenlet
import pytest

from gnsq import Consumer
from gnsq.clock import RealClock
from gnsq.concurrency.hub_monitor import HubMonitor
from gnsq.concurrency.hub_thread import HubThread
from gnsq.nsqd.connection import Connection, ConnectionListener
from gnsq.options import ConnectionOptions
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.publish import PendingPublish
from gnsq.protocol.frames import MESSAGE, RESPONSE, encode_frame, encode_message
from gnsq.transport import TcpTransport
from tests.kit import LIMIT
from tests.producer.conftest import dispatcher_with

COUNT = 1000
FIN_SIZE = len(b"FIN 0123456789abcdef\n")


class Costs:
    """Counts greenlet switches, and the greenlets that were switched to."""

    def __init__(self):
        self.switches = 0
        self.greenlets = collections.Counter()
        self.sends = 0
        self.polls = 0

    def __enter__(self):
        gc.collect()
        gc.disable()  # it would call the finalizers of what other tests have left
        self.before = greenlet.settrace(self)
        return self

    def __exit__(self, *_):
        greenlet.settrace(self.before)
        gc.enable()

    def __call__(self, event, greenlets):
        self.switches += 1
        self.greenlets[greenlets[1]] += 1


class CountedTransport(TcpTransport):
    """Counts the sends."""

    costs = Costs()

    def sendall(self, data):
        self.costs.sends += 1
        super().sendall(data)

    def send_nowait(self, data):
        self.costs.sends += 1
        return super().send_nowait(data)


class Nsqd(threading.Thread):
    """Sends messages, never more than ``in_flight`` without an answer. Sets ``ended`` after the FIN of the last."""

    def __init__(self, sock, in_flight):
        super().__init__(daemon=True)
        self.sock = sock
        self.in_flight = in_flight
        self.ended = gevent.event.Event()
        self.loop = gevent.get_hub().loop
        self.sent = 0
        self.finished = 0

    def run(self):
        self.deliver(self.in_flight)
        unread = 0
        while self.finished < COUNT:
            unread += len(self.sock.recv(65536))
            answered, unread = divmod(unread, FIN_SIZE)
            self.finished += answered
            self.deliver(min(answered, COUNT - self.sent))
        self.loop.run_callback_threadsafe(self.ended.set)

    def deliver(self, count):
        ids = range(self.sent, self.sent + count)
        self.sent += count
        self.sock.sendall(b"".join(encode_frame(MESSAGE, encode_message(1, 1, b"%016d" % i, b"x" * 200)) for i in ids))


def alone(test):
    """Run a test in a thread with a hub of its own."""

    @functools.wraps(test)
    def run(**fixtures):
        with HubThread("costs") as hub:
            hub.call(functools.partial(unmonitored, test, **fixtures))

    return run


def unmonitored(test, **fixtures):
    """Let nothing log that the hub is blocked: the calls would be counted."""
    HubMonitor(blocked_after=3600.0)
    monitor = HubMonitor.acquire()
    try:
        test(**fixtures)
    finally:
        monitor.release()


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def consumed(ends, in_flight, handler):
    """Let a consumer handle COUNT messages; returns what it cost."""
    ours, theirs = ends
    transport = CountedTransport(gevent.socket.socket(fileno=ours.detach()), "nsqd:4150")
    theirs.sendall(encode_frame(RESPONSE, b"OK"))
    consumer = Consumer("t", "c", "nsqd", message_handler=handler, max_in_flight=max(in_flight, 10))
    connection = consumer._runtime.make_connection("nsqd:4150")
    connection.open(transport)
    connection.ready(in_flight)
    gevent.sleep(0)
    theirs.recv(65536)  # the handshake
    gevent.sleep(0)
    nsqd = Nsqd(theirs, in_flight)
    costs = transport.costs = Costs()
    with costs:
        nsqd.start()
        # Not by looking again and again: each look costs switches, and the more of them the slower the machine is.
        assert nsqd.ended.wait(6 * LIMIT)
    connection.abort()
    consumer._runtime.workers.close()
    costs.polls = transport._poller.polls
    return costs


def quick(consumer, message):
    pass


def yielding(consumer, message):
    gevent.sleep(0)


def waiting(consumer, message):
    gevent.sleep(0.001)


@pytest.mark.parametrize(
    ("handler", "in_flight", "switches", "sends"),
    [
        # From the hub to a parked worker and back.
        (quick, 1, 2.2, 1.0),
        (quick, 10, 0.8, 0.15),
        (quick, 200, 0.1, 0.02),
        # Two more for each handler that waits, or two in all if it finds the next message when it has waited.
        (yielding, 1, 4.2, 1.0),
        (yielding, 10, 4.0, 0.2),
        (yielding, 200, 2.8, 0.06),
        (waiting, 10, 4.8, 0.2),
        (waiting, 200, 4.3, 0.1),
    ],
)
@alone
def test_message_costs_few_switches_few_sends_and_no_greenlet(ends, handler, in_flight, switches, sends):
    costs = consumed(ends, in_flight, handler)

    assert costs.switches <= switches * COUNT, costs.greenlets
    assert costs.sends <= sends * COUNT, costs.greenlets
    # The workers, and those that run anyway: the hub, the test, the reader, the writer and the like.
    assert len(costs.greenlets) <= in_flight + 10, costs.greenlets


@pytest.mark.parametrize(("handler", "is_polled"), [(quick, True), (yielding, False), (waiting, False)])
@alone
def test_next_message_is_polled_for_only_if_its_handler_did_not_wait(ends, handler, is_polled):
    costs = consumed(ends, 1, handler)

    assert (costs.polls > 0) is is_polled
    assert costs.polls < COUNT


# --- publishes


class Confirming(ConnectionListener):
    """Passes OKs to a dispatcher, as the runtime of a producer does."""

    response_receivers = ()
    dispatcher: Dispatcher

    def on_oks(self, connection, requests):
        self.dispatcher.confirm(requests)


def answer(sock, command, count):
    """Be an nsqd: answer a number of equal commands."""
    unread = 0
    while count:
        unread += len(sock.recv(65536))
        read, unread = divmod(unread, len(command))
        sock.sendall(encode_frame(RESPONSE, b"OK") * read)
        count -= read


@alone
def test_lone_publish_costs_one_send_and_few_switches_and_calls(ends):
    ours, theirs = ends
    transport = CountedTransport(gevent.socket.socket(fileno=ours.detach()), "nsqd:4150")
    theirs.sendall(encode_frame(RESPONSE, b"OK"))
    listener = Confirming()
    connection = Connection("nsqd", 4150, ConnectionOptions(), listener=listener)
    connection.open(transport)
    gevent.sleep(0)
    theirs.recv(65536)  # the handshake
    dispatcher = listener.dispatcher = dispatcher_with(RealClock(), connection)
    calls = []

    def profile(frame, event, argument):
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    def publish():
        now = time.monotonic()
        dispatcher.publish(PendingPublish("t", b"x", now, now + 60), True)

    peer = threading.Thread(target=answer, args=(theirs, b"PUB t\n\0\0\0\x01x", COUNT + 10), daemon=True)
    peer.start()
    for _ in range(10):
        publish()
    # Each greenlet has a profile function of its own, and the hub runs, too.
    gevent.get_hub().loop.run_callback(sys.setprofile, profile)
    gevent.sleep(0)
    costs = transport.costs = Costs()
    with costs:
        sys.setprofile(profile)
        for _ in range(COUNT):
            publish()
        sys.setprofile(None)
    gevent.get_hub().loop.run_callback(sys.setprofile, None)
    gevent.sleep(0)
    connection.abort()
    peer.join(LIMIT)

    assert costs.sends == COUNT
    # To the hub and back, unless the caller itself has polled for the response.
    assert costs.switches <= 2.1 * COUNT
    assert len(calls) <= 25 * COUNT
