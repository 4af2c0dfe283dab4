"""TLS, compression and AUTH with any nsqd."""

import itertools
import ssl

import gevent
import pytest

from fakensqd import Certificates, FakeAuthServer, Grant
from fakensqd.faults.relay import Relay
from fakensqd.faults.toxics import slice_bytes
from gnsq import Consumer, NsqdTCPClient, Producer
from gnsq.addresses import parse_address
from gnsq.errors import (
    NSQAuthFailed,
    NSQException,
    NSQInvalid,
    NSQNoConnections,
    NSQSocketError,
    NSQUnauthorized,
)
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, RESPONSE
from tests.kit import channel_stats, wait_until

BODIES = [b"small", b"x" * 500_000, *[b"%d" % number for number in range(200)]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server_certificate(certificates):
    certificate, key = certificates.server()
    return {"tls_cert": certificate, "tls_key": key}


@pytest.fixture(scope="module")
def auth_server():
    with FakeAuthServer({"all": [Grant()], "other": [Grant(topic="^other$")]}).in_thread() as server:
        yield server


@pytest.fixture
def tls(certificates):
    return {"tls_v1": True, "tls_options": {"ca_certs": certificates.ca}}


@pytest.fixture
def opened():
    """Connects clients, sends IDENTIFY, and closes them at the end."""
    clients = []

    def connect(address, **options):
        client = NsqdTCPClient(*parse_address(address), timeout=10, **options)
        clients.append(client)
        client.connect()
        client.identify()
        return client

    yield connect
    for client in clients:
        client.close_stream()


LAYERS = list(itertools.product([False, True], [None, "snappy", "deflate"], [False, True]))


@pytest.mark.parametrize(("encrypted", "compression", "authorized"), LAYERS)
def test_messages_go_both_ways_through_all_layers(
    start_nsqd, server_certificate, auth_server, tls, topic, encrypted, compression, authorized
):
    nsqd = start_nsqd(
        **server_certificate, **({"auth_http_addresses": (auth_server.http_address,)} if authorized else {})
    )
    options = {**(tls if encrypted else {}), **({compression: True} if compression else {})}
    if authorized:
        options["auth_secret"] = b"all"
    got, auths = [], []
    with Producer(nsqd.tcp_address, **options) as producer:
        for body in BODIES[:3]:
            producer.publish(topic, body)
        producer.multipublish(topic, BODIES[3:])
    consumer = Consumer(
        topic,
        "c",
        nsqd.tcp_address,
        message_handler=lambda consumer, message: got.append(message.body),
        max_in_flight=100,
        **options,
    )
    consumer.on_auth.connect(lambda sender, conn, response: auths.append(response), weak=False)
    with consumer:
        wait_until(lambda: len(got) == len(BODIES))
        wait_until(lambda: channel_stats(nsqd, topic, "c")["in_flight_count"] == 0)
        (client,) = channel_stats(nsqd, topic, "c")["clients"]

    assert sorted(got) == sorted(BODIES)
    assert (client["tls"], client["snappy"], client["deflate"]) == (
        encrypted,
        compression == "snappy",
        compression == "deflate",
    )
    assert [auth["permission_count"] for auth in auths] == ([1] if authorized else [])


@pytest.mark.parametrize(
    ("offered", "suite"),
    [
        pytest.param("DEFAULT", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", id="all"),
        pytest.param("ECDHE+AES+SHA1", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", id="without GCM"),
    ],
)
def test_cipher_suite_is_the_one_that_go_prefers(start_nsqd, server_certificate, opened, topic, offered, suite):
    nsqd = start_nsqd(**server_certificate)
    context = ssl._create_unverified_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(offered)
    opened(nsqd.tcp_address, tls_v1=True, tls_context=context).subscribe(topic, "c")

    wait_until(lambda: channel_stats(nsqd, topic, "c")["clients"])
    (client,) = channel_stats(nsqd, topic, "c")["clients"]
    assert client["tls_cipher_suite"] == suite


@pytest.mark.parametrize(("encrypted", "compression"), [(True, None), (True, "snappy"), (True, "deflate")])
def test_handshake_over_a_link_that_slices_bytes(
    start_nsqd, server_certificate, tls, opened, topic, encrypted, compression
):
    with Relay(start_nsqd(**server_certificate).tcp_address) as relay:
        relay.link.add(slice_bytes(3))
        client = opened(relay.address, **tls, **({compression: True} if compression else {}))
        client.publish(topic, b"x" * 1000)

        assert client.read_response() == (RESPONSE, b"OK")


@pytest.mark.parametrize("options", [{"output_buffer_size": -1}, {"output_buffer_timeout": -1}], ids=str)
def test_message_waits_in_deflate_if_nothing_flushes_it(start_nsqd, opened, topic, options):
    nsqd = start_nsqd()
    client = opened(nsqd.tcp_address, deflate=True, **options)
    client.subscribe(topic, "c")
    client.check_ok()
    client.ready(2)
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"1")
        wait_until(lambda: channel_stats(nsqd, topic, "c")["in_flight_count"] == 1)

    with gevent.Timeout(0.2, False):
        pytest.fail(f"it came: {client.read_response()}")


@pytest.mark.parametrize("level", [1, 6, 9])
def test_deflate_level_is_limited_by_nsqd(start_nsqd, opened, topic, level):
    client = opened(start_nsqd(max_deflate_level=5).tcp_address, deflate=True, deflate_level=level)

    assert client.identity.response["deflate_level"] == min(level, 5)
    client.publish(topic, b"x")
    client.check_ok()


def test_announced_name_is_checked_if_the_resolver_returns_another_address(
    start_nsqd, certificates, opened, tls, monkeypatch
):
    certificate, key = certificates.server(["nsqd.example"])
    nsqd = start_nsqd(tls_cert=certificate, tls_key=key)
    real = parse_address(nsqd.tcp_address)
    client = NsqdTCPClient("nsqd.example", 4150, timeout=10, address_resolver=lambda host, port: real, **tls)
    client.connect()

    assert client.identify()["tls_v1"]
    client.close_stream()
    with pytest.raises(NSQSocketError, match=r"mismatch|not valid for"):
        opened(nsqd.tcp_address, **tls)


@pytest.mark.parametrize("version", [ssl.PROTOCOL_TLSv1_2, None], ids=["1.2", "newest"])
def test_client_certificate_is_sent_if_nsqd_requires_it(
    start_nsqd, server_certificate, certificates, opened, topic, version
):
    nsqd = start_nsqd(**server_certificate, tls_root_ca_file=certificates.ca, tls_client_auth_policy="require-verify")
    certificate, key = certificates.client()
    files = {"ca_certs": certificates.ca, "ssl_version": version}

    client = opened(nsqd.tcp_address, tls_v1=True, tls_options={**files, "certfile": certificate, "keyfile": key})
    client.publish(topic, b"x")
    client.check_ok()
    with pytest.raises(NSQSocketError, match="certfile"):
        opened(nsqd.tcp_address, tls_v1=True, tls_options=files)


def test_tls_that_is_not_offered_is_never_clear_text(start_nsqd, topic):
    with (
        Producer(start_nsqd().tcp_address, tls_v1=True) as producer,
        pytest.raises(NSQNoConnections, match="TLS was asked for and nsqd does not offer it") as caught,
    ):
        producer.publish(topic, b"x", timeout=0.1)
    assert (caught.value.code, caught.value.name, caught.value.at_fault) == ("TLS_NOT_OFFERED", "tls_v1", "setup")


def test_refusal_for_missing_tls_has_a_hint(start_nsqd, server_certificate, opened, topic):
    client = opened(start_nsqd(**server_certificate, tls_required=True).tcp_address)

    client.publish(topic, b"x")
    kind, error = client.read_response()

    assert kind == ERROR
    assert isinstance(error, NSQInvalid)
    assert str(error) == (
        f"{client.nsqd}: E_INVALID cannot PUB in current state (TLS required) (nsqd runs with --tls-required: give "
        "tls_v1=True)"
    )
    assert not client.is_connected


def test_secret_that_is_wrong_missing_or_not_enough(start_nsqd, auth_server, opened, topic):
    nsqd = start_nsqd(auth_http_addresses=(auth_server.http_address,))

    with pytest.raises(NSQException, match=r"nsqd requires AUTH, .*: give auth_secret"):
        opened(nsqd.tcp_address)
    with pytest.raises(NSQAuthFailed, match="AUTH failed"):
        opened(nsqd.tcp_address, auth_secret=b"unknown")
    client = opened(nsqd.tcp_address, auth_secret=b"other")
    client.publish(topic, b"x")
    with pytest.raises(NSQUnauthorized, match=f'AUTH failed for PUB on "{topic}"'):
        client.check_ok()


def test_client_that_is_driven_by_hand_starts_tls_and_compression(start_nsqd, server_certificate, tls, topic):

    nsqd = start_nsqd(**server_certificate)
    client = NsqdTCPClient(*parse_address(nsqd.tcp_address), timeout=10, **tls)
    client.connect()
    client.send(commands.identify({"feature_negotiation": True, "tls_v1": True, "deflate": True}))
    assert b'"tls_v1":true' in client.read_response()[1]

    client.upgrade_to_tls()
    client.upgrade_to_defalte()
    client.publish(topic, b"x")

    client.check_ok()
    client.close_stream()
