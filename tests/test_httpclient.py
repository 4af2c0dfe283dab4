"""HTTP that never blocks the hub, and says what went wrong."""

import gevent
import pytest

from gnsq.errors import NSQHttpError
from gnsq.httpclient import HTTPClient
from tests.helpers import peer, refused_port


def answering(*lines, body=b"", ending=b"\r\n\r\n"):
    """A peer that answers each request, when it has come to its ending, with this."""
    head = [b"HTTP/1.1 " + lines[0], *lines[1:], b"Content-Length: %d" % len(body), b"Connection: close"]

    def answer(sock):
        request = sock.recv(65536)
        while not request.endswith(ending):
            request += sock.recv(65536)
        requests.append(request)
        sock.sendall(b"\r\n".join(head) + b"\r\n\r\n" + body)

    requests: list[bytes] = []
    served = peer(answer)
    served.requests = requests
    return served


JSON = b"Content-Type: application/json; charset=utf-8"


def test_json_becomes_objects():
    with answering(b"200 OK", JSON, body=b'{"a": [1]}') as address:
        assert HTTPClient.from_url(address, port=80).request("GET", "/x") == {"a": [1]}


def test_anything_else_is_bytes():
    with answering(b"200 OK", b"Content-Type: text/plain", body=b"OK") as address:
        assert HTTPClient.from_url(f"http://{address}").request("GET", "x") == b"OK"


def test_old_servers_envelope_is_taken_off():
    body = b'{"status_code":200,"status_txt":"OK","data":{"topics":[]}}'
    with answering(b"200 OK", JSON, body=body) as address:
        assert HTTPClient.from_url(address).request("GET", "topics") == {"topics": []}


def test_parameters_and_body_are_sent():
    served = answering(b"200 OK", body=b"OK", ending=b"\x00body")
    with served as address:
        HTTPClient.from_url(address).request("POST", "pub", {"topic": "a#b", "defer": 5, "none": None}, b"\x00body")

    request = served.requests[0]
    assert request.startswith(b"POST /pub?topic=a%23b&defer=5 HTTP/1.1\r\n")
    assert b"User-Agent: gnsq/2.0.0.dev0\r\n" in request
    assert request.endswith(b"\x00body")


@pytest.mark.parametrize(
    ("status", "header", "body", "words"),
    [
        pytest.param(b"404 Not Found", JSON, b'{"message":"TOPIC_NOT_FOUND"}', "<404> TOPIC_NOT_FOUND", id="message"),
        pytest.param(b"500 Oops", JSON, b'{"status_txt":"INVALID"}', "<500> INVALID", id="old words"),
        pytest.param(b"502 Bad Gateway", b"Content-Type: text/html", b"<html>", "<502> Bad Gateway", id="no json"),
    ],
)
def test_other_status_is_an_error_with_the_servers_words(status, header, body, words):
    with answering(status, header, body=body) as address, pytest.raises(NSQHttpError, match=words) as caught:
        HTTPClient.from_url(address).request("GET", "x")

    assert caught.value.status == int(status[:3])
    assert address in str(caught.value)


def test_bad_json_is_an_error():
    with answering(b"200 OK", JSON, body=b"{") as address, pytest.raises(NSQHttpError, match="body is not JSON"):
        HTTPClient.from_url(address).request("GET", "x")


def test_nobody_listens():
    with pytest.raises(NSQHttpError, match="no answer") as caught:
        HTTPClient("127.0.0.1", refused_port()).request("GET", "x")

    assert caught.value.status is None


def test_silent_server_does_not_hold_up_others():
    ticks = []

    def tick():
        while True:
            ticks.append(1)
            gevent.sleep(0.005)

    ticker = gevent.spawn(tick)
    with peer(lambda sock: gevent.sleep(60)) as address, pytest.raises(NSQHttpError, match="no answer"):
        HTTPClient.from_url(address, timeout=0.2).request("GET", "x")
    ticker.kill()

    assert len(ticks) > 5


def test_errors_are_raised_and_not_printed(capfd):
    with pytest.raises(NSQHttpError):
        HTTPClient("127.0.0.1", refused_port()).request("GET", "x")

    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:1", "http://host:1/"),
        ("host:1", "http://host:1/"),
        ("host", "http://host:9/"),
        ("https://host:2/", "https://host:2/"),
    ],
)
def test_url_parts_have_defaults(url, address):
    client = HTTPClient.from_url(url, port=9) if ":" not in url else HTTPClient.from_url(url)

    assert client.address == address
    assert repr(client) == f"<HTTPClient {address}>"


@pytest.mark.parametrize("url", ["ftp://host", "http://host:port"])
def test_bad_url_is_refused(url):
    with pytest.raises(ValueError, match=r"scheme|[Pp]ort"):
        HTTPClient.from_url(url)


def test_close_drops_idle_connections():
    with answering(b"200 OK", body=b"OK") as address:
        client = HTTPClient.from_url(address)
        client.request("GET", "x")
        client.close()

    assert client._idle == []
