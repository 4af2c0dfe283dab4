"""Proxies: plain, TLS and SOCKS, for http and https, without blocking other greenlets."""

import contextlib
import ssl

import gevent
import gevent.ssl
import pytest
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer

from gnsq.errors import NSQHttpError
from gnsq.httpclient import HTTPClient
from tests.helpers import refused_port
from tests.http.peer import http_peer, reply
from tests.http.test_https import Authority


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"), "test-ca")


@pytest.fixture(scope="module")
def server_context(ca):
    context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ca.issue("server"))
    return context


def pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def splice(sock, upstream):
    with upstream:
        back = gevent.spawn(pump, upstream, sock)
        pump(sock, upstream)
        back.join()


@contextlib.contextmanager
def serving(handle, **options):
    """Serve with a function, over TLS if options have an ssl_context; returns the address."""
    server = StreamServer(("127.0.0.1", 0), handle, **options)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=0)


def http_proxy(seen):
    """A proxy that opens tunnels, and responds to other requests itself."""

    def handle(sock, address):
        with sock:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += sock.recv(1)
            method, target, _ = head.decode().split(" ", 2)
            seen.append(f"{method} {target}")
            if method != "CONNECT":
                sock.sendall(reply(b"from the proxy"))
                return
            host, _, port = target.rpartition(":")
            upstream = socket.create_connection((host, int(port)))
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            splice(sock, upstream)

    return handle


def ticking(answer):
    """A response that is sent after another greenlet has run ten times."""

    def wait_and_answer(asked, sock):
        ticked = Event()

        def tick():
            for _ in range(10):
                gevent.sleep(1e-6)
            ticked.set()

        gevent.spawn(tick)
        assert ticked.wait(10)
        return answer

    return wait_and_answer


@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
def test_http_goes_through_a_proxy(ca, server_context, monkeypatch, proxy_scheme):
    monkeypatch.setenv("SSL_CERT_FILE", ca.path)
    seen = []
    tls = {"ssl_context": server_context} if proxy_scheme == "https" else {}
    with (
        serving(http_proxy(seen), **tls) as address,
        HTTPClient("nsqd.invalid", 4151, proxies={"http": f"{proxy_scheme}://{address}"}) as client,
    ):
        assert client.request("GET", "ping") == b"from the proxy"

    assert seen == ["GET http://nsqd.invalid:4151/ping"]


@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
def test_https_goes_through_a_tunnel_and_its_connection_is_kept(ca, server_context, monkeypatch, proxy_scheme):
    monkeypatch.setenv("SSL_CERT_FILE", ca.path)
    seen = []
    tls = {"ssl_context": server_context} if proxy_scheme == "https" else {}
    with (
        serving(http_proxy(seen), **tls) as address,
        http_peer(ticking(reply()), ssl_context=server_context) as served,
        HTTPClient.from_url(
            f"https://{served.address}", ca_certs=ca.path, proxies={"https": f"{proxy_scheme}://{address}"}
        ) as client,
    ):
        assert [client.request("GET", "ping") for _ in range(2)] == [b"OK", b"OK"]

    assert seen == [f"CONNECT {served.address}"]


def test_certificate_of_a_proxy_is_checked(server_context):
    with serving(http_proxy([]), ssl_context=server_context) as address:
        client = HTTPClient("nsqd.invalid", 4151, proxies={"http": f"https://{address}"}, retries=0)
        with pytest.raises(NSQHttpError, match="not trusted"):
            client.request("GET", "ping")


def socks_proxy(seen):
    """A SOCKS5 proxy without authentication, for names."""

    def handle(sock, address):
        with sock, sock.makefile("rb") as stream:
            stream.read(stream.read(2)[1])
            sock.sendall(b"\x05\x00")
            assert stream.read(4) == b"\x05\x01\x00\x03"
            host = stream.read(stream.read(1)[0]).decode()
            port = int.from_bytes(stream.read(2), "big")
            seen.append(f"{host}:{port}")
            gevent.sleep(1e-6)
            upstream = socket.create_connection(("127.0.0.1", port))
            sock.sendall(b"\x05\x00\x00\x01" + bytes(6))
            splice(sock, upstream)

    return handle


def test_socks_proxy_is_used():
    pytest.importorskip("socks")
    seen = []
    with serving(socks_proxy(seen)) as address, http_peer(ticking(reply())) as served:
        port = int(served.address.rpartition(":")[2])
        with HTTPClient("nsqd.invalid", port, proxies={"http": f"socks5h://{address}"}) as client:
            assert [client.request("GET", "ping") for _ in range(2)] == [b"OK", b"OK"]

    assert seen == [f"nsqd.invalid:{port}"]


def test_socks_proxy_that_is_down_is_an_error_and_nothing_is_printed(capfd):
    pytest.importorskip("socks")
    client = HTTPClient("nsqd.invalid", 1, proxies={"http": f"socks5h://127.0.0.1:{refused_port()}"}, retries=0)

    with pytest.raises(NSQHttpError, match="can't connect"):
        client.request("GET", "ping")

    assert capfd.readouterr().err == ""
