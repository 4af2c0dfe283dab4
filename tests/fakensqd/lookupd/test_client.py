"""FakeNsqd registers with nsqlookupd."""

import pytest

from fakensqd import FakeLookupd, FakeNsqd
from tests.kit import peer, wait_until
from tests.kit.wire import request


@pytest.fixture
def lookupd():
    with FakeLookupd() as lookupd:
        yield lookupd
    assert lookupd.errors == []


@pytest.fixture
def nsqd(lookupd, clock):
    with FakeNsqd(lookupd_tcp_addresses=[lookupd.tcp_address], clock=clock) as nsqd:
        wait_until(lambda: nodes(lookupd))
        yield nsqd
    assert nsqd.errors == []


def nodes(lookupd):
    return request(lookupd.http_address, "GET", "/nodes")["producers"]


def lookup(lookupd):
    """Channels and how many producers topic t has."""
    answer = request(lookupd.http_address, "GET", "/lookup?topic=t")
    return (sorted(answer["channels"]), len(answer["producers"])) if "producers" in answer else None


def post(server, target):
    return request(server.http_address, "POST", target)


def test_each_new_and_deleted_name_is_registered(nsqd, lookupd):
    post(nsqd, "/topic/create?topic=t")
    wait_until(lambda: lookup(lookupd) == ([], 1))

    post(nsqd, "/channel/create?topic=t&channel=c")
    wait_until(lambda: lookup(lookupd) == (["c"], 1))

    post(nsqd, "/topic/delete?topic=t")
    wait_until(lambda: lookup(lookupd) == (["c"], 0))


def test_new_connection_registers_everything(lookupd):
    nsqd = FakeNsqd(lookupd_tcp_addresses=[lookupd.tcp_address], broadcast_tcp_port=1, broadcast_http_port=2)
    nsqd.broker.ensure_topic("t").ensure_channel("c", 0.0)
    nsqd.broker.ensure_topic("u")

    with nsqd:
        wait_until(lambda: lookup(lookupd) == (["c"], 1))
        wait_until(lambda: set(request(lookupd.http_address, "GET", "/topics")["topics"]) == {"t", "u"})
        assert [(node["tcp_port"], node["http_port"]) for node in nodes(lookupd)] == [(1, 2)]


def test_nsqd_pings_and_reconnects_to_nsqlookupd(nsqd, lookupd, clock):
    post(nsqd, "/topic/create?topic=t")
    wait_until(lambda: lookup(lookupd) == ([], 1))
    lookupd.restart()
    assert nodes(lookupd) == []

    def back():
        # The first PING may fail on the broken connection; the next one opens a new connection.
        clock.advance(15.0)
        return nodes(lookupd) and lookup(lookupd) == ([], 1)

    wait_until(back)


def test_malformed_lookupd_address_is_logged():
    with FakeNsqd(lookupd_tcp_addresses=["nowhere"]) as nsqd:
        assert request(nsqd.http_address, "POST", "/pub?topic=t", b"x") == "OK"
    assert nsqd.errors == []


def test_lookupd_addresses_can_be_changed_while_nsqd_runs(nsqd, lookupd):
    request(nsqd.http_address, "PUT", "/config/nsqlookupd_tcp_addresses", b"[]")
    wait_until(lambda: nodes(lookupd) == [])

    addresses = f'["{lookupd.tcp_address}"]'.encode()
    request(nsqd.http_address, "PUT", "/config/nsqlookupd_tcp_addresses", addresses)
    wait_until(lambda: len(nodes(lookupd)) == 1)


def test_new_topic_gets_the_channels_that_nsqlookupd_knows(nsqd, lookupd):
    post(lookupd, "/channel/create?topic=t&channel=known")
    post(lookupd, "/channel/create?topic=t&channel=gone%23ephemeral")

    request(nsqd.http_address, "POST", "/pub?topic=t", b"x")

    wait_until(lambda: "known" in nsqd.broker.topics["t"].channels)
    wait_until(lambda: nsqd.broker.topics["t"].channels["known"].depth == 1)
    assert list(nsqd.broker.topics["t"].channels) == ["known"]


def test_topic_older_than_the_connection_gets_channels_of_nsqlookupd(lookupd):
    post(lookupd, "/channel/create?topic=t&channel=known")

    with FakeNsqd(lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd:
        topic = nsqd.broker.ensure_topic("t")
        topic.publish([b"x"], 0.0)
        wait_until(lambda: "known" in topic.channels)

        assert topic.channels["known"].depth == 1


def test_topic_deleted_during_the_query_gets_no_channels(nsqd, lookupd):
    post(lookupd, "/channel/create?topic=t&channel=known")

    nsqd.broker.ensure_topic("t")
    nsqd.broker.delete_topic("t")
    # Only the client itself is left.
    wait_until(lambda: len(nsqd._greenlets) == 1)

    assert nsqd.broker.topics == {}


@pytest.mark.parametrize(
    "answer",
    [b"OK", b'{"broadcast_address": "127.0.0.1", "http_port": 1}', b"[" * 100_000],
    ids=["no JSON", "no HTTP", "deep"],
)
def test_nsqlookupd_that_does_not_answer_queries_delays_no_message(answer):
    asked = []

    def talk(sock):
        # The response to each command is the same.
        while said := sock.recv(65536):
            asked.append(said)
            sock.sendall(len(answer).to_bytes(4, "big") + answer)

    with peer(talk) as address, FakeNsqd(lookupd_tcp_addresses=[address]) as nsqd:
        wait_until(lambda: asked)
        channel = nsqd.broker.ensure_topic("t").ensure_channel("c", 0.0)
        request(nsqd.http_address, "POST", "/pub?topic=t", b"x")
        wait_until(lambda: channel.depth == 1)
    assert nsqd.errors == []
