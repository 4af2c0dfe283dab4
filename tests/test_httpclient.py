"""HTTPClient: URLs, requests, results, limits, and no secrets in texts."""

import base64
import inspect

import pytest

from gnsq import LookupdClient, NsqdHTTPClient
from gnsq.errors import NSQHttpError
from gnsq.httpclient import HTTPClient
from tests.kit import refused_port
from tests.kit.http_peer import http_peer, reply


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:1", "http://host:1/"),
        ("host:1", "http://host:1/"),
        ("host", "http://host:9/"),
        ("https://host:2/", "https://host:2/"),
        ("HTTP://HOST:2", "http://host:2/"),
        ("[::1]:2", "http://[::1]:2/"),
        ("http://host:2/nsq/one/", "http://host:2/nsq/one/"),
        ("http://user:secret@host:2", "http://host:2/"),
        ("http://host:2/nsq?token=secret", "http://host:2/nsq/"),
        ("host:2?token=secret", "http://host:2/"),
    ],
)
def test_url_parts_have_defaults(url, address):
    client = HTTPClient.from_url(url, port=9) if ":" not in url else HTTPClient.from_url(url)

    assert client.address == address
    assert repr(client) == f"<HTTPClient {address}>"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host:1", "'ftp://host:1': scheme must be http or https"),
        ("http://host:port", "'http://host:port': port must be a number"),
        ("http://host:0", "port '0' of address 'host:0' is not a number from 1 to 65535"),
        ("http://[::1", "IPv6 stands in brackets"),
        ("http://host:1/?a b", "query (not shown: it may be secret) must be as in a URL"),
        ("http://host:1/#x", "must not have a fragment"),
        ("http://ho st:1", "host must be a name"),
    ],
)
def test_bad_url_is_refused(url, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the words are compared below
        HTTPClient.from_url(url)

    assert words in str(caught.value)


# --- passwords --------------------------------------------------------------------------------------------------------

BASIC = "Basic " + base64.b64encode(b"us er:s3cr@t").decode()


@pytest.mark.parametrize(
    ("prefix", "options", "sent"),
    [
        ("us%20er:s3cr%40t@", {}, BASIC),
        ("", {"auth": ("us er", "s3cr@t")}, BASIC),
        ("", {"auth": "Bearer s3cr@t"}, "Bearer s3cr@t"),
        ("", {"headers": {"authorization": "Bearer s3cr@t"}}, "Bearer s3cr@t"),
    ],
    ids=["url", "pair", "header", "headers"],
)
def test_authorization_is_sent_and_not_shown(prefix, options, sent):
    with http_peer(lambda asked, sock: reply(b"", "401 Unauthorized")) as served:
        client = HTTPClient.from_url(f"http://{prefix}{served.address}", **options)
        with pytest.raises(NSQHttpError) as caught:
            client.request("GET", "x")

        assert served.requests[0].headers["authorization"] == sent
        for text in (repr(client), client.address, str(caught.value), repr(caught.value), repr(client.options)):
            assert "s3cr" not in text


def test_proxies_and_passwords_of_the_environment_are_ignored(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{refused_port()}")
    with http_peer(lambda asked, sock: reply()) as served:
        assert HTTPClient.from_url(served.address).request("GET", "x") == b"OK"

    assert "authorization" not in served.requests[0].headers


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_parameters_and_headers_are_sent():
    with http_peer(lambda asked, sock: reply()) as served:
        client = HTTPClient.from_url(served.address, useragent="me/1", headers={"X-A": "b"})
        client.request("POST", "pub", {"topic": "a#b", "defer": 5, "none": None}, b"\x00body")

    [asked] = served.requests
    headers = asked.headers
    assert (asked.line, asked.query, asked.body) == ("POST /pub", "topic=a%23b&defer=5", b"\x00body")
    assert {name: headers.get(name) for name in ("user-agent", "x-a", "content-length", "accept-encoding")} == {
        "user-agent": "me/1",
        "x-a": "b",
        "content-length": "5",
        "accept-encoding": "identity",
    }
    assert headers["accept"] == "application/vnd.nsq; version=1.0"


def test_path_of_a_url_is_the_prefix_of_each_endpoint_and_its_query_is_added_to_that_of_each_request():
    with http_peer(lambda asked, sock: reply()) as served:
        client = HTTPClient.from_url(f"http://{served.address}/nsq/one?token=a%20b")
        client.request("GET", "/ping", {"topic": "t"})
        client.request("GET", "ping")

    assert [(asked.line, asked.query) for asked in served.requests] == [
        ("GET /nsq/one/ping", "topic=t&token=a%20b"),
        ("GET /nsq/one/ping", "token=a%20b"),
    ]


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply(b"x" * 1001), id="announced"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1f5\r\n" + b"x" * 501 + b"\r\n" + b"1f5\r\n"
            b"" + b"x" * 501 + b"\r\n0\r\n\r\n",
            id="in chunks",
        ),
    ],
)
def test_response_above_the_limit_is_refused(answer):
    def answered(asked, sock):
        sock.sendall(answer)

    with http_peer(answered) as served, pytest.raises(NSQHttpError, match="exceeds max_response_size 1000") as caught:
        HTTPClient.from_url(served.address, max_response_size=1000).request("GET", "x")

    assert caught.value.status == 200


def test_response_with_an_encoding_is_refused():
    answer = reply(b"\x1f\x8b", "200 OK", "text/plain", "Content-Encoding: gzip")
    with http_peer(lambda asked, sock: answer) as served, pytest.raises(NSQHttpError, match="has the encoding 'gzip'"):
        HTTPClient.from_url(served.address).request("GET", "x")


# --- the constructor --------------------------------------------------------------------------------------------------


def test_defaults_of_1_0():
    assert (NsqdHTTPClient().address, LookupdClient().address) == ("http://localhost:4151/", "http://localhost:4161/")
    assert NsqdHTTPClient("h", 1, "me/1").useragent == "me/1"
    assert list(inspect.signature(HTTPClient).parameters)[:3] == ["host", "port", "useragent"]
    client = HTTPClient("[::1]", 1)
    assert (client.scheme, client.host, client.port, client.address) == ("http", "::1", 1, "http://[::1]:1/")
    with pytest.raises(ValueError, match="scheme 'ftp' must be"):
        HTTPClient("h", 80, scheme="ftp")
