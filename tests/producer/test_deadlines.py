"""The first connection that is ready serves a publish, and no publish is sent after its deadline."""

import gevent
import pytest

from fakensqd.faults import delay, error, on
from gnsq import Producer
from gnsq.clock import RealClock
from gnsq.errors import NSQException, NSQNotSent, NSQPubFailed
from tests.kit import LIMIT, peer


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
    with peer(lambda sock: gevent.sleep(LIMIT)) as address:
        yield address


def in_thread(producer, function):
    """Start a producer in this thread, and call a function in another one while this hub runs."""
    starting = gevent.spawn(producer.start)
    gevent.sleep(0)
    try:
        return gevent.get_hub().threadpool.apply(function)
    finally:
        starting.kill()


# Each way to publish. The functions get a producer, and keywords of the publish.
WAYS = [
    pytest.param({}, lambda p, **how: p.publish("t", b"1", **how), id="publish"),
    pytest.param({}, lambda p, **how: p.publish_async("t", b"1", **how).get(), id="publish_async"),
    pytest.param({}, lambda p, **how: in_thread(p, lambda: p.publish("t", b"1", **how)), id="publish in a thread"),
    pytest.param({"threaded": True}, lambda p, **how: p.publish_async("t", b"1", **how).get(), id="threaded"),
    pytest.param({"batch_messages": 1}, lambda p, **how: p.publish("t", b"1", **how), id="batch"),
    pytest.param({"connections_per_nsqd": 3}, lambda p, **how: p.publish("t", b"1", **how), id="3 connections"),
]


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
