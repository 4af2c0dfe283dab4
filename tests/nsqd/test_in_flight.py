"""InFlightMessages from other OS threads reach the connection's hub."""

import threading

import gevent
import pytest

from gnsq import Consumer, NsqdTCPClient, Producer
from gnsq.clock import RealClock
from gnsq.errors import NSQConnectionClosed, NSQException
from gnsq.message import Message, finish_all
from gnsq.nsqd.in_flight import InFlightMessages
from tests.helpers import channel_stats, wait_until

ID = b"0123456789abcdef"


def in_thread(function):
    """Call a function in an OS thread of its own; gives what it returned, or raises what it raised."""
    return gevent.get_hub().threadpool.apply(function)


@pytest.fixture
def sent():
    """What was queued, and in which thread."""
    return []


@pytest.fixture
def answers(sent):
    made = InFlightMessages(
        "nsqd:4150", lambda data: sent.append((data, threading.get_ident())), lambda: None, RealClock()
    )
    made.in_flight = 2
    return made


def test_answers_from_a_thread_are_sent_by_the_hub(answers, sent):
    def answer():
        answers.touch(ID)
        answers.finish(ID)
        answers.requeue(ID, 5, True)

    in_thread(answer)
    wait_until(lambda: len(sent) == 3)

    here = threading.get_ident()
    assert sent == [
        (b"TOUCH %s\n" % ID, here),
        (b"FIN %s\n" % ID, here),
        (b"REQ %s 5\n" % ID, here),
    ]
    assert answers.in_flight == 0
    assert answers.drained.is_set()


def held(answers, number, received):
    message = Message(1, 1, b"%016d" % number, b"x", answers, received)
    message.enable_async()
    return message


@pytest.mark.parametrize("call", [lambda function: function(), in_thread], ids=["here", "in a thread"])
def test_many_answers_are_one_command_and_counted_as_many(answers, sent, call):
    now = answers.now()
    messages = [held(answers, 1, now - 3), held(answers, 2, now - 3), held(answers, 3, now), held(answers, 4, now)]
    messages[3].mark_timed_out()
    answers.in_flight = 3
    finished = []
    answers.on_finish = finished.append

    assert call(lambda: finish_all(messages)) == []
    wait_until(lambda: sent)

    assert [data for data, _ in sent] == [b"".join(b"FIN %016d\n" % number for number in (1, 2, 3, 4))]
    assert finished == [message.id for message in messages]
    assert answers.totals.finished == 4
    assert answers.totals.timed_out == 0
    assert (answers.in_flight, answers.async_messages, answers.drained.is_set()) == (0, set(), True)
    assert sum(answers.latency.counts) == 4
    assert answers.latency.total >= 6


def test_closed_connection_is_told_in_the_thread():
    def check():
        raise NSQConnectionClosed("nsqd:4150: closed")

    answers = InFlightMessages("nsqd:4150", lambda data: None, check, RealClock())

    with pytest.raises(NSQConnectionClosed, match="closed"):
        in_thread(lambda: answers.finish(ID))


def test_connection_that_closes_on_the_way_is_logged(sent, caplog):
    caplog.set_level("INFO")

    def send(data):
        sent.append(data)
        raise NSQConnectionClosed("nsqd:4150: gone meanwhile")

    answers = InFlightMessages("nsqd:4150", send, lambda: None, RealClock())
    in_thread(lambda: answers.finish(ID))
    wait_until(lambda: sent)

    assert "an answer from another thread was not sent: nsqd:4150: gone meanwhile" in caplog.text


@pytest.fixture
def publish(fakensqd):
    with Producer(fakensqd.tcp_address) as producer:
        yield lambda *bodies: producer.multipublish("t", bodies)


def test_consumers_messages_may_be_finished_in_threads(fakensqd, publish):
    answered = []

    def handle(consumer, message):
        message.enable_async()
        threading.Thread(target=lambda: answered.append(message.finish())).start()

    publish(*[b"%d" % number for number in range(100)])
    with Consumer("t", "c", fakensqd.tcp_address, message_handler=handle, max_in_flight=20) as consumer:
        wait_until(lambda: len(answered) == 100 and consumer.total_in_flight == 0)
        wait_until(lambda: channel_stats(fakensqd, "t", "c")["in_flight_count"] == 0)

    assert channel_stats(fakensqd, "t", "c")["timeout_count"] == 0


def test_two_threads_do_not_both_answer(fakensqd, publish):
    outcomes = []

    def answer(message, barrier):
        barrier.wait()
        try:
            message.finish()
        except NSQException as error:
            outcomes.append(str(error))
        else:
            outcomes.append("finished")

    def handle(consumer, message):
        message.enable_async()
        barrier = threading.Barrier(2)
        for _ in range(2):
            threading.Thread(target=answer, args=(message, barrier)).start()

    publish(*[b"x"] * 50)
    with Consumer("t", "c", fakensqd.tcp_address, message_handler=handle, max_in_flight=10):
        wait_until(lambda: len(outcomes) == 100)
        wait_until(lambda: channel_stats(fakensqd, "t", "c")["in_flight_count"] == 0)

    assert sorted(set(outcomes)) == ["already responded", "finished"]
    assert outcomes.count("finished") == 50


def test_pulled_message_may_be_finished_in_a_thread(fakensqd, publish):
    publish(b"x")
    host, port = fakensqd.tcp_address.split(":")
    client = NsqdTCPClient(host, int(port), timeout=5)
    client.connect()
    client.subscribe("t", "c")
    client.check_ok()
    client.ready(1)
    message = client.read_response()[1]

    in_thread(message.finish)
    wait_until(lambda: channel_stats(fakensqd, "t", "c")["in_flight_count"] == 0)

    assert client.in_flight == 0
    client.close_stream()


def test_lapsed_message_that_is_answered_elsewhere_is_counted_once(fakensqd):
    held = []

    def handle(consumer, message):
        message.enable_async()
        held.append(message)

    with Producer(fakensqd.tcp_address) as producer:
        producer.multipublish("t", [b"x"] * 5)
    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=handle, max_in_flight=5)
    with consumer:
        wait_until(lambda: len(held) == 5)
        for message in held:
            message.mark_timed_out()
        assert consumer.total_in_flight == 0
        gevent.get_hub().threadpool.spawn(lambda: [message.finish() for message in held]).get(timeout=10)
        wait_until(lambda: consumer.stats().counts.finished == 5)

        assert consumer.total_in_flight == 0
        assert (consumer.stats().counts.timed_out, consumer.stats().latency.count) == (0, 5)


def test_delay_above_what_nsqd_takes_is_cut_and_told_once(answers, sent, caplog):
    asked = []
    answers.on_requeue = lambda message_id, timeout, backoff: asked.append(timeout)
    answers.max_req_timeout = 3_600_000

    for delay in (3_600_000, 3_600_001, 7_200_000):
        answers.requeue(ID, delay, False)

    assert [data for data, _ in sent] == [b"REQ %s 3600000\n" % ID] * 3
    assert asked == [3_600_000] * 3
    (text,) = caplog.messages
    assert text.startswith("nsqd:4150: requeued with a delay of 3600000 ms in place of 3600001 ms: nsqd before 1.1.0")
