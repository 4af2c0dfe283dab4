"""Functions of users that raise a BaseException: it counts as a failure as an Exception does, wherever it is raised."""

import asyncio
import logging
import re
from collections.abc import Callable

import gevent
import pytest

import gnsq
from fakensqd import FakeNsqd
from fakensqd.clock import ManualClock
from fakensqd.faults import drop, on
from gnsq import Consumer, Producer
from gnsq.contrib.batch import BatchHandler
from gnsq.errors import NSQException, NSQGiveUp, NSQNotSent
from tests.kit import wait_until


class Plain(Exception):
    """With what the others are compared."""


class Cancelled(BaseException):
    """As trio and others have one."""


ERRORS = [asyncio.CancelledError, gevent.GreenletExit, GeneratorExit, Cancelled]


def once(*_, message):
    if message.attempts == 1:
        raise RuntimeError("once")


def give_up(*_, message):
    raise NSQGiveUp("it is bad")


def override(name):
    def make(fail):
        return {"kind": type("Mine", (Consumer,), {name: lambda self, *arguments: fail()})}

    return make


def signal(name, handler=lambda consumer, message: None):
    return lambda fail: {"message_handler": handler, "signal": name}


def on_message_signal(fail):
    def handle(consumer, message):
        message.on_finish.connect(fail, weak=False)

    return {"message_handler": handle}


def fail_in_batch(batch):
    raise RuntimeError("a batch")


# What is given to a consumer. The function raises at its first two calls.
PLACES: dict[str, Callable[..., dict[str, object]]] = {
    "handler": lambda fail: {"message_handler": fail},
    "handle_message": override("handle_message"),
    "handle_messages": override("handle_messages"),
    "handle_finish": lambda fail: {**override("handle_finish")(fail), "message_handler": once},
    "handle_requeue": lambda fail: {**override("handle_requeue")(fail), "message_handler": once},
    "batch": lambda fail: {"message_handler": BatchHandler(1, fail, clock=ManualClock())},
    "batch in a pool": lambda fail: {"message_handler": BatchHandler(1, fail, spawn=1, clock=ManualClock())},
    "item of a batch": lambda fail: {"message_handler": BatchHandler(1, len, fail, clock=ManualClock())},
    "handle_batch_error": lambda fail: {
        "message_handler": BatchHandler(1, fail_in_batch, handle_batch_error=fail, clock=ManualClock())
    },
    "give-up handler": signal("on_giving_up", give_up),
    "requeue_delay": lambda fail: {"message_handler": once, "requeue_delay": fail},
    "backoff": lambda fail: {"message_handler": once, "backoff": fail, "max_backoff_duration": 1e-4},
    "on_exception": signal("on_exception", once),
    "on_requeue": signal("on_requeue", once),
    "on_backoff": signal("on_backoff", once),
    "on_finish": signal("on_finish"),
    "on_response": signal("on_response"),
    "on_close": signal("on_close"),
    "on_finish of a message": on_message_signal,
}


def raising(clock, error):
    calls = []

    def fail(*_, **__):
        calls.append(round(clock.monotonic(), 3))
        if len(calls) <= 2:
            raise error("why")
        return 0

    return calls, fail


def consumed(place, error):
    """What is seen of a consumer of three messages: when its function was called, its answers, and its numbers."""
    clock = ManualClock()
    calls, fail = raising(clock, error)
    options = {"kind": Consumer, "backoff": 1.0, **PLACES[place](fail)}
    kind, name = options.pop("kind"), options.pop("signal", "")
    with FakeNsqd(clock=clock, record=True) as nsqd:
        nsqd.broker.ensure_topic("t").publish([b"a", b"b", b"c"], nsqd.now())
        consumer = kind("t", "c", nsqd.tcp_address, clock=clock, max_in_flight=2, **options)
        if name:
            getattr(consumer, name).connect(fail, weak=False)
        consumer.start(block=False)
        clock.advance(60.0)
        stats = consumer.stats()
        closing = gevent.spawn(consumer.close)
        clock.advance(40.0)
        assert closing.successful()
        answers = [(round(entry.time, 3), entry.name) for entry in nsqd.transcript if entry.name in ("FIN", "REQ")]
        assert nsqd.errors == []
    return calls, stats.failed, stats.given_up, stats.backoff, stats.counts, answers


def lines(caplog, error):
    """The warnings and errors, without ports, ids and the name of the exception."""
    texts = [record.getMessage().replace(error.__qualname__, "ERROR") for record in caplog.records]
    return [re.sub(r":\d{4,}|b'\w{16}'", "", text) for text in texts]


@pytest.mark.parametrize("place", PLACES)
def test_base_exception_counts_as_an_exception_does(caplog, place):
    caplog.set_level(logging.WARNING, logger="gnsq")
    expected = consumed(place, Plain)
    told = lines(caplog, Plain)
    assert told
    assert expected[0]

    for error in ERRORS:
        caplog.clear()
        assert consumed(place, error) == expected
        assert lines(caplog, error) == told


def publish_with_strategy(nsqd, fail):
    with Producer(nsqd.tcp_address, strategy=fail) as producer, pytest.raises(NSQNotSent, match=r"can't choose: .*why"):
        producer.publish("t", b"x")


def publish_with_callback(nsqd, fail):
    called = []
    with Producer(nsqd.tcp_address) as producer:
        result = producer.publish_async("t", b"x")
        result.add_done_callback(fail)
        result.add_done_callback(called.append)
        assert result.get() == b"OK"
        wait_until(lambda: called)


def publish_with_receiver(nsqd, fail):
    with Producer(nsqd.tcp_address) as producer:
        producer.on_response.connect(fail, weak=False)
        assert producer.publish("t", b"x") == b"OK"
        assert producer.publish("t", b"x") == b"OK"


def run_when_ready(nsqd, fail):
    with pytest.raises(BaseException, match="why"):
        gnsq.run(Producer(nsqd.tcp_address), on_ready=fail)


@pytest.mark.fakensqd(threaded=False)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "publish", [publish_with_strategy, publish_with_callback, publish_with_receiver, run_when_ready]
)
def test_base_exception_of_a_producers_function_ends_nothing_else(fakensqd, publish, error):
    def fail(*_, **__):
        raise error("why")

    publish(fakensqd, fail)


@pytest.mark.parametrize("error", ERRORS)
def test_base_exception_of_a_rule_is_recorded_as_an_internal_error(error):
    def fail(event):
        raise error("why")

    with FakeNsqd() as nsqd:
        nsqd.add(on.command("PUB", where=fail), drop(), optional=True)
        with Producer(nsqd.tcp_address, publish_timeout=1.0) as producer, pytest.raises(NSQException):
            producer.publish("t", b"x")
        errors, nsqd.errors[:] = nsqd.errors[:], []

    assert {type(each) for each in errors} == {error}
