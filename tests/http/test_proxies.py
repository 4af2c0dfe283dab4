"""HTTP proxies, for http and https, without blocking other greenlets."""

import contextlib
import ssl

import gevent
import gevent.ssl
import pytest
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer

from gnsq.errors import NSQHttpUnreachable
from gnsq.httpclient import HTTPClient
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
def serving(handle):
    """Serve with a function; returns the address."""
    server = StreamServer(("127.0.0.1", 0), handle)
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


def test_http_goes_through_a_proxy():
    seen = []
    with (
        serving(http_proxy(seen)) as address,
        HTTPClient("nsqd.invalid", 4151, proxies={"http": f"http://{address}"}) as client,
    ):
        assert client.request("GET", "ping") == b"from the proxy"

    assert seen == ["GET http://nsqd.invalid:4151/ping"]


def test_https_goes_through_a_tunnel_and_its_connection_is_kept(ca, server_context):
    seen = []
    with (
        serving(http_proxy(seen)) as address,
        http_peer(ticking(reply()), ssl_context=server_context) as served,
        HTTPClient.from_url(
            f"https://{served.address}", ca_certs=ca.path, proxies={"https": f"http://{address}"}
        ) as client,
    ):
        assert [client.request("GET", "ping") for _ in range(2)] == [b"OK", b"OK"]

    assert seen == [f"CONNECT {served.address}"]


def test_nothing_was_sent_if_the_proxy_opens_no_tunnel():
    with (
        http_peer(lambda asked, sock: reply(b"", "403 Forbidden")) as proxy,
        HTTPClient.from_url(
            "https://nsqd.invalid:1", proxies={"https": f"http://{proxy.address}"}, retries=0
        ) as client,
        pytest.raises(NSQHttpUnreachable, match="can't connect: Tunnel connection failed: 403 Forbidden"),
    ):
        client.request("POST", "pub", body=b"1")
