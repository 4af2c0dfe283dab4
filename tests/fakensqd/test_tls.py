"""TLS as nsqd's: contexts, handshakes with good and bad clients, the texts about them."""

import ssl
from pathlib import Path

import gevent
import pytest
from gevent.ssl import SSLContext

from fakensqd import Certificates
from fakensqd.effects import TlsEstablished, TlsFailed
from fakensqd.options import NsqdOptions
from fakensqd.tls import handshake
from fakensqd.tls import server_context as make_server_context
from gnsq.errors import NSQSocketError
from gnsq.tls import TlsTransport


def client_context(*, files=None, maximum=None, ciphers=None):
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files:
        context.load_cert_chain(*files)
    if maximum:
        context.maximum_version = maximum
    if ciphers:
        context.set_ciphers(ciphers)
    return context


def shaken(ends, server, client):
    """Do a handshake; give back how it ended for the server, and the client's end of it."""
    outcome = gevent.spawn(handshake, ends[0], server)
    tls = TlsTransport(ends[1], client, server_hostname="localhost")
    try:
        tls.handshake()
    except NSQSocketError:
        tls = None
    return outcome.get(timeout=10), tls


@pytest.mark.parametrize(("data", "reason"), [(None, "No such file or directory"), (b"nothing", "[Xx]509|PEM")])
@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_root_ca_file"])
def test_file_that_cannot_be_loaded_is_named(tls_options, tmp_path, name, data, reason):
    path = tmp_path / "file"
    if data is not None:
        path.write_bytes(data)
    options = NsqdOptions(**tls_options | {name: str(path)})

    with pytest.raises(OSError, match=f"{name} '{path}'.* cannot be loaded: .*({reason})"):
        make_server_context(options)


def test_old_certificate_is_accepted():
    """One as test-suites bring along: signed by itself with SHA-1, a short key, expired since 2026."""
    file = str(Path(__file__).parent.parent / "vectors" / "old_certificate.pem")

    context = make_server_context(NsqdOptions(tls_cert=file, tls_key=file, tls_min_version="tls1.2"))

    assert context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("cipher", "name"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "Unknown 49196"),
    ],
)
def test_cipher_suite_has_its_name_in_go(ends, server_context, cipher, name):
    client = client_context(maximum=ssl.TLSVersion.TLSv1_2, ciphers=cipher)

    (_, secured), _ = shaken(ends, server_context, client)

    assert secured == TlsEstablished(version="TLS1.2", cipher_suite=name)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
@pytest.mark.parametrize(
    ("lowest", "accepted"),
    [("tls1.1", True), ("tls1.2", False)],
)
def test_client_below_the_lowest_version_is_refused(ends, tls_options, lowest, accepted):
    server = make_server_context(NsqdOptions(**tls_options, tls_min_version=lowest))
    client = client_context(ciphers="DEFAULT:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1

    outcome, tls = shaken(ends, server, client)

    if accepted:
        assert outcome[1].version == "TLS1.1"
    else:
        assert (outcome, tls) == (TlsFailed("tls: unsupported protocol"), None)


@pytest.fixture
def verifying(certificates, tls_options):
    options = NsqdOptions(**tls_options, tls_client_auth_policy="require-verify", tls_root_ca_file=certificates.ca)
    return make_server_context(options)


def test_common_name_is_that_of_the_client_certificate(ends, verifying, certificates):
    (_, secured), _ = shaken(ends, verifying, client_context(files=certificates.client("me")))

    assert secured.common_name == "me"


def test_client_without_a_required_certificate_is_refused(ends, verifying):
    outcome, client = shaken(ends, verifying, client_context())

    assert outcome == TlsFailed("tls: peer did not return a certificate")
    # In TLS 1.3 the client gets the alert after its handshake.
    with pytest.raises(NSQSocketError, match="CERTIFICATE_REQUIRED"):
        client.recv(100)


def test_client_certificate_of_another_ca_is_refused(ends, verifying, tmp_path):
    outcome, _ = shaken(ends, verifying, client_context(files=Certificates(tmp_path).client()))

    assert outcome == TlsFailed("tls: certificate verify failed")


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_client_certificates_cannot_be_required_without_a_ca(tls_options, policy):
    with pytest.raises(ValueError, match=f"'{policy}' needs tls_root_ca_file"):
        make_server_context(NsqdOptions(**tls_options, tls_client_auth_policy=policy))


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\0\x05"], ids=repr)
def test_client_that_ends_before_the_handshake_gets_no_alert(ends, server_context, data):
    ends[1].sendall(data)
    ends[1].shutdown_write()

    assert handshake(ends[0], server_context) == TlsFailed("EOF")
    ends[0].close()
    assert ends[1].recv(100) == b""


def test_malformed_handshake_message_gets_an_alert(ends, server_context):
    ends[1].sendall(b"\x16\x03\x01\0\x05hello")

    assert handshake(ends[0], server_context) == TlsFailed("tls: unexpected message")
    assert ends[1].recv(100)[:1] == b"\x15"


def test_client_that_does_not_trust_the_certificate_fails_the_handshake(ends, server_context):
    outcome, _ = shaken(ends, server_context, SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    assert outcome == TlsFailed("tls: tlsv1 alert unknown ca")
