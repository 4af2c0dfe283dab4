"""A running producer: nsqds that nsqlookupds name, greenlets that must not end, and callers that can't wait."""

import json
import logging

import gevent
import pytest
from gevent.event import Event

from fakensqd.faults import error, on
from gnsq import Producer
from gnsq.errors import NSQBadTopic, NSQException, NSQNoConnections, NSQNotSentTimeout
from gnsq.protocol.frames import RESPONSE, encode_frame
from tests.kit import bodies, peer, silent_nsqd, wait_until
from tests.kit.http_peer import JSON, http_peer, reply

LIMIT = 10.0


@pytest.fixture
def producer(fakensqd):
    with Producer(fakensqd.tcp_address, close_timeout=5) as made:
        yield made


def named(nsqd):
    return {"broadcast_address": "127.0.0.1", "http_port": 1, "tcp_port": nsqd.tcp_port}


def in_hub(function):
    """Call a function in the hub itself; give back what it returns or raises."""
    outcomes = []

    def run():
        try:
            outcomes.append(function())
        except BaseException as raised:  # noqa: BLE001  # it is the test's
            outcomes.append(raised)

    gevent.get_hub().loop.run_callback(run)
    wait_until(lambda: outcomes)
    return outcomes[0]


# --- nsqds that nsqlookupds name --------------------------------------------------------------------------------------


def test_silent_nsqlookupd_delays_no_publish_to_nsqds_of_another(fakensqd):
    nodes = reply(json.dumps({"producers": [named(fakensqd)]}).encode(), content_type=JSON)
    with http_peer(lambda request, sock: nodes) as good, peer(lambda sock: gevent.sleep(LIMIT)) as silent:
        producer = Producer(lookupd_http_addresses=[good.address, silent])

        # Less than a silent one is waited for.
        assert producer.publish("t", b"x", timeout=4) == b"OK"

        producer.close(timeout=0.1)


def test_nsqd_that_registers_late_is_found_soon(fakensqd):
    known = []

    def answer(request, sock):
        return reply(json.dumps({"producers": known}).encode(), content_type=JSON)

    with (
        http_peer(answer) as asked,
        Producer(lookupd_http_addresses=asked.address) as producer,
    ):
        with pytest.raises(NSQNoConnections, match=rf"tried .*{asked.address}.*: no nsqd there"):
            producer.publish("t", b"x", timeout=0.05)

        known.append(named(fakensqd))

        # Far sooner than the interval of 60 s.
        assert producer.publish("t", b"x", timeout=LIMIT) == b"OK"


def test_producer_without_any_nsqd_is_not_ready_and_says_so(caplog):
    caplog.set_level(logging.INFO)
    with (
        http_peer(lambda request, sock: reply(b'{"producers":[]}', content_type=JSON)) as asked,
        Producer(lookupd_http_addresses=asked.address, lookupd_poll_interval=0.01) as producer,
    ):
        wait_until(lambda: "WARNING" in levels(caplog, "the nsqlookupd knows no nsqd yet"))

        assert not producer.is_ready
        assert producer.stats().not_ready == f"http://{asked.address}/: no nsqd there"
    assert levels(caplog, "the nsqlookupd knows no nsqd yet") == ["INFO", "WARNING"]
    assert producer.stats().not_ready == "closed"


def levels(caplog, text):
    """Levels of the log lines that hold a text."""
    return [record.levelname for record in caplog.records if text in record.getMessage()]


# --- close ------------------------------------------------------------------------------------------------------------


def test_slow_connections_are_closed_together():
    hold = Event()

    def answer(sock):
        sock.recv(4096)
        sock.sendall(encode_frame(RESPONSE, b"OK"))
        hold.wait()

    with peer(answer) as address:
        # One after the other they would take 5 s.
        producer = Producer(address, connections_per_nsqd=10)
        producer.start()
        result = producer.publish_async("t", b"x")

        (unconfirmed,) = producer.close(timeout=0.2)
        hold.set()

    assert unconfirmed.bodies == [b"x"]
    assert result.ready()


# --- where nothing can wait -------------------------------------------------------------------------------------------


def test_publish_async_in_the_hub_without_capacity_publishes_nothing(fakensqd):
    with Producer(fakensqd.tcp_address, max_pending_bytes=10) as producer:

        def publish():
            producer.publish_async("t", b"x" * 10)
            return producer.publish_async("t", b"y" * 10)

        assert isinstance(in_hub(publish), NSQNotSentTimeout)
        assert producer.flush(LIMIT)
        assert producer.stats().pending == 0
        assert producer.publish("t", b"z") == b"OK"
    assert bodies(fakensqd, "t") == [b"x" * 10, b"z"]


def test_first_publish_async_in_the_hub_waits_for_a_connection_in_the_background(fakensqd):
    producer = Producer(fakensqd.tcp_address)

    result = in_hub(lambda: producer.publish_async("t", b"x"))

    assert result.get(timeout=LIMIT) == b"OK"
    assert producer.close() == []


def test_publish_async_in_the_hub_to_a_thread_returns_a_result(fakensqd):
    with Producer(fakensqd.tcp_address, threaded=True, max_pending_bytes=10) as producer:
        first = in_hub(lambda: producer.publish_async("t", b"x" * 10))
        wait_until(first.done)

        assert first.get() == b"OK"


def test_publish_async_in_the_hub_to_a_thread_without_capacity_is_refused_in_the_result():
    with (
        silent_nsqd() as address,
        Producer(address, threaded=True, max_pending_bytes=10, close_timeout=0) as producer,
    ):
        producer.publish_async("t", b"x" * 10)

        second = in_hub(lambda: producer.publish_async("t", b"y" * 10))
        wait_until(second.done)

        assert isinstance(second.exception, NSQNotSentTimeout)


@pytest.mark.parametrize("threaded", [False, True], ids=["home", "threaded"])
def test_publish_and_publish_many_are_refused_in_the_hub(fakensqd, threaded):
    with Producer(fakensqd.tcp_address, threaded=threaded) as producer:
        outcomes = [
            in_hub(lambda: producer.publish("t", b"x")),
            in_hub(lambda: producer.publish_many("t", [b"x"])),
        ]

        assert [type(outcome) for outcome in outcomes] == [RuntimeError] * 2
        assert producer.flush(LIMIT)
    assert fakensqd.messages("t") == []


def test_first_publish_without_block_waits_for_nothing(nsqd, clock):
    producer = Producer(nsqd.tcp_address, clock=clock)

    with pytest.raises(NSQException, match="no connection to any nsqd now"):
        producer.publish("t", b"x", block=False)

    assert clock.monotonic() == 0
    closing = gevent.spawn(producer.close, 0)
    clock.advance(3.0)
    closing.get(timeout=LIMIT)


@pytest.mark.parametrize(("how", "refusal"), [("publish", RuntimeError), ("publish_async", NSQNotSentTimeout)])
def test_publish_in_a_receiver_of_signals_is_refused(fakensqd, how, refusal):
    outcomes = []

    def receive(sender, error):
        try:
            getattr(sender, how)("dead", b"x" * 10)
        except Exception as raised:  # noqa: BLE001  # it is the test's
            outcomes.append(raised)

    fakensqd.add(on.command("PUB", topic="bad"), error("E_BAD_TOPIC"))
    # The refused publish has reserved all capacity.
    with Producer(fakensqd.tcp_address, max_pending_bytes=10) as producer:
        producer.on_error.connect(receive, weak=False)

        with pytest.raises(NSQBadTopic):
            producer.publish("bad", b"x")

        assert [type(outcome) for outcome in outcomes] == [refusal]
        assert producer.publish("t", b"x") == b"OK"
    assert fakensqd.messages("dead") == []
