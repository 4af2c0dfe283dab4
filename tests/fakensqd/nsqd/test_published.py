"""publish(), messages() and assert_published(), in the hub of the test and on a thread."""

import traceback

import gevent
import pytest

from fakensqd import FakeCluster, FakeNsqd, UnknownChannel
from fakensqd.nsqd.published import PublishedBodies
from gnsq import NsqdHTTPClient, Producer
from gnsq.protocol import commands, decode_message
from tests.kit.wire import Client


@pytest.fixture(params=[False, True], ids=["in the hub", "on a thread"])
def server(request):
    """A running nsqd, in the hub of the test or on a thread."""
    nsqd = FakeNsqd(record=True)
    with nsqd.in_thread() if request.param else nsqd as running:
        yield running


def subscribed(nsqd, ready):
    client = Client(nsqd.tcp_address)
    client.send(commands.subscribe("orders", "billing") + commands.ready(ready))
    client.frame()
    return client


# --- publish()


REFUSED = [
    pytest.param(("or ders", b"1"), {}, ValueError, "topic name 'or ders' is not valid: 1 to 64", id="topic"),
    pytest.param(("orders",), {}, ValueError, "needs at least one body", id="no body"),
    pytest.param(("orders", b"1", b""), {}, ValueError, "body of 0 bytes is too small", id="empty body"),
    pytest.param(("orders", b"1", b"x" * 11), {}, ValueError, "body of 11 bytes exceeds max_msg_size 10", id="large"),
    pytest.param(("orders", "1"), {}, TypeError, "body '1' is str, not bytes", id="text"),
    pytest.param(("orders", b"1"), {"delay": -1}, ValueError, "delay -1 s must be within 0 to 5 s", id="negative"),
    pytest.param(("orders", b"1"), {"delay": 6}, ValueError, r"0 to 5 s \(max_req_timeout\)", id="long delay"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "text"), REFUSED)
def test_publish_refuses_what_nsqd_refuses_and_publishes_nothing(arguments, options, error, text):
    nsqd = FakeNsqd(max_msg_size=10, max_req_timeout=5.0)

    with pytest.raises(error, match=text):
        nsqd.publish(*arguments, **options)

    assert nsqd.broker.topics == {}


# --- messages()


def test_messages_of_a_topic_are_all_published_bodies(server):
    with Producer(server.tcp_address) as producer:
        producer.publish("orders", b"1")
        producer.multipublish("orders", [b"2", b"3"])
        producer.publish("orders", b"4", defer=1000)
    client = NsqdHTTPClient.from_url(server.http_address)
    client.publish("orders", b"5")
    client.multipublish("orders", [b"6", b"7"])
    server.publish("orders", b"8")
    client.empty_topic("orders")
    server.restart(keep_messages=False)
    client.delete_topic("orders")
    server.publish("orders", b"9")

    assert server.messages("orders") == [b"%d" % number for number in range(1, 10)]
    assert server.messages("other") == []


def test_messages_of_a_channel_are_those_queued_then_in_flight_then_deferred(server):
    client = subscribed(server, 2)
    server.publish("orders", b"1", b"2", b"3")
    in_flight, requeued = (decode_message(client.frame()[1])[2] for _ in range(2))
    client.send(commands.ready(0) + commands.requeue(requeued, 60_000))
    server.wait_until(lambda nsqd: nsqd.in_flight("orders", "billing"), 1)

    assert server.messages("orders", "billing") == [b"3", b"1", b"2"]

    client.send(commands.finish(in_flight))
    server.wait_until(lambda nsqd: nsqd.messages("orders", "billing"), [b"3", b"2"])
    assert server.messages("orders") == [b"1", b"2", b"3"]


def test_unknown_channel_is_named_with_those_that_exist(server):
    client = NsqdHTTPClient.from_url(server.http_address)
    client.create_topic("orders")
    client.create_channel("orders", "billing")
    client.create_topic("clicks")

    for query in (server.messages, server.depth, server.in_flight):
        with pytest.raises(UnknownChannel, match=r"topic 'orders' has no channel 'biling'; did you mean billing[?]"):
            query("orders", "biling")
        with pytest.raises(
            UnknownChannel, match=r"there is no topic 'order'; did you mean orders[?] topics are clicks, "
        ):
            query("order", "billing")
        with pytest.raises(UnknownChannel, match="topic 'clicks' has no channel 'billing', nor any other"):
            query("clicks", "billing")
    assert (server.messages("other"), server.depth("other")) == ([], 0)


def test_wait_until_waits_for_a_channel_that_does_not_exist_yet(server):
    client = NsqdHTTPClient.from_url(server.http_address)
    client.create_topic("orders")

    with pytest.raises(AssertionError, match=r"not so within 0.05 s: topic 'orders' has no channel 'billing', nor any"):
        server.wait_until(lambda nsqd: nsqd.depth("orders", "billing"), 0, timeout=0.05)
    gevent.spawn_later(0.05, client.create_channel, "orders", "billing")
    assert server.wait_until(lambda nsqd: nsqd.depth("orders", "billing"), 0) == 0


@pytest.mark.parametrize(
    "limits", [{"max_messages": 2}, {"max_bytes": 2}, {"max_messages": 0}], ids=["messages", "bytes", "none"]
)
def test_record_keeps_the_newest_and_refuses_to_give_a_part(limits):
    record = PublishedBodies(**limits)
    record.add("orders", [b"1", b"2", b"3"])
    record.add("clicks", [])

    kept = limits.get("max_messages", 2)
    with pytest.raises(RuntimeError, match=rf"3 messages were published to topic 'orders', and only the last {kept} "):
        record.of("orders")
    assert {topic: len(bodies) for topic, bodies in record.kept().items()} == {"orders": kept, "clicks": 0}
    assert record.of("clicks") == []


# --- assert_published()


def test_assert_published_passes(server):
    server.publish("orders", b"1", b"2", b"2")

    server.assert_published("orders")
    server.assert_published("orders", b"2", b"1")
    server.assert_published("orders", b"2", b"2")
    server.assert_published("orders", b"2", count=2)
    server.assert_published("orders", b"3", count=0)
    server.assert_published("orders", count=3)
    server.assert_published("other", count=0)
    server.assert_published("orders", lambda body: body > b"1", b"1")
    server.assert_published("orders", json=2, count=2)
    server.assert_published("orders", json=None, count=0)


FAILURES = [
    pytest.param(
        ("orders", b"order 44"),
        {},
        "b'order 44' was not published to topic 'orders'\n"
        "nearest is b'order 42', which differs from byte 7 on\n"
        "published (3 messages):\n  b'order 42'\n  b'?'\n  b'?'",
        id="nearest",
    ),
    pytest.param(
        ("order", b"?"),
        {},
        "b'?' was not published to topic 'order'\n"
        "it was published to topic 'orders'\n"
        "nothing was published to topic 'order'; did you mean orders? topics with messages are orders, many\n"
        "published to topic 'orders' (3 messages):\n  b'order 42'\n  b'?'\n  b'?'",
        id="another topic",
    ),
    pytest.param(
        ("many", b"12"),
        {"count": 2},
        "b'12' was published once to topic 'many', expected 2\npublished (13 messages, the last 10):"
        + "".join(f"\n  b'{number}'" for number in range(3, 13)),
        id="many messages",
    ),
]


@pytest.mark.parametrize(("arguments", "options", "text"), FAILURES)
def test_assert_published_shows_the_published_bodies(arguments, options, text):
    nsqd = FakeNsqd()
    nsqd.publish("orders", b"order 42", b"?", b"?")
    nsqd.publish("many", *[b"%d" % number for number in range(13)])

    with pytest.raises(AssertionError) as caught:
        nsqd.assert_published(*arguments, **options)

    assert str(caught.value) == text


def test_assert_published_waits_up_to_its_timeout(server):
    later = gevent.spawn_later(0.05, server.publish, "orders", b"42")

    server.assert_published("orders", b"42", timeout=30.0)

    later.get(timeout=10)
    with pytest.raises(AssertionError, match=r"expected 2\n(.*\n)+\(after 0\.05 s\)\n.* publish orders"):
        server.assert_published("orders", b"42", count=2, timeout=0.05)


def test_failure_of_assert_published_is_bounded():
    nsqd = FakeNsqd(record=True)
    for number in range(500):
        nsqd.publish(f"topic-{number}", b"x" * 10_000)

    with pytest.raises(AssertionError, match="expected 1 message or more in topic 'topic'") as caught:
        nsqd.assert_published("topic")

    text = "\n".join(traceback.format_exception_only(caught.value))
    assert "did you mean topic-" in text
    assert " and 490 more\n" in text
    assert "(460 entries before)" in text
    assert len(text) < 10_000


# --- FakeCluster


@pytest.mark.parametrize("threaded", [False, True], ids=["in the hub", "on a thread"])
def test_cluster_publishes_on_its_nsqds_in_turn(threaded):
    cluster = FakeCluster(lookupds=0)
    with cluster.in_thread() if threaded else cluster as cluster:
        cluster.publish("orders", b"1", b"2", b"3")
        cluster.publish("orders", b"4", delay=60.0)
        NsqdHTTPClient.from_url(cluster.nsqds[1].http_address).create_channel("orders", "billing")

        assert cluster.nsqds[0].messages("orders") == [b"1", b"3"]
        assert cluster.messages("orders") == [b"1", b"3", b"2", b"4"]
        assert cluster.messages("orders", "billing") == [b"2", b"4"]
        assert (cluster.depth("orders"), cluster.depth("orders", "billing")) == (2, 1)
        assert cluster.in_flight("orders", "billing") == 0
        with pytest.raises(UnknownChannel, match=r"topic 'orders' has no channel 'biling'; did you mean billing[?]"):
            cluster.depth("orders", "biling")
        cluster.assert_published("orders", b"3", b"4", count=1)
        with pytest.raises(AssertionError, match=r"topics with messages are orders\n.*orders' \(4 messages\):\n  b'1'"):
            cluster.assert_published("order")


def test_cluster_that_refuses_a_body_publishes_none():
    with FakeCluster(lookupds=0) as cluster:
        with pytest.raises(ValueError, match="body of 0 bytes"):
            cluster.publish("orders", b"1", b"")

        assert cluster.messages("orders") == []
