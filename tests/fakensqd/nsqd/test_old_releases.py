"""Old releases of nsqd: RDY that is counted down, no negotiation, HTTP with envelopes and other paths."""

import pytest

from fakensqd import FakeLookupd, FakeNsqd
from gnsq import Consumer, LookupdClient, NsqdHTTPClient, Producer
from gnsq.errors import NSQHttpError
from gnsq.protocol import commands
from gnsq.protocol.frames import MESSAGE, RESPONSE, decode_message
from tests.kit import wait_until
from tests.kit.wire import Client, consumer, request

OK = (RESPONSE, b"OK")


def test_rdy_is_counted_down():
    with FakeNsqd(release="0.2.31") as nsqd:
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
    with FakeNsqd(release="0.2.31") as nsqd:
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
    with FakeNsqd(release="0.2.19", **tls_options) as nsqd:
        client = Client(nsqd.tcp_address)
        client.send(commands.identify({"feature_negotiation": True, "snappy": True, "tls_v1": True}))
        assert client.frame() == OK
        client.send(commands.publish("t", b"x"))
        assert client.frame() == OK


# --- releases -----------------------------------------------------------------------------------------------------


def test_old_release_responds_with_the_fields_of_its_time():
    with FakeNsqd(release="0.2.21") as nsqd:
        answer = Client(nsqd.tcp_address).identify()

        assert answer == {"max_rdy_count": 2500, "version": "0.2.21", "max_msg_timeout": 900000, "msg_timeout": 60000}


NOTHING = {"status_code": 200, "status_txt": "OK", "data": None}
HTTP = [
    ("0.2.28", "POST", "/topic/create?topic=t", {"message": "NOT_FOUND"}),
    ("0.2.29", "POST", "/topic/create?topic=t", ""),
    ("0.2.29", "POST", "/topic/create?topic=t!", {"message": "INVALID_TOPIC"}),
    ("0.3.8", "POST", "/create_topic?topic=t", NOTHING),
    ("0.2.21", "GET", "/create_topic?topic=t", NOTHING),
    ("0.2.21", "GET", "/ping", "OK"),
    ("0.2.21", "POST", "/create_topic", {"status_code": 400, "status_txt": "MISSING_ARG_TOPIC", "data": None}),
    ("0.2.21", "GET", "/config/id", {"status_code": 200, "status_txt": "OK", "data": 0}),
]


@pytest.mark.parametrize(("release", "method", "target", "answer"), HTTP, ids=map(str, HTTP))
def test_release_has_the_paths_and_envelopes_of_its_time(release, method, target, answer):
    with FakeNsqd(release=release) as nsqd:
        assert request(nsqd.http_address, method, target, b"x" if method == "POST" else None) == answer


@pytest.mark.parametrize("release", ["0.2.14", "1.3.1", "2", "v1.3.0"])
def test_release_that_is_not_emulated_is_refused(release):
    with pytest.raises(ValueError, match=r"must be one of nsqd's, from 0\.2\.15 to 1\.3\.0"):
        FakeNsqd(release=release)


@pytest.mark.fakensqd(release="0.2.21")
def test_http_client_works_with_an_old_nsqd(fakensqd):
    client = NsqdHTTPClient.from_url(fakensqd.http_address)

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
    assert client.stats()["topics"] == []


def test_consumer_finds_an_old_nsqd_by_an_old_nsqlookupd():
    got = []
    with FakeLookupd(release="0.2.21") as lookupd, FakeNsqd(lookupd_tcp_addresses=lookupd.tcp_address) as nsqd:
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
    assert (lookupd.errors, nsqd.errors) == ([], [])
