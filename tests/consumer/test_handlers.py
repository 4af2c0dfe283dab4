"""Handlers that could not handle a message are refused when they are given, or fail when they are called."""

import asyncio
import functools
import gc
import re
import warnings
from unittest.mock import Mock, create_autospec

import pytest

from gnsq import Consumer
from gnsq.contrib.batch import BatchHandler
from gnsq.errors import NSQGiveUp
from tests.kit import wait_until


async def coroutine(consumer, message):
    pass


def generator(consumer, message):
    yield


async def asynchronous_generator(consumer, message):
    yield


class Callable:
    async def __call__(self, consumer, message):
        pass


class Plain:
    def method(self, consumer, message):
        pass


def with_more(consumer, message, more=None):
    pass


NOT_RUN = [
    pytest.param(coroutine, "coroutine is a coroutine function", id="async def"),
    pytest.param(generator, "generator is a generator function", id="generator"),
    pytest.param(asynchronous_generator, "is an asynchronous generator function", id="async generator"),
    pytest.param(
        functools.partial(functools.partial(generator), more=1), "generator function", id="partial of partial"
    ),
    pytest.param(functools.partial(Callable()), "Callable is a coroutine function", id="partial of callable object"),
]
NOT_CALLABLE_SO = [
    pytest.param(lambda message: None, "multiple values for argument 'message'", id="message only"),
    pytest.param(lambda consumer: None, "unexpected keyword argument 'message'", id="consumer only"),
    pytest.param(lambda consumer, message, /: None, "positional.only", id="positional only"),
    pytest.param(5, "must be callable, not 5", id="no function"),
]
RIGHT = [
    pytest.param(with_more, id="function"),
    pytest.param(functools.partial(with_more, more=1), id="partial"),
    pytest.param(Plain().method, id="method"),
    pytest.param(lambda _, message, **rest: None, id="lambda"),
    pytest.param(lambda c, /, *, message: None, id="keyword only"),
    pytest.param(Mock(), id="Mock"),
    pytest.param(create_autospec(with_more), id="autospec"),
    pytest.param(dict, id="class"),
]


def make(**options):
    return Consumer("t", "c", "127.0.0.1:4150", **options)


@pytest.mark.parametrize(("handler", "text"), [*NOT_RUN, *NOT_CALLABLE_SO])
def test_message_handler_that_could_not_handle_a_message_is_refused(handler, text):
    with pytest.raises(TypeError, match=f"message_handler .*{text}"):
        make(message_handler=handler)


@pytest.mark.parametrize("weak", [True, False], ids=["weak", "strong"])
@pytest.mark.parametrize("signal", ["on_message", "on_giving_up"])
def test_receiver_that_could_not_handle_a_message_is_refused(signal, weak):
    consumer = make()

    with pytest.raises(TypeError, match=f"receiver of {signal} coroutine is a coroutine function"):
        getattr(consumer, signal).connect(coroutine, weak=weak)
    assert not getattr(consumer, signal).receivers


@pytest.mark.parametrize("handler", RIGHT)
def test_handler_that_can_be_called_is_accepted(handler):
    consumer = make(message_handler=handler)

    assert list(consumer.on_message.receivers_for(consumer)) == [handler]


def test_refusal_of_a_handler_shows_the_right_signature():
    with pytest.raises(TypeError, match=r"\(c, m\) can't be called as .*define it as def handler\(consumer, message\)"):
        make(message_handler=lambda c, m: None)
    with pytest.raises(TypeError, match="give a plain function"):
        make(message_handler=coroutine)


def test_signature_of_a_wrapped_function_counts_and_the_refusal_says_so():
    @functools.wraps(lambda body: None)
    def handle(consumer, message):
        pass

    with pytest.raises(TypeError, match="signature of the function that it wraps: delete __wrapped__"):
        make(message_handler=handle)
    del handle.__wrapped__
    make(message_handler=handle)


def test_handler_without_a_signature_is_accepted():
    class Unknown:
        @property
        def __signature__(self):
            raise ValueError("no signature")

        def __call__(self, *arguments, **keywords):
            pass

    make(message_handler=Unknown())


def test_receivers_are_connected_as_by_blinker():
    consumer = make()
    other = make()

    @consumer.on_message.connect
    def every(consumer, message):
        pass

    @consumer.on_message.connect_via(other)
    def others(consumer, message):
        pass

    assert consumer.on_message.handlers_for(consumer) == (every,)
    assert consumer.on_message.connect(with_more, sender=other, weak=False) is with_more
    assert list(consumer.on_message.receivers_for(consumer)) == [every]
    assert set(consumer.on_message.receivers_for(other)) == {every, others, with_more}
    consumer.on_message.disconnect(every)
    # The receivers are known again after each change.
    assert consumer.on_message.handlers_for(consumer) == ()
    with consumer.on_message.connected_to(with_more):
        assert list(consumer.on_message.receivers_for(consumer)) == [with_more]
    assert list(consumer.on_message.receivers_for(consumer)) == []


@pytest.mark.parametrize("name", ["handle_message", "handle_messages"])
@pytest.mark.parametrize(("function", "kind"), [(coroutine, "coroutine"), (generator, "generator")])
def test_override_that_is_a_coroutine_or_generator_function_is_refused(name, function, kind):
    kind_of = type("Mine", (Consumer,), {name: function})

    with pytest.raises(TypeError, match=f"override {function.__name__} is a {kind} function"):
        kind_of("t", "c", "127.0.0.1:4150")


@pytest.mark.parametrize("options", [{}, {"handler_timeout": 5.0}], ids=["unlimited", "limited"])
def test_handler_that_returns_a_coroutine_or_generator_has_failed(nsqd, clock, publish, started, options):
    functions, returned, errors = [coroutine, generator, asynchronous_generator], [], []

    def handle(consumer, message):
        returned.append(functions[len(returned)](consumer, message))
        return returned[-1]

    consumer = started(handle, nsqd, max_backoff_duration=0, **options)
    consumer.on_exception.connect(lambda sender, message, error: errors.append(error), weak=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "was never awaited"
        publish(nsqd, b"1", b"2", b"3")
        clock.advance(0.0)
        gc.collect()

    assert [type(error) for error in errors] == [TypeError] * 3
    for error in errors:
        assert re.search(r"handle returned an? .*(coroutine|generator), of which nothing is run; give a", str(error))
    assert consumer.stats().failed == 3
    assert nsqd.broker.topics["t"].channels["c"].deferred_count == 3


def give_up(consumer, message):
    raise NSQGiveUp("it is bad")


@pytest.mark.parametrize("way", ["handle_message", "handle_messages", "handle_batch", "give-up handler"])
def test_any_function_that_returns_a_coroutine_has_failed(nsqd, clock, publish, started, caplog, way):
    def fail(*_, **__):
        return coroutine(None, None)

    handlers = {"handle_batch": BatchHandler(1, fail, clock=clock), "give-up handler": give_up}
    kind = type("Mine", (Consumer,), {way: fail} if way in vars(Consumer) else {})
    consumer = started(handlers.get(way), nsqd, kind=kind, max_backoff_duration=0)
    consumer.on_giving_up.connect(fail, weak=False)
    publish(nsqd, b"x")
    wait_until(lambda: consumer.stats().counts.requeued)

    assert "returned a coroutine, of which nothing is run" in caplog.text
    assert (consumer.stats().counts.requeued, consumer.stats().given_up) == (1, 0)


@pytest.mark.parametrize("options", [{}, {"handler_timeout": 5.0}], ids=["unlimited", "limited"])
def test_handler_that_returns_false_finishes_its_message_with_one_warning(
    nsqd, clock, publish, started, caplog, options
):
    consumer = started(lambda _, message: False, nsqd, **options)
    publish(nsqd, b"1")
    publish(nsqd, b"2")
    clock.advance(1.0)

    (line,) = [record for record in caplog.records if "returned False" in record.message]
    assert line.levelname == "WARNING"
    assert line.message.startswith("t/c: message ")
    assert "is finished as with any other result; raise an exception or call message.requeue()" in line.message
    assert consumer.stats().counts.finished == 2


def test_handler_that_returns_another_value_finishes_its_message_without_a_warning(
    nsqd, clock, publish, started, caplog
):
    results = [None, True, 0, "", [], object(), asyncio]
    left = list(results)
    consumer = started(lambda _, message: left.pop(), nsqd)
    publish(nsqd, *[b"x"] * len(results))
    clock.advance(1.0)

    assert consumer.stats().counts.finished == len(results)
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


def test_garbage_collected_lambda_is_named_at_the_start():
    consumer = make()
    consumer.on_message.connect(lambda _, message: None)
    gc.collect()

    with pytest.raises(
        RuntimeError, match=r"no handler: .*<lambda>, connected to on_message.*a lambda needs weak=False"
    ):
        consumer.start()


def test_disconnected_receiver_is_not_reported_as_garbage_collected():
    consumer = make()

    def handle(consumer, message):
        pass

    consumer.on_message.connect(handle)
    consumer.on_message.disconnect(handle)
    del handle
    gc.collect()

    assert consumer.on_message.collected_hint() == ""


def test_garbage_collected_give_up_handler_is_logged_at_the_start(nsqd, started, caplog, clock):
    class Mine(Consumer):
        def start(self, block=True):
            self.on_giving_up.connect(Plain().method)
            gc.collect()
            super().start(block)

    started(lambda _, message: None, nsqd, kind=Mine)

    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "t/c: messages that are given up are finished and lost; Plain.method, connected" in line.message
    assert "needs weak=False" in line.message
