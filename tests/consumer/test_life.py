"""Life of a consumer: start, close, signals, restarts of nsqd; no message is lost."""

import contextlib
import signal
import sys
import threading
from collections import Counter

import gevent
import pytest
from gevent.event import Event

from gnsq import Consumer, Producer
from tests.helpers import LIMIT, channel_stats, child, refused_port, wait_until


def ignore(consumer, message):
    pass


# --- start and close --------------------------------------------------------------------------------------------------


def test_start_returns_when_closed(nsqd, clock):
    consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=ignore, clock=clock)
    starting = gevent.spawn(consumer.start)
    clock.advance(100.0)
    assert not starting.ready()

    consumer.close()
    clock.advance(0.0)

    assert starting.ready()


def test_start_without_blocking_returns_after_one_try_of_each_nsqd(nsqd):
    silent = refused_port()
    addresses = [nsqd.tcp_address, f"127.0.0.1:{silent}"]
    consumer = Consumer("t", "c", addresses, message_handler=ignore)
    consumer.start(block=False)

    assert (consumer.is_running, consumer.total_ready_count) == (True, 1)
    assert list(consumer.stats().failures) == [addresses[1]]
    consumer.close(timeout=5)


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
    for nsqd in nsqds:
        nsqd.broker.ensure_topic("t").publish([b"of t"] * 10, nsqd.now())
        nsqd.broker.ensure_topic("u").publish([b"of u"] * 10, nsqd.now())
    consumers[0].pause()
    clock.advance(10.0)
    consumers[0].close()
    clock.advance(1.0)

    assert {key: count for key, count in got.items() if key[:2] != ("t", "c")} == {
        ("t", "d", b"of t"): 30,
        ("u", "c", b"of u"): 30,
        ("u", "d", b"of u"): 30,
    }
    assert [consumer.is_running for consumer in consumers] == [False, True, True, True]
    for consumer in consumers:
        consumer.close()
    clock.advance(1.0)


def test_two_consumers_of_one_channel_share_its_messages(nsqd, clock, publish, started):
    got = [Counter(), Counter()]
    for each in got:
        started(lambda _, message, each=each: each.update([message.body]), nsqd, max_in_flight=5)
    for number in range(100):
        publish(nsqd, b"%d" % number)

    assert sum(got, Counter()) == Counter(b"%d" % number for number in range(100))
    assert all(each.total() > 10 for each in got)


def test_close_may_be_called_by_a_receiver_of_on_close(nsqd, clock, started):
    events = []

    def on_close(consumer):
        events.append(consumer.is_running)
        consumer.close(timeout=5.0)
        consumer.join()

    consumer = started(ignore, nsqd)
    consumer.on_close.connect(on_close, weak=False)
    consumer.close()
    clock.advance(1.0)

    assert events == [False]


def test_close_from_another_thread(fakensqd):
    done = []

    def handle(consumer, message):
        gevent.sleep(0.01)
        done.append(message.body)

    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=handle, max_in_flight=50)
    with Producer(fakensqd.tcp_address) as producer:
        producer.multipublish("t", [b"x"] * 20)
    closing = threading.Thread(target=lambda: (fakensqd.wait_until(lambda _: done), consumer.close()))
    closing.start()
    consumer.start()
    closing.join(10)

    stats = channel_stats(fakensqd, "t", "c")
    assert (stats["in_flight_count"], stats["depth"] + len(done)) == (0, 20)
    assert not consumer.is_running


def test_another_thread_cannot_wait_for_the_end(fakensqd):
    raised = []

    def wait():
        for call in (consumer.join, lambda: consumer.close(timeout=10)):
            try:
                call()
            except RuntimeError as error:
                raised.append(str(error))

    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=ignore)
    consumer.start(block=False)
    waiting = threading.Thread(target=wait)
    waiting.start()
    consumer.join(10)
    waiting.join(10)

    # close() has only begun to close.
    assert [text.split(";")[0] for text in raised] == [
        "only the thread that started the consumer can wait for its end, unless it has threaded=True"
    ]
    assert not consumer.is_running


# --- what is thrown ---------------------------------------------------------------------------------------------------


def test_killed_handlers_leave_no_dead_worker(nsqd, clock, publish, started):
    attempts = Counter()

    def handle(consumer, message):
        attempts[message.body] += 1
        if message.attempts == 1:
            raise gevent.GreenletExit

    consumer = started(handle, nsqd, max_in_flight=4, concurrency=2)
    publish(nsqd, *[b"%d" % number for number in range(50)])
    clock.advance(1.0)

    assert set(attempts.values()) == {2}
    assert len(attempts) == 50
    assert (consumer.total_in_flight, consumer.stats().backoff, len(consumer._workers)) == (0, "off", 0)


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


# --- signals of the system, in a script -------------------------------------------------------------------------------

SCRIPT = """
import signal, sys
import gevent
from gnsq import Consumer

done = []


def handle(consumer, message):
    print("begun", flush=True)
    gevent.sleep(0.1)
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
    with child(sys.executable, "-W", "error", "-c", code, nsqd.tcp_address, limit=LIMIT) as running:
        for _ in range(3):
            assert running.stdout.readline() == "begun\n"
        yield running


def ended(running, signal_number):
    """Send a signal; return the output of the script until its end. (communicate() loses buffered output.)"""
    running.send_signal(signal_number)
    out, err = running.stdout.read(), running.stderr.read()
    running.wait(LIMIT)
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
    assert err.rstrip().endswith("KeyboardInterrupt")
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
