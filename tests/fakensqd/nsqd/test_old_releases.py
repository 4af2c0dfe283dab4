"""Old releases of nsqd: RDY that is counted down, no negotiation, HTTP with envelopes and other paths."""

import pytest

from fakensqd import FakeLookupd, FakeNsqd
from gnsq import Consumer, LookupdClient, NsqdHTTPClient, Producer
from gnsq.errors import NSQHttpError
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE, decode_message
from tests.fakensqd.wire import Client, consumer, request
from tests.helpers import wait_until

OK = (RESPONSE, b"OK")


def test_rdy_is_counted_down():
    with FakeNsqd(rdy_counts_down=True) as nsqd:
        reader = consumer(nsqd.tcp_address, ready=2)
        nsqd.broker.topics["t"].publish([b"one", b"two", b"three"], nsqd.now())
        ids = [decode_message(reader.frame()[1])[2] for _ in range(2)]

        # FIN does not raise the RDY count; another RDY does.
        reader.send(b"".join(map(commands.finish, ids)) + commands.publish("u", b"x"))
        assert reader.frame() == OK
        assert nsqd.broker.topics["t"].channels["c"].depth == 1
        reader.send(commands.ready(1))

        assert reader.frame()[0] == MESSAGE
        (session,) = nsqd.sessions
        assert session.ready_count == 0


def test_rdy_that_is_counted_down_also_limits_messages_in_flight():
    with FakeNsqd(rdy_counts_down=True) as nsqd:
        reader = consumer(nsqd.tcp_address, ready=3)
        nsqd.broker.topics["t"].publish([b"%d" % number for number in range(9)], nsqd.now())
        ids = [decode_message(reader.frame()[1])[2] for _ in range(3)]

        # The last RDY limits the messages in flight.
        reader.send(commands.ready(2) + commands.finish(ids[0]) + commands.publish("u", b"x"))
        assert reader.frame() == OK
        (session,) = nsqd.sessions
        assert (session.ready_count, session.in_flight_count) == (2, 2)

        reader.send(commands.finish(ids[1]))
        assert reader.frame()[0] == MESSAGE
        assert (session.ready_count, session.in_flight_count) == (1, 2)


def test_nsqd_that_does_not_negotiate_answers_ok(tls_options):
    with FakeNsqd(negotiates=False, **tls_options) as nsqd:
        client = Client(nsqd.tcp_address)
        client.send(commands.identify({"feature_negotiation": True, "snappy": True, "tls_v1": True}))
        assert client.frame() == OK
        client.send(commands.publish("t", b"x"))
        assert client.frame() == OK


def test_client_works_with_an_nsqd_that_does_not_negotiate():
    got = []
    with FakeNsqd(negotiates=False) as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        with Consumer("t", "c", nsqd.tcp_address, message_handler=lambda _, message: got.append(message.body)):
            wait_until(lambda: got == [b"x"])


# --- releases -----------------------------------------------------------------------------------------------------

NAME = b"a" * 33
REFUSED = [
    pytest.param(b"SUB %s c\n" % NAME, b"E_BAD_TOPIC SUB topic name '%s' is not valid" % NAME, id="long topic"),
    pytest.param(b"SUB t %s\n" % NAME, b"E_BAD_CHANNEL SUB channel name '%s' is not valid" % NAME, id="long channel"),
    pytest.param(b"PUB t#ephemeral\n", b"E_BAD_TOPIC PUB topic name 't#ephemeral' is not valid", id="ephemeral topic"),
    pytest.param(commands.deferpublish("t", b"x", 1000), b"E_INVALID invalid command DPUB", id="DPUB"),
    pytest.param(commands.auth(b"secret"), b"E_INVALID invalid command AUTH", id="AUTH"),
]


@pytest.mark.parametrize(("command", "text"), REFUSED)
def test_old_release_refuses_newer_commands(command, text):
    with FakeNsqd(release="0.2.21") as nsqd:
        client = Client(nsqd.tcp_address)
        client.send(command)

        kind, answer = client.frame()
        assert (kind, answer) == (ERROR, text)
        assert client.ended()


def test_old_release_refuses_a_delay_that_is_too_long():
    with FakeNsqd(release="0.2.21") as nsqd:
        reader = consumer(nsqd.tcp_address, ready=1)
        nsqd.broker.topics["t"].publish([b"x"], nsqd.now())
        message_id = decode_message(reader.frame()[1])[2]
        reader.send(b"REQ %s 3600001\n" % message_id)

        assert reader.frame() == (ERROR, b"E_INVALID REQ timeout 3600001000000 out of range 0-3600000000000")


def test_old_release_reads_short_id_and_long_id():
    with FakeNsqd(release="0.2.21") as nsqd:
        client = Client(nsqd.tcp_address)
        answer = client.identify(short_id="short", long_id="long", client_id="new", hostname="new")
        (session,) = nsqd.sessions

        assert (session.handshake.client_id, session.handshake.hostname) == ("short", "long")
        assert answer == {"max_rdy_count": 2500, "version": "0.2.21", "max_msg_timeout": 900000, "msg_timeout": 60000}


def test_client_id_comes_before_short_id_in_releases_that_read_both():
    with FakeNsqd(release="0.3.8") as nsqd:
        client = Client(nsqd.tcp_address)
        client.identify(short_id="short", long_id="long", client_id="new")
        (session,) = nsqd.sessions

        assert (session.handshake.client_id, session.handshake.hostname) == ("new", "long")


def test_old_release_refuses_long_names_over_http():
    with FakeNsqd(release="0.2.21") as nsqd:
        answer = request(nsqd.http_address, "POST", f"/create_topic?topic={NAME.decode()}")

        assert answer["status_txt"] == "INVALID_TOPIC"


HTTP_NAMES = [
    pytest.param("0.2.21", "/pub?topic=t", {"message": "NOT_FOUND"}, id="0.2.21 has no /pub"),
    pytest.param("0.2.22", "/pub?topic=t", "OK", id="0.2.22 has /pub"),
    pytest.param("0.2.22", "/put?topic=t", "OK", id="0.2.22 has /put"),
    pytest.param("0.2.31", "/mpub?topic=t", "OK", id="0.2.31 has /mpub"),
    pytest.param(
        "0.2.31",
        "/pub?topic=t!",
        {"status_code": 400, "status_txt": "INVALID_TOPIC", "data": None},
        id="0.2.31 wraps errors of /pub",
    ),
    pytest.param("0.2.28", "/topic/create?topic=t", {"message": "NOT_FOUND"}, id="0.2.28 has no /topic/create"),
    pytest.param("0.2.29", "/topic/create?topic=t", "", id="0.2.29 has /topic/create"),
    pytest.param(
        "0.2.29", "/topic/create?topic=t!", {"message": "INVALID_TOPIC"}, id="0.2.29 has no envelope at new names"
    ),
    pytest.param(
        "0.3.8",
        "/create_topic?topic=t",
        {"status_code": 200, "status_txt": "OK", "data": None},
        id="0.3.8 has an envelope at old names",
    ),
]


@pytest.mark.parametrize(("release", "target", "answer"), HTTP_NAMES)
def test_release_has_the_http_paths_of_its_time(release, target, answer):
    with FakeNsqd(release=release) as nsqd:
        assert request(nsqd.http_address, "POST", target, b"x") == answer


def test_http_client_publishes_many_to_a_release_with_binary_mpub():
    with FakeNsqd(release="0.2.31") as nsqd:
        NsqdHTTPClient.from_url(nsqd.http_address).multipublish("t", [b"a\n", b"b"], binary=True)

        assert nsqd.depth("t") == 2


RELEASES = [
    pytest.param("0.2.19", (True, False, True), id="0.2.19"),
    pytest.param("0.2.21", (True, True, True), id="0.2.21"),
    pytest.param("0.3.8", (False, True, True), id="0.3.8"),
    pytest.param("1.0.0", (False, True, False), id="1.0.0"),
]


@pytest.mark.parametrize(("release", "expected"), RELEASES)
def test_release_sets_the_options_of_old_servers(release, expected):
    options = FakeNsqd(release=release).options

    assert (options.rdy_counts_down, options.negotiates, options.wrapped_answers) == expected


@pytest.mark.parametrize("release", ["0.2.14", "1.3.1", "2", "v1.3.0"])
def test_release_that_is_not_emulated_is_refused(release):
    with pytest.raises(ValueError, match=r"must be one of nsqd's, from 0\.2\.15 to 1\.3\.0"):
        FakeNsqd(release=release)


# --- HTTP -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def nsqd():
    with FakeNsqd(wrapped_answers=True) as nsqd:
        yield nsqd
    assert nsqd.errors == []


@pytest.fixture
def lookupd():
    with FakeLookupd(wrapped_answers=True) as lookupd:
        yield lookupd
    assert lookupd.errors == []


WRAPPED = [
    pytest.param("GET", "/ping", "OK", id="text is text"),
    pytest.param("POST", "/create_topic?topic=u", {"status_code": 200, "status_txt": "OK", "data": None}, id="nothing"),
    pytest.param(
        "GET", "/create_topic?topic=u", {"status_code": 200, "status_txt": "OK", "data": None}, id="any method"
    ),
    pytest.param(
        "POST", "/create_topic", {"status_code": 400, "status_txt": "MISSING_ARG_TOPIC", "data": None}, id="refusal"
    ),
    pytest.param("GET", "/config/id", {"status_code": 200, "status_txt": "OK", "data": 0}, id="json"),
]


@pytest.mark.parametrize(("method", "target", "answer"), WRAPPED)
def test_responses_of_an_old_server_are_wrapped(nsqd, method, target, answer):
    assert request(nsqd.http_address, method, target) == answer


def test_old_path_put_publishes(nsqd):
    assert request(nsqd.http_address, "POST", "/put?topic=t", b"x") == "OK"
    assert request(nsqd.http_address, "POST", "/mput?topic=t", b"y\nz") == "OK"

    assert nsqd.broker.topics["t"].depth == 3


def test_old_server_does_not_have_the_paths_of_today(nsqd):
    assert request(nsqd.http_address, "POST", "/pub?topic=t", b"x") == {"message": "NOT_FOUND"}


def test_http_client_works_with_an_old_nsqd(nsqd):
    client = NsqdHTTPClient.from_url(nsqd.http_address)

    client.create_topic("t")
    client.create_channel("t", "c")
    client.publish("t", b"x")
    client.multipublish("t", [b"y", b"z"])
    client.pause_channel("t", "c")

    (topic,) = client.stats()["topics"]
    assert (topic["channels"][0]["depth"], topic["channels"][0]["paused"]) == (3, True)
    with pytest.raises(NSQHttpError, match="TOPIC_NOT_FOUND"):
        client.delete_topic("unknown")
    client.delete_topic("t")
    assert nsqd.broker.topics == {}


def test_consumer_finds_an_old_nsqd_by_an_old_nsqlookupd(lookupd):
    got = []
    with FakeNsqd(lookupd_tcp_addresses=lookupd.tcp_address) as nsqd:
        nsqd.wait_registered()
        client = LookupdClient.from_url(lookupd.http_address)
        client.create_topic("u")
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        wait_until(lambda: client.lookup("t")["producers"] if "t" in client.topics()["topics"] else None)

        with Consumer(
            "t",
            "c",
            lookupd_http_addresses=lookupd.http_address,
            message_handler=lambda _, message: got.append(message.body),
        ):
            wait_until(lambda: got == [b"x"])

        assert set(client.topics()["topics"]) == {"t", "u"}
        client.tombstone_topic("t", f"127.0.0.1:{nsqd.http_port}")
        assert client.lookup("t")["producers"] == []


def test_lookup_of_an_old_server_is_wrapped(lookupd):
    assert request(lookupd.http_address, "GET", "/lookup?topic=t") == {
        "status_code": 404,
        "status_txt": "TOPIC_NOT_FOUND",
        "data": None,
    }
    assert request(lookupd.http_address, "GET", "/topics") == {
        "status_code": 200,
        "status_txt": "OK",
        "data": {"topics": []},
    }


def test_server_that_counts_rdy_down_has_the_version_of_such_a_release():
    with FakeNsqd(rdy_counts_down=True) as nsqd:
        assert Client(nsqd.tcp_address).identify()["version"] == "0.2.31"
        assert request(nsqd.http_address, "GET", "/info")["version"] == "0.2.31"
