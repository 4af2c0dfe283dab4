"""The HTTP client of auth servers: several addresses, HTTPS, timeouts."""

import contextlib

import gevent
import pytest

from fakensqd import Certificates, FakeAuthServer, Grant
from fakensqd.clock import ManualClock, RealClock
from fakensqd.effects import AskAuth, HttpResponse
from fakensqd.nsqd.auth_client import AuthClient, query_url
from fakensqd.options import NsqdOptions
from fakensqd.ports import HttpPort
from fakensqd.tls import server_context
from tests.kit import refused_port, wait_until

QUESTION = AskAuth(b"s", "127.0.0.1", "", False)
GOOD = b'{"ttl": 1, "authorizations": [{}]}'


def ask(*addresses, **options):
    options = NsqdOptions(auth_http_addresses=addresses, **options)
    return AuthClient(options, RealClock()).ask(QUESTION)


@contextlib.contextmanager
def serving(status, body=b"", context=None):
    """A server with the same response to each request; yields its port and the requested paths."""
    paths = []

    def application(request):
        paths.append(request.path)
        return HttpResponse(status, body)

    port = HttpPort("127.0.0.1:0", context)
    port.bind()
    port.serve(application)
    try:
        yield port, paths
    finally:
        port.stop()


def test_auth_client_returns_a_valid_response():
    with FakeAuthServer({"s": [Grant()]}) as server:
        assert ask(server.http_address).grants == (Grant(),)

        assert server.queries[0].accept == "application/vnd.nsq; version=1.0"
        assert dict(server.queries[0].parameters) == {
            "common_name": "",
            "remote_ip": "127.0.0.1",
            "secret": "s",
            "tls": "false",
        }


@pytest.mark.parametrize("status", [201, 302, 500])
def test_auth_client_ignores_another_status(status):
    with serving(status) as (port, _):
        assert ask(port.address) is None


def test_auth_client_tries_all_addresses():
    with FakeAuthServer({"s": [Grant()]}) as server:
        addresses = (f"127.0.0.1:{refused_port()}", server.http_address, f"127.0.0.1:{refused_port()}")
        for _ in range(10):
            assert ask(*addresses) is not None


@pytest.mark.parametrize("address", ["127.0.0.1:x", "ftp://127.0.0.1/x", "http://"])
def test_auth_client_skips_a_malformed_address(address):
    assert ask(address) is None


def test_auth_client_asks_over_https(certificates, server_context):
    with serving(200, GOOD, server_context) as (port, paths):
        address = f"https://{port.address}/x"
        options = NsqdOptions(auth_http_addresses=address, tls_root_ca_file=certificates.ca)
        client = AuthClient(options, RealClock())

        assert client.ask(QUESTION) is not None
        assert client.ask(QUESTION) is not None
        assert paths == ["/x", "/x"]
        # The CAs of the system have not signed the certificate.
        assert ask(address) is None


def test_auth_client_refuses_an_expired_certificate(tmp_path):
    certificates = Certificates(tmp_path)
    files = certificates.server(expired=True)
    context = server_context(NsqdOptions(tls_cert=files.certificate, tls_key=files.key))
    with serving(200, GOOD, context) as (port, _):
        assert ask(f"https://{port.address}/", tls_root_ca_file=certificates.ca) is None


def test_auth_client_stops_after_the_request_timeout():
    clock = ManualClock()
    with FakeAuthServer(answer=lambda query: gevent.sleep(3600)) as server:
        client = AuthClient(NsqdOptions(auth_http_addresses=(server.http_address,)), clock)
        asking = gevent.spawn(client.ask, QUESTION)
        wait_until(lambda: server.queries)

        clock.advance(4.9)
        assert not asking.ready()
        clock.advance(0.1)

        assert asking.get(timeout=10) is None


def test_url_of_a_query():
    question = AskAuth(b"a b&\xff", "h", "", tls=True)

    assert query_url("127.0.0.1:4181", question) == (
        "http://127.0.0.1:4181/auth?common_name=&remote_ip=h&secret=a+b%26%FF&tls=true"
    )
