"""publish_many: messages of any iterable are published in chunks; the outcome of each chunk is reported."""

import itertools

import gevent
import pytest

from gnsq import Producer
from gnsq.errors import NSQBadMessage, NSQNotSentClosed
from gnsq.producer import Chunk, NSQManyFailed
from gnsq.producer.publish_many import MAX_CHUNK_MESSAGES, MAX_CONCURRENT_CHUNKS
from tests.kit import bodies, refused_port, wait_until


@pytest.fixture
def producer(fakensqd):
    with Producer(fakensqd.tcp_address) as made:
        yield made


def numbers(count):
    return (b"%d" % number for number in range(count))


def test_long_messages_fill_a_chunk_before_there_are_many(producer):
    chunks = producer.publish_many("t", [b"x" * 400_000] * 5)

    assert chunks == [Chunk(0, 2), Chunk(2, 2), Chunk(4, 1)]


def test_max_body_size_bounds_a_chunk(fakensqd):
    with Producer(fakensqd.tcp_address, max_body_size=100) as producer:
        chunks = producer.publish_many("t", [b"x" * 20] * 10)

    assert chunks == [Chunk(0, 4), Chunk(4, 4), Chunk(8, 2)]


def test_publish_many_takes_few_messages_before_they_are_confirmed(producer):
    ahead = []

    def messages():
        for number in range(20_000):
            if not number % 500:
                ahead.append(number - producer.stats().confirmed)
            yield b"x"

    chunks = producer.publish_many("t", messages())

    assert sum(chunk.messages for chunk in chunks) == 20_000
    assert max(ahead) <= (MAX_CONCURRENT_CHUNKS + 1) * MAX_CHUNK_MESSAGES


def test_other_greenlets_run_while_a_generator_is_published(producer):
    rounds = []
    other = gevent.spawn(lambda: [rounds.append(gevent.sleep(1e-6)) for _ in itertools.count()])

    producer.publish_many("t", numbers(20_000))
    other.kill()

    assert len(rounds) >= 20


def test_pending_messages_are_logged_when_the_caller_of_publish_many_is_killed(caplog):
    with Producer(f"127.0.0.1:{refused_port()}", close_timeout=0) as producer:
        job = gevent.spawn(producer.publish_many, "t", numbers(2500))
        wait_until(lambda: producer.stats().pending == 3)

        job.kill()

    assert "publish_many was interrupted with 2500 messages pending: their outcomes are not reported" in caplog.text


# --- failures ---------------------------------------------------------------------------------------------------------

BAD = [
    pytest.param(b"", ValueError, "message 1500 is empty", id="empty"),
    pytest.param(b"x" * 11, ValueError, "message 1500 of 11 bytes exceeds max_msg_size 10", id="max_msg_size"),
    pytest.param("text", TypeError, "message 1500 must be bytes, not str", id="str"),
]


@pytest.mark.parametrize(("body", "kind", "words"), BAD)
def test_message_that_cannot_be_published_is_named_and_ends_it(fakensqd, body, kind, words):
    taken = []

    def messages():
        for number in range(10_000):
            taken.append(number)
            yield body if number == 1500 else b"%d" % number

    with Producer(fakensqd.tcp_address, max_msg_size=10) as producer, pytest.raises(NSQManyFailed, match=words) as got:
        producer.publish_many("t", messages())

    chunks = got.value.chunks
    assert chunks[:2] == [Chunk(0, 1000), Chunk(1000, 500)]
    assert (chunks[2].first, chunks[2].messages, type(chunks[2].error)) == (1500, 1, kind)
    assert bodies(fakensqd, "t") == list(numbers(1500))
    assert len(taken) == 1501


def test_without_raise_error_messages_after_an_invalid_one_are_published(fakensqd):
    messages = [*numbers(1500), b"x" * 11, *numbers(100)]

    with Producer(fakensqd.tcp_address, max_msg_size=10) as producer:
        chunks = producer.publish_many("t", messages, raise_error=False)

    assert [(chunk.first, chunk.messages) for chunk in chunks] == [(0, 1000), (1000, 500), (1500, 1), (1501, 100)]
    assert [type(chunk.error) for chunk in chunks] == [type(None), type(None), ValueError, type(None)]
    assert len(bodies(fakensqd, "t")) == 1600


def test_body_longer_than_max_body_size_is_named(fakensqd):
    with (
        Producer(fakensqd.tcp_address, max_body_size=20) as producer,
        pytest.raises(NSQManyFailed, match="message 1 of 13 bytes exceeds max_body_size 20"),
    ):
        producer.publish_many("t", [b"x" * 12, b"x" * 13])


class Broken(Exception):
    pass


@pytest.mark.parametrize("raise_error", [True, False])
@pytest.mark.parametrize(
    ("count", "words"),
    [
        pytest.param(0, r"0 confirmed; first failure, the iterable, at message 0: Broken\('here'\)", id="at once"),
        pytest.param(2500, r"2500 confirmed; first failure, the iterable, after message 2499: Broken", id="later"),
    ],
)
def test_error_of_the_iterable_is_raised_after_its_messages_are_confirmed(producer, raise_error, count, words):
    def messages():
        yield from numbers(count)
        raise Broken("here")

    with pytest.raises(NSQManyFailed, match=words) as got:
        producer.publish_many("t", messages(), raise_error=raise_error)

    assert isinstance(got.value.__cause__, Broken)
    assert producer.stats().confirmed == count
    assert producer.stats().pending == 0
    assert got.value.chunks[-1] == Chunk(count, 0, got.value.__cause__)


def test_refused_chunk_ends_publish_many_and_reports_the_confirmed_ones(fakensqd):
    messages = [*numbers(1000), b"x" * 2_000_000, *numbers(9000)]

    with Producer(fakensqd.tcp_address) as producer, pytest.raises(NSQManyFailed, match="from message 1000:") as got:
        producer.publish_many("t", messages)

    refused = got.value.chunks[1]
    assert (refused.first, refused.messages, type(refused.error)) == (1000, 1, NSQBadMessage)
    confirmed = sum(chunk.messages for chunk in got.value.chunks if chunk.error is None)
    assert len(bodies(fakensqd, "t")) == confirmed < 10_000


def test_producer_that_is_closed_meanwhile_ends_an_endless_iterable(producer):
    def messages():
        for number in itertools.count():
            if number == 3000:
                producer.close()
            yield b"x"

    with pytest.raises(NSQManyFailed) as got:
        producer.publish_many("t", messages(), raise_error=False)

    assert isinstance(got.value.chunks[-1].error, NSQNotSentClosed)
