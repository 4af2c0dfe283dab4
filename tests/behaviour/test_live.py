"""Consumers whose topic or channel is paused, emptied or deleted, with any nsqd."""

import pytest
from gevent.event import Event

from fakensqd import FakeAuthServer, Grant
from gnsq import Consumer, NsqdTCPClient
from gnsq.addresses import parse_address
from gnsq.errors import NSQErrorCode
from tests.kit import channel_stats, wait_until

EAGER = {"reconnect_initial": 0.05, "reconnect_maximum": 0.2}


@pytest.fixture
def consume(nsqd, topic):
    """Starts a consumer; returns the list of the bodies that it receives."""
    consumers = []

    def consume(channel="c", name=topic, **options):
        got = []
        options = {"message_handler": lambda consumer, message: got.append(message.body), **EAGER, **options}
        consumers.append(Consumer(name, channel, nsqd.tcp_address, **options))
        consumers[-1].start(block=False)
        wait_until(lambda: channel_stats(nsqd, name, channel)["clients"])
        return got

    yield consume
    for consumer in consumers:
        consumer.close(timeout=1)


@pytest.mark.parametrize("kind", ["topic", "channel"])
def test_messages_of_a_paused_channel_wait_until_it_is_unpaused(http, nsqd, producer, consume, topic, kind):
    names = [topic, "c"] if kind == "channel" else [topic]
    got = consume(max_in_flight=5)
    getattr(http, f"pause_{kind}")(*names)
    for number in range(10):
        producer.publish(topic, b"%d" % number)
    holders = {
        "topic": lambda: http.stats(topic)["topics"][0],
        "channel": lambda: channel_stats(nsqd, topic, "c"),
    }
    wait_until(lambda: holders[kind]()["depth"] == 10)
    before = list(got)

    getattr(http, f"unpause_{kind}")(*names)
    wait_until(lambda: len(got) == 10)

    assert before == []


def test_emptied_channel_drops_messages_in_flight_and_continues(http, nsqd, producer, consume, topic):
    seen, release, handled = [], Event(), []

    def handle(consumer, message):
        seen.append(message.body)
        release.wait()
        handled.append(message.body)

    consume(message_handler=handle, max_in_flight=1)
    producer.multipublish(topic, [b"1", b"2", b"3"])
    wait_until(lambda: seen)
    http.empty_channel(topic, "c")
    assert channel_stats(nsqd, topic, "c")["in_flight_count"] == 0
    release.set()
    producer.publish(topic, b"4")

    wait_until(lambda: b"4" in handled)
    assert handled == [b"1", b"4"]


@pytest.mark.parametrize("kind", ["topic", "channel"])
def test_consumer_subscribes_again_after_its_channel_was_deleted(http, producer, consume, topic, kind):
    got = consume()
    producer.publish(topic, b"before")
    wait_until(lambda: got == [b"before"])

    getattr(http, f"delete_{kind}")(*([topic, "c"] if kind == "channel" else [topic]))
    producer.publish(topic, b"after")

    wait_until(lambda: got == [b"before", b"after"])


def test_each_channel_gets_a_copy_and_its_consumers_share_it(producer, consume, topic):
    both = [consume("shared", max_in_flight=5) for _ in range(2)]
    alone = consume("alone")
    bodies = [b"%d" % number for number in range(200)]

    producer.multipublish(topic, bodies)

    wait_until(lambda: len(alone) == 200 and sum(map(len, both)) == 200)
    assert sorted(alone) == sorted(both[0] + both[1]) == sorted(bodies)


def test_ephemeral_channel_and_topic_go_with_the_last_consumer(http, nsqd, producer, topic):
    name, got = f"{topic}#ephemeral", []
    options = {"message_handler": lambda consumer, message: got.append(message.body)}
    with (
        Consumer(name, "one#ephemeral", nsqd.tcp_address, **options),
        Consumer(name, "two#ephemeral", nsqd.tcp_address, **options),
    ):
        wait_until(lambda: name in [found["topic_name"] for found in http.stats()["topics"]])
        wait_until(lambda: len(http.stats(name)["topics"][0]["channels"]) == 2)
        producer.publish(name, b"x")
        wait_until(lambda: got == [b"x", b"x"])

    wait_until(lambda: name not in [found["topic_name"] for found in http.stats()["topics"]])


def test_message_in_flight_is_not_another_connections_to_finish(nsqd, producer, topic):
    clients = [NsqdTCPClient(*parse_address(nsqd.tcp_address), timeout=10) for _ in range(2)]
    for client in clients:
        client.connect()
        client.subscribe(topic, "c")
        client.check_ok()
    clients[0].ready(1)
    producer.publish(topic, b"x")
    message = clients[0].read_response()[1]

    clients[1].finish(message.id)
    error = clients[1].read_response()[1]

    assert isinstance(error, NSQErrorCode)
    assert clients[1].is_connected
    assert error.reason.startswith(f"E_FIN_FAILED FIN {message.id.decode()} failed client does not own message")
    for client in clients:
        client.close_stream()


def test_identity_of_a_secret_is_signalled_and_in_the_statistics(start_nsqd, topic):
    auths = []
    grants = {"secret": [Grant(), Grant(topic="^other$")]}
    with FakeAuthServer(grants, identity="billing").in_thread() as server:
        nsqd = start_nsqd(auth_http_addresses=(server.http_address,))
        consumer = Consumer(
            topic, "c", nsqd.tcp_address, auth_secret=b"secret", message_handler=lambda _, message: None
        )
        consumer.on_auth.connect(lambda sender, conn, response: auths.append(response), weak=False)
        with consumer:
            wait_until(lambda: auths)
            wait_until(lambda: channel_stats(nsqd, topic, "c")["clients"])
            (client,) = channel_stats(nsqd, topic, "c")["clients"]

    assert auths == [{"identity": "billing", "identity_url": "", "permission_count": 2}]
    assert (client["authed"], client["auth_identity"]) == (True, "billing")
