"""Reader, Nsqd and Lookupd work, and warn at the line that uses them."""

import os
import warnings

import pytest

import gnsq
import gnsq.lookupd
import gnsq.nsqd
import gnsq.reader
from gnsq import Consumer, LookupdClient, NsqdHTTPClient
from gnsq.errors import NSQNoConnections
from tests.kit import bodies, channel_stats, wait_until


@pytest.fixture
def reader(fakensqd):
    """Make Readers that are closed at the end."""
    made = []

    def make(*arguments, **options):
        with pytest.warns(DeprecationWarning, match="use gnsq.Consumer"):
            made.append(gnsq.Reader("t", "c", fakensqd.tcp_address, *arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.join(10)


@pytest.fixture
def nsqd(fakensqd):
    host, tcp_port = fakensqd.tcp_address.split(":")
    http_port = fakensqd.http_address.rpartition(":")[2]
    with pytest.warns(DeprecationWarning, match="NsqdTCPClient or gnsq.NsqdHTTPClient"):
        made = gnsq.Nsqd(host, int(tcp_port), int(http_port), timeout=10)
    yield made
    made.close_stream()


@pytest.fixture
def lookupd(fakelookupd):
    with pytest.warns(DeprecationWarning, match="use gnsq.LookupdClient"):
        return gnsq.Lookupd(fakelookupd.http_address)


def test_names_of_1_0_can_be_imported():
    assert gnsq.reader.Reader is gnsq.Reader
    assert gnsq.nsqd.Nsqd is gnsq.Nsqd
    assert gnsq.lookupd.Lookupd is gnsq.Lookupd


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda: gnsq.Reader("t", "c", "127.0.0.1"), id="Reader"),
        pytest.param(lambda: gnsq.Nsqd(), id="Nsqd"),
        pytest.param(lambda: gnsq.Lookupd(), id="Lookupd"),
    ],
)
def test_warning_points_to_the_users_line(use):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()

    assert [(item.category, item.filename) for item in caught] == [(DeprecationWarning, __file__)]
    assert caught[0].lineno == use.__code__.co_firstlineno


# --- Reader


def test_reader_receives_messages_as_a_consumer_does(fakensqd, reader):
    got = []
    one = reader(message_handler=lambda reader, message: got.append((reader, message.body)), max_in_flight=5)
    one.start(block=False)
    NsqdHTTPClient.from_url(fakensqd.http_address).publish("t", b"1")
    wait_until(lambda: got)

    assert got == [(one, b"1")]
    assert isinstance(one, Consumer)


@pytest.mark.parametrize(
    ("given", "shown", "concurrency"),
    [(0, 0, 7), (3, 3, 3), (-1, os.cpu_count(), os.cpu_count())],
    ids=["default", "given", "one for each CPU"],
)
def test_max_concurrency_limits_the_handlers(reader, given, shown, concurrency):
    one = reader(max_in_flight=7, max_concurrency=given)

    assert (one.max_concurrency, one.concurrency) == (shown, concurrency)


def test_async_reader_makes_all_messages_async(fakensqd, reader):
    held = []
    one = reader(message_handler=lambda reader, message: held.append(message), **{"async": True})
    one.start(block=False)
    NsqdHTTPClient.from_url(fakensqd.http_address).publish("t", b"1")
    wait_until(lambda: held)

    assert getattr(one, "async") is True
    wait_until(held[0].is_async)
    assert channel_stats(fakensqd, "t", "c")["in_flight_count"] == 1
    held[0].finish()
    wait_until(lambda: channel_stats(fakensqd, "t", "c")["in_flight_count"] == 0)


@pytest.mark.filterwarnings("ignore:Reader.publish:DeprecationWarning")
def test_reader_publishes_over_its_connection(fakensqd, reader):
    one = reader(message_handler=lambda reader, message: None)
    with pytest.raises(NSQNoConnections, match="connected to no nsqd"):
        one.publish("other", b"1")
    one.start(block=False)

    with pytest.warns(DeprecationWarning, match="use gnsq.Producer"):
        assert one.publish("other", b"1") == b"OK"

    assert bodies(fakensqd, "other") == [b"1"]


# --- Nsqd


def test_nsqd_publishes_over_http_until_it_is_connected(fakensqd, nsqd):
    assert nsqd.publish("t", b"1") == b"OK"
    assert nsqd.multipublish("t", [b"2", b"3"]) == b"OK"

    nsqd.connect()
    nsqd.publish("t", b"4")
    nsqd.check_ok()
    nsqd.multipublish("t", [b"5", b"6"])
    nsqd.check_ok()

    assert bodies(fakensqd, "t") == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_nsqd_methods_with_a_protocol_publish_over_it_and_warn(fakensqd, nsqd):
    nsqd.connect()
    for name, data in [("publish", b"1"), ("multipublish", [b"2"])]:
        with pytest.warns(DeprecationWarning, match=f"use NsqdTCPClient.{name}") as caught:
            getattr(nsqd, f"{name}_tcp")("t", data)
        nsqd.check_ok()
        assert caught[0].filename == __file__
    for name, data in [("publish", b"3"), ("multipublish", [b"4"])]:
        with pytest.warns(DeprecationWarning, match=f"use NsqdHTTPClient.{name}") as caught:
            assert getattr(nsqd, f"{name}_http")("t", data) == b"OK"
        assert caught[0].filename == __file__

    assert bodies(fakensqd, "t") == [b"1", b"2", b"3", b"4"]


def test_nsqd_has_what_its_clients_have(fakensqd, nsqd):
    assert nsqd.base_url == f"http://{fakensqd.http_address}/"
    assert (nsqd.address, nsqd.tcp_port, nsqd.http_port) == ("127.0.0.1", nsqd.port, nsqd._http.port)
    assert nsqd.ping() == b"OK"
    assert nsqd.is_connected is False
    nsqd.connect()
    nsqd.subscribe("t", "c")
    nsqd.check_ok()
    assert isinstance(nsqd.stats(), dict)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = nsqd.nothing


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nsqds_are_equal_and_ordered_by_their_tcp_address():
    one, same, other = gnsq.Nsqd("a", 1, 2), gnsq.Nsqd("a", 1, 3), gnsq.Nsqd("b", 1, 2)

    assert one == same
    assert one != other
    assert one != "a:1"
    assert hash(one) == hash(same)
    assert one < other
    assert (str(one), repr(one)) == ("a:1", "<Nsqd a:1 http://a:2/>")


# --- Lookupd


def test_lookupd_is_a_client_that_tombstones_by_the_old_name(fakelookupd, lookupd):
    assert isinstance(lookupd, LookupdClient)
    assert lookupd.base_url == lookupd.address == f"http://{fakelookupd.http_address}/"
    lookupd.create_topic("t")

    with pytest.warns(DeprecationWarning, match="use LookupdClient.tombstone_topic") as caught:
        lookupd.tombstone_topic_producer("t", "host:4151")

    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lookupd_takes_a_url():
    for address, base_url in (("host", "http://host:4161/"), ("https://host:1/behind", "https://host:1/behind/")):
        assert gnsq.Lookupd(address, timeout=5).base_url == base_url
        assert gnsq.Lookupd.from_url(address).base_url == base_url
    assert gnsq.Lookupd("http://user:word@host").options.auth == ("user", "word")
