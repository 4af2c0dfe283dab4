"""Events of a broker: new and deleted names, and the time of the next expiry."""

import math

from fakensqd.nsqd.broker import Broker, BrokerEvents
from tests.fakensqd.nsqd.test_channel import Reader


def test_broker_events_name_new_and_deleted_topics_and_channels():
    seen = []
    broker = Broker(
        events=BrokerEvents(
            on_register=lambda topic, channel: seen.append(("+", topic, channel)),
            on_unregister=lambda topic, channel: seen.append(("-", topic, channel)),
        )
    )
    topic = broker.ensure_topic("t")
    topic.ensure_channel("c", 0.0)
    topic.ensure_channel("c", 0.0)
    topic.ensure_channel("d", 0.0)
    topic.delete_channel("c")
    broker.delete_topic("t")

    assert seen[:4] == [("+", "t", None), ("+", "t", "c"), ("+", "t", "d"), ("-", "t", "c")]
    assert seen[4:] == [("-", "t", None), ("-", "t", "d")]
    assert broker.topics == {}


def test_broker_event_names_the_time_of_the_next_expiry():
    seen = []
    broker = Broker(events=BrokerEvents(on_due=seen.append))
    topic = broker.ensure_topic("t")
    channel = topic.ensure_channel("c", 0.0)
    topic.publish([b"a", b"b"], 0.0)
    assert broker.due == math.inf

    channel.deliver(Reader("reader", []), 1, 0.0, 60.0)
    channel.deliver(Reader("reader", []), 1, 1.0, 60.0)
    topic.publish([b"late"], 1.0, delay=5.0)

    assert seen == [60.0, 6.0]
    broker.expire(6.0)
    assert broker.due == 60.0
    assert [message.body for message in broker.expire(60.0)] == [b"a"]
    assert broker.due == 61.0
    assert [message.body for message in broker.expire(100.0)] == [b"b"]
    assert broker.due == math.inf
