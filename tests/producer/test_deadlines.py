"""The first connection that is ready serves a publish, and no publish is sent after its deadline."""

import threading
from concurrent.futures import Future

import gevent
import pytest

from fakensqd.faults import delay, error, on
from gnsq import Producer
from gnsq.clock import RealClock
from gnsq.errors import NSQException, NSQNotSent, NSQPubFailed
from tests.kit import LIMIT, peer, run_program, wait_until


class StoppedClock(RealClock):
    """Time that does not pass, in any thread: what waits for a time waits for ever. A test may let it jump, as if the
    hub had been blocked: nothing is woken."""

    seconds = 0.0

    def monotonic(self):
        return self.seconds

    def wait(self, waitable, seconds):
        waitable.wait()
        return True

    def timeout(self, seconds):
        return gevent.Timeout(None)


@pytest.fixture
def silent():
    """Address of a port that accepts connections and says nothing."""

    def answer(sock):
        while sock.recv(4096):
            pass

    with peer(answer) as address:
        yield address


def in_thread(producer, function):
    """Start a producer in this thread, and call a function in another one while this hub runs."""
    starting = gevent.spawn(producer.start)
    starting.start()
    gevent.sleep(0)
    future = Future()

    def call():
        try:
            future.set_result(function())
        except NSQException as error:
            future.set_exception(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive())
    starting.kill()
    return future.result(0)


def parameters(table):
    return [pytest.param(options, call, id=name) for name, options, call in table]


# Each way to publish. The functions get a producer, and keywords of the publish.
WAYS = parameters(
    [
        ("publish", {}, lambda p, **how: p.publish("t", b"1", **how)),
        ("multipublish", {}, lambda p, **how: p.multipublish("t", [b"1"], **how)),
        ("publish_async", {}, lambda p, **how: p.publish_async("t", b"1", **how).get()),
        ("deferred", {}, lambda p, **how: p.publish("t", b"1", defer=1, **how)),
        ("publish in a thread", {}, lambda p, **how: in_thread(p, lambda: p.publish("t", b"1", **how))),
        (
            "publish_async in a thread",
            {},
            lambda p, **how: in_thread(p, lambda: p.publish_async("t", b"1", **how).get()),
        ),
        ("publish, threaded", {"threaded": True}, lambda p, **how: p.publish("t", b"1", **how)),
        ("publish_async, threaded", {"threaded": True}, lambda p, **how: p.publish_async("t", b"1", **how).get()),
        ("batch", {"batch_messages": 1}, lambda p, **how: p.publish("t", b"1", **how)),
        ("connections_per_nsqd", {"connections_per_nsqd": 3}, lambda p, **how: p.publish("t", b"1", **how)),
    ]
)


@pytest.mark.parametrize(("options", "publish"), WAYS)
def test_first_publish_does_not_wait_for_a_silent_nsqd(fakensqd, silent, options, publish):
    producer = Producer([silent, fakensqd.tcp_address], clock=StoppedClock(), **options)
    with gevent.Timeout(LIMIT):
        publish(producer)
    producer.close(timeout=0)

    assert fakensqd.messages("t") == [b"1"]


@pytest.mark.parametrize("is_connected", [False, True], ids=["", "connected"])
@pytest.mark.parametrize(("options", "publish"), WAYS)
def test_publish_whose_deadline_is_over_is_never_sent(fakensqd, options, publish, is_connected):
    producer = Producer(fakensqd.tcp_address, clock=StoppedClock(), **options)
    with gevent.Timeout(LIMIT):
        if is_connected:
            producer.start()
        with pytest.raises(NSQNotSent):
            publish(producer, timeout=0)
        producer.publish("u", b"2")
    producer.close(timeout=0)

    assert fakensqd.messages("t") == []


# What a publish waits for while the hub is blocked until after its deadline: options, and the response of nsqd that
# ends the wait.
WAITS = [
    pytest.param({}, "IDENTIFY", id="connection"),
    pytest.param({}, "PUB", id="being sent"),
    pytest.param({"max_pending_bytes": 1}, "PUB", id="capacity"),
    pytest.param({"batch_messages": 10, "batch_linger": 0}, "PUB", id="batch"),
]


@pytest.mark.parametrize(("options", "response"), WAITS)
def test_publish_is_not_sent_after_the_hub_was_blocked_until_its_deadline(nsqd, clock, options, response):
    nsqd.add(on.reply(response), delay(5))
    stopped = StoppedClock()
    producer = Producer(nsqd.tcp_address, clock=stopped, **options)
    gevent.spawn(producer.publish, "t", b"before", timeout=100)
    clock.advance(0)
    late = gevent.spawn(outcome, producer.publish, "t", b"late", timeout=1)
    clock.advance(0)

    stopped.seconds = 2.0
    clock.advance(6)

    assert isinstance(late.get(timeout=LIMIT), NSQNotSent)
    assert nsqd.messages("t") == [b"before"]
    producer.close(timeout=0)


def outcome(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords)
    except NSQException as error:
        return error


def test_publish_is_not_sent_again_after_its_deadline(nsqds, clock):
    for nsqd in nsqds:
        nsqd.add(on.command("PUB"), error("E_PUB_FAILED"), optional=True)
    stopped = StoppedClock()
    producer = Producer([nsqd.tcp_address for nsqd in nsqds], clock=stopped)
    producer.on_error.connect(lambda sender, error: setattr(stopped, "seconds", 2.0), weak=False)
    producer.start()

    assert isinstance(outcome(producer.publish, "t", b"1", timeout=1), NSQPubFailed)

    assert sum(len(nsqd.transcript.select("command", name="PUB")) for nsqd in nsqds) == 1
    producer.close(timeout=0)


SCRIPT = """
import os, sys
import gevent.os
from gnsq import Producer
from tests.producer.test_deadlines import StoppedClock

silent, address = sys.argv[1:]
producer = Producer([silent, address], clock=StoppedClock())
child = os.fork()
if not child:
    producer.publish("t", b"1")
    producer.close(timeout=0)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.subprocess
def test_first_publish_of_a_forked_worker_does_not_wait_for_a_silent_nsqd(fakensqd, silent):
    done = run_program(SCRIPT, silent, fakensqd.tcp_address)

    assert (done.stderr, done.returncode) == ("", 0)
    assert fakensqd.messages("t") == [b"1"]
