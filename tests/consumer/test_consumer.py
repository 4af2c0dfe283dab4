"""Consumer: handlers, signals, max_in_flight, statistics, and its life from start() to close()."""

import contextlib
import gc
import logging
import signal
import sys
import time
from collections import Counter
from datetime import timedelta

import gevent
import pytest
from gevent.event import Event

from gnsq import Consumer, Producer
from gnsq.errors import NSQRequeueMessage
from gnsq.stats import Histogram
from tests.kit import LIMIT, channel_stats, child, peer, wait_until


@pytest.fixture
def send(fakensqd):
    """Publish over TCP, to the emulator in its thread."""
    with Producer(fakensqd.tcp_address) as producer:
        yield lambda *bodies: producer.multipublish("t", list(bodies))


@pytest.mark.parametrize(
    ("raised", "told"),
    [pytest.param(NSQRequeueMessage, [], id="requeue"), pytest.param(gevent.Timeout, [gevent.Timeout], id="timeout")],
)
def test_only_a_requeue_is_no_failure(nsqd, clock, publish, started, raised, told):
    attempts, errors = [], []

    def handle(consumer, message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise raised

    consumer = started(handle, nsqd)
    consumer.on_exception.connect(lambda sender, message, error: errors.append(type(error)), weak=False)
    publish(nsqd, b"x")
    clock.advance(10.0)

    assert (attempts, errors) == ([1, 2], told)
    assert consumer.total_in_flight == 0


def test_handler_that_answers_itself_is_not_answered_again(nsqd, clock, publish, started):
    handled = []

    def handle(consumer, message):
        handled.append(message.attempts)
        if message.attempts == 1:
            message.requeue(0)

    started(handle, nsqd)
    publish(nsqd, b"x")
    clock.advance(10.0)

    assert handled == [1, 2]
    assert nsqd.errors == []


def test_concurrency_one_keeps_the_order(send, consume):
    got, running = [], [0]

    def handle(consumer, message):
        running[0] += 1
        assert running[0] == 1
        gevent.sleep(0)
        got.append(int(message.body))
        running[0] -= 1

    consume(handle, max_in_flight=50, concurrency=1)
    send(*[b"%d" % number for number in range(100)])
    wait_until(lambda: len(got) == 100)

    assert got == list(range(100))


def test_heartbeats_are_answered_while_handlers_compute(fakensqd, send, consume):
    done, answered = [], Event()

    def handle(consumer, message):
        # Two milliseconds each, without yielding; all messages together take more than two heartbeat intervals.
        started = time.monotonic()
        while not answered.is_set() and time.monotonic() - started < 0.002:
            time.sleep(0.0001)  # blocks this hub, and leaves the interpreter to the thread of the emulator
        done.append(message)

    consume(handle, max_in_flight=2000, heartbeat_interval=1)
    send(*[b"x"] * 1600)
    wait_until(lambda: "NOP" in fakensqd.transcript.commands())

    assert 0 < len(done) < 1600
    answered.set()


def test_max_in_flight_can_be_changed(send, consume):
    consumer = consume(lambda consumer, message: None, max_in_flight=5)

    send(b"x")
    wait_until(lambda: consumer.total_ready_count == 5)
    consumer.max_in_flight = "9"

    assert (consumer.max_in_flight, consumer.total_ready_count, consumer.concurrency) == (9, 9, 9)
    with pytest.raises(ValueError, match="max_in_flight 0 must be at least 1"):
        consumer.max_in_flight = 0


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        pytest.param(("bad topic", "c", "h"), {}, ValueError, "topic name 'bad topic'", id="topic"),
        pytest.param(("t", "bad!", "h"), {}, ValueError, "channel name 'bad!'", id="channel"),
        pytest.param(("t", "c"), {}, ValueError, "consumer has no address", id="no address"),
        pytest.param(("t", "c"), {"lookupd_addresses": "h"}, TypeError, "did you mean lookupd_http", id="misspelt"),
        pytest.param(("t", "c", "h:x"), {}, ValueError, "port 'x' of address 'h:x'", id="port"),
        pytest.param(("t", "c", None), {}, TypeError, "must be", id="None"),
        pytest.param(("t", "c", "h"), {"max_in_flight": 0}, ValueError, "max_in_flight 0", id="max_in_flight"),
        pytest.param(("t", "c", "h"), {"concurrency": 0}, ValueError, "concurrency 0", id="concurrency"),
        pytest.param(("t", "c", "h"), {"colour": 1}, TypeError, "Consumer has no option colour", id="unknown"),
        pytest.param(("t", "c", "h"), {"sample_rate": 100}, ValueError, "sample_rate 100", id="of the connection"),
        pytest.param(("t", "c", "h"), {"backoff": [1]}, TypeError, "backoff must be a number of seconds", id="backoff"),
        pytest.param(("t", "c", "h"), {"requeue_delay": timedelta(seconds=-1)}, ValueError, "at least 0 s", id="delay"),
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


def test_signals_are_sent_for_responses_finishes_and_requeues(nsqd, clock, publish, started):
    events = []

    def handle(consumer, message):
        if message.attempts == 1:
            raise NSQRequeueMessage

    consumer = started(handle, nsqd)
    for name in ("on_response", "on_finish", "on_requeue", "on_error"):
        getattr(consumer, name).connect(lambda sender, name=name, **words: events.append((name, words)), weak=False)
    publish(nsqd, b"x")
    clock.advance(10.0)

    (requeue, requeued), (finish, finished) = events
    assert (requeue, finish) == ("on_requeue", "on_finish")
    assert requeued.keys() == {"message_id", "timeout"}
    assert requeued["message_id"] == finished["message_id"]


def test_response_signal_is_sent_for_close_wait(fakensqd):
    heard = []
    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=lambda _, message: None)
    consumer.on_response.connect(lambda sender, response: heard.append(response), weak=False)
    with consumer:
        pass

    assert heard[0].startswith(b'{"max_rdy_count"')
    assert heard[1:] == [b"OK", b"CLOSE_WAIT"]


def test_finish_on_a_lost_connection_is_logged_not_raised(fakensqd, send, consume, caplog):
    caplog.set_level(logging.INFO)
    release, handled = Event(), []

    def handle(consumer, message):
        release.wait(10)
        handled.append(message)

    consumer = consume(handle)
    send(b"x")
    wait_until(lambda: consumer.total_in_flight)
    fakensqd.stop()
    wait_until(lambda: consumer.total_ready_count == 0)
    release.set()
    wait_until(lambda: handled)

    wait_until(lambda: "its connection is lost" in caplog.text)


def test_message_without_a_handler_is_requeued(fakensqd, send, caplog):
    class Owner:
        def handle(self, consumer, message):
            raise AssertionError("collected by now")

    owner = Owner()
    consumer = Consumer("t", "c", fakensqd.tcp_address)
    consumer.on_message.connect(owner.handle)
    with consumer:
        del owner
        gc.collect()
        send(b"x")
        wait_until(lambda: channel_stats(fakensqd, "t", "c")["requeue_count"] == 1)

    assert "no handler is connected to on_message any more; requeued" in caplog.text


def test_handler_connected_for_another_sender_does_not_count(fakensqd):
    consumer = Consumer("t", "c", fakensqd.tcp_address)
    consumer.on_message.connect(lambda _, message: None, sender=object(), weak=False)

    with pytest.raises(RuntimeError, match="consumer has no handler"):
        consumer.start()


@pytest.mark.parametrize("name", ["on_response", "on_error", "on_finish", "on_requeue", "on_exception", "on_close"])
def test_receiver_that_raises_is_logged_and_changes_nothing(nsqd, clock, publish, caplog, name):
    def receive(sender, **keywords):
        raise RuntimeError("receiver is broken")

    handled = []

    def handle(consumer, message):
        handled.append(message.attempts)
        if message.attempts == 1:
            raise RuntimeError("once")
        consumer._runtime.pool.connections[nsqd.tcp_address].in_flight_messages.touch(b"0123456789abcdef")

    consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=handle, clock=clock)
    getattr(consumer, name).connect(receive, weak=False)
    with consumer:
        publish(nsqd, b"1", b"2")
        clock.advance(30.0)
        assert sorted(handled) == [1, 1, 2, 2]
        assert nsqd.in_flight("t", "c") == 0

    assert "receiver is broken" in caplog.text


def test_timers_and_sockets_are_served_between_handlers_that_only_compute(send, consume):
    turns, turns_at = [0], []

    def tick():
        while True:
            gevent.sleep(0.0001)
            turns[0] += 1

    def handle(consumer, message):
        if message.body == b"slow":
            started = time.monotonic()
            while time.monotonic() - started < 0.005:
                pass
            turns_at.append(turns[0])

    ticker = gevent.spawn(tick)
    consume(handle, max_in_flight=1000)
    send(*[b"quick"] * 500, *[b"slow"] * 40)
    wait_until(lambda: len(turns_at) == 40)
    ticker.kill()

    # Timers fire once per round of the event loop, which also reads the sockets: few messages share a round.
    assert max(Counter(turns_at).values()) <= 5


def test_close_while_nsqlookupd_is_silent_leaves_nothing_running(fakensqd):
    asked, release = Event(), Event()

    def answer(sock):
        asked.set()
        release.wait(10)

    with peer(answer) as address:
        consumer = Consumer("t", "c", fakensqd.tcp_address, address, message_handler=lambda _, message: None)
        starting = gevent.spawn(consumer.start, block=False)
        asked.wait(5)
        consumer.close()
        release.set()
        gevent.joinall([starting], timeout=5)
        consumer.join(timedelta(seconds=5))

    assert not consumer.is_running
    assert all(task.dead for task in consumer._greenlets._loops)


@pytest.mark.parametrize("channel", ["127.0.0.1:4150", "127.0.0.1", "http://u:hush@nsqd:4161", ["nsqd:4150"]])
def test_address_in_place_of_the_channel_is_recognized(channel):
    with pytest.raises(ValueError, match=r"has no address: .*Consumer\(topic, channel, addresses\)") as caught:
        Consumer("t", channel)
    assert "hush" not in str(caught.value)


def test_consumer_without_heartbeats_is_refused():
    with pytest.raises(ValueError, match="heartbeat_interval -1 of a consumer must be at least 1 s"):
        Consumer("t", "c", "127.0.0.1:4150", heartbeat_interval=-1)


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


def test_stats_count_waiting_and_handled_messages(nsqd, clock, publish, started):
    release = Event()
    consumer = started(lambda _, message: release.wait(), nsqd, max_in_flight=4, concurrency=1)
    publish(nsqd, b"0")
    publish(nsqd, b"1", b"2", b"3")

    stats = consumer.stats()
    assert (stats.state, stats.handling, stats.waiting, stats.in_flight, stats.rdy) == ("running", 1, 3, 4, 4)
    release.set()


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


def test_failing_nsqds_are_named(nsqd, clock, started):
    nsqd.down()
    consumer = started(lambda _, message: None, nsqd)

    assert "Connection refused" in consumer.stats().failures[nsqd.tcp_address]
    assert not consumer.is_healthy
    nsqd.up()
    clock.advance(10.0)
    assert consumer.stats().failures == {}
    assert consumer.is_healthy


def ignore(consumer, message):
    pass


# --- start and close --------------------------------------------------------------------------------------------------


def test_start_returns_when_closed(nsqd, clock):
    consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=ignore, clock=clock)
    starting = gevent.spawn(consumer.start)
    clock.advance(100.0)
    assert not starting.ready()

    gevent.spawn(consumer.close)
    clock.advance(0.0)

    assert starting.ready()


def test_with_statement_closes_when_its_body_raises(nsqd):
    consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=ignore)
    with contextlib.suppress(KeyError), consumer:
        assert consumer.is_running
        raise KeyError

    assert not consumer.is_running
    wait_until(lambda: not nsqd.sessions)


def test_several_consumers_and_topics_do_not_mix(nsqds, clock):
    got = Counter()

    def handle(consumer, message):
        got[consumer.topic, consumer.channel, message.body] += 1

    addresses = [nsqd.tcp_address for nsqd in nsqds]
    names = [("t", "c"), ("t", "d"), ("u", "c"), ("u", "d")]
    consumers = [Consumer(*name, addresses, message_handler=handle, max_in_flight=9, clock=clock) for name in names]
    for consumer in consumers:
        consumer.start(block=False)
    clock.advance(0.0)  # start() returns when the first nsqd is connected
    for nsqd in nsqds:
        nsqd.broker.ensure_topic("t").publish([b"of t"] * 10, nsqd.now())
        nsqd.broker.ensure_topic("u").publish([b"of u"] * 10, nsqd.now())
    consumers[0].pause()
    clock.advance(10.0)
    gevent.spawn(consumers[0].close)
    clock.advance(1.0)

    assert {key: count for key, count in got.items() if key[:2] != ("t", "c")} == {
        ("t", "d", b"of t"): 30,
        ("u", "c", b"of u"): 30,
        ("u", "d", b"of u"): 30,
    }
    assert [consumer.is_running for consumer in consumers] == [False, True, True, True]
    for consumer in consumers:
        gevent.spawn(consumer.close)
    clock.advance(1.0)


# --- killed and interrupted -------------------------------------------------------------------------------------------


def test_killed_handlers_leave_no_dead_worker(nsqd, clock, publish, started):
    attempts = Counter()

    def handle(consumer, message):
        attempts[message.body] += 1
        if message.attempts == 1:
            gevent.getcurrent().kill(block=False)
            gevent.sleep(0)

    consumer = started(handle, nsqd, max_in_flight=4, concurrency=2)
    publish(nsqd, *[b"%d" % number for number in range(50)])
    clock.advance(1.0)

    assert set(attempts.values()) == {2}
    assert len(attempts) == 50
    assert (consumer.total_in_flight, consumer.stats().backoff, len(consumer._runtime.workers)) == (0, "off", 0)


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
    with Producer(fakensqd.tcp_address) as producer:
        producer.publish("t", b"x")
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
{set_up}
consumer.start()
print("done", len(done), flush=True)
"""

SET_UPS = [
    pytest.param("gevent.signal_handler(signal.SIGTERM, consumer.close)", id="gevent.signal_handler"),
    pytest.param("signal.signal(signal.SIGTERM, lambda *_: consumer.close())", id="signal.signal"),
    pytest.param(
        "signal.signal(signal.SIGTERM, lambda *_: (consumer.close(), consumer.close()))", id="signal.signal, twice"
    ),
]


@contextlib.contextmanager
def script(set_up, nsqd):
    """Run the script on a hundred messages; the block begins when handlers run."""
    with Producer(nsqd.tcp_address) as producer:
        producer.multipublish("t", [b"x"] * 100)
    code = SCRIPT.format(set_up=set_up)
    with child(sys.executable, "-W", "error", "-c", code, nsqd.tcp_address) as running:
        for _ in range(3):
            assert running.stdout.readline() == "begun\n"
        yield running


def ended(running, signal_number):
    """Send a signal; return the output of the script until its end. (communicate() loses buffered output.)"""
    running.send_signal(signal_number)
    out, err = running.stdout.read(), running.stderr.read()
    running.wait()
    return out, err


@pytest.mark.parametrize("set_up", SET_UPS)
@pytest.mark.subprocess
def test_sigterm_ends_a_script_in_order(fakensqd, set_up):
    with script(set_up, fakensqd) as running:
        out, err = ended(running, signal.SIGTERM)

    begun = 3 + out.count("begun")
    assert (running.returncode, err) == (0, "")
    assert out.splitlines()[-2:] == ["closed", f"done {begun}"]
    stats = channel_stats(fakensqd, "t", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (100 - begun, 0, 0)
    assert stats["client_count"] == 0


@pytest.mark.subprocess
def test_sigint_ends_a_script_at_once(fakensqd):
    with script("", fakensqd) as running:
        _, err = ended(running, signal.SIGINT)

    assert running.returncode == -signal.SIGINT
    *_, error, told = err.splitlines()
    assert error == "KeyboardInterrupt"
    assert told.endswith("messages in flight, which nsqd delivers again: close() waits for them")
    wait_until(lambda: channel_stats(fakensqd, "t", "c")["client_count"] == 0)


@pytest.mark.subprocess
def test_sigint_in_a_with_statement_ends_a_script_in_order(fakensqd):
    with script("with consumer:\n    gevent.sleep(60)", fakensqd) as running:
        out, _ = ended(running, signal.SIGINT)

    assert running.returncode == -signal.SIGINT
    assert out.splitlines()[-1] == "closed"
    stats = channel_stats(fakensqd, "t", "c")
    # Python may raise KeyboardInterrupt in a handler, also before its print; its message is requeued then.
    begun, finished = 3 + out.count("begun"), 100 - stats["depth"]
    assert finished <= begun <= finished + stats["requeue_count"]
    assert stats["in_flight_count"] == 0


# --- under load -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_in_flight", [1, 30])
def test_restarts_under_load_lose_nothing(nsqds, clock, started, max_in_flight):
    handled, published = Counter(), 0

    def handle(consumer, message):
        clock.sleep(0.05)
        handled[message.body] += 1

    started(handle, *nsqds, max_in_flight=max_in_flight, low_ready_idle_timeout=2)
    for turn in range(60):
        for nsqd in nsqds:
            nsqd.broker.ensure_topic("t").publish(
                [b"%d" % number for number in range(published, published + 2)], nsqd.now()
            )
            published += 2
        clock.advance(0.5)
        if turn % 10 == 5:
            nsqds[turn // 10 % 3].restart()
    clock.advance(300.0)

    assert len(handled) == published
    assert [nsqd.in_flight("t", "c") + nsqd.depth("t", "c") for nsqd in nsqds] == [0, 0, 0]
    # Only messages that were in flight on a lost connection may be delivered twice.
    assert handled.total() - published <= 6 * max_in_flight


def test_message_that_waits_for_a_handler_when_its_connection_is_lost_is_handled_once(nsqd, clock, started):
    handled = Counter()

    def handle(consumer, message):
        clock.sleep(1.0)
        handled[message.body] += 1

    started(handle, nsqd, max_in_flight=10, concurrency=1)
    nsqd.broker.ensure_topic("t").publish([b"%d" % number for number in range(10)], nsqd.now())
    clock.advance(1.5)
    nsqd.restart()
    clock.advance(60.0)

    # Only the message that a handler had.
    assert (len(handled), handled.total()) == (10, 11)
