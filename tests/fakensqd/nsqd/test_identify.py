"""IDENTIFY with its settings, TLS and compression, and AUTH: requests of a session, and what follows their results."""

import json

from fakensqd.effects import AskAuth, TlsEstablished
from fakensqd.nsqd.auth import Authorization, Grant
from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.identify import Settings, decode_identify
from fakensqd.nsqd.stats import client_statistics
from fakensqd.options import NsqdOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import RESPONSE
from tests.fakensqd.nsqd.clients import SessionClient

OK = (RESPONSE, b"OK")
TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
ESTABLISHED = TlsEstablished(version="TLS1.3", cipher_suite="Unknown 4865", common_name="me")
AUTH = {"auth_http_addresses": ("a:1",)}
ALL = Authorization(ttl=10.0, identity="me", identity_url="u", grants=(Grant(),))


class Client(SessionClient):
    """A client of a broker with options, which has sent its magic."""

    def __init__(self, remote_address="127.0.0.1:1000", **options):
        super().__init__(Broker(NsqdOptions(**options)), remote_address=remote_address)
        assert self.send(b"  V2") == []

    def identify(self, **asked):
        """Send IDENTIFY; return the features that the response confirms, and the effects after it."""
        (kind, answer), *rest = self.send(identify(**asked))
        assert kind == RESPONSE
        return {name for name, value in json.loads(answer).items() if value is True}, rest

    def authorized(self, authorization=ALL):
        self.send(commands.auth(b"secret"))
        self.resume(authorization)
        return self


def identify(**asked):
    return commands.identify({"feature_negotiation": True, **asked})


# --- settings ---------------------------------------------------------------------------------------------------------


def test_second_identify_keeps_settings_that_it_does_not_name():
    options = NsqdOptions()
    settings = Settings.default(options)

    for asked in (b'{"msg_timeout": 5000}', b'{"heartbeat_interval": 2000}'):
        settings = settings.updated(decode_identify(asked, options), options)

    assert (settings.msg_timeout, settings.heartbeat_interval) == (5.0, 2.0)


# --- TLS and compression ----------------------------------------------------------------------------------------------


def test_bytes_received_with_an_identify_that_starts_compression_are_lost():
    client = Client()

    client.send(identify(snappy=True) + b"NOP\nFOO\n" + b"FO")
    assert client.resume(None) == [OK]

    assert client.send(commands.publish("t", b"x")) == [OK]


def test_second_identify_may_change_the_compression():
    client = Client()
    client.identify(snappy=True)
    client.resume(None)

    features, (io_request,) = client.identify(deflate=True)

    assert (features, io_request.codec.name) == ({"deflate"}, "deflate")


def test_read_deadline_is_suspended_while_tls_starts():
    client = Client(**TLS)
    client.identify(tls_v1=True, heartbeat_interval=1000)

    assert client.tick(1.0) == [(RESPONSE, b"_heartbeat_")]
    assert client.tick(2.0) == [(RESPONSE, b"_heartbeat_")]
    client.now = 2.5
    assert client.resume(ESTABLISHED) == [OK]

    assert client.tick(3.0) == [(RESPONSE, b"_heartbeat_")]
    assert client.session.due == 4.0
    assert client.tick(4.5) == []
    assert client.closed


# --- AUTH -------------------------------------------------------------------------------------------------------------


def test_auth_inside_tls_sends_the_name_of_the_certificate():
    client = Client("[::1]:1000", **AUTH, **TLS)
    client.identify(tls_v1=True)
    client.resume(ESTABLISHED)

    assert client.send(commands.auth(b"s")) == [AskAuth(b"s", "::1", "me", True)]


def test_expired_authorization_is_asked_for_again():
    client = Client(**AUTH).authorized()
    client.now = 10.0
    assert client.send(commands.publish("t", b"x")) == [OK]

    client.now = 10.1
    assert client.send(commands.publish("t", b"x")) == [AskAuth(b"secret", "127.0.0.1", "", False)]
    assert client.resume(ALL) == [OK]
    client.now = 20.0
    assert client.send(commands.publish("t", b"x")) == [OK]


def test_channel_deleted_during_a_request_to_the_auth_server_closes_the_connection():
    client = Client(**AUTH).authorized()
    client.send(b"SUB t c\n")
    client.now = 11.0
    assert len(client.send(commands.publish("t", b"x"))) == 1
    client.broker.delete_topic("t")

    assert client.resume(ALL) == []
    assert client.closed


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_of_a_client_with_tls_and_auth():
    client = Client(**AUTH, **TLS)
    client.identify(tls_v1=True)
    client.resume(ESTABLISHED)
    client.authorized()
    without_facts = Client(**AUTH).authorized(Authorization(ttl=1.0, grants=(Grant(),)))

    document = client_statistics(client.session)

    assert list(document)[14:18] == ["user_agent", "authed", "auth_identity", "auth_identity_url"]
    assert (document["authed"], document["auth_identity"], document["auth_identity_url"]) == (True, "me", "u")
    assert (document["tls"], document["tls_version"], document["tls_cipher_suite"]) == (True, "TLS1.3", "Unknown 4865")
    assert document["tls_negotiated_protocol_is_mutual"] is True
    assert {"authed", "auth_identity", "auth_identity_url"} & {*client_statistics(without_facts.session)} == {"authed"}
