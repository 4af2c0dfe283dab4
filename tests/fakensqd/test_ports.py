"""HTTP ports: bind, serve and stop, TLS, malformed requests, bodies that the application does not read."""

import contextlib
import ssl

import pytest
from gevent import socket
from gevent.ssl import SSLContext

from fakensqd.effects import HttpResponse
from fakensqd.ports import HttpPort
from tests.kit.wire import request


def application(request):
    """Read ten bytes of the body; answer with the path and these bytes."""
    return HttpResponse(200, request.path.encode() + request.read(10))


@contextlib.contextmanager
def serving(address, context=None):
    port = HttpPort(address, context)
    port.bind()
    port.serve(application)
    try:
        yield port
    finally:
        port.stop()


@pytest.fixture
def port():
    with serving("127.0.0.1:0") as port:
        yield port


def exchange(port, data):
    """Send, and read to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
        sock.sendall(data)
        return sock.makefile("rb").read()


def test_https_port_ends_connections_without_tls(server_context, client_context, capfd):
    with serving("127.0.0.1:0", server_context) as port:
        assert request(port.address, "GET", "/", context=client_context) == "/"
        with pytest.raises(ssl.SSLCertVerificationError):
            request(port.address, "GET", "/", context=SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        with contextlib.suppress(ConnectionResetError):
            assert exchange(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")[:5] != b"HTTP/"

    assert capfd.readouterr().err == ""


CHUNKED = b"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: "
UNREAD = [
    pytest.param(LENGTH + b"200000\r\n\r\n" + b"b" * 200_000, id="length"),
    pytest.param(CHUNKED + b"30d40\r\n%s\r\n0\r\n\r\n" % (b"b" * 200_000), id="chunks"),
]


@pytest.mark.parametrize("data", UNREAD)
def test_request_after_a_body_that_was_not_read_is_answered(port, data):
    answer = exchange(port, data + b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")

    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert b"\r\n\r\n/pbbbbbbbbbb" in answer
    assert answer.endswith(b"\r\n\r\n/last")


def test_unix_socket_is_served_and_removed(socket_folder):
    path = str(socket_folder / "http.sock")
    with serving(path) as port, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = sock.makefile("rb").read()

    assert answer.endswith(b"\r\n\r\n/")
    assert (port.address, port.port) == (path, -1)
    assert list(socket_folder.iterdir()) == []
