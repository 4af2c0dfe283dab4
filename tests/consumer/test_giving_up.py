"""Messages that are given up: a letter is published before FIN, whichever way the consumer calls the handler."""

import logging
import threading
from datetime import timedelta
from random import Random

import gevent
import pytest

from fakensqd import FakeAuthServer, FakeCluster, FakeNsqd, Grant, on
from fakensqd.faults import delay, disconnect, drop, error
from gnsq import Consumer, NsqdHTTPClient, NSQGiveUp
from gnsq.consumer import ConsumerOptions
from gnsq.contrib.batch import BatchHandler
from gnsq.contrib.giveup import NsqdGiveupHandler
from gnsq.dead_letter import decode_dead_letter
from gnsq.errors import NSQException, NSQRequeueMessage, NSQTimeout, NSQUnauthorized, NSQUnknown
from tests.kit import channel_stats, wait_until

AT_ONCE = {"requeue_delay": 0, "max_backoff_duration": 0}


def letters(nsqd, topic="dead"):
    return [decode_dead_letter(body) for body in nsqd.messages(topic)]


def channel(nsqd):
    return nsqd.broker.topics["t"].channels["c"]


def is_settled(nsqd):
    stats = channel_stats(nsqd, "t", "c")
    return (stats["in_flight_count"], stats["depth"], stats["deferred_count"]) == (0, 0, 0)


def no_such_country():
    return NSQGiveUp("no such country")


class Kinds:
    """All ways in which a consumer calls handlers: each makes a consumer whose handler raises what make() makes."""

    @staticmethod
    def handler(make, *arguments, **options):
        def handle(consumer, message):
            raise make()

        return Consumer(*arguments, message_handler=handle, **options)

    @staticmethod
    def threaded(make, *arguments, **options):
        return Kinds.handler(make, *arguments, threaded=True, **options)

    @staticmethod
    def async_then_raised(make, *arguments, **options):
        def handle(consumer, message):
            message.enable_async()
            raise make()

        return Consumer(*arguments, message_handler=handle, **options)

    @staticmethod
    def answered_later(make, *arguments, **options):
        def handle(consumer, message):
            message.enable_async()
            error = make()
            gevent.spawn(consumer.give_up, message, error.reason if isinstance(error, NSQGiveUp) else error)

        return Consumer(*arguments, message_handler=handle, **options)

    @staticmethod
    def answered_by_a_thread(make, *arguments, **options):
        def handle(consumer, message):
            message.enable_async()
            threading.Thread(target=consumer.give_up, args=(message, make())).start()

        return Consumer(*arguments, message_handler=handle, **options)

    @staticmethod
    def override_of_handle_message(make, *arguments, **options):
        class Mine(Consumer):
            def handle_message(self, conn, message):
                raise make()

        return Mine(*arguments, **options)

    @staticmethod
    def override_of_handle_messages(make, *arguments, **options):
        class Mine(Consumer):
            def handle_messages(self, messages):
                raise make()

        return Mine(*arguments, **options)

    @staticmethod
    def batch(make, *arguments, **options):
        def handle_batch(batch):
            raise make()

        return Consumer(*arguments, message_handler=BatchHandler(1, handle_batch), **options)


def calling(handler):
    """A kind whose handler is this one."""
    return lambda make, *arguments, **options: Consumer(*arguments, message_handler=handler, **options)


KINDS = {name: value.__func__ for name, value in vars(Kinds).items() if isinstance(value, staticmethod)}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# With a thread, with code that gives a message up itself, and with several messages in a call.
some_kinds = pytest.mark.parametrize(
    "kind", [Kinds.handler, Kinds.threaded, Kinds.answered_by_a_thread, Kinds.override_of_handle_messages, Kinds.batch]
)


@pytest.fixture
def begin(fakensqd):
    """Start a consumer of a kind with dead_letter_topic; it is closed at the end."""
    made = []

    def start(kind=Kinds.handler, make=no_such_country, **options):
        consumer = kind(make, "t", "c", fakensqd.tcp_address, **{"dead_letter_topic": "dead", **options})
        made.append(consumer)
        consumer.start(block=False)
        return consumer

    yield start
    for consumer in made:
        consumer.close(5.0)


@each_kind
def test_message_is_given_up_at_once_with_a_letter_and_one_line(fakensqd, begin, kind, caplog):
    given_up = []
    consumer = begin(kind)
    consumer.on_giving_up.connect(lambda consumer, message: given_up.append(message.body), weak=False)
    consumer.on_exception.connect(lambda consumer, message, error: given_up.append(error), weak=False)
    caplog.clear()
    fakensqd.publish("t", b"body")
    wait_until(lambda: consumer.stats().counts.finished)

    (letter,) = letters(fakensqd)
    assert (letter.error, letter.reason, letter.body) == ("NSQGiveUp", "no such country", b"body")
    assert (letter.topic, letter.channel, letter.nsqd, letter.attempts) == ("t", "c", fakensqd.tcp_address, 1)
    assert given_up == [b"body"]
    stats = consumer.stats()
    assert (stats.given_up, stats.failed, stats.counts.requeued, stats.backoff) == (1, 0, 0, "off")
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.message.startswith(f"t/c: message {letter.id.encode()!r} of {fakensqd.tcp_address}: given up")
    assert "delivered 1 time; handed to topic dead, " in record.message
    assert record.message.endswith("; reason: NSQGiveUp: no such country")
    assert (record.topic, record.channel, record.attempt, record.exc_info) == ("t", "c", 1, None)


@some_kinds
def test_message_is_requeued_if_its_letter_is_refused(fakensqd, begin, kind):
    with fakensqd.add(on.command("PUB", topic="dead").first(2), error("E_PUB_FAILED")):
        consumer = begin(kind, **AT_ONCE)
        fakensqd.publish("t", b"body")
        wait_until(lambda: consumer.stats().counts.finished)

    (letter,) = letters(fakensqd)
    assert (letter.body, letter.attempts) == (b"body", 2)
    stats = consumer.stats()
    assert (stats.given_up, stats.failed, stats.counts.requeued, stats.counts.finished) == (1, 1, 1, 1)


@some_kinds
def test_exception_of_give_up_on_is_given_up_with_a_traceback(fakensqd, begin, kind, caplog):
    consumer = begin(kind, lambda: UnicodeError("no text"), give_up_on=ValueError)
    fakensqd.publish("t", b"body")
    wait_until(lambda: consumer.stats().counts.finished)

    (letter,) = letters(fakensqd)
    assert (letter.error, letter.reason, letter.attempts) == ("UnicodeError", "no text", 1)
    assert (consumer.stats().given_up, consumer.stats().backoff) == (1, "off")
    # Code that gives a message up itself has no exception to show.
    shown = [record for record in caplog.records if record.exc_info]
    assert len(shown) == (kind is not Kinds.answered_by_a_thread)


def test_other_messages_of_a_batch_are_handled(fakensqd, begin):
    batches = []

    def parse(message):
        if message.body == b"bad":
            raise NSQGiveUp("no JSON")
        return message.body

    consumer = begin(calling(BatchHandler(3, batches.append, parse)), max_in_flight=10)
    fakensqd.publish("t", b"1", b"bad", b"2")
    wait_until(lambda: consumer.stats().counts.finished == 3)

    assert batches == [[b"1", b"2"]]
    assert [letter.body for letter in letters(fakensqd)] == [b"bad"]


# --- the rules -------------------------------------------------------------------------------------------------------

SCHEMA, DATABASE = ValueError("bad"), ConnectionError("away")


@pytest.mark.parametrize(
    ("options", "raised", "is_given_up"),
    [
        pytest.param({}, SCHEMA, False, id="default"),
        pytest.param({"give_up_on": (KeyError, ValueError)}, SCHEMA, True, id="several"),
        pytest.param({"retry_on": (OSError,)}, SCHEMA, True, id="not retried"),
        pytest.param({"retry_on": Exception, "give_up_on": ValueError}, SCHEMA, True, id="both: given up"),
        pytest.param({"retry_on": OSError, "give_up_on": ConnectionError}, DATABASE, True, id="both: subclass"),
        pytest.param({"retry_on": OSError}, NSQRequeueMessage(), False, id="requeue comes first"),
        pytest.param({"retry_on": NSQException}, no_such_country(), True, id="give-up comes first"),
        pytest.param({"retry_on": OSError}, NSQTimeout("handler_timeout"), True, id="timeout that is not in retry_on"),
        pytest.param({"retry_on": gevent.Timeout}, gevent.Timeout(1), False, id="gevent.Timeout"),
    ],
)
def test_exceptions_after_which_a_message_is_given_up(options, raised, is_given_up):
    assert ConsumerOptions(**options).gives_up_on(raised) is is_given_up


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"dead_letter_topic": "a b"}, ValueError, "dead_letter_topic: topic name 'a b' is not valid: 1 to 64"),
        ({"dead_letter_topic": "d#ephemeral"}, ValueError, "dead_letter_topic 'd#ephemeral' is ephemeral"),
        ({"dead_letter_topic": "t"}, ValueError, "dead_letter_topic 't' is the topic that this consumer receives"),
        ({"give_up_on": ValueError("x")}, TypeError, "give_up_on must be .* or a tuple of them, not an instance of V"),
        ({"retry_on": (int,)}, TypeError, "retry_on must be .* or a tuple of them, not a tuple with the class int"),
        ({"retry_on": (KeyError, UnicodeError), "give_up_on": ValueError}, ValueError, "retry_on UnicodeError has no"),
    ],
    ids=str,
)
def test_wrong_option_is_refused(options, kind, words):
    with pytest.raises(kind, match=words):
        Consumer("t", "c", "127.0.0.1:4150", **options)


# --- max_tries and max_age -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"max_tries": 2}, "the database is away", id="max_tries"),
        pytest.param(
            {"max_age": 2.5, "max_tries": 0},
            "max_age is 2.5 s; last error: OSError: the database is away",
            id="max_age",
        ),
    ],
)
def test_message_above_max_tries_or_max_age_has_its_last_error_in_its_letter(
    nsqd, clock, publish, started, options, words
):
    def fail(consumer, message):
        raise OSError("the database is away")

    started(fail, nsqd, dead_letter_topic="dead", requeue_delay=1.0, max_backoff_duration=0, **options)
    publish(nsqd, b"x")
    clock.advance(4.0)

    (letter,) = letters(nsqd)
    assert letter.reason.endswith(words)
    assert letter.attempts > 2


@pytest.mark.parametrize("kind", ["handler", "override_of_handle_messages"])
@pytest.mark.parametrize(("age", "given_up"), [(1799.0, 0), (1801.0, 1)])
def test_message_older_than_max_age_does_not_reach_the_handler(nsqd, clock, publish, caplog, kind, age, given_up):
    handled = []
    options = {"dead_letter_topic": "dead", "max_age": timedelta(minutes=30), "clock": clock}
    consumer = KINDS[kind](lambda: handled.append(1) or NSQRequeueMessage(), "t", "c", nsqd.tcp_address, **options)
    publish(nsqd, b"old")
    clock.advance(age)
    consumer.start(block=False)
    clock.advance(0.5)

    assert (consumer.stats().given_up, len(handled)) == (given_up, not given_up)
    assert [letter.reason for letter in letters(nsqd)] == ["published 1801 s ago, max_age is 1800 s"] * given_up
    assert ("NSQGiveUp: published 1801 s ago" in caplog.text) == given_up
    gevent.spawn(consumer.close, 0.0)
    clock.advance(40.0)


# --- give-up handlers beside the topic -------------------------------------------------------------------------------


def test_letter_is_published_before_a_give_up_handler_may_finish_the_message(begin, fakensqd):
    seen = []

    def keep(consumer, message):
        seen.append((len(fakensqd.messages("dead")), consumer.dead_letter(message).reason))
        message.finish()

    consumer = begin()
    consumer.on_giving_up.connect(keep, weak=False)
    fakensqd.publish("t", b"x")
    wait_until(lambda: consumer.stats().counts.finished)

    assert seen == [(1, "no such country")]
    assert consumer.stats().given_up == 1


def test_message_that_is_answered_already_is_not_given_up(begin, fakensqd):
    def handle(consumer, message):
        message.finish()
        raise NSQGiveUp("too late")

    consumer = begin(calling(handle))
    fakensqd.publish("t", b"1")
    fakensqd.publish("t", b"2")
    wait_until(lambda: consumer.stats().counts.finished == 2)

    assert consumer.stats().given_up == 0
    assert not fakensqd.messages("dead")


def test_handler_that_publishes_to_the_same_topic_is_left_out(begin, fakensqd):
    consumer = begin()
    for topic in ("dead", "other"):
        consumer.on_giving_up.connect(NsqdGiveupHandler(topic, fakensqd.http_address), weak=False)
    fakensqd.publish("t", b"x")
    wait_until(lambda: consumer.stats().counts.finished)

    assert [letter.body for letter in letters(fakensqd)] == [b"x"]
    assert fakensqd.messages("other") == [b"x"]


# --- the nsqds and their connections ---------------------------------------------------------------------------------


def test_connection_of_letters_begins_with_the_first_and_ends_with_the_consumer(fakensqd, begin):
    consumer = begin()
    wait_until(lambda: len(fakensqd.sessions) == 1)
    fakensqd.publish("t", b"x")
    wait_until(lambda: consumer.stats().given_up)
    assert len(fakensqd.sessions) == 2

    consumer.close()
    wait_until(lambda: len(fakensqd.sessions) == 0)


def test_letters_go_to_the_nsqds_that_are_connected_now():
    with FakeCluster(nsqds=2, lookupds=1).in_thread() as cluster:
        first, second = cluster.nsqds
        options = {"dead_letter_topic": "dead", "lookupd_poll_interval": 0.05, "max_in_flight": 10}
        first.publish("t", b"1")
        with Kinds.handler(no_such_country, "t", "c", (), cluster.lookupd_http_addresses, **options) as consumer:
            wait_until(lambda: consumer.stats().given_up == 1)
            assert len(letters(first)) == 1
            second.publish("t", b"2")
            wait_until(lambda: consumer.stats().given_up == 2)
            first.down()
            wait_until(lambda: len(consumer.stats().connections) == 1)
            second.publish("t", b"3")
            wait_until(lambda: consumer.stats().given_up == 3)
            assert len(second.sessions) == 2  # that of the consumer, and one for all letters

        assert b"3" in [letter.body for letter in letters(second)]


def test_letters_use_tls_and_the_secret_of_the_consumer_which_stops_no_other_message(fakensqd_certificates, lines):
    certificate, key = fakensqd_certificates.server()
    server = {"tls_cert": certificate, "tls_key": key, "tls_required": True}
    grants = {"secret": [Grant(topic="^t$")]}
    with (
        FakeAuthServer(grants).in_thread() as auth,
        FakeNsqd(auth_http_addresses=(auth.http_address,), **server).in_thread() as nsqd,
    ):
        handled, errors = [], []

        def handle(consumer, message):
            if message.body == b"bad":
                raise NSQGiveUp("no")
            handled.append(message.body)

        options = {"tls_v1": True, "tls_options": {"ca_certs": fakensqd_certificates.ca}, "auth_secret": b"secret"}
        options |= {"dead_letter_topic": "dead", "max_backoff_duration": 0}
        consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=handle, **options)
        consumer.on_exception.connect(lambda consumer, message, error: errors.append(error), weak=False)
        nsqd.publish("t", b"bad", b"good")
        with consumer:
            wait_until(lambda: handled and errors)

            # So it was sent over TLS, and the secret is known.
            assert isinstance(errors[0], NSQUnauthorized)
            assert (consumer.stats().given_up, consumer.stats().counts.requeued) == (0, 1)
            assert len(consumer.stats().connections) == 1
    (line,) = [line for line in lines(logging.ERROR) if "no dead letter" in line]
    assert "no dead letter in topic dead, message is requeued: " in line
    assert "E_UNAUTHORIZED" in line


def test_message_whose_timeout_is_over_gets_no_letter_since_it_comes_again(nsqd, clock, publish, started, lines):
    def handle(consumer, message):
        if message.attempts == 1:
            clock.sleep(3.0)
        raise NSQGiveUp("no")

    consumer = started(handle, nsqd, dead_letter_topic="dead", msg_timeout=2.0)
    publish(nsqd, b"x")
    clock.advance(10.0)

    assert [letter.attempts for letter in letters(nsqd)] == [2]
    assert (consumer.stats().given_up, consumer.total_in_flight) == (1, 0)
    assert [line for line in lines() if "not given up yet: its timeout is over" in line]


def test_letter_without_a_reply_ends_after_ten_seconds(nsqd, clock, publish, started):
    errors = []

    def handle(consumer, message):
        raise NSQGiveUp("no")

    consumer = started(handle, nsqd, dead_letter_topic="dead")
    consumer.on_exception.connect(lambda consumer, message, error: errors.append(error), weak=False)
    with nsqd.add(on.command("PUB", topic="dead").first(1), drop()):
        publish(nsqd, b"x")
        clock.advance(9.9)
        assert not errors
        clock.advance(0.2)

    assert isinstance(errors[0], NSQUnknown)
    assert channel(nsqd).requeue_count == 1
    clock.advance(10.0)
    assert [letter.attempts for letter in letters(nsqd)] == [2]


@pytest.mark.fakensqd(max_msg_size=100)
def test_body_whose_envelope_is_too_large_is_published_without_it(fakensqd, begin, lines):
    consumer = begin()
    NsqdHTTPClient.from_url(fakensqd.http_address).publish("t", b"x" * 100)
    wait_until(lambda: consumer.stats().counts.finished)

    assert fakensqd.messages("dead") == [b"x" * 100]
    (line,) = [line for line in lines() if "without its envelope" in line]
    assert "published to dead without its envelope" in line
    assert line.endswith("last error: NSQGiveUp no such country")


def test_close_requeues_a_message_whose_letter_is_not_confirmed(fakensqd, begin):
    with fakensqd.add(on.command("PUB", topic="dead"), drop()):
        consumer = begin()
        fakensqd.publish("t", b"x")
        wait_until(lambda: "PUB" in fakensqd.transcript.commands())
        consumer.close(0.2)

    assert consumer.stats().counts.finished == 0
    assert channel_stats(fakensqd, "t", "c")["depth"] == 1


def test_message_that_is_requeued_while_its_letter_is_published_does_not_count_as_given_up(fakensqd, begin):
    def handle(consumer, message):
        if message.attempts == 1:
            gevent.spawn(message.requeue, 0)
        raise NSQGiveUp("no")

    with fakensqd.add(on.reply("PUB", topic="dead").first(1), delay(0.1)):
        consumer = begin(calling(handle), **AT_ONCE)
        fakensqd.publish("t", b"x")
        wait_until(lambda: consumer.stats().counts.finished)

    stats = consumer.stats()
    assert (stats.given_up, stats.counts.requeued, stats.failed) == (1, 1, 0)


# --- timeouts while a letter is published ----------------------------------------------------------------------------


def test_timeout_of_the_caller_of_give_up_reaches_it(fakensqd, begin):
    ended = []

    def handle(consumer, message):
        message.enable_async()
        limit = gevent.Timeout(0.05)
        try:
            with limit:
                consumer.give_up(message, "no")
        except gevent.Timeout as error:
            ended.append(error is limit)

    with fakensqd.add(on.reply("PUB", topic="dead").first(1), delay(0.3)):
        consumer = begin(calling(handle), **AT_ONCE)
        fakensqd.publish("t", b"x")
        wait_until(lambda: consumer.stats().counts.finished)

    assert all(ended)
    assert consumer.stats().counts.requeued == len(ended) > 0


@pytest.mark.parametrize("where", ["letter", "give-up handler"])
def test_handler_timeout_of_handle_messages_ends_it_while_a_message_is_given_up(fakensqd, begin, where):
    errors, began = [], []

    class Overriding(Consumer):
        def handle_messages(self, messages):
            began.append(len(messages))
            super().handle_messages(messages)
            began.append("ended")

    def make(_, *arguments, **options):
        def handle(consumer, message):
            raise NSQGiveUp("no")

        consumer = Overriding(*arguments, message_handler=handle, handler_timeout=0.05, **options)
        if where == "give-up handler":
            consumer.on_giving_up.connect(lambda consumer, message: gevent.sleep(60), weak=False)
        consumer.on_exception.connect(lambda consumer, message, error: errors.append(error), weak=False)
        return consumer

    with fakensqd.add(on.command("PUB", topic="dead"), drop() if where == "letter" else delay(0.0)):
        begin(make, **AT_ONCE)
        fakensqd.publish("t", b"x")
        wait_until(lambda: len(began) > 1)

    assert began[:2] == [1, 1]
    assert any(isinstance(error, (NSQTimeout, gevent.Timeout)) for error in errors)


# --- random faults ---------------------------------------------------------------------------------------------------

FAULTS = [error("E_PUB_FAILED"), error("E_BAD_MESSAGE"), disconnect(), delay(12.0)]
EVENTS = [on.command("PUB", topic="dead"), on.reply("PUB", topic="dead"), on.command("FIN")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of BatchHandler
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "kind", ["handler", "answered_later", "override_of_handle_message", "override_of_handle_messages", "batch"]
)
def test_no_message_is_finished_without_its_letter_whatever_fails(clock, kind, seed):
    random = Random(seed)

    def make():
        return random.choice([no_such_country(), no_such_country(), RuntimeError("try it again")])

    with FakeNsqd(clock=clock) as first, FakeNsqd(clock=clock) as second:
        nsqds = [first, second]
        options = {"max_in_flight": 6, "max_tries": 3, "requeue_delay": 200, "max_backoff_duration": 2}
        options |= {"dead_letter_topic": "dead", "msg_timeout": 8.0, "reconnect_initial": 0.5, "clock": clock}
        consumer = KINDS[kind](make, "t", "c", [nsqd.tcp_address for nsqd in nsqds], **options)
        consumer.start(block=False)
        bodies = [b"%d" % number for number in range(20)]
        for body in bodies:
            random.choice(nsqds).publish("t", body)
        for _ in range(30):
            with random.choice(nsqds).add(random.choice(EVENTS), random.choice(FAULTS), optional=True):
                clock.advance(random.uniform(0.0, 4.0))
            if random.random() < 0.1:
                random.choice(nsqds).restart()
        clock.advance(500.0)

        # E_BAD_MESSAGE is the error for a letter that is too large: then the bare body is published.
        dead = {body for nsqd in nsqds for body in nsqd.messages("dead")}
        assert {letter.body if (letter := decode_dead_letter(body)) else body for body in dead} == set(bodies)
        assert [channel(nsqd).depth + channel(nsqd).deferred_count for nsqd in nsqds] == [0, 0]
        assert consumer.total_in_flight == 0
        gevent.spawn(consumer.close)
        clock.advance(60.0)
