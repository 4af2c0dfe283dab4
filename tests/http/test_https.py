"""HTTPS: certificates and host names are checked, and errors have hints."""

import hashlib
import ssl
import textwrap
from pathlib import Path

import gevent.ssl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gnsq.errors import NSQHttpError, NSQHttpUnreachable
from gnsq.httpclient import HTTPClient
from tests.kit import peer, run_program
from tests.kit.http_peer import http_peer, reply


@pytest.fixture(scope="module")
def ca(fakensqd_certificates):
    return fakensqd_certificates.ca


@pytest.fixture(scope="module")
def server_files(fakensqd_certificates):
    return fakensqd_certificates.server()


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
        assert ask(served, ca_certs=ca) == [b"OK", b"OK"]
        assert served.connections == 1


def test_untrusted_certificate_is_refused_and_not_tried_again(server_files):
    with https_peer(server_files) as served:
        with pytest.raises(NSQHttpUnreachable, match=r"certificate not accepted.*ca_certs.*cert_reqs='CERT_NONE'"):
            ask(served, retries=5)

        assert served.requests == []


def test_expired_certificate_is_to_be_renewed(ca, fakensqd_certificates):
    with https_peer(fakensqd_certificates.server(expired=True)) as served:
        with pytest.raises(NSQHttpUnreachable, match=r"certificate has expired .*renew it") as raised:
            ask(served, ca_certs=ca)

        assert "CERT_NONE" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_cert_none_trusts_any_certificate(fakensqd_certificates):
    with https_peer(fakensqd_certificates.server("127.0.0.9")) as served:
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
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fakensqd ca")])
    digest = hashlib.sha1(name.public_bytes()[2:]).digest()
    (tmp_path / f"{int.from_bytes(digest[:4], 'little'):08x}.0").symlink_to(ca)
    with https_peer(server_files) as served:
        assert ask(served, ca_certs=tmp_path) == [b"OK", b"OK"]


def test_client_certificate_is_sent_and_its_encrypted_key_read_with_its_password(
    ca, fakensqd_certificates, server_files, tmp_path
):
    cert, key = fakensqd_certificates.client()
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        load_pem_private_key(Path(key).read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open-sesame")
        )
    )
    with https_peer(server_files, client_ca=ca) as served:
        for files in ({"key_file": key}, {"key_file": locked, "key_password": "open-sesame"}):
            assert ask(served, ca_certs=ca, cert_file=cert, **files) == [b"OK", b"OK"]
    # Without it there is no prompt.
    with pytest.raises(ValueError, match="give its key_password"):
        HTTPClient("127.0.0.1", 1, scheme="https", cert_file=cert, key_file=locked)


def test_missing_client_certificate_is_named(ca, server_files):
    words = "cert_file and key_file"
    with https_peer(server_files, client_ca=ca) as served, pytest.raises(NSQHttpError, match=words):
        ask(served, ca_certs=ca, retries=0)


@pytest.mark.parametrize("make", [ssl.SSLContext, gevent.ssl.SSLContext], ids=["ssl", "gevent.ssl"])
def test_given_ssl_context_is_used(ca, server_files, make):
    context = make(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    before = context.cert_store_stats()
    with https_peer(server_files) as served:
        assert ask(served, ssl_context=context) == [b"OK", b"OK"]

    # Not added to: requests would load its own list.
    assert context.cert_store_stats() == before


def test_https_to_a_plain_server_has_a_hint(ca):
    plain = peer(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with plain as address, pytest.raises(NSQHttpUnreachable, match="plain http"):
        HTTPClient.from_url(f"https://{address}", ca_certs=ca).request("GET", "ping")


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
    import gevent, gevent.ssl, pytest
    from gevent.event import Event
    import gnsq.http.connections  # or the deadline would include loading requests
    from gnsq.errors import NSQHttpError, NSQHttpTimeout
    from gnsq.httpclient import HTTPClient
    from tests.kit import wait_until
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
        if asked.path == "/trickle":
            sock.sendall(b"HTTP/1.1 200 OK\\r\\n")
            while True:
                gevent.sleep(0.02)
                sock.sendall(b"X-H: 1\\r\\n")
        ticks.clear()
        assert ticks.wait(30)
        return reply()

    ticking = gevent.spawn(tick)
    with http_peer(answer, ssl_context=serving) as peer:
        client = HTTPClient.from_url(f"https://{peer.address}", ca_certs=ca)
        assert [client.request("GET", "ping") for _ in range(2)] == [b"OK", b"OK"]
        assert peer.connections == 1
        with gevent.Timeout(30), pytest.raises(NSQHttpTimeout):
            client.request("GET", "trickle", timeout=0.5)
        caller = gevent.spawn(lambda: pytest.raises(NSQHttpError, client.request, "GET", "trickle"))
        wait_until(lambda: len(peer.requests) == 4)
        client.close()
        assert "client was closed" in str(caller.get(timeout=30).value)
        before.load_verify_locations(ca)
        with HTTPClient.from_url(f"https://{peer.address}", ssl_context=before) as client:
            assert client.request("GET", "ping") == b"OK"
    print("done")
"""


@pytest.mark.subprocess
def test_calls_deadlines_and_close_are_the_same_in_a_patched_process(ca, server_files):
    done = run_program(textwrap.dedent(PATCHED), ca, *server_files, flags=("-W", "ignore"))

    # With gevent before 25 urllib3's finalizer complains when the process ends.
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
