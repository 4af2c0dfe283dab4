"""/stats, as far as neither recorded sessions nor tests/behaviour have it: order, filters, publish counts."""

import pytest

from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.session import Session
from fakensqd.nsqd.stats import statistics
from gnsq.protocol import commands


def stats(broker, *sessions, **arguments):
    return statistics(broker, sessions, start_time=0, **arguments)


@pytest.mark.parametrize(
    ("only", "found"),
    [({}, {"a": ["x"], "b": ["x", "y"]}), ({"channel": "y"}, {"b": ["y"]}), ({"topic": "a", "channel": "y"}, {})],
)
def test_statistics_are_sorted_and_filtered(only, found):
    broker = Broker()
    for topic, channels in {"b": ["y", "x"], "a": ["x"]}.items():
        for channel in channels:
            broker.ensure_topic(topic).ensure_channel(channel, 0.0)

    topics = stats(broker, **only)["topics"]

    names = {topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]] for topic in topics}
    assert names == found


def test_statistics_have_one_topic_of_a_producer():
    broker = Broker()
    producer = Session(broker)
    producer.receive(b"  V2" + commands.publish("t", b"x") + commands.multipublish("u", [b"x", b"y"]), 0.0)

    assert stats(broker, producer)["producers"][0]["pub_counts"] == [{"topic": "t", "count": 1}]
    assert stats(broker, producer, topic="u")["producers"][0]["pub_counts"] == [{"topic": "u", "count": 2}]
