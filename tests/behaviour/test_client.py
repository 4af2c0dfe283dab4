"""The client with any nsqd."""

import time

import pytest

from gnsq import Consumer, NsqdTCPClient
from gnsq.errors import NSQBadMessage, NSQBadTopic, NSQInvalid
from gnsq.protocol.frames import ERROR
from tests.kit import channel_stats, wait_until


@pytest.fixture
def client(nsqd):
    host, port = nsqd.tcp_address.split(":")
    made = NsqdTCPClient(host, int(port), timeout=10)
    made.connect()
    made.identify()
    yield made
    made.close_stream()


def test_deferred_message_is_delivered_after_its_delay(producer, nsqd, topic):
    got = []
    # A channel older than 5 s is looked at every 0.1 s, a younger one up to 5 s late.
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=lambda c, message: got.append(time.time())):
        published = time.time()
        producer.publish(topic, b"x", defer=300)
        wait_until(lambda: got, limit=15)

    assert got[0] - published >= 0.3


def test_ten_thousand_messages_are_all_consumed(producer, nsqd, topic):
    got = []
    with Consumer(
        topic,
        "c",
        nsqd.tcp_address,
        message_handler=lambda c, message: got.append(message.body),
        max_in_flight=500,
    ):
        for start in range(0, 10_000, 500):
            producer.multipublish(topic, [b"%d" % number for number in range(start, start + 500)])
        wait_until(lambda: len(got) == 10_000, limit=30)

    assert {int(body) for body in got} == set(range(10_000))
    stats = channel_stats(nsqd, topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)


def test_closing_in_the_middle_requeues_nothing(producer, nsqd, topic):
    producer.multipublish(topic, [b"%d" % number for number in range(1000)])
    done = []

    def handle(consumer, message):
        done.append(message)
        if len(done) == 300:
            consumer.close()

    Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, max_in_flight=50).start()

    wait_until(lambda: channel_stats(nsqd, topic, "c")["in_flight_count"] == 0)
    assert channel_stats(nsqd, topic, "c")["depth"] == 1000 - len(done)


def test_requeued_message_is_delivered_again(producer, nsqd, topic):
    attempts = []

    def handle(consumer, message):
        attempts.append(message.attempts)
        if message.attempts < 3:
            message.requeue(0)

    producer.publish(topic, b"x")
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, backoff=0.05):
        wait_until(lambda: len(attempts) == 3)

    assert attempts == [1, 2, 3]


def test_message_that_timed_out_is_delivered_again(producer, nsqd, topic):
    attempts = []

    def handle(consumer, message):
        message.enable_async()
        attempts.append(message.attempts)
        if message.attempts == 2:
            message.finish()

    producer.publish(topic, b"x")
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, msg_timeout=1, close_timeout=0.1):
        wait_until(lambda: len(attempts) == 2, limit=20)

    assert channel_stats(nsqd, topic, "c")["timeout_count"] == 1


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        pytest.param(b"PUB bad!\n\x00\x00\x00\x01x", NSQBadTopic, 'topic name "bad!" is not valid', id="topic"),
        pytest.param(b"PUB t\n\x00\x00\x00\x00", NSQBadMessage, "invalid message body size 0", id="empty body"),
        pytest.param(b"RDY 1\n", NSQInvalid, "cannot RDY in current state", id="state"),
        pytest.param(b"NONSENSE\n", NSQInvalid, "invalid command NONSENSE", id="unknown"),
    ],
)
def test_refusal_is_fatal_and_carries_nsqds_text(client, command, error, words):
    client.send(command)

    kind, answer = client.read_response()

    assert (kind, type(answer)) == (ERROR, error)
    assert words in str(answer)
    assert not client.is_connected


@pytest.mark.parametrize("command", [b"FIN", b"TOUCH", b"REQ"])
def test_unknown_message_is_not_fatal(client, topic, command):
    client.subscribe(topic, "c")
    client.check_ok()
    client.send(command + b" 0123456789abcdef" + (b" 0" if command == b"REQ" else b"") + b"\n")

    error = client.read_response()[1]

    assert (error.code, error.fatal) == (f"E_{command.decode()}_FAILED", False)
    client.close()
    client.check_ok(b"CLOSE_WAIT")
