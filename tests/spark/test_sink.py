import traceback

import pyarrow as pa
import pytest

from gnsq import NsqdHTTPClient
from gnsq.errors import NSQNotSent
from gnsq.spark.errors import RowsNotPublished
from gnsq.spark.options import WriteOptions
from gnsq.spark.sink import Published, _Publisher, check_columns, publish
from tests.spark.helpers import channel_stats, numbered, wait_for


@pytest.fixture
def options(fakensqd):
    def make(**changes):
        return WriteOptions(**{"topic": "out", "nsqd_tcp_addresses": (fakensqd.tcp_address,), **changes})

    return make


def batch(**columns):
    return pa.record_batch(columns)


def test_every_row_is_published(fakensqd, options):
    batches = [batch(body=numbered(1500)), batch(body=numbered(1000, first=1500))]
    assert publish(iter(batches), options()) == Published(2500)
    assert sorted(fakensqd.messages("out")) == numbered(2500)

    # As UTF-8; and without rows nothing is connected.
    publish(iter([batch(body=["grüße"])]), options(topic="text"))
    assert fakensqd.messages("text") == ["grüße".encode()]
    nobody = options(nsqd_tcp_addresses=("127.0.0.1:1",))
    assert publish(iter([batch(body=pa.array([], pa.binary()))]), nobody) == Published(0)


def test_topics_by_row(fakensqd, options):
    rows = batch(body=numbered(5), topic=["a", "b", "a", None, ""])

    publish(iter([rows]), options())

    assert [len(fakensqd.messages(topic)) for topic in ("a", "b", "out")] == [2, 1, 2]


def test_deferred_rows_wait_at_nsqd(fakensqd, options):
    publish(iter([batch(body=numbered(4), defer_ms=[None, 0, 60_000, 60_000])]), options())

    with NsqdHTTPClient.from_url(fakensqd.http_address) as client:
        client.create_channel("out", "c")
    wait_for(lambda: channel_stats(fakensqd, "out", "c")["deferred_count"] == 2)
    assert channel_stats(fakensqd, "out", "c")["depth"] == 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        pytest.param({"body": [b"x", None]}, "row 1 of partition 0 for topic 'out' has an empty body", id="null"),
        pytest.param({"body": [b""]}, "row 0 of partition 0 for topic 'out' has an empty body", id="empty"),
        pytest.param({"body": [b"x"], "topic": ["a b"]}, "row 0 of partition 0: .*a b", id="bad topic"),
        pytest.param({"body": [b"x", b"y"], "defer_ms": [0, -5]}, "row 1 of .* has defer_ms -5: 0 or more", id="defer"),
    ],
)
def test_bad_row_is_named(options, columns, words):
    with pytest.raises(ValueError, match=words):
        publish(iter([batch(**columns)]), options())
    with pytest.raises(ValueError, match="row 0 of partition 0 has no topic"):
        publish(iter([batch(body=[b"x"], topic=pa.array([None], pa.string()))]), options(topic=""))


@pytest.mark.parametrize("defer", [0, 5], ids=["batch", "deferred row"])
def test_nsqd_that_is_down_raises(options, defer):
    nobody = options(nsqd_tcp_addresses=("127.0.0.1:1",), publish_timeout=0.2)

    with pytest.raises(RowsNotPublished, match=r"row 0 of partition 0, topic 'out', 1 byte: .") as failure:
        publish(iter([batch(body=[b"x"], defer_ms=[defer])]), nobody)

    # On a busy machine the producer's thread may not run before it has to say why.
    assert isinstance(failure.value.__cause__, NSQNotSent)


def test_rows_that_the_producer_does_not_take_are_named(options):
    publisher = _Publisher(options(), 0)
    publisher.publish(batch(body=[b"x"]))
    publisher.close()

    for defer in (None, 5):
        with pytest.raises(RowsNotPublished, match=r"row [12] of partition 0, topic 'out', 1 byte: .*closed"):
            publisher.publish(batch(body=[b"y"], defer_ms=pa.array([defer], pa.int64())))


def test_refused_rows_are_named_with_nsqds_words(options):
    rows = [*numbered(1500), b"secret" * 300_000, *numbered(10)]

    with pytest.raises(RowsNotPublished, match="E_BAD_MESSAGE") as failure:
        publish(iter([batch(body=rows)]), options(), 3)

    assert str(failure.value).startswith("row 1500 of partition 3, topic 'out', 1800000 bytes: ")
    assert "secret" not in str(failure.value)


@pytest.mark.fakensqd(max_msg_size=100)
def test_refused_batch_names_its_rows_and_the_longest(options):
    rows = [b"x" * 50, b"y" * 30, b"x" * 60, b"x" * 101, b"x" * 70]
    topics = ["out", "elsewhere", "out", "out", "out"]

    with pytest.raises(
        RowsNotPublished,
        match=r"rows 0 to 4 of partition 0, topic 'out', the longest of them row 3 with 101 bytes: .*E_BAD_MESSAGE",
    ):
        publish(iter([batch(body=rows, topic=topics)]), options())


@pytest.mark.fakensqd(max_req_timeout=60.0)
def test_delay_over_nsqds_limit_is_named(options):
    with pytest.raises(RowsNotPublished, match=r"row 0 of partition 0, topic 'out', 1 byte: .*E_INVALID .*60001"):
        publish(iter([batch(body=[b"x"], defer_ms=[60_001])]), options())


def test_encrypted_authorized_and_compressed(secured_nsqd):
    nsqd, secured = secured_nsqd

    publish(iter([batch(body=numbered(10))]), WriteOptions(topic="out", **secured, compression="deflate"))

    assert nsqd.messages("out") == numbered(10)


def test_refused_secret_is_an_error_without_the_secret(secured_nsqd):
    _, secured = secured_nsqd
    options = WriteOptions(**{**secured, "auth_secret_file": "", "auth_secret": "wrong secret"}, publish_timeout=0.5)

    with pytest.raises(RowsNotPublished, match="E_AUTH") as failure:
        publish(iter([batch(body=[b"x"], topic=["out"])]), options)
    assert "wrong secret" not in "".join(traceback.format_exception(failure.value))


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
    check_columns({"body": "string", "topic": "string", "defer_ms": "bigint"}, options(topic=""))
