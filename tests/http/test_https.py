"""HTTPS: certificates and host names are checked, and errors have hints."""

import datetime
import hashlib
import ipaddress
import ssl
import textwrap

import gevent.ssl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gnsq.errors import NSQHttpError, NSQHttpUnreachable
from gnsq.httpclient import HTTPClient
from tests.kit import peer, run_program
from tests.kit.http_peer import http_peer, reply

PASSWORD = "open-sesame"
DAY = datetime.timedelta(days=1)


OTHER_USAGES = [
    *["digital_signature", "content_commitment", "key_encipherment", "data_encipherment"],
    *["key_agreement", "encipher_only", "decipher_only"],
]


class Authority:
    """A CA that writes certificates into a directory."""

    def __init__(self, folder, name):
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._builder(self.name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        signs = dict.fromkeys(["key_cert_sign", "crl_sign"], True) | dict.fromkeys(OTHER_USAGES, False)
        certificate = certificate.add_extension(x509.KeyUsage(**signs), True)
        self.path = self._write(f"{name}.pem", self._signed(certificate))

    def issue(self, name, host="127.0.0.1", password=None):
        """Write a certificate and its key; returns both paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        certificate = self._signed(self._builder(subject, key).add_extension(names, False))
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        return self._write(f"{name}.crt", certificate), self._write(f"{name}.key", pem)

    def _builder(self, subject, key):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            # Since Python 3.13 a chain without these is refused.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        )

    def _signed(self, builder):
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return str(path)


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"), "test-ca")


@pytest.fixture(scope="module")
def server_files(ca):
    return ca.issue("server")


@pytest.fixture(scope="module")
def client_files(ca):
    return ca.issue("client")


def https_peer(files, client_ca=None):
    context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return http_peer(lambda asked, sock: reply(), ssl_context=context)


def ask(served, scheme="https", **options):
    with HTTPClient.from_url(f"{scheme}://{served.address}", **options) as client:
        return [client.request("GET", "ping") for _ in range(2)]


def test_trusted_certificate_is_accepted_and_its_connection_kept(ca, server_files):
    with https_peer(server_files) as served:
        assert ask(served, ca_certs=ca.path) == [b"OK", b"OK"]
        assert served.connections == 1


def test_untrusted_certificate_is_refused_and_not_tried_again(server_files):
    with https_peer(server_files) as served:
        with pytest.raises(NSQHttpUnreachable, match=r"certificate not accepted.*ca_certs.*cert_reqs='CERT_NONE'"):
            ask(served, retries=5)

        assert served.requests == []


def test_expired_certificate_is_to_be_renewed(fakensqd_certificates):
    files = fakensqd_certificates.server("127.0.0.1", expired=True)
    with https_peer(files) as served:
        with pytest.raises(NSQHttpUnreachable, match=r"certificate has expired .*renew it") as raised:
            ask(served, ca_certs=fakensqd_certificates.ca)

        assert "CERT_NONE" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_cert_none_trusts_any_certificate(ca):
    with https_peer(ca.issue("elsewhere", "127.0.0.9")) as served:
        assert ask(served, cert_reqs="CERT_NONE") == [b"OK", b"OK"]


@pytest.mark.parametrize(
    "options",
    [{"cert_reqs": "CERT_OPTIONAL"}, {"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}],
    ids=["CERT_OPTIONAL", "context"],
)
def test_certificate_is_checked_by_each_other_option(server_files, options):
    with https_peer(server_files) as served, pytest.raises(NSQHttpUnreachable, match="certificate not accepted"):
        ask(served, **options)


def test_ca_certs_may_be_a_directory(ca, server_files, tmp_path):
    # OpenSSL finds a CA there by the hash of its name: of the parts of it, in small letters, without their common head.
    digest = hashlib.sha1(ca.name.public_bytes()[2:]).digest()
    (tmp_path / f"{int.from_bytes(digest[:4], 'little'):08x}.0").symlink_to(ca.path)
    with https_peer(server_files) as served:
        assert ask(served, ca_certs=tmp_path) == [b"OK", b"OK"]


def test_client_certificate_is_sent(ca, server_files, client_files):
    with https_peer(server_files, client_ca=ca.path) as served:
        cert, key = client_files
        assert ask(served, ca_certs=ca.path, cert_file=cert, key_file=key) == [b"OK", b"OK"]


def test_encrypted_key_is_read_with_its_password_and_refused_without(ca, server_files):
    cert, key = ca.issue("locked", password=PASSWORD)
    with https_peer(server_files, client_ca=ca.path) as served:
        assert ask(served, ca_certs=ca.path, cert_file=cert, key_file=key, key_password=PASSWORD) == [b"OK", b"OK"]
    # Without it there is no prompt.
    with pytest.raises(ValueError, match="give its key_password"):
        HTTPClient("127.0.0.1", 1, scheme="https", cert_file=cert, key_file=key)


def test_missing_client_certificate_is_named(ca, server_files):
    words = "cert_file and key_file"
    with https_peer(server_files, client_ca=ca.path) as served, pytest.raises(NSQHttpError, match=words):
        ask(served, ca_certs=ca.path, retries=0)


@pytest.mark.parametrize("make", [ssl.SSLContext, gevent.ssl.SSLContext], ids=["ssl", "gevent.ssl"])
def test_given_ssl_context_is_used(ca, server_files, make):
    context = make(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca.path)
    before = context.cert_store_stats()
    with https_peer(server_files) as served:
        assert ask(served, ssl_context=context) == [b"OK", b"OK"]

    # Not added to: requests would load its own list.
    assert context.cert_store_stats() == before


def test_https_to_a_plain_server_has_a_hint(ca):
    plain = peer(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with plain as address, pytest.raises(NSQHttpUnreachable, match="plain http"):
        HTTPClient.from_url(f"https://{address}", ca_certs=ca.path).request("GET", "ping")


def test_nsqds_tcp_port_is_recognized():
    def answer(sock):
        sock.recv(65536)
        sock.sendall(b"\x00\x00\x00\x12\x00\x00\x00\x01E_BAD_PROTOCOL")

    with peer(answer) as address, pytest.raises(NSQHttpError, match="is it nsqd's TCP port"):
        HTTPClient.from_url(address, retries=0).request("GET", "ping")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"ca_certs": "/nowhere/ca"}, "ca_certs '/nowhere/ca' can't be used", id="no CA"),
        pytest.param({"cert_file": "/nowhere/c"}, "certificate .* can't be read: No such file", id="no certificate"),
        pytest.param({"key_file": "k"}, "key_file is given without cert_file", id="key alone"),
        pytest.param(
            {"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "ca_certs": "x"}, "the context holds", id="both"
        ),
    ],
)
def test_unusable_certificate_files_are_refused_by_the_constructor(options, words):
    with pytest.raises(ValueError, match=words):
        HTTPClient("127.0.0.1", 1, scheme="https", **options)


PATCHED = """
    import ssl, sys
    before = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    from gevent import monkey; monkey.patch_all()
    import gevent, gevent.ssl
    from gevent.event import Event
    from gnsq.httpclient import HTTPClient
    from tests.kit.http_peer import http_peer, reply

    ca, cert, key = sys.argv[1:]
    serving = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    ticks = Event()

    def tick():
        while True:
            for _ in range(10):
                gevent.sleep(1e-6)
            ticks.set()

    def answer(asked, sock):
        ticks.clear()
        assert ticks.wait(30)
        return reply()

    ticking = gevent.spawn(tick)
    with http_peer(answer, ssl_context=serving) as peer:
        with HTTPClient.from_url(f"https://{peer.address}", ca_certs=ca) as client:
            assert [client.request("GET", "ping") for _ in range(2)] == [b"OK", b"OK"]
            assert peer.connections == 1
        before.load_verify_locations(ca)
        with HTTPClient.from_url(f"https://{peer.address}", ssl_context=before) as client:
            assert client.request("GET", "ping") == b"OK"
    print("done")
"""


@pytest.mark.subprocess
def test_other_greenlets_run_in_a_patched_process(ca, server_files):
    done = run_program(textwrap.dedent(PATCHED), ca.path, *server_files, flags=("-W", "ignore"))

    assert (done.stdout, done.stderr) == ("done\n", "")
