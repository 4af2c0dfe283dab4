"""All HTTP endpoints of nsqd and nsqlookupd: results and refusals."""

import pytest

from gnsq import LookupdClient, NsqdTCPClient
from gnsq.errors import NSQHttpError
from tests.kit import LIMIT, bodies, wait_until

MISSING = "no-such-topic"


@pytest.fixture
def lookup(nsqlookupd):
    with LookupdClient.from_url(nsqlookupd.http_address) as client:
        yield client


# --- nsqd: publishing -------------------------------------------------------------------------------------------------


def test_http_publishes_in_every_way(http, nsqd, topic):
    assert http.publish(topic, b"pub\n\x00") == b"OK"
    assert http.publish(topic, "text") == b"OK"
    assert http.publish(topic, b"defer 0", defer=0) == b"OK"
    assert http.multipublish(topic, [b"line 1", b"line 2\r"]) == b"OK"
    assert http.multipublish(topic, [b"bin\nary", b"\x00"], binary=True) == b"OK"

    assert sorted(bodies(nsqd, topic)) == sorted(
        [b"pub\n\x00", b"text", b"defer 0", b"line 1", b"line 2\r", b"bin\nary", b"\x00"]
    )


@pytest.mark.since("1.2.0")
@pytest.mark.parametrize("binary", [False, True], ids=["lines", "binary"])
def test_large_batch_arrives(http, topic, binary):
    http.multipublish(topic, [b"x" * 1000] * 5000, binary=binary)

    (found,) = http.stats(topic)["topics"]
    assert (found["message_count"], found["message_bytes"]) == (5000, 5_000_000)


def test_refusal_leaves_the_client_usable(http, topic):
    for size in (1_048_577, 6_000_000):
        with pytest.raises(NSQHttpError, match=r"<413> MSG_TOO_BIG .*--max-msg-size"):
            http.publish(topic, b"x" * size)
        assert http.publish(topic, b"fits") == b"OK"


# --- nsqd: topics and channels ----------------------------------------------------------------------------------------


def test_topic_and_channel_are_created_paused_emptied_and_deleted(http, topic):
    def topic_now():
        return next((found for found in http.stats()["topics"] if found["topic_name"] == topic), None)

    assert http.create_topic(topic) == b""
    assert http.create_topic(topic) == b""
    http.publish(topic, b"x")
    assert topic_now()["depth"] == 1
    assert http.empty_topic(topic) == b""
    assert topic_now()["depth"] == 0
    assert http.pause_topic(topic) == b""
    assert topic_now()["paused"] is True
    assert http.unpause_topic(topic) == b""
    assert topic_now()["paused"] is False
    assert http.create_channel(topic, "c") == b""
    assert http.create_channel(topic, "c") == b""
    assert http.pause_channel(topic, "c") == b""
    assert topic_now()["channels"][0]["paused"] is True
    assert http.unpause_channel(topic, "c") == b""
    assert topic_now()["channels"][0]["paused"] is False
    http.publish(topic, b"x")
    wait_until(lambda: topic_now()["channels"][0]["depth"] == 1)
    assert http.empty_channel(topic, "c") == b""
    assert topic_now()["channels"][0]["depth"] == 0
    assert http.delete_channel(topic, "c") == b""
    assert topic_now()["channels"] == []
    assert http.delete_topic(topic) == b""
    assert topic_now() is None


# --- nsqd: facts and settings -----------------------------------------------------------------------------------------


@pytest.fixture
def consumed(http, nsqd, topic):
    """A topic with two channels, one of them with a client."""
    http.create_topic(topic)
    http.create_channel(topic, "empty")
    host, port = nsqd.tcp_address.split(":")
    client = NsqdTCPClient(host, int(port), timeout=LIMIT)
    client.connect()
    client.subscribe(topic, "c")
    client.check_ok()
    yield topic
    client.close_stream()


@pytest.mark.since("1.2.0")
def test_stats_as_json(http, consumed):
    stats = http.stats()

    assert stats.keys() >= {"version", "health", "start_time", "topics", "memory", "producers"}
    (found,) = [entry for entry in stats["topics"] if entry["topic_name"] == consumed]
    assert [channel["channel_name"] for channel in found["channels"]] == ["c", "empty"]
    assert len(found["channels"][0]["clients"]) == 1


@pytest.mark.since("1.2.0")
def test_stats_of_one_topic_and_channel(http, consumed):
    assert [found["topic_name"] for found in http.stats(consumed)["topics"]] == [consumed]
    (found,) = http.stats(consumed, "empty")["topics"]
    assert [channel["channel_name"] for channel in found["channels"]] == ["empty"]
    assert http.stats(MISSING)["topics"] is None
    assert http.stats(consumed, "other")["topics"] == []


@pytest.mark.since("1.2.0")
def test_stats_without_clients_and_memory(http, consumed):
    stats = http.stats(consumed, include_clients=False, include_mem=False)

    channel = stats["topics"][0]["channels"][0]
    assert (channel["clients"], channel["client_count"], "memory" in stats) == (None, 1, False)
    assert "memory" in http.stats(consumed, include_clients=True, include_mem=True)


@pytest.mark.since("1.2.0")
def test_stats_as_text(http, consumed):
    text = http.stats(consumed, text=True, include_mem=False)

    assert text.startswith(b"nsqd v")
    assert consumed.encode() in text
    assert b"Memory:" not in text


def test_info_and_ping(http, nsqd):
    info = http.info()

    assert info.keys() >= {"version", "broadcast_address", "hostname", "http_port", "tcp_port", "start_time"}
    assert f"127.0.0.1:{info['tcp_port']}" == nsqd.tcp_address
    assert http.ping() == b"OK"


@pytest.mark.since("1.2.0")
def test_settings_are_read_and_changed(http):
    before = http.config("log_level")
    assert http.set_config("log_level", "debug") == 1
    assert http.config("log_level") == 1
    http.set_config("log_level", "info" if before == 2 else "warn")
    addresses = http.config("nsqlookupd_tcp_addresses")
    assert http.set_config("nsqlookupd_tcp_addresses", addresses or []) == addresses
    assert http.config("max_msg_size") == 1_048_576
    assert http.config("msg_timeout") == 60 * 10**9
    assert http.config("broadcast_address") == b"127.0.0.1"


def test_refused_settings_have_nsqds_status_and_text(http):
    for call in (lambda: http.config("no_such_option"), lambda: http.set_config("msg_timeout", "5s")):
        with pytest.raises(NSQHttpError, match="http error <400> INVALID_OPTION"):
            call()
    with pytest.raises(NSQHttpError, match="http error <400> INVALID_VALUE"):
        http.set_config("log_level", "loud")
    with pytest.raises(NSQHttpError, match="http error <400> INVALID_VALUE"):
        http.set_config("nsqlookupd_tcp_addresses", "no list")


# --- nsqlookupd -------------------------------------------------------------------------------------------------------


def test_nsqlookupd_registers_names(lookup, topic):
    assert lookup.create_topic(topic) == b""
    assert lookup.create_topic(topic) == b""
    assert topic in lookup.topics()["topics"]
    assert lookup.channels(topic) == {"channels": []}
    assert lookup.create_channel(topic, "c") == b""
    assert lookup.channels(topic) == {"channels": ["c"]}
    assert lookup.lookup(topic) == {"channels": ["c"], "producers": []}
    assert lookup.delete_channel(topic, "c") == b""
    with pytest.raises(NSQHttpError, match="http error <404> CHANNEL_NOT_FOUND"):
        lookup.delete_channel(topic, "c")
    assert lookup.tombstone_topic(topic, "127.0.0.1:4151") == b""
    assert lookup.delete_topic(topic) == b""
    assert lookup.delete_topic(topic) == b""
    assert topic not in lookup.topics()["topics"]


def test_channel_brings_its_topic(lookup, topic):
    lookup.create_channel(topic, "c")

    assert lookup.lookup(topic)["channels"] == ["c"]
    assert isinstance(lookup.debug(), dict)


def test_nsqlookupd_answers_info_and_ping(lookup):
    assert lookup.ping() == b"OK"
    assert "version" in lookup.info()
    assert isinstance(lookup.nodes()["producers"], list)
