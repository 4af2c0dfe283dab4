"""Statistics: which topics, channels and clients; null or a list; the text."""

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
def test_sorted_and_selected(broker, only, found):
    assert names(stats(broker, **only)) == found


def test_nothing_is_an_empty_list_and_unknown_is_null(broker):
    producer = session(broker, commands.publish("t", b"x"))

    assert stats(Broker())["topics"] == []
    assert stats(broker, producer, topic="other")["topics"] is None
    assert stats(broker, producer, topic="other")["producers"] is None


def test_what_to_include(broker):
    consumer = session(broker, b"SUB t c\n")
    producer = session(broker, commands.publish("t", b"x"), port=1001)

    full = stats(broker, consumer, producer)
    bare = stats(broker, consumer, producer, include_clients=False, include_memory=False)

    assert list(full) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert full["topics"][0]["channels"][0]["clients"][0]["remote_address"] == "127.0.0.1:1000"
    assert [client["remote_address"] for client in full["producers"]] == ["127.0.0.1:1001"]
    assert list(bare) == ["version", "health", "start_time", "topics", "producers"]
    assert bare["topics"][0]["channels"][0]["clients"] is None
    assert bare["topics"][0]["channels"][0]["client_count"] == 1
    assert bare["producers"] is None


def test_one_topic_of_a_producer(broker):
    producer = session(broker, commands.publish("t", b"x") + commands.multipublish("u", [b"x", b"y"]))

    assert stats(broker, producer)["producers"][0]["pub_counts"] == [{"topic": "t", "count": 1}]
    assert stats(broker, producer, topic="u")["producers"][0]["pub_counts"] == [{"topic": "u", "count": 2}]


def test_text(broker):
    consumer = session(broker, commands.identify({"hostname": "h", "user_agent": "ua/1"}) + b"SUB t c\nRDY 3\n")
    producer = session(broker, commands.publish("t", b"x"), port=1001)
    broker.topics["t"].set_paused(True, 0.0)
    broker.topics["t"].channels["c"].set_paused(True)
    document = stats(broker, consumer, producer)

    lines = statistics_text(document, uptime=1.5, now_seconds=START + 61).splitlines()

    assert lines[:6] == [
        "nsqd v1.3.0 (built w/go1.27.3)",
        "start_time 2020-01-01T00:00:00Z",
        "uptime 1.5s",
        "",
        "Health: OK",
        "",
    ]
    assert lines[6:9] == ["Memory:", "   heap_objects             \t0", "   heap_idle_bytes          \t0"]
    assert lines[16:] == [
        "",
        "Topics:",
        "*P [t              ] depth: 0     be-depth: 0     msgs: 1        e2e%: ",
        "   *P [c                        ] depth: 1     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 1        e2e%: ",
        "        [V2 h:1000 ua/1          ] state: 3 inflt: 0    rdy: 3    fin: 0        re-q: 0        "
        "msgs: 0        connected: 1m1s",
        "",
        "Producers:",
        "   [V2 127.0.0.1:1001       ] msgs: 1        topics: t=1 connected: 1m1s",
    ]


def test_percentiles_of_the_time_to_fin():
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
