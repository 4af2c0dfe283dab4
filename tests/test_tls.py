"""TLS over a transport: between two of its own, in memory, and with the TLS of the standard library."""

import re
import ssl
from datetime import UTC, datetime

import gevent
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from gevent import socket

from fakensqd.certificates import Certificates
from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.options import ConnectionOptions
from gnsq.tls import TlsTransport, certificate_end, client_context
from gnsq.transport import TcpTransport

LIMIT = 10.0
# A date: the certificates have ended an hour ago.
ENDED = r"20\d\d-\d\d-\d\d"
VERSIONS = [ssl.PROTOCOL_TLSv1_2, None]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


def context_of_server(certificates, ca=None, *, expired=False):
    """Make a context that requires a certificate of the client if a CA is given."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.load_cert_chain(*certificates.server(["nsqd.example"], expired=expired))
    context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    return context


@pytest.fixture(scope="module")
def server_context(certificates):
    return context_of_server(certificates)


def options(certificates, **tls):
    return ConnectionOptions(tls_v1=True, tls_options={"ca_certs": certificates.ca, **tls})


class Sliced(TcpTransport):
    """Hands out what it receives in small pieces."""

    size = 1

    def recv(self, size):
        return super().recv(min(size, self.size))


@pytest.fixture
def pair():
    """Both ends of a stream."""
    ends = [Sliced(end, peer) for end, peer in zip(socket.socketpair(), ("server", "client"), strict=True)]
    for end in ends:
        end.size = 1 << 20
    yield ends
    for end in ends:
        end.close()


def shaken(client_end, server_end, context, server_context, name="nsqd.example"):
    """Put TLS over both ends."""
    server = TlsTransport(server_end, server_context, server_side=True, peer="client")
    client = TlsTransport(client_end, context, server_hostname=name, peer="nsqd:4150")
    other = gevent.spawn(server.handshake)
    with gevent.Timeout(LIMIT):
        client.handshake()
        other.get()
    return client, server


def read(transport, count):
    data = b""
    with gevent.Timeout(LIMIT):
        while len(data) < count:
            piece = transport.recv(65536)
            assert piece
            data += piece
    return data


# --- TLS


@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "newest"])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_bytes_go_both_ways_however_they_are_cut(pair, certificates, server_context, version, size):
    pair[0].size = pair[1].size = size
    context = client_context(options(certificates, ssl_version=version))
    client, server = shaken(*pair, context, server_context)

    client.sendall(b"IDENTIFY\n")
    server.sendall(b"x" * 20_000)

    assert read(server, 9) == b"IDENTIFY\n"
    assert read(client, 20_000) == b"x" * 20_000


def test_reader_and_writer_work_at_the_same_time(pair, certificates, server_context):
    client, server = shaken(*pair, client_context(options(certificates)), server_context)
    size = 2_000_000

    writers = [gevent.spawn(end.sendall, b"x" * size) for end in (client, server)]
    readers = [gevent.spawn(read, end, size) for end in (client, server)]

    with gevent.Timeout(LIMIT):
        assert [len(reader.get()) for reader in readers] == [size, size]
    gevent.joinall(writers, raise_error=True)


@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "newest"])
def test_end_is_seen_and_the_other_direction_goes_on(pair, certificates, server_context, version):
    context = client_context(options(certificates, ssl_version=version))
    client, server = shaken(*pair, context, server_context)

    client.sendall(b"CLS\n")
    client.shutdown_write()

    assert read(server, 4) == b"CLS\n"
    # It was a close_notify, and not just the end of TCP, which anybody can forge: that raises here.
    assert server.object.read(1) == b""
    assert server.recv(10) == b""
    assert server.recv(10) == b""


def test_cut_stream_reads_as_ended(pair, certificates, server_context):
    client, _server = shaken(*pair, client_context(options(certificates)), server_context)
    pair[1].close()

    assert client.recv(10) == b""


def test_garbage_inside_tls_is_an_error(pair, certificates, server_context):
    client, _ = shaken(*pair, client_context(options(certificates)), server_context)
    pair[1].sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)

    with pytest.raises(NSQSocketError, match=r"nsqd:4150: TLS failed: "):
        client.recv(10)


def failing(pair, certificates, server_context, **tls):
    """The words of the error that a client's handshake, or its first read, ends with."""
    accepting = gevent.spawn(TlsTransport(pair[1], server_context, server_side=True).handshake)
    context = client_context(options(certificates, **tls))
    client = TlsTransport(pair[0], context, server_hostname="nsqd.example", peer="nsqd:4150")

    def connect():
        client.handshake()
        client.recv(1)  # TLS 1.3 tells the client here that it was refused

    with gevent.Timeout(LIMIT), pytest.raises(NSQSocketError) as caught:
        connect()
    with pytest.raises(NSQSocketError):
        accepting.get()
    return str(caught.value)


def test_expired_certificate_is_refused_with_its_date(pair, certificates):
    text = failing(pair, certificates, context_of_server(certificates, expired=True))

    # OpenSSL 1.1.1 has forgotten the certificate by then.
    date = rf": it ended {ENDED}" if ssl.OPENSSL_VERSION_INFO >= (3,) else ""
    assert re.search(rf"certificate has expired{date} \(renew it, and restart the server; .* clock", text)
    assert "CERT_NONE" not in text


@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "newest"])
def test_expired_certificate_of_the_client_is_named_with_its_date(pair, certificates, version):
    context = context_of_server(certificates, certificates.ca)
    certificate, key = certificates.client(expired=True)

    text = failing(pair, certificates, context, ssl_version=version, certfile=certificate, keyfile=key)

    assert re.search(rf"your certificate {certificate} has expired: it ended {ENDED} \(renew it", text)


def test_certificate_of_a_client_that_is_valid_is_not_blamed(pair, certificates, tmp_path):
    context = context_of_server(certificates, Certificates(tmp_path).ca)
    certificate, key = certificates.client()

    text = failing(pair, certificates, context, certfile=certificate, keyfile=key)

    assert "expired" not in text
    assert "the server refused" in text


@pytest.mark.parametrize(
    ("not_after", "expected"),
    [
        (datetime(2049, 12, 31, 12, tzinfo=UTC), "2049-12-31"),
        (datetime(2050, 1, 1, tzinfo=UTC), "2050-01-01"),
    ],
    ids=str,
)
def test_end_of_a_certificate_is_read(not_after, expected):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x" * 60)] * 5)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, datetime(2000, 1, 1), not_after)
    der = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)

    assert f"{certificate_end(der):%Y-%m-%d}" == expected
    for size in range(len(der)):
        certificate_end(der[:size])  # does not raise


def test_peer_that_speaks_no_tls_is_an_error(pair, certificates):
    pair[1].sendall(b"\x00\x00\x00\x06\x00\x00\x00\x00OK")
    client = TlsTransport(pair[0], client_context(options(certificates)), server_hostname="x", peer="nsqd:4150")

    with pytest.raises(NSQSocketError, match="the peer does not answer in TLS: WRONG_VERSION_NUMBER"):
        client.handshake()


def test_peer_that_closes_in_the_handshake_is_a_closed_connection(pair, certificates):
    pair[1].shutdown_write()
    client = TlsTransport(pair[0], client_context(options(certificates)), server_hostname="x", peer="nsqd:4150")

    with pytest.raises(NSQConnectionClosed, match="nsqd:4150: the peer closed the connection inside TLS"):
        client.handshake()


# --- contexts of clients


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (ssl.CERT_REQUIRED, True)),
        ({"cert_reqs": ssl.CERT_NONE}, (ssl.CERT_NONE, False)),
        ({"cert_reqs": ssl.CERT_OPTIONAL}, (ssl.CERT_REQUIRED, True)),
        ({"cert_reqs": int(ssl.CERT_REQUIRED)}, (ssl.CERT_REQUIRED, True)),
        ({"check_hostname": False}, (ssl.CERT_REQUIRED, False)),
    ],
)
def test_tls_options_of_1_0_choose_the_checks(given, expected):
    context = client_context(ConnectionOptions(tls_v1=True, tls_options=given))

    assert (context.verify_mode, context.check_hostname) == expected


@pytest.mark.parametrize(
    ("given", "version"),
    [
        (ssl.PROTOCOL_TLSv1_2, ssl.TLSVersion.TLSv1_2),
        (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
        (ssl.PROTOCOL_TLS, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        (ssl.PROTOCOL_TLS_CLIENT, ssl.TLSVersion.MAXIMUM_SUPPORTED),
    ],
    ids=["of 1.0", "today's", "any", "any of a client"],
)
def test_ssl_version_means_that_version(given, version):
    context = client_context(ConnectionOptions(tls_v1=True, tls_options={"ssl_version": given}))

    assert context.maximum_version == version
    assert (context.minimum_version == version) is (version is not ssl.TLSVersion.MAXIMUM_SUPPORTED)


def test_check_hostname_is_yes_or_no():
    with pytest.raises(TypeError, match="check_hostname of tls_options must be bool"):
        client_context(ConnectionOptions(tls_v1=True, tls_options={"check_hostname": None}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"certfile": __file__}, r"certificate '.*test_tls.py' with key None can't be used"),
        ({"cert_reqs": 17}, "17 is not a valid VerifyMode"),
        ({"ssl_version": 99}, "ssl_version 99 of tls_options is neither"),
        ({"ssl_version": "TLSv1_2"}, "ssl_version 'TLSv1_2'"),
        ({"keyfile": "k.pem"}, "a keyfile without its certfile"),
        ({"certfile": __file__, "keyfile": "/no/k.pem"}, "tls_options: key '/no/k.pem' can't be read: No such file"),
        ({"certfile": "/no/c.pem", "keyfile": __file__}, "certificate '/no/c.pem' can't be read: No such file"),
    ],
)
def test_unusable_dictionary_names_the_file(given, words):
    with pytest.raises(ValueError, match=words):
        client_context(ConnectionOptions(tls_v1=True, tls_options=given))


@pytest.mark.parametrize(("given", "meant"), [("cafile", "ca_certs"), ("cert_file", "certfile")])
def test_unknown_key_of_another_library_names_that_of_gnsq(given, meant):
    with pytest.raises(TypeError, match=rf"tls_options has no {given}; did you mean {meant}\?"):
        client_context(ConnectionOptions(tls_v1=True, tls_options={given: "x"}))
