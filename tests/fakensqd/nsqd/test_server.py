"""FakeNsqd over its sockets: messages from publish to FIN, time, options."""

import contextlib

import gevent
import pytest
from gevent.event import Event

from fakensqd import FakeAuthServer, FakeNsqd
from gnsq.protocol import commands
from gnsq.protocol.frames import RESPONSE
from tests.kit import wait_until
from tests.kit.wire import Client, consumer, request

OK = (RESPONSE, b"OK")


def test_message_times_out_while_the_server_is_stopped(nsqd, clock):
    reader = consumer(nsqd.tcp_address)
    request(nsqd.http_address, "POST", "/pub?topic=t", b"x")
    reader.frame()
    channel = nsqd.broker.topics["t"].channels["c"]

    nsqd.stop()
    clock.advance(60.0)
    assert (channel.in_flight_count, channel.depth) == (1, 0)

    nsqd.start()
    assert (channel.in_flight_count, channel.depth) == (0, 1)


@pytest.mark.parametrize(("touches", "lasts"), [(False, 60.0), (True, 900.0)], ids=["alone", "touched"])
def test_message_times_out_after_a_minute_or_if_it_is_touched_a_quarter_of_an_hour(
    nsqd, clock, consume, touches, lasts
):
    attempts, forever = [], Event()

    def handle(consumer, message):
        attempts.append((clock.monotonic(), message.attempts))
        if message.attempts == 1:
            with message.touching() if touches else contextlib.nullcontext():
                forever.wait()

    consume(handle, nsqd.tcp_address, clock=clock, max_in_flight=2)
    nsqd.broker.topics["t"].publish([b"x"], nsqd.now())
    clock.advance(lasts - 0.1)
    assert attempts == [(0.0, 1)]
    clock.advance(0.2)

    assert attempts == [(0.0, 1), (lasts, 2)]
    forever.set()


def test_stop_ends_a_tls_handshake(tls_options):
    with FakeNsqd(**tls_options) as nsqd:
        client = Client(nsqd.tcp_address)
        client.identify(tls_v1=True)

    assert client.ended()
    assert nsqd.errors == []


def test_http_answers_if_tls_is_required_of_tcp_only(tls_options):
    with FakeNsqd(**tls_options, tls_required="tcp-https", https_address="") as nsqd:
        assert request(nsqd.http_address, "GET", "/ping") == "OK"


def test_stop_does_not_wait_for_the_auth_server():
    with FakeAuthServer(answer=lambda query: gevent.sleep(3600)) as auth_server:
        with FakeNsqd(auth_http_addresses=auth_server.http_address) as nsqd:
            client = Client(nsqd.tcp_address)
            client.send(commands.auth(b"s"))
            wait_until(lambda: auth_server.queries)

        assert client.ended()
        assert nsqd.errors == []


def test_ephemeral_channel_drops_what_is_beyond_its_memory():
    with FakeNsqd(mem_queue_size=2) as nsqd:
        topic = nsqd.broker.ensure_topic("t")
        kept, ephemeral = (topic.ensure_channel(name, 0.0) for name in ("c", "e#ephemeral"))
        nsqd.publish("t", b"1", b"2", b"3", b"4")

    assert (ephemeral.depth, kept.depth, kept.backend_depth) == (2, 4, 2)


@pytest.mark.parametrize("limit", [0, -1])
def test_ephemeral_topic_without_memory_drops_all_messages(limit):
    with FakeNsqd(mem_queue_size=limit) as nsqd:
        nsqd.publish("t#ephemeral", b"x")

        assert nsqd.depth("t#ephemeral") == 0
