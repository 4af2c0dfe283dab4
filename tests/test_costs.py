"""Costs of the hot paths, as numbers of sends and switches, which do not depend on the machine."""

import contextlib
import functools
import gc
import sys
import time

import gevent
import greenlet
import pytest
from gevent.event import Event

from gnsq import Consumer, finish_all
from gnsq.clock import RealClock
from gnsq.concurrency.hub_monitor import HubMonitor
from gnsq.nsqd.connection import Connection
from gnsq.options import ConnectionOptions
from gnsq.producer.publish import PendingPublish
from gnsq.protocol.frames import MESSAGE, RESPONSE, encode_frame, encode_message
from tests.kit import MemoryTransport, wait_until
from tests.producer.conftest import dispatcher_with

OK = encode_frame(RESPONSE, b"OK")
CHUNK = 100
CHUNKS = 10


class Switches:
    """Counts greenlet switches while it is the trace function."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        gc.disable()  # it would end greenlets that other tests have left
        self.before = greenlet.settrace(self)
        return self

    def __exit__(self, *_):
        greenlet.settrace(self.before)
        gc.enable()

    def __call__(self, event, greenlets):
        self.count += event == "switch"


def chunk(number):
    ids = range(number * CHUNK, (number + 1) * CHUNK)
    return b"".join(encode_frame(MESSAGE, encode_message(1, 1, b"%016d" % item, b"x" * 200)) for item in ids)


@pytest.fixture(autouse=True)
def unmonitored():
    """Let nothing log that the hub is blocked, as on a machine with much else to do: the calls would be counted."""
    HubMonitor(blocked_after=3600.0)
    monitor = HubMonitor.acquire()
    yield
    monitor.release()


@pytest.fixture
def transport():
    return MemoryTransport(OK)


@pytest.fixture
def connection(transport):
    made = Connection("nsqd", 4150, ConnectionOptions())
    made.open(transport)
    yield made
    made.abort()


@pytest.fixture
def connect(transport):
    """Open a connection of a consumer."""
    with contextlib.ExitStack() as opened:

        def connect(consumer):
            made = consumer._runtime.make_connection("nsqd:4150")
            opened.callback(made.abort)
            made.open(transport)
            return made

        yield connect


class Together(Consumer):
    def handle_messages(self, messages):
        finish_all(messages)


def test_chunk_that_is_handled_together_costs_one_command_and_one_send(connect, transport):
    connect(Together("t", "c", "nsqd", max_in_flight=1000))
    gevent.sleep(0)
    del transport.sends[:]
    with Switches() as switches:
        for number in range(CHUNKS):
            transport.feed(chunk(number))
            wait_until(lambda number=number: transport.sent.count(b"FIN ") == (number + 1) * CHUNK)

    assert len(transport.sends) == CHUNKS
    # The reader, the worker, the writer and the waiting greenlet, and back.
    assert switches.count <= 12 * CHUNKS


def test_signals_without_receivers_are_not_sent(connect, transport):
    consumer = Consumer("t", "c", "nsqd", message_handler=lambda consumer, message: None, max_in_flight=1000)
    connect(consumer)
    transport.feed(chunk(0))
    wait_until(lambda: transport.sent.count(b"FIN ") == CHUNK)

    # REQ is rare, and somebody asks: it may be a failure.
    listener = consumer._runtime
    assert (listener.wants_finishes, listener.wants_answers) == (False, False)


@pytest.fixture
def make_dispatcher(connection, transport):
    """Make the dispatcher of a producer, on the connection; a publish of one byte has been confirmed."""
    return functools.partial(made_dispatcher, connection, transport)


@pytest.fixture
def dispatcher(make_dispatcher):
    return make_dispatcher()


def made_dispatcher(connection, transport, **options):
    made = dispatcher_with(RealClock(), connection, **options)
    transport.answer(OK)
    made.publish(pending(), True)
    del transport.sends[:]
    return made


def pending():
    now = time.monotonic()
    return PendingPublish("t", b"x", now, now + 60)


def test_publishers_that_wait_together_share_one_send(dispatcher, transport):
    publishers = [gevent.spawn(dispatcher.publish, pending(), True) for _ in range(1000)]
    wait_until(lambda: transport.sent.count(b"PUB ") == 1000)
    assert len(transport.sends) == 1

    with Switches() as switches:
        transport.feed(OK * 1000)
        gevent.joinall(publishers, raise_error=True)

    # To each publisher and back, and the same again for joinall() at its end.
    assert switches.count <= 4 * 1000 + 20


def test_batches_cost_a_command_for_all_their_members(make_dispatcher, transport):
    dispatcher = make_dispatcher(batch_messages=100, batch_linger=0)
    # The first of its size goes alone; the others wait for that.
    first = [gevent.spawn(dispatcher.publish, pending(), True) for _ in range(100)]
    wait_until(lambda: transport.sends)
    transport.feed(OK)
    gevent.joinall(first, raise_error=True)
    del transport.sends[:]

    publishers = [gevent.spawn(dispatcher.publish, pending(), True) for _ in range(1000)]
    wait_until(lambda: transport.sent.count(b"MPUB ") == 10)
    assert len(transport.sends) == 1

    with Switches() as switches:
        transport.feed(OK * 10)
        gevent.joinall(publishers, raise_error=True)

    assert switches.count <= 4 * 1000 + 20


def test_publish_that_waits_costs_few_allocations_and_leaves_none(dispatcher, transport):
    def publish(count):
        return [gevent.spawn(dispatcher.publish, pending(), True) for _ in range(count)]

    def answered(publishers):
        transport.feed(OK * len(publishers))
        gevent.joinall(publishers, raise_error=True)
        del transport.sends[:], publishers[:]

    # Greenlets, stacks and lists have grown as far as they will.
    for _ in range(3):
        publishers = publish(1000)
        wait_until(lambda: transport.sends)
        answered(publishers)
    gc.collect()
    before = sys.getallocatedblocks()

    publishers = publish(1000)
    wait_until(lambda: transport.sends)
    held = sys.getallocatedblocks() - before
    answered(publishers)
    gc.collect()

    # The greenlet with its frames and arguments, the publish with its values, its command.
    assert held <= 30 * 1000
    assert sys.getallocatedblocks() - before <= 100


def test_message_in_flight_costs_few_allocations_and_leaves_none(connect, transport):
    release = Event()
    consumer = Consumer(
        "t", "c", "nsqd", message_handler=lambda c, message: release.wait(), max_in_flight=1000, concurrency=1
    )
    connect(consumer)
    data = chunk(0)
    transport.feed(chunk(1))
    wait_until(lambda: consumer.stats().waiting == CHUNK - 1)
    gc.collect()
    before = sys.getallocatedblocks()

    transport.feed(data)
    wait_until(lambda: consumer.stats().waiting == 2 * CHUNK - 1)
    held = sys.getallocatedblocks() - before
    release.set()
    wait_until(lambda: transport.sent.count(b"FIN ") == 2 * CHUNK)
    del transport.sends[:]
    gc.collect()

    # The message, its id, its body, two ints of 30 bits and more, and a share of the chunk.
    assert held <= 8 * CHUNK
    assert sys.getallocatedblocks() - before <= CHUNK / 2
