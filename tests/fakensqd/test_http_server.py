"""An HTTP port: addresses, start and stop, TLS."""

import contextlib
import ssl

import pytest
from gevent import socket
from gevent.ssl import SSLContext

from fakensqd.http_server import HttpPort, join_address, split_address
from tests.fakensqd.wire import request


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:4150", ("::1", 4150)), (":4150", ("", 4150))],
)
def test_addresses(text, address):
    assert split_address(text) == address
    assert join_address(*address) == text


@pytest.mark.parametrize("text", ["localhost", "localhost:", "localhost:x", "localhost:65536", ""])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(text)


def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [environ["wsgi.url_scheme"][-2:].encode()]


@pytest.fixture
def port():
    port = HttpPort("127.0.0.1:0")
    port.bind()
    port.serve(application)
    yield port
    port.stop()


def test_the_port_is_known_once_it_is_bound(port):
    assert HttpPort("127.0.0.1:0").port == 0
    assert port.port != 0
    assert port.address == f"127.0.0.1:{port.port}"
    assert request(port.address, "GET", "/") == "tp"


def test_stop_frees_the_port_and_start_takes_it_again(port):
    address = port.address
    port.stop()
    port.stop()
    with pytest.raises(ConnectionRefusedError):
        request(address, "GET", "/")

    port.bind()
    port.serve(application)

    assert request(address, "GET", "/") == "tp"


def test_a_port_that_is_bound_and_not_served_can_be_stopped():
    port = HttpPort("127.0.0.1:0")
    port.bind()
    port.stop()

    with pytest.raises(ConnectionRefusedError):
        request(port.address, "GET", "/")


def test_tls(server_context, client_context, capfd):
    port = HttpPort("127.0.0.1:0", server_context)
    port.bind()
    port.serve(application)
    try:
        assert request(port.address, "GET", "/", context=client_context) == "ps"
        with pytest.raises(ssl.SSLCertVerificationError):
            request(port.address, "GET", "/", context=SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(100)[:5] != b"HTTP/"
    finally:
        port.stop()

    assert capfd.readouterr().err == ""
