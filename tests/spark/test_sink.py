import pyarrow as pa
import pytest

from gnsq.errors import NSQException, NSQNoConnections
from gnsq.spark.options import WriteOptions
from gnsq.spark.sink import Published, check_columns, publish
from tests.spark.helpers import channel_stats, numbered, wait_for


@pytest.fixture
def options(fakensqd):
    def make(**changes):
        return WriteOptions(**{"topic": "out", "nsqd_tcp_addresses": (fakensqd.tcp_address,), **changes})

    return make


def depths(nsqd):
    from gnsq import NsqdHTTPClient

    client = NsqdHTTPClient.from_url(nsqd.http_address)
    topics = client.stats()["topics"]
    client.close()
    return {topic["topic_name"]: topic["message_count"] for topic in topics}


def batch(**columns):
    return pa.record_batch(columns)


def test_every_row_is_published(fakensqd, options):
    batches = [batch(body=numbered(1500)), batch(body=numbered(1000, first=1500))]

    assert publish(iter(batches), options(batch_rows=400)) == Published(2500)

    assert depths(fakensqd) == {"out": 2500}


def test_text_is_utf8(fakensqd, options, hub):
    from gnsq import Consumer

    publish(iter([batch(body=["grüße"])]), options())

    received = []

    def consume():
        return Consumer(
            "out", "c", fakensqd.tcp_address, message_handler=lambda consumer, message: received.append(message.body)
        )

    consumer = hub.call(consume)
    hub.call(consumer.start, block=False)
    wait_for(lambda: received == ["grüße".encode()])
    hub.call(consumer.close)
    hub.call(consumer.join)


def test_nothing_is_published_for_no_rows(options):
    nobody = options(nsqd_tcp_addresses=("127.0.0.1:1",))

    assert publish(iter([batch(body=pa.array([], pa.binary()))]), nobody) == Published(0)


def test_topics_by_row(fakensqd, options):
    rows = batch(body=numbered(5), topic=["a", "b", "a", None, ""])

    publish(iter([rows]), options())

    assert depths(fakensqd) == {"a": 2, "b": 1, "out": 2}


def test_batches_are_bounded_by_bytes(fakensqd, options, monkeypatch):
    from gnsq import Producer

    sizes = []
    multipublish = Producer.multipublish

    def noting(producer, topic, messages, **kwargs):
        sizes.append(len(messages))
        return multipublish(producer, topic, messages, **kwargs)

    monkeypatch.setattr(Producer, "multipublish", noting)
    publish(iter([batch(body=[b"x" * 40] * 5 + [b"y" * 500])]), options(batch_bytes=100))

    assert sizes == [2, 2, 1, 1]


def test_deferred_rows_wait_at_nsqd(fakensqd, options):
    publish(iter([batch(body=numbered(4), defer_ms=[None, 0, 60_000, 60_000])]), options(batch_rows=1))

    from gnsq import NsqdHTTPClient

    client = NsqdHTTPClient.from_url(fakensqd.http_address)
    client.create_channel("out", "c")
    client.close()
    wait_for(lambda: channel_stats(fakensqd, "out", "c")["deferred_count"] == 2)
    assert channel_stats(fakensqd, "out", "c")["depth"] == 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        pytest.param({"body": [b"x", None]}, "row 1 for topic 'out' has an empty body", id="null"),
        pytest.param({"body": [b""]}, "row 0 for topic 'out' has an empty body", id="empty"),
        pytest.param({"body": [b"x"], "topic": ["a b"]}, "a b", id="bad topic"),
    ],
)
def test_bad_row_is_named(options, columns, words):
    with pytest.raises(ValueError, match=words):
        publish(iter([batch(**columns)]), options())


def test_row_without_any_topic_is_named(options):
    with pytest.raises(ValueError, match="row 0 has no topic"):
        publish(iter([batch(body=[b"x"], topic=pa.array([None], pa.string()))]), options(topic=""))


def test_nsqd_that_is_down_raises(options):
    with pytest.raises(NSQNoConnections, match=r"127\.0\.0\.1:1"):
        publish(iter([batch(body=[b"x"])]), options(nsqd_tcp_addresses=("127.0.0.1:1",), publish_timeout=0.2))


def test_refused_message_raises_nsqds_words(fakensqd, options):
    with pytest.raises(NSQException, match="E_BAD_MESSAGE"):
        publish(iter([batch(body=[b"x" * 2_000_000])]), options())


@pytest.mark.parametrize(
    ("types", "topic", "words"),
    [
        pytest.param({"topic": "string"}, "out", "'body' is missing", id="no body"),
        pytest.param({"body": "int"}, "out", "'body' has type int, binary or string", id="type"),
        pytest.param(
            {"body": "binary", "user": "string"}, "out", "'user' is none of body, topic, defer_ms", id="other"
        ),
        pytest.param({"body": "binary"}, "", "no topic", id="no topic"),
    ],
)
def test_bad_columns_are_named(options, types, topic, words):
    with pytest.raises(ValueError, match=words):
        check_columns(types, options(topic=topic))


def test_good_columns(options):
    check_columns({"body": "string", "topic": "string", "defer_ms": "bigint"}, options(topic=""))
