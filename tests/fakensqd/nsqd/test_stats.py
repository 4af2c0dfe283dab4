"""/stats, as far as recorded sessions do not have it: filters, publish counts, latencies."""

import pytest

from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.session import Session
from fakensqd.nsqd.stats import statistics, statistics_text
from fakensqd.options import NsqdOptions
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


@pytest.fixture
def two_topics(broker):
    for topic, channels in {"b": ["y", "x"], "a": ["x"]}.items():
        for channel in channels:
            broker.ensure_topic(topic).ensure_channel(channel, 0.0)


@pytest.mark.usefixtures("two_topics")
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
    assert names(stats(broker, **only)) == found


def test_statistics_have_one_topic_of_a_producer(broker):
    producer = session(broker, commands.publish("t", b"x") + commands.multipublish("u", [b"x", b"y"]))

    assert stats(broker, producer)["producers"][0]["pub_counts"] == [{"topic": "t", "count": 1}]
    assert stats(broker, producer, topic="u")["producers"][0]["pub_counts"] == [{"topic": "u", "count": 2}]


def test_statistics_have_percentiles_of_latencies():
    broker = Broker(NsqdOptions(e2e_processing_latency_percentiles=(0.5, 0.99)), epoch_ns=START * 10**9)
    client = session(broker, commands.subscribe("t", "c") + commands.ready(5) + commands.publish("t", b"x"))
    broker.ensure_topic("u")
    (message,) = broker.topics["t"].channels["c"].stored()
    client.receive(commands.finish(message.id), 1.5)

    topic, other = stats(broker, now=2.0)["topics"]

    percentiles = [{"quantile": 0.99, "value": 1_500_000_000}, {"quantile": 0.5, "value": 1_500_000_000}]
    assert topic["e2e_processing_latency"] == {"count": 1, "percentiles": percentiles}
    assert topic["channels"][0]["e2e_processing_latency"] == topic["e2e_processing_latency"]
    assert other["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    text = statistics_text(stats(broker, now=2.0), uptime=2.0, now_seconds=START + 2)
    assert text.count("e2e%: 1.5s, 1.5s\n") == 2
