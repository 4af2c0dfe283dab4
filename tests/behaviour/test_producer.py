"""A producer with any nsqd."""

import gevent
import pytest

from gnsq import Consumer, LookupdClient, NsqdHTTPClient, Producer
from gnsq.errors import NSQBadBody, NSQBadMessage, NSQException, NSQInvalid
from tests.kit import wait_until


@pytest.fixture
def held(topic):
    """Returns the messages that an nsqd has of the topic, by consuming a channel that was made before."""

    def held(nsqd, count):
        got = []
        with Consumer(
            topic,
            "c",
            nsqd.tcp_address,
            message_handler=lambda consumer, message: got.append(message.body),
            max_in_flight=200,
        ):
            wait_until(lambda: len(got) >= count)
        return sorted(got)

    return held


@pytest.fixture
def channel(nsqd, topic):
    client = NsqdHTTPClient.from_url(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, "c")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="pipelined"),
        pytest.param({"batch_messages": 50}, id="batches"),
        pytest.param({"connections_per_nsqd": 3}, id="three connections"),
        pytest.param({"max_pending_bytes": 2000}, id="little room"),
        pytest.param({"snappy": True, "batch_messages": 50}, id="snappy"),
        pytest.param({"threaded": True}, id="threaded"),
    ],
)
def test_confirmed_messages_are_stored_once(nsqd, topic, channel, held, options):
    bodies = [b"%04d" % number for number in range(500)]
    with Producer(nsqd.tcp_address, **options) as producer:
        jobs = [gevent.spawn(producer.publish, topic, body) for body in bodies]
        gevent.joinall(jobs, raise_error=True)

        assert {job.value for job in jobs} == {b"OK"}
    assert held(nsqd, len(bodies)) == bodies


def test_many_messages_of_a_generator_arrive_in_chunks(nsqd, topic, channel, held):
    with Producer(nsqd.tcp_address) as producer:
        chunks = producer.publish_many(topic, (b"%04d" % number for number in range(3500)))

    assert [chunk.messages for chunk in chunks] == [1000, 1000, 1000, 500]
    assert held(nsqd, 3500) == [b"%04d" % number for number in range(3500)]


@pytest.mark.parametrize(
    ("publish", "refusal"),
    [
        pytest.param(lambda p, t: p.publish(t, b"x" * 2_000_000, raise_error=False), NSQBadMessage, id="long message"),
        pytest.param(
            lambda p, t: p.multipublish(t, [b"x" * 1_000_000] * 6, raise_error=False), NSQBadBody, id="long MPUB"
        ),
        pytest.param(lambda p, t: p.publish_async(t, b"x", defer=2**32), NSQInvalid, id="long delay"),
    ],
)
def test_refused_publish_has_nsqds_text_and_affects_no_other_publish(nsqd, topic, channel, held, publish, refusal):
    with Producer(nsqd.tcp_address) as producer:
        before = [producer.publish_async(topic, b"a") for _ in range(100)]
        refused = publish(producer, topic)
        after = [producer.publish_async(topic, b"b") for _ in range(100)]

        assert [result.get(timeout=10) for result in before + after] == [b"OK"] * 200
        with pytest.raises(NSQException) as caught:
            refused.get(timeout=10)

    # After many unread bytes the reset may drop nsqd's error; then the text has a hint.
    assert isinstance(caught.value, refusal) or "--max-msg-size" in str(caught.value)
    assert held(nsqd, 200) == [b"a"] * 100 + [b"b"] * 100


def test_nsqds_are_found_by_nsqlookupd_and_take_turns(start_nsqd, nsqlookupd, topic):
    flags = {"lookupd_tcp_addresses": (nsqlookupd.tcp_address,)}
    nsqds = [start_nsqd(**flags) for _ in range(2)]
    lookup = LookupdClient.from_url(nsqlookupd.http_address)
    wait_until(lambda: len(lookup.nodes()["producers"]) == 2)

    with Producer(lookupd_http_addresses=nsqlookupd.http_address) as producer:
        wait_until(lambda: len(producer.stats().connections) == 2)
        for _ in range(10):
            producer.publish(topic, b"x")

    counts = [NsqdHTTPClient.from_url(nsqd.http_address).stats(topic)["topics"][0]["message_count"] for nsqd in nsqds]
    assert counts == [5, 5]
