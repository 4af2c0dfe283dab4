"""/stats, as far as recorded sessions do not have it: filters, publish counts."""

import pytest

from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.session import Session
from fakensqd.nsqd.stats import statistics
from gnsq.protocol import commands

START = 1_577_836_800


@pytest.fixture
def broker():
    return Broker(epoch_ns=START * 10**9)


def session(broker, data, port=1000):
    made = Session(broker, remote_address=f"127.0.0.1:{port}")
    made.receive(b"  V2" + data, 0.0)
    return made


def stats(broker, *sessions, **arguments):
    return statistics(broker, sessions, start_time=START, **arguments)


def names(document):
    return {topic["topic_name"]: [each["channel_name"] for each in topic["channels"]] for topic in document["topics"]}


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ({}, {"a": ["x"], "b": ["x", "y"]}),
        ({"topic": "b"}, {"b": ["x", "y"]}),
        ({"topic": "b", "channel": "y"}, {"b": ["y"]}),
        ({"channel": "y"}, {"b": ["y"]}),
        ({"topic": "a", "channel": "y"}, {}),
    ],
)
def test_statistics_are_sorted_and_filtered(broker, only, found):
    for topic, channels in {"b": ["y", "x"], "a": ["x"]}.items():
        for channel in channels:
            broker.ensure_topic(topic).ensure_channel(channel, 0.0)

    assert names(stats(broker, **only)) == found


def test_statistics_have_one_topic_of_a_producer(broker):
    producer = session(broker, commands.publish("t", b"x") + commands.multipublish("u", [b"x", b"y"]))

    assert stats(broker, producer)["producers"][0]["pub_counts"] == [{"topic": "t", "count": 1}]
    assert stats(broker, producer, topic="u")["producers"][0]["pub_counts"] == [{"topic": "u", "count": 2}]
