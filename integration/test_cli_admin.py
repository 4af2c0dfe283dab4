"""gnsq topic, channel, stats and ping with a real nsqlookupd and real nsqds."""

import pytest

from gnsq import LookupdClient, NsqdHTTPClient, Producer
from integration.servers import needs_programs, running
from tests.kit import bodies, channel_stats, wait_until
from tests.kit.commands import invoke, invoke_json, servers_of

COUNTS = ("depth", "backend_depth", "message_count", "paused")
CHANNEL_COUNTS = (*COUNTS, "in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count")


@pytest.fixture
def nsqds(nsqlookupd, lookupd):
    flag = f"--lookupd-tcp-address={nsqlookupd.tcp_address}"
    with running("nsqd", flag) as first, running("nsqd", flag) as second:
        wait_until(lambda: len(lookupd.nodes()["producers"]) == 2)
        yield first, second


@pytest.fixture
def lookupd(nsqlookupd):
    return LookupdClient.from_url(nsqlookupd.http_address)


@pytest.fixture
def gnsq(nsqlookupd):
    return lambda *arguments: invoke(*arguments, "--lookupd", nsqlookupd.http_address)


def topics(nsqd):
    return [topic["topic_name"] for topic in NsqdHTTPClient.from_url(nsqd.http_address).stats()["topics"]]


@needs_programs
def test_life_of_a_topic_on_two_nsqds(nsqds, gnsq, lookupd, nsqlookupd, topic):
    for words in (["topic", "create", topic], ["channel", "create", topic, "c"], ["channel", "pause", topic, "c"]):
        result = gnsq(*words)
        assert result.exit_code == 0, result.stderr
    with Producer([nsqd.tcp_address for nsqd in nsqds]) as producer:
        producer.multipublish(topic, [b"1", b"2"])
    assert gnsq("channel", "list", topic).stdout == "c\n"
    status, document = invoke_json("ping", "--lookupd", nsqlookupd.http_address)
    received = {each["address"] for each in document["checks"] if each["step"] == "receive"}
    assert (status, received) == (0, {nsqd.tcp_address for nsqd in nsqds})

    deleted = gnsq("topic", "delete", topic, "--yes")

    assert deleted.exit_code == 0, deleted.stderr
    assert f"topic {topic} on 2 nsqds: depth 0; channel c: depth 2\n" in deleted.stderr
    # And ping leaves none of its own.
    assert [topics(nsqd) for nsqd in nsqds] == [[], []]
    assert topic not in lookupd.topics()["topics"]

    with Producer(nsqds[0].tcp_address) as producer:
        producer.publish(topic, b"again")
    wait_until(lambda: topic in lookupd.topics()["topics"])
    assert len(lookupd.lookup(topic)["producers"]) == 1
    assert bodies(nsqds[0], topic) == [b"again"]


@needs_programs
def test_deleted_channel_is_not_made_again_where_the_topic_comes_later(nsqds, gnsq, lookupd, topic):
    first, second = nsqds
    nsqd = NsqdHTTPClient.from_url(first.http_address)
    nsqd.create_topic(topic)
    for channel in ("a", "b"):
        nsqd.create_channel(topic, channel)
    wait_until(lambda: sorted(lookupd.channels(topic)["channels"]) == ["a", "b"])

    gnsq("channel", "delete", topic, "a", "--yes")
    nsqd.delete_channel(topic, "b")
    with Producer(second.tcp_address) as producer:
        producer.publish(topic, b"1")

    stats = NsqdHTTPClient.from_url(second.http_address).stats(topic)
    assert [channel["channel_name"] for channel in stats["topics"][0]["channels"]] == ["b"]


def test_stats_are_those_of_nsqd(nsqd, topic):
    client = NsqdHTTPClient.from_url(nsqd.http_address)
    with Producer(nsqd.tcp_address) as producer:
        producer.multipublish(topic, [b"1", b"2", b"3"])
        assert bodies(nsqd, topic, "read") == [b"1", b"2", b"3"]
        producer.publish(topic, b"deferred", 60_000)
        producer.publish(topic, b"waiting")
    client.pause_channel(topic, "read")
    wait_until(lambda: channel_stats(nsqd, topic, "read")["depth"] == 1)

    status, document = invoke_json("stats", topic, *servers_of(nsqd))

    (expected,) = client.stats(topic)["topics"]
    (expected_channel,) = expected["channels"]
    (found,) = document["topics"]
    (channel,) = found["channels"]
    assert status == 0
    assert {key: found[key] for key in COUNTS} == {key: expected[key] for key in COUNTS}
    assert {key: channel[key] for key in CHANNEL_COUNTS} == {key: expected_channel[key] for key in CHANNEL_COUNTS}
    assert (channel["message_count"], channel["depth"], channel["deferred_count"]) == (5, 1, 1)
    assert document["nsqds"][0]["version"] == client.info()["version"]
