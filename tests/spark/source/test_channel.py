import pytest

from gnsq import NsqdHTTPClient
from gnsq.errors import NSQHttpError
from gnsq.spark.options import ReadOptions
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.source.drain import Depth
from tests.kit import refused_port
from tests.spark.helpers import channel_stats, numbered, publish, wait_for


@pytest.fixture
def ask(hub):
    """Make a ChannelClient whose methods run on the hub."""
    clients = []

    def make(nsqds=(), lookupds=(), **changes):
        named = {"nsqd_tcp_addresses": ("127.0.0.1:1",), "nsqd_http_addresses": nsqds}
        lookupds = {"lookupd_http_addresses": lookupds}
        options = ReadOptions(**{"topic": "clicks", "channel": "archive", **named, **lookupds, **changes})
        clients.append(hub.call(ChannelClient, options))
        return clients[-1]

    yield make
    for client in clients:
        hub.call(client.close)


def test_channels_created_together_both_get_the_waiting_messages(fakensqd, hub, ask):
    publish(fakensqd, "clicks", numbered(7))

    hub.call(ask((fakensqd.http_address,), other_channels="clicks,views/metrics views/views").create)

    wait_for(lambda: [channel_stats(fakensqd, "clicks", name)["depth"] for name in ("archive", "metrics")] == [7, 7])


def test_topic_that_has_channels_is_not_paused(fakensqd, hub, ask):
    hub.call(ask((fakensqd.http_address,)).create)
    publish(fakensqd, "clicks", numbered(3))

    hub.call(ask((fakensqd.http_address,), other_channels="clicks,views/metrics views/views").create)

    assert channel_stats(fakensqd, "clicks", "archive")["depth"] == 3
    assert channel_stats(fakensqd, "clicks", "metrics")["depth"] == 0


def test_topic_that_a_killed_process_has_paused_is_unpaused(fakensqd, hub, ask, monkeypatch):
    publish(fakensqd, "clicks", numbered(7))
    client = ask((fakensqd.http_address,), other_channels="clicks/metrics")
    with monkeypatch.context() as killed:
        killed.delattr(NsqdHTTPClient, "unpause_topic")
        with pytest.raises(AttributeError):
            hub.call(client.create)
    publish(fakensqd, "clicks", numbered(1))

    hub.call(client.create)

    wait_for(lambda: [channel_stats(fakensqd, "clicks", name)["depth"] for name in ("archive", "metrics")] == [8, 8])
    (topic,) = NsqdHTTPClient.from_url(fakensqd.http_address).stats("clicks")["topics"]
    assert {channel["channel_name"] for channel in topic["channels"]} == {"archive", "metrics"}


def test_depth_of_an_unknown_topic_is_an_error(fakelookupd, hub, ask):
    client = ask((), (fakelookupd.http_address,))

    hub.call(client.create)

    with pytest.raises(NSQHttpError, match="no nsqlookupd names an nsqd with a topic 'clicks'"):
        hub.call(client.depth, partial=True)


def test_topic_that_may_be_missing_has_no_messages_if_nsqds_are_known(fakecluster, fakelookupd, hub, ask):
    lookupds = tuple(fakecluster.lookupd_http_addresses)
    some = {"topic": "", "topic_pattern": "(?!x$).*-eu", "nsqd_tcp_addresses": ()}
    publish(fakecluster.nsqds[0], "other", [b"x"])

    for client in (ask((), lookupds), ask((), lookupds, **some)):
        wait_for(lambda client=client: hub.call(client.depth, may_be_missing=True) == Depth(0, 0, 0))
    with pytest.raises(NSQHttpError, match="with a topic that fits topicPattern: does it exist"):
        hub.call(client.depth)
    for unknown in ((fakelookupd.http_address,), (*lookupds, "127.0.0.1:1")):
        with pytest.raises(NSQHttpError):
            hub.call(ask((), unknown).depth, may_be_missing=True)


def test_depth_without_one_nsqd_is_not_exact_and_the_others_get_the_channel(fakensqd, hub, ask):
    publish(fakensqd, "clicks", numbered(3))
    client = ask(("127.0.0.1:1", fakensqd.http_address))

    assert hub.call(client.depth, partial=True) == Depth(3, 0, 0, exact=False)
    for request in (client.depth, client.create):
        with pytest.raises(NSQHttpError):
            hub.call(request)
    assert channel_stats(fakensqd, "clicks", "archive") is not None


def test_several_topics_are_made_and_summed_up(fakensqd, hub, ask):
    publish(fakensqd, "a", numbered(3))
    client = ask((fakensqd.http_address,), topic="a,b")
    # Of a topic without channels, too.
    wait_for(lambda: hub.call(client.depth, may_be_missing=True) == Depth(3, 0, 0))
    hub.call(client.create)
    for topic, count in (("b", 4), ("other", 5)):
        publish(fakensqd, topic, numbered(count))

    assert hub.call(client.depth) == Depth(7, 0, 0)
    assert channel_stats(fakensqd, "a", "archive")["depth"] == 3


def test_topics_of_a_pattern_are_found(fakecluster, hub, ask):
    first, second = fakecluster.nsqds
    for nsqd, topic in ((first, "click-a"), (second, "click-a"), (second, "click-b"), (second, "other")):
        publish(nsqd, topic, [b"x"])
    lookupds = tuple(fakecluster.lookupd_http_addresses)
    client = ask((), lookupds, topic="", topic_pattern="click-.*", nsqd_tcp_addresses=())

    wait_for(lambda: hub.call(client.create) or hub.call(client.depth) == Depth(3, 0, 0))

    assert channel_stats(second, "click-b", "archive")["depth"] == 1
    assert channel_stats(first, "click-b", "archive") is None
    assert channel_stats(second, "other", "archive") is None


def test_nsqd_that_no_nsqlookupd_names_any_more_is_no_failure(fakecluster, hub, ask):
    first, second = fakecluster.nsqds
    for nsqd in (first, second):
        publish(nsqd, "clicks", [b"1"])
    client = ask(lookupds=(*fakecluster.lookupd_http_addresses, f"127.0.0.1:{refused_port()}"))
    wait_for(lambda: hub.call(client.depth).waiting == 2)

    second.stop()

    wait_for(lambda: hub.call(lambda: client.depth(partial=True)).exact)
    assert hub.call(client.depth).waiting == 1
