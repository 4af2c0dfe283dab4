"""An HTTP port: start and stop, what is no HTTP, TLS."""

import contextlib
import ssl

import pytest
from gevent import socket
from gevent.ssl import SSLContext

from fakensqd.http_server import HttpPort
from tests.fakensqd.wire import request


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
            assert sock.recv(100).startswith(b"HTTP/1.0 400 Bad Request\r\n")
            assert sock.recv(100) == b""
        with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
            sock.sendall(b"  V2NOP\n")
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(100)[:5] != b"HTTP/"
    finally:
        port.stop()

    assert capfd.readouterr().err == ""


NO_HTTP = [
    b"  V2\r\n\r\n",
    b"\x00\x01\n",
    b"GET /ping\r\n\r\n",
    b"GET /p ing HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /ping SPDY/1\r\n\r\n",
]


@pytest.mark.parametrize("data", NO_HTTP)
def test_what_is_no_http_is_told_so(port, data, capfd):
    with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
        sock.sendall(data)
        answer = sock.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\n\r\n400 Bad Request")
    assert capfd.readouterr().err == ""


def test_a_unix_socket(tmp_path):
    path = str(tmp_path / "http.sock")
    port = HttpPort(path)
    port.bind()
    port.serve(application)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = sock.makefile("rb").read()
    port.stop()

    assert answer.endswith(b"\r\n\r\ntp")
    assert (port.address, port.port) == (path, -1)
    assert list(tmp_path.iterdir()) == []


def test_no_port_at_all():
    port = HttpPort("")
    port.bind()
    port.serve(application)
    port.stop()

    assert (port.address, port.port) == ("", 0)
