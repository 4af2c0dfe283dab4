"""Publishes from other threads than the producer's: with and without hubs, in patched and unpatched processes."""

import threading
import time

import gevent
import pytest

from fakensqd import FakeCluster
from gnsq import Producer
from gnsq.errors import NSQNotSentTimeout, NSQTimeout, NSQUnknownTimeout
from tests.kit import bodies, refused_port, run_program, wait_until
from tests.producer.conftest import KINDS

LIMIT = 20.0
COUNT = 30


@pytest.fixture(params=["home", "threaded"])
def producer(fakensqd, request):
    with Producer(fakensqd.tcp_address, threaded=request.param == "threaded", close_timeout=5) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_publishes_of_several_threads_are_confirmed_and_stored_once(producer, fakensqd, threads, kind):
    def publish(number):
        return [producer.publish("t", b"%d-%d" % (number, index)) for index in range(COUNT)]

    threads.start(publish, kind, count=6)

    assert threads.wait() == [[b"OK"] * COUNT] * 6
    expected = {b"%d-%d" % (number, index) for number in range(6) for index in range(COUNT)}
    held = bodies(fakensqd, "t")
    assert set(held) == expected
    assert len(held) == len(expected)


def test_publish_async_in_a_thread_waits_for_capacity(fakensqd, threads):
    with Producer(fakensqd.tcp_address, max_pending_bytes=2000) as producer:

        def publish(number):
            results = [producer.publish_async("t", b"x" * 900) for _ in range(COUNT)]
            return [result.get(timeout=LIMIT) for result in results]

        threads.start(publish)

        assert threads.wait() == [[b"OK"] * COUNT]


@pytest.mark.parametrize("kind", KINDS)
def test_other_methods_may_be_called_in_threads_at_once(producer, fakensqd, threads, kind):
    def use(number):
        producer.multipublish("t", [b"a", b"b"])
        chunks = producer.publish_many("t", (b"%d" % index for index in range(2500)))
        stats = producer.stats()
        return [[chunk.error for chunk in chunks], producer.flush(LIMIT), stats.confirmed > 2500]

    threads.start(use, kind, count=3)

    assert threads.wait() == [[[None] * 3, True, True]] * 3
    assert producer.stats().confirmed == 3 * 2502


@pytest.mark.parametrize("kind", KINDS)
def test_close_of_several_threads_closes_once(producer, threads, kind):
    closed_producers = []
    producer.on_close.connect(closed_producers.append, weak=False)
    results = [producer.publish_async("t", b"x") for _ in range(COUNT)]

    threads.start(lambda number: (producer.close(), producer.join(LIMIT)), kind, count=4)

    assert threads.wait() == [([], None)] * 4
    assert closed_producers == [producer]
    assert [result.get(timeout=0) for result in results] == [b"OK"] * COUNT


@pytest.mark.parametrize("kind", KINDS)
def test_first_publishes_of_several_threads_start_one_producer(fakensqd, threads, kind):
    producer = Producer(fakensqd.tcp_address, threaded=True)
    barrier = threading.Barrier(8)

    def publish(number):
        barrier.wait(LIMIT)
        return producer.publish("t", b"x", timeout=LIMIT)

    threads.start(publish, kind, count=8)

    assert threads.wait() == [b"OK"] * 8
    assert len(fakensqd.transcript.commands("IDENTIFY")) == 1
    assert producer.close() == []


def test_nsqd_added_in_a_thread_is_published_to(fakensqd, threads):
    with Producer(f"127.0.0.1:{refused_port()}") as producer:
        host, port = fakensqd.tcp_address.split(":")
        threads.start(lambda number: producer.connect_to_nsqd(host, int(port)))
        threads.wait()

        assert producer.publish("t", b"x", timeout=LIMIT) == b"OK"


def test_nsqds_are_replaced_and_the_connection_to_another_is_not_opened_again(threads):
    with FakeCluster(nsqds=2).in_thread() as cluster:
        first, second = cluster.nsqds
        with Producer(first.tcp_address) as producer:
            threads.start(lambda number: producer.set_nsqds(second.tcp_address))
            threads.wait()
            first.down()
            wait_until(lambda: [each.address for each in producer.stats().connections] == [second.tcp_address])
            first.up()

            assert producer.publish("t", b"x", timeout=LIMIT) == b"OK"
            assert producer.nsqd_tcp_addresses == {second.tcp_address}
            assert not producer.stats().failures
        assert second.messages("t") == [b"x"]


# --- threads that do not run their hubs -------------------------------------------------------------------------------


def timed(function):
    began = time.monotonic()
    try:
        return function(), time.monotonic() - began
    except Exception as error:  # noqa: BLE001  # it is the test's
        return error, time.monotonic() - began


def test_calls_of_other_threads_end_by_the_deadline_if_the_owner_thread_blocks(fakensqd):
    producer = Producer(fakensqd.tcp_address)
    producer.start()
    outcomes = {}
    calls = {
        "publish": lambda: producer.publish("t", b"x", timeout=0.2),
        "async": lambda: producer.publish_async("t", b"x", timeout=0.2),
        "many": lambda: producer.publish_many("t", [b"x"], timeout=0.2, raise_error=False),
        "flush": lambda: producer.flush(0.2),
        "join": lambda: producer.join(0.2),
    }
    closes = dict.fromkeys(["close", "second close"], lambda: producer.close(0.2))

    for together in (calls, closes):
        threads = [
            threading.Thread(target=lambda n=n, call=call: outcomes.update({n: timed(call)}))
            for n, call in together.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)  # natively: this hub does not run meanwhile

    # By far less than the 60 s that they have without a timeout.
    assert all(seconds < LIMIT for _, seconds in outcomes.values())
    assert isinstance(outcomes["publish"][0], NSQNotSentTimeout)
    assert "needs threaded=True" in str(outcomes["publish"][0])
    assert isinstance(outcomes["async"][0], NSQNotSentTimeout)
    assert isinstance(outcomes["many"][0][0].error, NSQNotSentTimeout)
    assert outcomes["flush"][0] is False
    assert isinstance(outcomes["close"][0], NSQTimeout)
    assert "needs threaded=True" in str(outcomes["close"][0])
    # It closes as soon as this hub runs, and nothing of that was sent.
    producer.join(LIMIT)
    assert producer.stats().state == "closed"
    assert fakensqd.transcript.commands("PUB") == []


def test_submitted_publish_is_unknown_if_the_owner_thread_blocks(fakensqd):
    producer = Producer(fakensqd.tcp_address)
    producer.start()
    producer.publish("t", b"x")
    outcomes = []
    fakensqd.stop()
    thread = threading.Thread(
        target=lambda: outcomes.append(timed(lambda: producer.publish("t", b"x", timeout=0.3))),
    )

    thread.start()
    # Lets the hub take the publish over, and no more.
    wait_until(lambda: producer.stats().pending)
    thread.join(LIMIT)

    ((error, seconds),) = outcomes
    assert isinstance(error, NSQUnknownTimeout)
    assert seconds < LIMIT
    producer.close(timeout=0)


def test_failure_of_a_publish_whose_caller_was_killed_is_logged(caplog):
    producer = Producer(f"127.0.0.1:{refused_port()}", threaded=True)
    producer.start()
    jobs = [gevent.spawn(producer.publish, "t", b"x", timeout=0.3)]
    wait_until(lambda: producer.stats().pending)

    gevent.killall(jobs)

    wait_until(lambda: "a publish to t failed, and its caller no longer waits for it" in caplog.text)
    assert producer.close() == []


# --- programs ---------------------------------------------------------------------------------------------------------

PLAIN = """
import sys
from gnsq import Producer

producer = Producer(sys.argv[1], threaded=True)
print(producer.publish("t", b"first").decode())
for number in range(1000):
    producer.publish_async("t", b"%d" % number)
"""


def run(script, *arguments):
    done = run_program(script, *arguments)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split()


@pytest.mark.subprocess
def test_program_without_close_ends_when_all_publishes_are_confirmed(fakensqd):
    assert run(PLAIN, fakensqd.tcp_address) == ["OK"]

    assert bodies(fakensqd, "t") == [b"first", *[b"%d" % number for number in range(1000)]]


PATCHED_LATE = """
import logging, sys, warnings
import gevent
from gnsq import Consumer, Producer

# On a busy machine patch_all() may block the hub for a second.
logging.getLogger("gnsq.concurrency.hub_monitor").setLevel(logging.ERROR)

producer = Producer(sys.argv[1], threaded=True)
producer.publish("t", b"before")
consumer = Consumer("t", "c", sys.argv[1], message_handler=lambda consumer, message: print(message.body.decode()))
consumer.start(block=False)
from gevent import monkey

warnings.simplefilter("ignore")  # gevent's own, that this is late
monkey.patch_all()
producer.publish("t", b"after")
with gevent.Timeout(20):
    while not consumer.stats().counts.finished:
        gevent.sleep(0.01)
"""


@pytest.mark.subprocess
def test_program_that_patches_late_ends_without_a_log_line(fakensqd):
    run(PATCHED_LATE, fakensqd.tcp_address)

    assert fakensqd.messages("t") == [b"before", b"after"]


UNANSWERED = """
import logging, sys, time
from gnsq import Producer

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
logging.getLogger("gnsq.nsqd").setLevel(logging.ERROR)
logging.getLogger("gnsq.nsqd.pool").setLevel(logging.ERROR)
producer = Producer(sys.argv[1], threaded=sys.argv[2] == "threaded", close_timeout=0.2)
producer.publish_async("t", b"x")
"""


@pytest.mark.subprocess
def test_program_with_unanswered_publishes_ends_with_close_timeout_and_logs_them():
    said = run(UNANSWERED, f"127.0.0.1:{refused_port()}", "threaded")

    assert " ".join(said).startswith("producer-1: closed with 1 publish not confirmed, the first of them to t: ")
    assert "Connection refused" in " ".join(said)


@pytest.mark.subprocess
def test_program_that_ends_with_pending_publishes_logs_how_many():
    said = run(UNANSWERED, f"127.0.0.1:{refused_port()}", "")

    assert " ".join(said) == "producer-1: the program ends with 1 publish not confirmed: close() waits for them"
