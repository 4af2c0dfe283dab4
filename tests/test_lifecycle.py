"""The life of a client, which a Consumer and a Producer share: start, close, join and their texts."""

import contextlib
import logging
import sys
import textwrap
import threading
import time

import gevent
import pytest

import gnsq
from fakensqd import on
from fakensqd.faults import delay
from gnsq.contrib.batch import BatchHandler
from gnsq.errors import NSQException, NSQNotSentClosed, NSQUnknownClosed
from tests.kit import (
    LIMIT,
    child,
    interrupted,
    peer,
    refused_port,
    run_program,
    silent_nsqd,
    wait_until,
)


def make_consumer(addresses, **options):
    options = {"message_handler": lambda consumer, message: None, **options}
    return gnsq.Consumer("t", "c", addresses, **options)


def make_producer(addresses, **options):
    return gnsq.Producer(addresses, name="orders", **options)


@pytest.fixture(params=[make_consumer, make_producer], ids=["consumer", "producer"])
def make(request):
    """Make clients of one kind; they are closed at the end."""
    made = []

    def make(*arguments, **options):
        made.append(request.param(*arguments, **options))
        return made[-1]

    yield make
    for client in made:
        client.close(0)


def start(client):
    """Start a client, without waiting for its end."""
    if isinstance(client, gnsq.Consumer):
        client.start(block=False)
    else:
        client.start()


@pytest.fixture
def silent():
    """The address of a server that accepts connections and says nothing."""
    with peer(lambda sock: gevent.sleep(LIMIT)) as address:
        yield address


THREADED = pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])


# --- start


@THREADED
def test_start_returns_when_one_nsqd_is_connected(fakensqd, silent, make, threaded, lines, clock):
    # The clock stands still: start() does not wait for the end of its second.
    client = make([silent, fakensqd.tcp_address], threaded=threaded, clock=clock)
    start(client)

    assert client.is_ready
    assert [line for line in lines() if silent in line]


def test_start_returns_after_a_second_if_no_nsqd_answers(silent, make):
    client = make([silent, f"127.0.0.1:{refused_port()}"])
    began = time.monotonic()
    start(client)

    assert client.is_running
    assert 0.9 < time.monotonic() - began < LIMIT


def test_start_returns_when_all_nsqds_have_failed(make, clock):
    client = make([f"127.0.0.1:{refused_port()}" for _ in range(2)], clock=clock)
    start(client)

    assert client.is_running


def test_start_does_not_wait_for_a_silent_nsqlookupd(fakensqd, silent, make, clock):
    client = make(fakensqd.tcp_address, lookupd_http_addresses=silent, clock=clock)
    start(client)

    assert client.is_ready


def test_start_by_the_hub_itself_does_not_wait(fakensqd, make):
    client, returned = make(fakensqd.tcp_address), []
    gevent.get_hub().loop.run_callback(lambda: returned.append(start(client)))

    wait_until(lambda: client.is_ready)
    assert returned == [None]


# --- close


@pytest.fixture
def busy(fakensqd):
    """Make a client that has 0.1 s of work left: a message that is being handled, or a publish that is not confirmed.
    Returns it with a function that tells whether all was done."""
    made = []

    def make(kind, threaded=False):
        if kind == "producer":
            made.append(producer := make_producer(fakensqd.tcp_address, threaded=threaded))
            producer.start()
            fakensqd.add(on.reply("PUB"), delay(0.1))
            result = producer.publish_async("t", b"1")
            return producer, result.successful
        begun = []

        def handle(consumer, message):
            begun.append(message)
            gevent.sleep(0.1)

        made.append(consumer := make_consumer(fakensqd.tcp_address, message_handler=handle, threaded=threaded))
        fakensqd.publish("t", b"1")
        start(consumer)
        wait_until(lambda: begun)
        return consumer, lambda: len(fakensqd.transcript.finished("t")) == 1

    yield make
    for client in made:
        client.close(0)


KINDS = pytest.mark.parametrize("kind", ["consumer", "producer"])


def call_in_thread(function):
    return gevent.get_hub().threadpool.apply(function)


@THREADED
def test_close_and_join_by_a_receiver_of_on_close_return(fakensqd, make, threaded):
    client, events = make(fakensqd.tcp_address, threaded=threaded), []

    @client.on_close.connect
    def close_again(client):
        client.close()
        client.join()
        events.append(client.is_closed)

    start(client)
    client.close()

    assert events == [True]


@KINDS
@THREADED
@pytest.mark.parametrize("call", [lambda close: close(), call_in_thread], ids=["here", "another thread"])
def test_close_waits_until_all_is_done(busy, kind, threaded, call):
    client, is_done = busy(kind, threaded)

    call(client.close)

    assert is_done()
    assert client.is_closed


@KINDS
def test_close_in_the_hub_itself_asks_and_returns(busy, kind):
    client, is_done = busy(kind)
    called = []
    gevent.get_hub().loop.run_callback(lambda: called.append(client.close()))
    wait_until(lambda: called)

    assert not client.is_closed
    client.join()
    assert is_done()


@THREADED
@pytest.mark.parametrize("in_batch", [False, True], ids=["handler", "batch"])
def test_close_in_a_handler_asks_and_returns(fakensqd, threaded, in_batch):
    states = []
    fakensqd.publish("t", b"1")

    def handle(consumer, message=None):
        consumer.close()
        states.append(consumer.stats().state)

    handler = BatchHandler(1, lambda batch: handle(consumer)) if in_batch else handle
    consumer = make_consumer(fakensqd.tcp_address, message_handler=handler, threaded=threaded)
    consumer.start()

    assert states == ["closing"]
    assert len(fakensqd.transcript.finished("t")) == 1


@THREADED
@pytest.mark.slow
def test_close_by_a_signal_that_interrupts_the_start_in_any_line_takes_effect(make, threaded):
    address = f"127.0.0.1:{refused_port()}"

    def is_closed_in(line):
        """Start a client, and close it in this line; whether the start has so many."""
        client = make(address, threaded=threaded)
        packages = "gnsq.consumer", "gnsq.producer", "gnsq.lifecycle", "gnsq.nsqd.pool"
        with (
            interrupted(line, client.close, *packages) as lines,
            contextlib.suppress(NSQNotSentClosed),
            gevent.Timeout(LIMIT, AssertionError(f"line {line}")),
        ):
            start(client)
        # For the line after the last.
        client.close()
        client.join(LIMIT)
        assert client.is_closed, f"line {line}"
        return len(lines) >= line

    line = 1
    while is_closed_in(line):
        line += 1 if not threaded else 5

    assert line > 25


def test_threaded_producer_whose_thread_ends_ends_its_publishes():
    with silent_nsqd() as address, make_producer(address, threaded=True) as producer:
        pending = producer.publish_async("t", b"x", timeout=LIMIT)
        producer._lifecycle._hub_thread.call_soon(sys.exit, "done")

        with pytest.raises(NSQUnknownClosed, match="the producer's thread has ended"):
            pending.get(timeout=LIMIT / 2)
        producer.join()

    assert producer.has_lost_thread
    assert producer.stats().not_ready == "closed: its thread has ended"


def test_close_of_a_producer_whose_thread_ends_meanwhile_returns_its_publishes():
    with silent_nsqd() as address:
        producer = make_producer(address, threaded=True)
        producer.publish_async("t", b"x")
        closer = gevent.spawn(producer.close, LIMIT)
        wait_until(lambda: producer.stats().state == "closing")

        producer._lifecycle._hub_thread.call_soon(sys.exit, "done")

        (unconfirmed,) = closer.get(timeout=LIMIT / 2)

    assert unconfirmed.bodies == [b"x"]
    assert isinstance(unconfirmed.error, NSQUnknownClosed)


# --- what is said in which state


def in_state(state, kind, busy):
    """Return a client in a state."""
    if state in ("running", "closing"):
        client, _ = busy(kind)
        if state == "closing":
            gevent.spawn(client.close)
            wait_until(lambda: not client.is_running)
        return client
    client = (make_consumer if kind == "consumer" else make_producer)(f"127.0.0.1:{refused_port()}")
    if state == "closed":
        start(client)
        client.close()
    if state == "thread ended":
        thread = threading.Thread(target=lambda: (start(client), gevent.get_hub().destroy(destroy_loop=True)))
        thread.start()
        thread.join(LIMIT)
    return client


STATES = ["new", "running", "closing", "closed", "thread ended"]
# What start() and publish() say in each state. Empty: nothing, since they do what they are to do.
START = ["", "is running already", "is closing; make a new one", "was closed; make a new one", "thread has ended"]
PUBLISH = ["any nsqd", "", "is closing; make a new one", "was closed; make a new one", "has ended"]


def said(lines, function, *arguments, **options):
    """Return what a call raises or logs."""
    before = len(lines(logging.WARNING))
    try:
        function(*arguments, **options)
    except NSQException as error:
        return str(error)
    return "".join(line for line in lines(logging.WARNING)[before:] if "refused" not in line)


@KINDS
@pytest.mark.parametrize(("state", "text"), list(zip(STATES, START, strict=True)), ids=STATES)
def test_start_says_what_is_true(busy, kind, state, text, lines):
    client = in_state(state, kind, busy)

    told = said(lines, start, client)

    assert text in told if text else not told
    client.close(1)


@pytest.mark.parametrize(("state", "text"), list(zip(STATES, PUBLISH, strict=True)), ids=STATES)
def test_publish_says_what_is_true(busy, state, text, lines):
    producer = in_state(state, "producer", busy)

    told = said(lines, producer.publish, "t", b"x", timeout=0.2)

    assert text in told if text else not told
    producer.close(0)


@KINDS
@pytest.mark.parametrize("state", STATES)
def test_close_closes_in_every_state(busy, kind, state, lines):
    client = in_state(state, kind, busy)

    assert not said(lines, client.close)
    assert client.is_closed
    assert client.stats().not_ready.startswith("closed")


@KINDS
@pytest.mark.parametrize("state", STATES)
def test_join_waits_only_for_what_comes(busy, kind, state, lines):
    client = in_state(state, kind, busy)

    assert not said(lines, client.join, 0.05 if state in ("running", "thread ended") else LIMIT)
    assert client.is_closed == (state in ("closing", "closed"))
    client.close(1)


TWO_CLIENTS = """
    import sys
    import gnsq

    class Failing(gnsq.Consumer):
        def close(self, timeout=None):
            super().close(timeout)
            raise KeyboardInterrupt  # Ctrl-C

    consumer = Failing("t", "c", sys.argv[1], message_handler=lambda consumer, message: None, threaded=True)
    consumer.start(block=False)
    producer = gnsq.Producer(sys.argv[1], threaded=True)
    producer.on_close.connect(lambda producer: print("closed", producer.is_closed), weak=False)
    producer.start()
"""


@pytest.mark.subprocess
def test_end_of_a_program_closes_all_clients_also_if_one_close_raises(fakensqd):
    with child(sys.executable, "-c", textwrap.dedent(TWO_CLIENTS), fakensqd.tcp_address) as process:
        out, err = process.communicate(timeout=LIMIT)

    assert out == "closed True\n"
    assert "KeyboardInterrupt" in err


PROGRAM = """
import sys
import gevent, gnsq

consumer = gnsq.Consumer("t", "c", sys.argv[1], message_handler=lambda consumer, message: gevent.sleep(60))
gnsq.Consumer("closed", "c", sys.argv[1]).close()
"""
IN_FLIGHT = """
consumer.start(block=False)
while not consumer.total_in_flight:
    gevent.sleep(0.01)
"""
ENDS = [
    pytest.param(IN_FLIGHT, ["with 1 message in flight, which nsqd delivers again: close() waits for them"], id="busy"),
    pytest.param("", [", and the consumer was never started: start() lets it receive"], id="never started"),
    pytest.param("gnsq.Producer(sys.argv[1]).publish('u', b'x')", [], id="another was started"),
]


@pytest.mark.subprocess
@pytest.mark.parametrize(("code", "expected"), ENDS)
def test_what_a_consumer_leaves_is_told_at_the_end_of_the_program(fakensqd, code, expected):
    fakensqd.publish("t", b"1")

    done = run_program(PROGRAM + code, fakensqd.tcp_address)

    told = [line.partition("the program ends")[2].strip() for line in done.stderr.splitlines() if "/c: " in line]
    assert told == expected
