"""Producer: every publish ends with nsqd's response or an exception."""

import gevent
import pytest

from gnsq import Producer
from gnsq.errors import (
    NSQBadMessage,
    NSQConnectionClosed,
    NSQException,
    NSQNoConnections,
    NSQNotSent,
)
from tests.helpers import bodies, peer, refused_port, silent_nsqd, wait_until


@pytest.fixture
def producer(fakensqd):
    with Producer(fakensqd.tcp_address) as made:
        yield made


def test_publish_is_confirmed_and_stored(producer, fakensqd):
    assert producer.publish("t", b"body") == b"OK"

    assert bodies(fakensqd, "t") == [b"body"]


def test_multipublish_stores_all_in_order(producer, fakensqd):
    assert producer.multipublish("t", (body for body in [b"1", b"2"])) == b"OK"

    assert bodies(fakensqd, "t") == [b"1", b"2"]


def test_deferred_publish_is_confirmed(producer):
    assert producer.publish("t", b"body", defer=60_000) == b"OK"


def test_many_at_once_share_sends(producer, fakensqd):
    jobs = [gevent.spawn(producer.publish, "t", b"%d" % number) for number in range(1000)]
    gevent.joinall(jobs, raise_error=True)

    assert {job.value for job in jobs} == {b"OK"}
    assert sorted(bodies(fakensqd, "t"), key=int) == [b"%d" % number for number in range(1000)]


def test_without_raise_error_the_answer_comes_later(producer):
    replies = [producer.publish("t", b"x", raise_error=False) for _ in range(10)]

    assert [reply.get(timeout=5) for reply in replies] == [b"OK"] * 10


@pytest.mark.parametrize(
    ("publish", "error", "words"),
    [
        pytest.param(lambda p: p.publish("bad topic", b"x"), ValueError, "topic name 'bad topic'", id="topic"),
        pytest.param(lambda p: p.publish("t", b""), ValueError, "message body is empty", id="empty"),
        pytest.param(lambda p: p.publish("t", "text"), TypeError, "must be bytes, not str", id="str"),
        pytest.param(lambda p: p.multipublish("t", b"xy"), TypeError, "iterable of bytes", id="bytes for a list"),
        pytest.param(lambda p: p.publish("t", b"x", defer=-5), ValueError, "delay_ms -5 is negative", id="defer"),
    ],
)
def test_misuse_is_refused_before_anything_is_sent(producer, fakensqd, publish, error, words):
    with pytest.raises(error, match=words):
        publish(producer)

    assert producer.publish("t", b"after") == b"OK"
    assert bodies(fakensqd, "t") == [b"after"]


@pytest.mark.parametrize(
    "publish",
    [
        pytest.param(lambda p: p.publish("t", b"x" * 11), id="publish"),
        pytest.param(lambda p: p.multipublish("t", [b"x", b"x" * 11]), id="multipublish"),
    ],
)
def test_configured_max_msg_size_is_checked_here(fakensqd, publish):
    with (
        Producer(fakensqd.tcp_address, max_msg_size=10) as producer,
        pytest.raises(ValueError, match="body of 11 bytes exceeds max_msg_size 10"),
    ):
        publish(producer)


class TestWithASmallServer:
    @pytest.fixture
    def fakensqd_options(self):
        return {"max_msg_size": 10}

    def test_servers_own_limit_is_learnt_from_its_refusal(self, fakensqd):
        with Producer(fakensqd.tcp_address) as producer:
            with pytest.raises(NSQBadMessage, match="message too big 11 > 10"):
                producer.publish("t", b"x" * 11)

            # nsqd has closed that connection; the next publish waits for a new one.
            assert producer.publish("t", b"fits") == b"OK"


def test_unreachable_nsqd_is_named_in_the_error():
    port = refused_port()
    with (
        Producer(f"127.0.0.1:{port}") as producer,
        pytest.raises(NSQNoConnections, match=rf"within 0.05 s; tried 127.0.0.1:{port}: .*Connection refused"),
    ):
        producer.publish("t", b"x", timeout=0.05)


def test_without_block_no_connection_raises_at_once():
    with Producer(f"127.0.0.1:{refused_port()}") as producer, pytest.raises(NSQNoConnections, match="any nsqd now"):
        producer.publish("t", b"x", block=False)


def test_first_publish_starts_the_producer(fakensqd):
    producer = Producer(fakensqd.tcp_address)
    assert not producer.is_running

    producer.publish("t", b"x")

    assert producer.is_running
    assert producer.close() == []


def test_closed_producer_refuses(fakensqd):
    producer = Producer(fakensqd.tcp_address)
    producer.start()
    producer.close()
    producer.close()

    with pytest.raises(NSQNotSent, match="make a new one"):
        producer.publish("t", b"x")
    with pytest.raises(NSQException, match="make a new one"):
        producer.start()


def test_starting_twice_is_a_warning(producer, caplog):
    producer.start()

    assert "running already" in caplog.text


def test_no_address_is_an_error():
    with pytest.raises(ValueError, match="producer has no address"):
        Producer([])


def test_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="Producer has no option colour"):
        Producer("host", colour="red")


def test_unknown_strategy_is_an_error():
    with pytest.raises(ValueError, match=r"nope.*round_robin"):
        Producer("host", strategy="nope")


def test_restarted_nsqd_is_found_again(fakensqd):
    with Producer(fakensqd.tcp_address, reconnect_initial=0.01) as producer:
        producer.publish("t", b"1")

        fakensqd.stop()
        fakensqd.start()

        wait_until(lambda: _published(producer))


def _published(producer):
    try:
        return producer.publish("t", b"2") == b"OK"
    except NSQConnectionClosed:
        return False


def test_close_fails_publishes_that_are_pending_after_its_timeout():
    with silent_nsqd() as address:
        producer = Producer(address, close_timeout=0.05)
        producer.start()
        reply = producer.publish("t", b"x", raise_error=False)

        producer.close()

        with pytest.raises(NSQConnectionClosed):
            reply.get(timeout=1)


def test_close_waits_for_pending_answers(fakensqd):
    producer = Producer(fakensqd.tcp_address)
    producer.start()
    replies = [producer.publish("t", b"x", raise_error=False) for _ in range(100)]

    producer.close()

    assert [reply.get(timeout=0) for reply in replies] == [b"OK"] * 100


def test_nsqds_take_turns(fakecluster):
    addresses = [nsqd.tcp_address for nsqd in fakecluster.nsqds]
    with Producer(addresses) as producer:
        wait_until(lambda: len(producer.stats().connections) == 2)
        for _ in range(10):
            producer.publish("t", b"x")

    assert [len(bodies(nsqd, "t")) for nsqd in fakecluster.nsqds] == [5, 5]


def test_signals_tell_responses_errors_and_the_end(fakensqd):
    got = []
    producer = Producer(fakensqd.tcp_address)
    producer.on_response.connect(lambda sender, response: got.append(response), weak=False)
    producer.on_error.connect(lambda sender, error: got.append(error.code), weak=False)
    producer.on_close.connect(lambda sender: got.append("closed"), weak=False)
    producer.start()
    producer.publish("t", b"x")
    with pytest.raises(NSQBadMessage):
        producer.publish("t", b"x" * 2_000_000)
    producer.close()

    assert got[0].startswith(b'{"max_rdy_count"')
    assert got[1:] == [b"OK", "E_BAD_MESSAGE", "closed"]


def test_server_that_is_not_nsqd_is_named_in_the_error():
    def answer(sock):
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        peer(answer) as address,
        Producer(address) as producer,
        pytest.raises(NSQNoConnections, match=r"does not speak nsqd's TCP protocol: .* speaks HTTP"),
    ):
        producer.publish("t", b"x", timeout=0.05)


def test_start_and_close_at_once_both_return():
    producer = Producer(f"127.0.0.1:{refused_port()}")
    jobs = [gevent.spawn(producer.start), gevent.spawn(producer.close)]

    gevent.joinall(jobs, timeout=5, raise_error=True)

    assert all(job.ready() for job in jobs)
