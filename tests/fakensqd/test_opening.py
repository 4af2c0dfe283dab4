"""IDENTIFY with its upgrades, and AUTH: which questions a session asks, and what it makes of the answers."""

import json

import pytest

from fakensqd.effects import AskAuth, Close, Send, StartCompression, StartTLS, TlsEstablished
from fakensqd.nsqd.auth import Authorization, Grant
from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.session import Session
from fakensqd.nsqd.stats import client_statistics
from fakensqd.options import NsqdOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, RESPONSE, FrameDecoder

OK = (RESPONSE, b"OK")
TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
SECURED = TlsEstablished(version="TLS1.3", cipher_suite="Unknown 4865", common_name="me")
AUTH = {"auth_http_addresses": ("a:1",)}
ALL = Authorization(ttl=10.0, identity="me", identity_url="u", grants=(Grant(),))


class Client:
    """A session, asked without a socket; gives frames, then whatever else it wants done."""

    def __init__(self, remote_address="127.0.0.1:1000", **options):
        self.session = Session(Broker(NsqdOptions(**options)), remote_address=remote_address)
        self.now = 0.0
        self._decoder = FrameDecoder()
        assert self.send(b"  V2") == []

    def _seen(self, effects):
        seen = []
        for effect in effects:
            seen += self._decoder.feed(effect.data) if isinstance(effect, Send) else [effect]
        return seen

    def send(self, data):
        return self._seen(self.session.receive(data, self.now))

    def resume(self, answer):
        return self._seen(self.session.resume(answer, self.now))

    def tick(self, now):
        self.now = now
        return self._seen(self.session.tick(now))

    def identify(self, **asked):
        """Ask for features; give back what of the answer is true, and the effects behind it."""
        (kind, answer), *rest = self.send(identify(**asked))
        assert kind == RESPONSE
        return {name for name, value in json.loads(answer).items() if value is True}, rest

    def authorized(self, authorization=ALL):
        self.send(commands.auth(b"secret"))
        self.resume(authorization)
        return self


def identify(**asked):
    return commands.identify({"feature_negotiation": True, **asked})


def refused(text):
    return [(ERROR, text), Close()]


# --- upgrades ---------------------------------------------------------------------------------------------------------


def test_tls_is_begun_behind_the_answer_and_said_to_be_on_inside():
    client = Client(**TLS)

    assert client.identify(tls_v1=True) == ({"tls_v1"}, [StartTLS()])
    assert client.resume(SECURED) == [OK]
    assert client.session.handshake.tls is SECURED
    assert client.send(commands.publish("t", b"x")) == [OK]


@pytest.mark.parametrize("name", ["snappy", "deflate"])
def test_compression_is_begun_behind_the_answer(name):
    client = Client()

    features, (io_request,) = client.identify(**{name: True})

    assert features == {name}
    assert isinstance(io_request, StartCompression)
    assert io_request.codec.name == name
    assert client.resume(None) == [OK]
    assert client_statistics(client.session)[name]


def test_tls_comes_before_compression():
    client = Client(**TLS)

    assert client.identify(tls_v1=True, deflate=True) == ({"tls_v1", "deflate"}, [StartTLS()])
    ok, io_request = client.resume(SECURED)
    assert ok == OK
    assert isinstance(io_request, StartCompression)
    assert client.resume(None) == [OK]


def test_what_was_read_behind_an_identify_that_upgrades_is_lost():
    client = Client()

    client.send(identify(snappy=True) + b"NOP\nFOO\n" + b"FO")
    assert client.resume(None) == [OK]

    assert client.send(commands.publish("t", b"x")) == [OK]


def test_a_second_identify_may_change_the_compression():
    client = Client()
    client.identify(snappy=True)
    client.resume(None)

    features, (io_request,) = client.identify(deflate=True)

    assert (features, io_request.codec.name) == ({"deflate"}, "deflate")


def test_no_deadline_runs_while_a_layer_is_put_on():
    client = Client(**TLS)
    client.identify(tls_v1=True, heartbeat_interval=1000)

    assert client.tick(1.0) == [(RESPONSE, b"_heartbeat_")]
    assert client.tick(2.0) == [(RESPONSE, b"_heartbeat_")]
    client.now = 2.5
    assert client.resume(SECURED) == [OK]

    assert client.tick(3.0) == [(RESPONSE, b"_heartbeat_")]
    assert client.session.due == 4.0
    assert client.tick(4.5) == [Close()]


def test_nothing_is_read_before_the_answer():
    client = Client(**TLS)
    client.identify(tls_v1=True)

    assert client.send(b"FOO\n") == []


# --- AUTH -------------------------------------------------------------------------------------------------------------


def test_auth_asks_and_answers():
    client = Client(**AUTH)
    assert client.identify() == ({"auth_required"}, [])

    assert client.send(commands.auth(b"se cret")) == [AskAuth(b"se cret", "127.0.0.1", "", False)]
    assert client.resume(ALL) == [(RESPONSE, b'{"identity":"me","identity_url":"u","permission_count":1}')]
    assert client.send(commands.publish("t", b"x")) == [OK]


def test_auth_inside_tls_names_the_certificate():
    client = Client("[::1]:1000", **AUTH, **TLS)
    client.identify(tls_v1=True)
    client.resume(SECURED)

    assert client.send(commands.auth(b"s")) == [AskAuth(b"s", "::1", "me", True)]


def test_what_has_expired_is_asked_again():
    client = Client(**AUTH).authorized()
    client.now = 10.0
    assert client.send(commands.publish("t", b"x")) == [OK]

    client.now = 10.1
    assert client.send(commands.publish("t", b"x")) == [AskAuth(b"secret", "127.0.0.1", "", False)]
    assert client.resume(ALL) == [OK]
    client.now = 20.0
    assert client.send(commands.publish("t", b"x")) == [OK]


def test_a_channel_that_is_deleted_while_the_auth_server_is_asked():
    client = Client(**AUTH).authorized()
    client.send(b"SUB t c\n")
    client.now = 11.0
    assert len(client.send(commands.publish("t", b"x"))) == 1
    client.session._broker.delete_topic("t")

    assert client.resume(ALL) == [Close()]


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_of_a_plain_client():
    document = client_statistics(Client().session)

    assert document["tls"] is document["tls_negotiated_protocol_is_mutual"] is False
    assert (document["tls_version"], document["tls_cipher_suite"]) == ("", "")
    assert not {"authed", "auth_identity", "auth_identity_url"} & set(document)


def test_statistics_of_one_with_everything():
    client = Client(**AUTH, **TLS)
    client.identify(tls_v1=True)
    client.resume(SECURED)
    client.authorized()

    document = client_statistics(client.session)

    assert list(document)[14:18] == ["user_agent", "authed", "auth_identity", "auth_identity_url"]
    assert (document["authed"], document["auth_identity"], document["auth_identity_url"]) == (True, "me", "u")
    assert (document["tls"], document["tls_version"], document["tls_cipher_suite"]) == (True, "TLS1.3", "Unknown 4865")
    assert document["tls_negotiated_protocol_is_mutual"] is True


def test_what_is_empty_is_left_out_of_statistics():
    client = Client(**AUTH).authorized(Authorization(ttl=1.0, grants=(Grant(),)))

    document = client_statistics(client.session)

    assert {"authed", "auth_identity", "auth_identity_url"} & set(document) == {"authed"}
