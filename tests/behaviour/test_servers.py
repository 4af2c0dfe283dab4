"""What tests ask of an nsqd, emulated or real."""

import pytest

from fakensqd import UnknownChannel
from gnsq import Consumer, NsqdHTTPClient, Producer
from gnsq.errors import NSQException
from tests.kit import wait_until


def test_published_bodies_are_listed_and_counted(nsqd, topic):
    nsqd.publish(topic, b"1", b"2\n")
    assert nsqd.depth(topic) == 2

    assert sorted(nsqd.messages(topic)) == [b"1", b"2\n"]
    nsqd.publish(topic, b"3", delay=0.01)
    nsqd.assert_published(topic, b"3", timeout=10)
    assert nsqd.messages(nsqd.topic()) == []


def test_channel_is_waited_for_and_counted(nsqd, topic):
    with pytest.raises(UnknownChannel, match="there is no topic"):
        nsqd.depth(topic, "c")
    held = []
    nsqd.publish(topic, b"1", b"2", b"3")
    consumer = Consumer(
        topic, "c", nsqd.tcp_address, message_handler=lambda c, message: hold(held, message), max_in_flight=3
    )
    with consumer:
        nsqd.wait_until(lambda nsqd: nsqd.in_flight(topic, "c"), 3)
        assert nsqd.depth(topic, "c") == 0
        for message in held:
            message.finish()
        nsqd.wait_until(lambda nsqd: nsqd.in_flight(topic, "c"), 0)

    with pytest.raises(UnknownChannel, match="no channel 'd'; channels are c"):
        nsqd.depth(topic, "d")


def hold(held, message):
    message.enable_async()
    held.append(message)


@pytest.mark.parametrize(("end", "left"), [("stop", [b"1", b"2", b"3"]), ("kill", [b"3"])])
def test_server_that_ends_in_order_keeps_messages_and_a_killed_one_loses_them(nsqd, topic, end, left):
    address, got = nsqd.tcp_address, []
    with NsqdHTTPClient.from_url(nsqd.http_address) as client:
        client.create_topic(topic)
        client.create_channel(topic, "c")
    nsqd.publish(topic, b"1", b"2")

    getattr(nsqd, end)()
    with Producer(address) as producer, pytest.raises(NSQException):
        producer.publish(topic, b"refused", timeout=0.2)
    nsqd.start()
    nsqd.publish(topic, b"3")
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=lambda c, message: got.append(message.body)):
        nsqd.wait_until(lambda nsqd: (nsqd.depth(topic, "c"), nsqd.in_flight(topic, "c")), (0, 0))
        wait_until(lambda: len(got) == len(left))

    assert nsqd.tcp_address == address
    assert sorted(got) == left


def test_cluster_gives_each_nsqd_its_share(nsqd_cluster):
    topic, got = nsqd_cluster.topic(), []
    nsqd_cluster.publish(topic, b"1", b"2", b"3")
    assert [nsqd.depth(topic) for nsqd in nsqd_cluster.nsqds] == [2, 1]

    with Consumer(
        topic,
        "c",
        lookupd_http_addresses=nsqd_cluster.lookupd_http_addresses,
        lookupd_poll_interval=0.5,  # a real nsqlookupd may know the topic after the first poll
        message_handler=lambda c, message: got.append(message.body),
        max_in_flight=2,
    ):
        wait_until(lambda: len(got) == 3)

    assert (nsqd_cluster.depth(topic), nsqd_cluster.depth(topic, "c")) == (0, 0)
