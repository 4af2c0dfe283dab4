"""gnsq topic and gnsq channel with a real nsqlookupd and two real nsqds."""

import sys

import pytest

from gnsq import LookupdClient, NsqdHTTPClient, Producer
from integration.servers import needs_programs, running
from tests.kit import bodies, run, wait_until

pytestmark = [
    pytest.mark.subprocess,
    needs_programs,
]


@pytest.fixture
def nsqds(nsqlookupd):
    flag = f"--lookupd-tcp-address={nsqlookupd.tcp_address}"
    with running("nsqd", flag) as first, running("nsqd", flag) as second:
        lookupd = LookupdClient.from_url(nsqlookupd.http_address)
        wait_until(lambda: len(lookupd.nodes()["producers"]) == 2)
        yield first, second


@pytest.fixture
def gnsq(nsqlookupd):
    def gnsq(*arguments):
        return run(sys.executable, "-m", "gnsq", *arguments, "--lookupd", nsqlookupd.http_address)

    return gnsq


def topics(nsqd):
    return [topic["topic_name"] for topic in NsqdHTTPClient.from_url(nsqd.http_address).stats()["topics"]]


def test_life_of_a_topic_on_two_nsqds(nsqds, gnsq, nsqlookupd, topic):
    first, second = nsqds
    lookupd = LookupdClient.from_url(nsqlookupd.http_address)
    for words in (["topic", "create", topic], ["channel", "create", topic, "c"], ["channel", "pause", topic, "c"]):
        result = gnsq(*words)
        assert result.returncode == 0, result.stderr
    with Producer([first.tcp_address, second.tcp_address]) as producer:
        producer.multipublish(topic, [b"1", b"2"])
    assert gnsq("channel", "list", topic).stdout == "c\n"

    deleted = gnsq("topic", "delete", topic, "--yes")

    assert deleted.returncode == 0, deleted.stderr
    assert f"topic {topic} on 2 nsqds: depth 0; channel c: depth 2\n" in deleted.stderr
    assert (topics(first), topics(second)) == ([], [])
    assert topic not in lookupd.topics()["topics"]


def test_topic_that_is_published_again_after_its_deletion_is_found(nsqds, gnsq, topic, nsqlookupd):
    first, _ = nsqds
    lookupd = LookupdClient.from_url(nsqlookupd.http_address)
    gnsq("topic", "create", topic)
    gnsq("topic", "delete", topic, "--yes")

    with Producer(first.tcp_address) as producer:
        producer.publish(topic, b"1")

    wait_until(lambda: topic in lookupd.topics()["topics"])
    assert len(lookupd.lookup(topic)["producers"]) == 1
    assert bodies(first, topic) == [b"1"]


def test_deleted_channel_is_not_made_again_where_the_topic_comes_later(nsqds, gnsq, topic, nsqlookupd):
    first, second = nsqds
    lookupd = LookupdClient.from_url(nsqlookupd.http_address)
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
