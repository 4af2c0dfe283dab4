"""Consumer: handlers, signals, max_in_flight, statistics, and its life from start() to close()."""

import contextlib
import gc
import signal
import sys
import time
from collections import Counter
from datetime import timedelta

import gevent
import pytest
from gevent.event import Event

from gnsq import Consumer
from gnsq.errors import NSQRequeueMessage
from gnsq.stats import Histogram
from tests.kit import LIMIT, channel_stats, child, peer, wait_until


def test_heartbeats_are_answered_while_handlers_compute(fakensqd, consume):
    done, answered = [], Event()

    def handle(consumer, message):
        # Two milliseconds each, without yielding; all messages together take more than two heartbeat intervals.
        started = time.monotonic()
        while not answered.is_set() and time.monotonic() - started < 0.002:
            time.sleep(0.0001)  # blocks this hub, and leaves the interpreter to the thread of the emulator
        done.append(message)

    consume(handle, max_in_flight=2000, heartbeat_interval=1)
    fakensqd.publish("t", *[b"x"] * 1600)
    wait_until(lambda: "NOP" in fakensqd.transcript.commands())

    assert 0 < len(done) < 1600
    answered.set()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        pytest.param(("bad topic", "c", "h"), {}, ValueError, "topic name 'bad topic'", id="topic"),
        pytest.param(("t", "bad!", "h"), {}, ValueError, "channel name 'bad!'", id="channel"),
        pytest.param(("t", "c"), {}, ValueError, "consumer has no address", id="no address"),
        pytest.param(("t", "c", "h:x"), {}, ValueError, "port 'x' of address 'h:x'", id="port"),
        pytest.param(("t", "c", None), {}, TypeError, "must be", id="None"),
        pytest.param(("t", "c", "h"), {"heartbeat_interval": -1}, ValueError, "of a consumer must be", id="heartbeats"),
    ],
)
def test_misuse_is_refused_at_once(arguments, options, error, words):
    with pytest.raises(error, match=words):
        Consumer(*arguments, **options)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        pytest.param(lambda c: c.close("5"), TypeError, "timeout must be a number of seconds, not '5'", id="close"),
        pytest.param(lambda c: c.join("5"), TypeError, "timeout must be a number of seconds, not '5'", id="join"),
        pytest.param(lambda c: c.connect_to_nsqd("h", "x"), ValueError, "port 'x' of address 'h:x'", id="port"),
        pytest.param(lambda c: c.connect_to_nsqd(5, 4150), TypeError, "must be a str, not 5", id="address"),
    ],
)
def test_wrong_argument_of_a_call_is_refused(consume, call, error, words):
    consumer = consume(lambda consumer, message: None)

    with pytest.raises(error, match=words):
        call(consumer)


def test_signals_are_sent_for_responses_finishes_and_requeues(nsqd, clock, publish):
    events = []

    def handle(consumer, message):
        if message.attempts == 1:
            raise NSQRequeueMessage

    consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=handle, clock=clock)
    for name in ("on_response", "on_finish", "on_requeue", "on_error"):
        getattr(consumer, name).connect(lambda sender, name=name, **words: events.append((name, words)), weak=False)
    with consumer:
        publish(nsqd, b"x")
        clock.advance(10.0)

    (_, identified), subscribed, (requeue, requeued), (finish, finished), closed = events
    assert identified["response"].startswith(b'{"max_rdy_count"')
    assert (subscribed, closed) == (("on_response", {"response": b"OK"}), ("on_response", {"response": b"CLOSE_WAIT"}))
    assert (requeue, finish) == ("on_requeue", "on_finish")
    assert requeued.keys() == {"message_id", "timeout"}
    assert requeued["message_id"] == finished["message_id"]


def test_options_may_be_set_while_the_consumer_runs(nsqd, clock, publish, started):
    times = []

    def handle(consumer, message):
        times.append(round(clock.monotonic(), 3))
        raise RuntimeError

    consumer = started(handle, nsqd, max_in_flight=5, requeue_delay=0)
    consumer.max_in_flight, consumer.requeue_delay = "9", 250
    consumer.max_backoff_duration, consumer.low_ready_idle_timeout = 0, 3
    publish(nsqd, b"x")
    clock.advance(0.5)

    assert times == [0, 0.25, 0.5]
    assert (consumer.max_in_flight, consumer.total_ready_count, consumer.concurrency) == (9, 9, 9)
    assert (consumer.max_backoff_duration, consumer.low_ready_idle_timeout) == (0, 3)
    with pytest.raises(ValueError, match="max_in_flight 0 must be at least 1"):
        consumer.max_in_flight = 0


def test_message_without_a_handler_is_requeued(nsqd, clock, publish, caplog):
    class Owner:
        def handle(self, consumer, message):
            raise AssertionError("collected by now")

    owner = Owner()
    consumer = Consumer("t", "c", nsqd.tcp_address, clock=clock)
    consumer.on_message.connect(owner.handle)
    with consumer:
        clock.advance(0.0)
        del owner
        gc.collect()
        publish(nsqd, b"x")
        assert nsqd.broker.topics["t"].channels["c"].requeue_count == 1

    assert "no handler is connected to on_message any more; requeued" in caplog.text


def test_handler_connected_for_another_sender_does_not_count(fakensqd):
    consumer = Consumer("t", "c", fakensqd.tcp_address)
    consumer.on_message.connect(lambda _, message: None, sender=object(), weak=False)

    with pytest.raises(RuntimeError, match="consumer has no handler"):
        consumer.start()


def test_receivers_and_overridden_hooks_that_raise_are_logged_and_change_nothing(nsqd, clock, publish, caplog):
    signals = ["on_response", "on_error", "on_finish", "on_requeue", "on_exception", "on_close"]
    hooks = ["handle_finish", "handle_requeue", "handle_response", "handle_error", "handle_auth"]
    handled = []

    def handle(consumer, message):
        handled.append(message.attempts)
        if message.attempts == 1:
            raise RuntimeError("once")
        consumer._runtime.pool.connections[nsqd.tcp_address].in_flight_messages.touch(b"0123456789abcdef")

    def broken(name):
        def receive(sender, *arguments, **keywords):
            if name in hooks:
                getattr(Consumer, name)(sender, *arguments)
            raise RuntimeError(f"{name} is broken")

        return receive

    mine = type("Mine", (Consumer,), {name: broken(name) for name in hooks})
    consumer = mine("t", "c", nsqd.tcp_address, message_handler=handle, clock=clock)
    for name in signals:
        getattr(consumer, name).connect(broken(name), weak=False)
    with consumer:
        publish(nsqd, b"1", b"2")
        clock.advance(30.0)
        assert sorted(handled) == [1, 1, 2, 2]
        assert nsqd.in_flight("t", "c") == 0

    told = [name for name in (*signals, *hooks) if f"{name} is broken" in caplog.text]
    assert told == [*signals, *hooks[:-1]]  # nsqd asks for no AUTH


def test_close_while_nsqlookupd_is_silent_leaves_nothing_running(fakensqd):
    asked = Event()
    with peer(lambda sock: asked.set() or gevent.sleep(LIMIT)) as address:
        consumer = Consumer("t", "c", fakensqd.tcp_address, address, message_handler=ignore)
        starting = gevent.spawn(consumer.start)
        asked.wait(5)
        consumer.close()
        starting.get(timeout=5)
        consumer.join(timedelta(seconds=5))

    assert not consumer.is_running
    assert all(task.dead for task in consumer._greenlets._loops)


@pytest.mark.parametrize("channel", ["127.0.0.1:4150", "127.0.0.1", "http://u:hush@nsqd:4161", ["nsqd:4150"]])
def test_address_in_place_of_the_channel_is_recognized(channel):
    with pytest.raises(ValueError, match=r"has no address: .*Consumer\(topic, channel, addresses\)") as caught:
        Consumer("t", channel)
    assert "hush" not in str(caught.value)


# --- statistics -------------------------------------------------------------------------------------------------------


def test_counts_are_those_of_all_connections_since_the_start(nsqd, clock, publish, started):
    def handle(consumer, message):
        message.touch()
        if message.body == b"again" and message.attempts == 1:
            raise NSQRequeueMessage(backoff=False)

    consumer = started(handle, nsqd, requeue_delay=0, reconnect_initial=1.0)
    publish(nsqd, b"1")
    publish(nsqd, b"again")
    nsqd.restart()
    clock.advance(2.0)
    publish(nsqd, b"2")
    clock.advance(1.0)

    counts = consumer.stats().counts
    assert (counts.received, counts.finished, counts.requeued, counts.touched) == (4, 3, 1, 4)
    (connection,) = consumer.stats().connections
    assert (connection.address, connection.state, connection.version) == (nsqd.tcp_address, "subscribed", "1.3.0")
    assert (connection.rdy, connection.in_flight, connection.counts.received) == (1, 0, 1)
    assert connection.idle == pytest.approx(1.0)
    assert connection.msg_timeout == 60.0


def test_latency_is_from_arrival_to_answer(nsqd, clock, publish, started):
    held = []

    def handle(consumer, message):
        if message.body == b"async":
            message.enable_async()
            held.append(message)
        elif message.body == b"slow":
            clock.sleep(3.0)

    consumer = started(handle, nsqd, max_in_flight=10)
    publish(nsqd, b"quick")
    publish(nsqd, *[b"quick"] * 5, b"slow", b"async")
    clock.advance(20.0)
    held[0].finish()

    latency = consumer.stats().latency
    assert latency.count == 8
    assert latency.total == pytest.approx(23.0)
    assert latency.quantile(0.5) == 0.001
    assert latency.quantile(0.8) == 4.096
    assert latency.quantile(1.0) == 32.768


def test_quantile_of_an_empty_histogram_and_beyond_the_last_bound():
    assert Histogram((1.0, 2.0), (0, 0, 0), 0.0).quantile(0.5) is None
    assert Histogram((1.0,), (1, 2), 9.5).quantile(1.0) == float("inf")


def ignore(consumer, message):
    pass


# --- start and close --------------------------------------------------------------------------------------------------


def test_with_statement_closes_when_its_body_raises(nsqd):
    consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=ignore)
    with contextlib.suppress(KeyError), consumer:
        assert consumer.is_running
        raise KeyError

    assert not consumer.is_running
    wait_until(lambda: not nsqd.sessions)


# --- killed and interrupted -------------------------------------------------------------------------------------------


def test_interrupted_start_can_be_closed_in_order(fakensqd):
    begun, release, done = Event(), Event(), []

    def handle(consumer, message):
        begun.set()
        release.wait(10)
        done.append(message.body)

    def interrupt():
        begun.wait(10)
        signal.raise_signal(signal.SIGINT)

    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=handle)
    fakensqd.publish("t", b"x")
    gevent.spawn(interrupt)
    # The test process may have been started with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with gevent.Timeout(LIMIT), pytest.raises(KeyboardInterrupt):
            consumer.start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert consumer.is_running

    release.set()
    consumer.close(timeout=10)

    assert done == [b"x"]
    assert channel_stats(fakensqd, "t", "c")["client_count"] == 0


# --- signals of the operating system, in a script ---------------------------------------------------------------------

SCRIPT = """
import signal, sys
import gevent
from gnsq import Consumer

done = []


def handle(consumer, message):
    print("begun", flush=True)
    while consumer.is_running:
        gevent.sleep(0.001)
    done.append(message.body)


consumer = Consumer("t", "c", sys.argv[1], message_handler=handle, max_in_flight=5)
consumer.on_close.connect(lambda consumer: print("closed", flush=True), weak=False)
signal.signal(signal.SIGTERM, lambda *_: (consumer.close(timeout=20), consumer.close()))
consumer.start()
print("done", len(done), flush=True)
"""


@pytest.mark.subprocess
def test_sigterm_ends_a_script_in_order(fakensqd):
    fakensqd.publish("t", *[b"x"] * 100)
    with child(sys.executable, "-W", "error", "-c", SCRIPT, fakensqd.tcp_address) as running:
        for _ in range(3):
            assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGTERM)
        out, err = running.stdout.read(), running.stderr.read()  # communicate() loses buffered output
        running.wait()

    begun = 3 + out.count("begun")
    assert (running.returncode, err) == (0, "")
    assert out.splitlines()[-2:] == ["closed", f"done {begun}"]
    stats = channel_stats(fakensqd, "t", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (100 - begun, 0, 0)
    assert stats["client_count"] == 0


# --- a lost connection ------------------------------------------------------------------------------------------------


def test_message_that_waits_for_a_handler_when_its_connection_is_lost_is_handled_once(
    nsqd, clock, publish, started, lines
):
    handled = Counter()

    def handle(consumer, message):
        clock.sleep(1.0)
        handled[message.body] += 1

    consumer = started(handle, nsqd, max_in_flight=10, concurrency=1)
    publish(nsqd, *[b"%d" % number for number in range(10)])
    clock.advance(1.5)
    nsqd.restart()
    clock.advance(0.1)
    assert consumer.stats().waiting == 0
    clock.advance(60.0)

    # Only the message that a handler had.
    assert (len(handled), handled.total()) == (10, 11)
    assert [line for line in lines() if "no answer sent, its connection is lost" in line]
