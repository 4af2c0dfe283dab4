"""An HTTP port: start and stop, what is no HTTP, TLS."""

import contextlib
import ssl

import pytest
from gevent import socket
from gevent.ssl import SSLContext

from fakensqd.http.server import HttpPort
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


# --- heads and bodies -------------------------------------------------------------------------------------------------


def reading(environ, start_response):
    """Read ten bytes of the body, say how the path and query looked."""
    data = environ["wsgi.input"].read(10)
    answer = f"{environ['PATH_INFO']} {len(environ['QUERY_STRING'])} {data.decode()}".encode()
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]


@pytest.fixture
def reader(port):
    port.stop()
    port.bind()
    port.serve(reading)
    return port


def exchange(port, data):
    """Send, and read to the end."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
        sock.sendall(data)
        return sock.makefile("rb").read()


def chunks(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


HEAD = b"POST /p HTTP/1.1\r\nHost: x\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"GET http://x:1/p HTTP/1.1\r\nHost: x\r\n\r\n", b"/p 0 ", id="as to a proxy"),
        pytest.param(b"GET http://x?a HTTP/1.1\r\nHost: x\r\n\r\n", b"/ 1 ", id="as to a proxy, without a path"),
        pytest.param(b"GET /p?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"/p 100000 ", id="long URL"),
        pytest.param(HEAD + b"A: " + b"a" * 100_000 + b"\r\n\r\n", b"/p 0 ", id="long header"),
        pytest.param(HEAD + b"A: a\r\n" * 500 + b"\r\n", b"/p 0 ", id="many headers"),
        pytest.param(HEAD + b"Content-Length: 20\r\n\r\n" + b"b" * 20, b"/p 0 bbbbbbbbbb", id="a body half read"),
        pytest.param(CHUNKED + chunks(b"bb", b"b" * 1000), b"/p 0 bbbbbbbbbb", id="chunks half read"),
    ],
)
def test_another_request_may_come_behind(reader, data, said):
    answer = exchange(reader, data + LAST)

    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert b"\r\n\r\n" + said + b"HTTP/1.1" in answer
    # Asked for by the last.
    assert answer.count(b"Connection: close\r\n") == 1
    assert answer.endswith(b"\r\n\r\n/last 0 ")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(HEAD + b"Content-Length: 300000\r\n\r\n" + b"b" * 300_000, id="a large body"),
        pytest.param(CHUNKED + chunks(b"b" * 300_000), id="large chunks"),
        pytest.param(HEAD + b"Content-Length: 20\r\nExpect: 100-continue\r\n\r\n" + b"b" * 20, id="Expect"),
        pytest.param(CHUNKED + b"a\r\nbbbbbbbbbb\r\nzz\r\n", id="no chunk"),
    ],
)
def test_who_sends_much_that_nobody_reads_is_hung_up_on_and_can_read_why(reader, data):
    answer = exchange(reader, data + LAST)

    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 1
    assert b"Connection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\n/p 0 bbbbbbbbbb")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(HEAD + b"A: " + b"a" * 1_100_000 + b"\r\n\r\n", b"431 Request Header", id="a header"),
        pytest.param(b"GET /" + b"a" * 1_100_000, b"431 Request Header", id="a URL"),
        pytest.param(HEAD + b"Expect: foo\r\n\r\n", b"417 Expectation Failed", id="an expectation"),
        pytest.param(b"A" * 9000 + b"\r\n\r\n", b"400 Bad Request", id="no request"),
        pytest.param(b"GET /% HTTP/1.1\r\nHost: x\r\n\r\n", b"400 Bad Request", id="an escape"),
        pytest.param(HEAD + b"Content-Length: %d\r\n\r\n" % 2**63, b"400 Bad Request", id="a length"),
    ],
)
def test_what_is_too_much_is_told_so(reader, data, status):
    answer = exchange(reader, data + LAST)

    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1") == 1
    assert b"Connection: close\r\n" in answer


def test_a_request_in_1_0_is_told_how_it_goes_on(reader):
    answer = exchange(reader, b"GET /p HTTP/1.0\r\n\r\n")

    assert answer.count(b"Connection: close\r\n") == 1
