"""NsqdHTTPClient: what it asks for, by new and old names, and what it refuses before it asks."""

import pytest

from gnsq import NsqdHTTPClient
from gnsq.errors import NSQHttpError
from gnsq.nsqd.http import NewlineInMessage
from tests.kit.http_peer import http_peer, knowing, reply

T, TC = "topic=t", "topic=t&channel=c"

VERBS = ("create", "delete", "empty", "pause", "unpause")
# Call; method, path, query, body of its request.
CALLS = [
    (lambda c: c.publish("t", b"x"), ("POST", "/pub", T, b"x")),
    (lambda c: c.publish("t", bytearray(b"x")), ("POST", "/pub", T, b"x")),
    (lambda c: c.publish("t", memoryview(b"x")), ("POST", "/pub", T, b"x")),
    (lambda c: c.publish("t", b"x", 500), ("POST", "/pub", T + "&defer=500", b"x")),
    (lambda c: c.multipublish("t", [b"a", "b"]), ("POST", "/mpub", T, b"a\nb")),
    (
        lambda c: c.multipublish("t", (b for b in (b"a\n", "b")), binary=True),
        ("POST", "/mpub", T + "&binary=true", b"\0\0\0\2\0\0\0\2a\n\0\0\0\1b"),
    ),
    *[(lambda c, verb=verb: getattr(c, f"{verb}_topic")("t"), ("POST", f"/topic/{verb}", T, b"")) for verb in VERBS],
    *[
        (lambda c, verb=verb: getattr(c, f"{verb}_channel")("t", "c"), ("POST", f"/channel/{verb}", TC, b""))
        for verb in VERBS
    ],
    (lambda c: c.stats(), ("GET", "/stats", "format=json", b"")),
    (lambda c: c.stats(text=True), ("GET", "/stats", "format=text", b"")),
    (
        lambda c: c.stats("t", "c", include_clients=False, include_mem=True),
        ("GET", "/stats", f"format=json&{TC}&include_clients=false&include_mem=true", b""),
    ),
    (lambda c: c.config("log_level"), ("GET", "/config/log_level", "", b"")),
    (lambda c: c.set_config("log_level", "debug"), ("PUT", "/config/log_level", "", b"debug")),
    (lambda c: c.set_config("tcp_addresses", ["a:1"]), ("PUT", "/config/tcp_addresses", "", b'["a:1"]')),
    (lambda c: c.ping(), ("GET", "/ping", "", b"")),
    (lambda c: c.info(), ("GET", "/info", "", b"")),
]


def test_endpoints():
    with http_peer(lambda asked, sock: reply(b"answer")) as served, NsqdHTTPClient.from_url(served.address) as client:
        for call, expected in CALLS:
            assert call(client) == b"answer"
            asked = served.requests[-1]
            assert (asked.method, asked.path, asked.query, asked.body) == expected


def test_publish_may_have_a_timeout_of_its_own():
    with (
        http_peer(lambda asked, sock: sock.recv(1)) as served,
        NsqdHTTPClient.from_url(served.address) as client,
    ):
        for call in (
            lambda: client.publish("t", b"x", timeout=0.05),
            lambda: client.publish("t", b"x", 5, timeout=0.05),
            lambda: client.multipublish("t", [b"x"], timeout=0.05),
        ):
            with pytest.raises(NSQHttpError, match=r"within 0\.05 s"):
                call()


OLD_PATHS = [f"/{verb}_{kind}" for kind in ("topic", "channel") for verb in VERBS]


def test_old_server_gets_requests_by_old_names():
    with http_peer(knowing("/put", "/mput", *OLD_PATHS)) as served, NsqdHTTPClient.from_url(served.address) as client:
        client.publish("t", b"x")
        client.multipublish("t", [b"x", b"y"])
        for verb in VERBS:
            getattr(client, f"{verb}_topic")("t")
        for verb in VERBS:
            getattr(client, f"{verb}_channel")("t", "c")

    assert [asked.path for asked in served.requests] == ["/pub", "/put", "/mput", *OLD_PATHS]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        pytest.param(lambda c: c.publish("t", b"x", defer=5), "defer", id="defer"),
        pytest.param(lambda c: c.multipublish("t", [b"a\nb"], binary=True), "binary", id="binary"),
    ],
)
def test_old_server_gets_no_request_that_it_would_misunderstand(call, what):
    """/put would publish at once, and /mput might cut at newlines."""
    with http_peer(knowing("/put", "/mput")) as served, NsqdHTTPClient.from_url(served.address) as client:
        client.publish("t", b"before")
        with pytest.raises(NSQHttpError, match=rf"<404> NOT_FOUND \(too old for {what}\?\)"):
            call(client)

        assert [asked.body for asked in served.requests if asked.path in ("/put", "/mput")] == [b"before"]


REFUSALS = [
    (lambda c: c.publish("bad topic", b"x"), ValueError, "topic name 'bad topic'"),
    (lambda c: c.publish("t", b""), ValueError, "data is empty"),
    (lambda c: c.publish("t", 5), TypeError, "data must be bytes or str, not int"),
    (lambda c: c.publish("t", b"x", -1), ValueError, "defer -1 must be at least 0 milliseconds"),
    (lambda c: c.multipublish("t", 5), TypeError, "must be an iterable of bytes, not int"),
    (lambda c: c.multipublish("t", []), ValueError, "0 messages"),
    (lambda c: c.multipublish("t", ["a\nb"]), NewlineInMessage, "message 0 contains a newline"),
    (lambda c: c.create_channel("t", "c!"), ValueError, "channel name 'c!'"),
    (lambda c: c.config("../x"), ValueError, "name of an option"),
    (lambda c: c.set_config("log_level", ""), ValueError, "value is empty"),
    (lambda c: c.set_config("log_level", object()), TypeError, "not JSON serializable"),
]


def test_request_that_nsqd_would_refuse_is_not_sent():
    with http_peer(lambda asked, sock: reply()) as served, NsqdHTTPClient.from_url(served.address) as client:
        for call, error, words in REFUSALS:
            with pytest.raises(error, match=words):
                call(client)

        assert served.connections == 0
