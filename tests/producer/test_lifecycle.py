"""Start and close of a producer: each happens once, in bounded time, from every thread and signal handler."""

import contextlib
import logging
import re
import threading

import gevent
import greenlet
import pytest

from gnsq import Producer
from gnsq.concurrency.hub_thread import HubThread
from gnsq.discovery import LOOKUP_TIMEOUT
from gnsq.errors import (
    NSQBadMessage,
    NSQNotSent,
    NSQNotSentClosed,
    NSQNotSentTimeout,
    NSQTimeout,
    NSQUnknownClosed,
)
from gnsq.lifecycle import Lifecycle
from tests.kit import interrupted, peer, refused_port, silent_nsqd, wait_until

LIMIT = 10.0


# --- the start --------------------------------------------------------------------------------------------------------


def test_reconnect_delay_starts_small_and_grows(caplog):
    with caplog.at_level(logging.DEBUG), Producer(f"127.0.0.1:{refused_port()}"):
        wait_until(lambda: caplog.text.count("trying again") >= 2)

    first, second = [float(wait) for wait in re.findall(r"trying again in ([\d.]+) s", caplog.text)][:2]
    assert 0 < first <= 0.1 <= second <= 0.2
    # The others are at DEBUG: an nsqd may be down for days.
    assert [record.levelno for record in caplog.records if "trying again" in record.message].count(logging.WARNING) == 1


def test_slow_lookupd_delays_a_first_publish_only_until_its_deadline():
    with peer(lambda sock: gevent.sleep(LIMIT)) as address:
        producer = Producer(lookupd_http_addresses=address)

        with pytest.raises(NSQNotSent), gevent.Timeout(LOOKUP_TIMEOUT - 1):
            producer.publish("t", b"x", timeout=0.05)

        assert producer.close(timeout=0.1) == []


def test_nsqds_of_a_lookupd_are_known_when_start_returns(fakecluster):
    producer = Producer(lookupd_http_addresses=fakecluster.lookupds[0].http_address)

    producer.start()

    assert producer.publish("t", b"x", block=False) == b"OK"
    assert producer.close() == []


def with_lifecycle(producer, **arguments):
    """Give a producer a lifecycle with other arguments."""
    greenlets = producer._lifecycle._greenlets
    options = {"grace": 1.0, **arguments}
    producer._lifecycle = Lifecycle(producer, "producer", producer._start_runtime, greenlets, **options)
    return producer


def test_start_that_fails_may_be_tried_again(fakensqd):
    attempts = []

    def start_thread(name, on_end):
        attempts.append(name)
        if len(attempts) == 1:
            raise RuntimeError("can't start new thread")
        return HubThread(name, on_end)

    producer = with_lifecycle(Producer(fakensqd.tcp_address, threaded=True), make_thread=start_thread)
    with pytest.raises(RuntimeError, match="can't start"):
        producer.start()

    assert producer.publish("t", b"x") == b"OK"
    assert producer.close() == []


def test_slow_start_of_another_thread_delays_publish_until_its_deadline_and_close_until_it_fails(fakensqd):
    begun, slow_end = threading.Event(), threading.Event()

    def start_slowly(name, on_end):
        begun.set()
        slow_end.wait(LIMIT)
        raise RuntimeError("can't start new thread")

    producer = with_lifecycle(Producer(fakensqd.tcp_address, threaded=True), make_thread=start_slowly)
    raised = []

    def start():
        with pytest.raises(RuntimeError) as error:
            producer.start()
        raised.append(error.value)

    starter = threading.Thread(target=start)
    starter.start()
    assert begun.wait(LIMIT)

    with pytest.raises(NSQNotSentTimeout, match=r"another thread has not started the producer within 0.05 s"):
        producer.publish("t", b"x", timeout=0.05)
    # Without time, too, it waits, and not in a busy loop.
    closer = gevent.spawn(producer.close, 0)
    switches = []
    greenlet.settrace(lambda event, switch: switches.append(switch[1]))
    try:
        for _ in range(10):
            gevent.sleep(1e-6)  # not 0: the timers run, too
    finally:
        greenlet.settrace(None)
    slow_end.set()

    assert closer.get(timeout=LIMIT) == []
    starter.join(LIMIT)
    assert len(raised) == 1
    assert switches.count(closer) == 1
    assert producer.stats().state == "closed"


# --- flush ------------------------------------------------------------------------------------------------------------


def test_flush_of_a_producer_that_does_not_run_has_nothing_to_wait_for():
    assert Producer("host").flush(LIMIT)


# --- close ------------------------------------------------------------------------------------------------------------


def test_interrupted_close_goes_on():
    with silent_nsqd() as address:
        producer = Producer(address)
        producer.start()
        producer.publish_async("t", b"x")

        closing = gevent.spawn(producer.close, timeout=0.5)
        wait_until(lambda: producer.stats().state == "closing")
        closing.kill()
        interrupted = producer.stats().state
        producer.join(LIMIT)

    assert interrupted == "closing"
    assert producer.stats().state == "closed"


@pytest.mark.parametrize("gone", [False, True], ids=["thread", "thread and loop"])
def test_close_of_a_producer_whose_thread_has_ended_ends_its_publishes(gone):
    begun, over = threading.Event(), threading.Event()

    def live(address):
        producer = Producer(address)
        producer.start()
        made.append(producer)
        producer.publish_async("t", b"own", timeout=LIMIT)
        begun.set()
        while not over.is_set():
            gevent.sleep(0.001)
        if gone:
            gevent.get_hub().destroy(destroy_loop=True)

    made = []
    closed_producers = []
    with silent_nsqd() as address:
        home = threading.Thread(target=live, args=(address,))
        home.start()
        wait_until(begun.is_set)
        (producer,) = made
        producer.on_close.connect(closed_producers.append, weak=False)
        results = [producer.publish_async("t", b"other's", timeout=LIMIT)]
        results += [producer.publish_async("t", b"deferred", defer=1, timeout=LIMIT)]
        over.set()
        wait_until(lambda: not home.is_alive())

        unconfirmed = producer.close()

    assert sorted(one.bodies[0] for one in unconfirmed) == [b"deferred", b"other's", b"own"]
    assert [type(result.exception) for result in results] == [NSQUnknownClosed] * 2
    assert producer.stats().state == "closed"
    assert producer.stats().unknown == 3
    assert closed_producers == [producer]


def test_close_that_takes_too_long_in_its_own_thread_says_so(fakensqd):
    producer = with_lifecycle(Producer(fakensqd.tcp_address), grace=0)
    producer.start()

    with pytest.raises(NSQTimeout, match=r"not closed within 0 s, and goes on in the background"):
        producer.close(timeout=0)

    producer.join(LIMIT)
    assert producer.stats().state == "closed"


# --- signals ----------------------------------------------------------------------------------------------------------


def publish(producer):
    return producer.publish("t", b"x", timeout=5)


def publish_and_flush(producer):
    result = producer.publish_async("t", b"x", timeout=5)
    producer.flush()
    return result.get(timeout=LIMIT)


@pytest.mark.parametrize("line", range(1, 90, 4))
@pytest.mark.parametrize(
    ("publish", "options"),
    [
        pytest.param(publish, {}, id="alone"),
        pytest.param(publish, {"batch_messages": 10}, id="batches"),
        pytest.param(publish, {"threaded": True}, id="threaded"),
        pytest.param(publish_and_flush, {"batch_messages": 10}, id="flush"),
    ],
)
def test_close_by_a_signal_that_interrupts_a_publish_in_any_line_leaves_it_confirmed_or_not_sent(
    fakensqd, publish, options, line
):
    producer = Producer(fakensqd.tcp_address, close_timeout=5, **options)
    producer.start()
    confirmed = []
    with contextlib.suppress(NSQNotSentClosed), interrupted(line, producer.close, "gnsq"):
        confirmed.append(publish(producer))
    # For a line after the end of the publish.
    producer.close()
    producer.join(LIMIT)

    assert producer.stats().state == "closed"
    assert len(fakensqd.messages("t")) == len(confirmed)


def test_subclass_may_override_the_handle_methods(fakensqd, caplog):
    got = []

    class Own(Producer):
        def handle_response(self, conn, response):
            got.append((str(conn.address), response))
            super().handle_response(conn, response)

        def handle_error(self, conn, error):
            got.append(error.code)
            raise ZeroDivisionError

    with Own(fakensqd.tcp_address) as producer:
        heard = []
        producer.on_response.connect(lambda sender, response: heard.append(response), weak=False)
        producer.publish("t", b"x")
        with pytest.raises(NSQBadMessage):
            producer.publish("t", b"x" * 2_000_000)
        producer.publish("t", b"y")

    assert (fakensqd.tcp_address, b"OK") in got
    assert "E_BAD_MESSAGE" in got
    assert b"OK" in heard
    assert "handle_error of a subclass raised" in caplog.text


def test_reconnect_maximum_is_below_the_deadline_of_a_publish():
    assert Producer("host")._reconnect.reconnect_maximum == 15.0
    assert Producer("host", max_backoff_duration=3)._reconnect.reconnect_maximum == 3.0
    assert Producer("host", reconnect_maximum=100.0)._reconnect.reconnect_maximum == 100.0
    assert Producer("host", reconnect_maximum=None, reconnect_initial=None)._reconnect == Producer("host")._reconnect
