import contextlib

import pytest

from fakensqd import FakeNsqd
from fakensqd.faults import answer, on
from gnsq import LookupdClient, NsqdHTTPClient, finish_all
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.subscriptions import Subscriptions, matching_topics, split_max_in_flight
from gnsq.spark.source.channel import ChannelClient
from tests.spark.helpers import channel_stats, numbered, publish, wait_for


@pytest.fixture
def subscribe(hub, monkeypatch):
    """Make and start Subscriptions whose methods run on the hub; topics of messages are recorded. They are finished,
    or added to held."""
    made = []

    def start(received, held=None, rebalance_interval=0.1, max_connections=8, **options):
        monkeypatch.setattr("gnsq.spark.receiver.subscriptions.REBALANCE_INTERVAL", rebalance_interval)
        monkeypatch.setattr("gnsq.spark.receiver.subscriptions.MAX_CONNECTIONS", max_connections)
        options = ReadOptions(**{"channel": "archive", "lookupd_poll_interval": 0.05, **options})

        def take(consumer, messages):
            received.extend([consumer.topic] * len(messages))
            if held is None:
                finish_all(messages)
            else:
                held.extend(messages)

        def make():
            create = ChannelClient(options).create if options.other_channels else None
            subscriptions = Subscriptions(options, take, 0.1 if held is not None else 5.0, create_channels=create)
            made.append(subscriptions)
            subscriptions.start()
            return subscriptions

        return hub.call(make)

    yield start
    for subscriptions in made:
        hub.call(subscriptions.close)


@pytest.fixture
def pattern(fakecluster):
    return {"topic_pattern": "click-.*", "lookupd_http_addresses": tuple(fakecluster.lookupd_http_addresses)}


def ready_counts(nsqd, *topics):
    found = [channel_stats(nsqd, topic, "archive") for topic in topics]
    return [stats["clients"][0]["ready_count"] if stats and stats["clients"] else None for stats in found]


def test_new_topic_is_added_and_gets_its_share(fakecluster, subscribe, pattern):
    nsqd = fakecluster.nsqds[0]
    publish(nsqd, "click-a", [b"x"])
    publish(nsqd, "other", [b"x"])
    received = []
    subscriptions = subscribe(received, **pattern, max_in_flight=10)
    wait_for(lambda: received == ["click-a"])

    publish(nsqd, "click-b", [b"x"])

    wait_for(lambda: sorted(received) == ["click-a", "click-b"])
    wait_for(lambda: ready_counts(nsqd, "click-a", "click-b") == [5, 5])
    assert subscriptions.topics == ["click-a", "click-b"]


def test_new_topic_is_read_after_the_channels_of_all_queries_exist(fakecluster, subscribe, pattern):
    nsqd = fakecluster.nsqds[0]
    metric, archive = [], []
    # The metric's receiver finds the topic long before the archive's is there.
    publish(nsqd, "click-a", [b"1", b"2", b"3"])
    subscribe(metric, **pattern, channel="pages", other_channels="clicks/other /.*-a//archive")
    wait_for(lambda: len(metric) == 3)

    subscribe(archive, **pattern, channel="archive", other_channels="/click-.*//pages")

    wait_for(lambda: len(archive) == 3)
    assert channel_stats(nsqd, "click-a", "other") is None


def test_new_topic_is_not_read_while_its_channels_can_not_be_created(fakecluster, subscribe, pattern, caplog):
    nsqd = fakecluster.nsqds[0]
    received = []
    publish(nsqd, "click-a", [b"1"])
    with nsqd.add(on.http("/channel/create"), answer(500, b"no")):
        subscribe(received, **pattern, other_channels="/click-.*//pages")
        wait_for(lambda: "topics click-a are not read yet: " in caplog.text)
        assert received == []

    wait_for(lambda: received == ["click-a"])


def test_new_topic_of_a_paused_receiver_is_paused(fakecluster, subscribe, pattern, hub, caplog):
    nsqd = fakecluster.nsqds[0]
    received = []
    subscriptions = subscribe(received, **pattern)
    wait_for(lambda: "no topic matches topicPattern 'click-.*' yet" in caplog.text)
    hub.call(subscriptions.pause)
    publish(nsqd, "click-a", [b"x"])
    wait_for(lambda: hub.call(lambda: subscriptions.nsqds) == 1)
    assert ready_counts(nsqd, "click-a") == [0]

    hub.call(subscriptions.resume)

    wait_for(lambda: received == ["click-a"])


def test_deleted_topic_is_unsubscribed_and_one_that_nsqlookupd_forgets_is_read_on(fakecluster, subscribe, pattern, hub):
    nsqd = fakecluster.nsqds[0]
    publish(nsqd, "click-a", [b"x"])
    publish(nsqd, "click-b", [b"x"])
    received = []
    subscriptions = subscribe(received, **pattern)
    wait_for(lambda: subscriptions.topics == ["click-a", "click-b"])
    wait_for(lambda: None not in ready_counts(nsqd, "click-a", "click-b"))

    client = NsqdHTTPClient.from_url(nsqd.http_address)
    client.delete_topic("click-a")
    client.close()
    lookupd = LookupdClient.from_url(fakecluster.lookupd_http_addresses[0])
    for topic in ("click-a", "click-b"):
        lookupd.delete_topic(topic)
    lookupd.close()

    wait_for(lambda: subscriptions.topics == ["click-b"])
    hub.call(subscriptions._follow_lookupds)
    publish(nsqd, "click-b", [b"y"])
    wait_for(lambda: sorted(received) == ["click-a", "click-b", "click-b"])


@pytest.mark.fakecluster(lookupds=2)
def test_topics_that_are_not_nsqlookupds_are_reported_and_other_nsqlookupds_are_used(
    subscribe, pattern, caplog, fakecluster
):
    lookupd, body = fakecluster.lookupds[0], b'{"topics": ["click-$(touch x)"]}'
    with lookupd.add(on.http("/topics", executed=True).always(), answer(200, body)):
        publish(fakecluster.nsqds[0], "click-a", [b"x"])
        subscriptions = subscribe([], **pattern)
        wait_for(lambda: subscriptions.topics == ["click-a"])
    assert "answer is not nsqlookupd's" in caplog.text
    assert lookupd.http_address in caplog.text
    assert "internal error" not in caplog.text


# --- topics that want more


def test_borrowed_share_is_returned_after_its_messages_are_answered(fakensqd, subscribe, hub):
    held = []
    subscriptions = subscribe([], held, 0.0, topic="a,b", nsqd_tcp_addresses=(fakensqd.tcp_address,), max_in_flight=100)
    publish(fakensqd, "a", numbered(200))
    wait_for(lambda: len(held) == 50)
    hub.call(subscriptions.is_starved)
    wait_for(lambda: len(held) == 95)

    publish(fakensqd, "b", numbered(200))
    wait_for(lambda: len(held) == 100)
    hub.call(subscriptions.is_starved)
    assert ready_counts(fakensqd, "b") == [5]
    hub.call(finish_all, held[:95])

    wait_for(lambda: hub.call(subscriptions.is_starved) and ready_counts(fakensqd, "a", "b") == [50, 50])


# --- more consumers


@pytest.fixture
def limited(subscribe, hub):
    """Subscribe to an nsqd that lets a connection have 10 messages in flight, and has more in topic a than any takes.

    Returns the nsqd, the subscriptions, the messages that they hold, and a function that asks for more consumers until
    there are so many, and sees that then no more are added.
    """
    with contextlib.ExitStack() as stack:

        def start(topic="a", max_in_flight=40, **of_nsqd):
            nsqd = stack.enter_context(FakeNsqd(max_rdy_count=10, **of_nsqd).in_thread())
            publish(nsqd, "few", [b"x"])
            publish(nsqd, "a", numbered(200))
            given = {"topic": topic, "nsqd_tcp_addresses": (nsqd.tcp_address,), "max_in_flight": max_in_flight}
            held = []
            subscriptions = subscribe([], held, 0.0, 5, **given)

            def clients():
                hub.call(subscriptions.add_connections)
                return channel_stats(nsqd, "a", "archive")["client_count"]

            def widen(count):
                wait_for(lambda: clients() == count)
                for _ in range(3):
                    assert clients() == count

            wait_for(lambda: len(held) >= 10)
            return nsqd, subscriptions, held, widen

        yield start


def test_consumers_are_added_while_nsqd_limits_them_and_all_are_closed(limited, hub):
    nsqd, subscriptions, held, widen = limited()

    widen(4)
    wait_for(lambda: len(held) == 40)

    assert (subscriptions.ready_count, subscriptions.nsqds) == (40, 1)
    assert hub.call(subscriptions.is_starved)
    assert channel_stats(nsqd, "a", "archive")["in_flight_count"] == 40
    hub.call(subscriptions.pause)
    assert subscriptions.ready_count == 0
    hub.call(finish_all, held)
    hub.call(subscriptions.close)
    wait_for(lambda: channel_stats(nsqd, "a", "archive")["client_count"] == 0)


@pytest.mark.parametrize(
    ("max_in_flight", "consumers"),
    [pytest.param(10, 1, id="one gets all it may have"), pytest.param(200, 5, id="there are as many as there may be")],
)
def test_no_consumer_is_added_beyond_the_limits_or_to_a_topic_with_few_messages(limited, max_in_flight, consumers):
    nsqd, _, held, widen = limited("a,few", 2 * max_in_flight)
    wait_for(lambda: len(held) >= 11)

    widen(consumers)

    assert channel_stats(nsqd, "few", "archive")["client_count"] == 1


def test_consumer_that_nsqd_refuses_is_removed(limited, hub):
    _, subscriptions, _, widen = limited(max_channel_consumers=1)
    hub.call(subscriptions.add_connections)
    [subscription] = subscriptions._subscriptions.values()
    wait_for(lambda: any(consumer.stats().failures for consumer in subscription.consumers))
    assert subscriptions.failures() == {}

    widen(1)

    assert (len(subscription.consumers), subscription.max_in_flight) == (1, 40)


def test_max_in_flight_is_split_evenly_and_starved_topics_borrow():
    assert split_max_in_flight(10, ["a"]) == {"a": 10}
    assert split_max_in_flight(10, ["a", "b"]) == {"a": 5, "b": 5}
    assert split_max_in_flight(5, []) == {}
    # The rest goes to the first ones, and each has at least 1.
    assert split_max_in_flight(11, ["c", "a", "b"]) == {"a": 4, "b": 4, "c": 3}
    assert split_max_in_flight(2, ["a", "b", "c"]) == {"a": 1, "b": 1, "c": 1}

    topics = ["a", "b", "c"]
    assert split_max_in_flight(300, topics, {"a"}) == {"a": 280, "b": 10, "c": 10}
    assert split_max_in_flight(300, topics, {"a", "b"}) == {"a": 145, "b": 145, "c": 10}
    assert split_max_in_flight(9, topics, {"a"}) == {"a": 7, "b": 1, "c": 1}
    # Nobody is there to lend, or to borrow.
    for starved in ({"a", "b", "c"}, {"gone"}):
        assert split_max_in_flight(300, topics, starved) == {"a": 100, "b": 100, "c": 100}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"topic": "b,a,missing"}, ["a", "b"], id="list"),
        pytest.param({"topic_pattern": "a.*"}, ["a", "ab", "ab#ephemeral"], id="pattern"),
        pytest.param({"topic_pattern": r"a\w*"}, ["a", "ab"], id="pattern without ephemeral"),
        pytest.param({"topic_pattern": "b"}, ["b"], id="whole names only"),
    ],
)
def test_topics_match_list_or_pattern(given, expected):
    options = ReadOptions(**{"channel": "c", "lookupd_http_addresses": ("x",), **given})

    assert matching_topics(options, ["b", "a", "ab", "ab#ephemeral", "a"]) == expected
