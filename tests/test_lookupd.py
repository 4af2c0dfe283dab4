"""LookupdClient: requests by new and old paths, and answers with and without an envelope."""

import json

import pytest

from gnsq import LookupdClient
from gnsq.errors import NSQHttpError
from tests.kit.http_peer import JSON, OLD_404, http_peer, knowing, reply, wrapped

T, TC = "topic=t", "topic=t&channel=c"
DATA = {"channels": ["c"], "producers": [{"address": "old-host", "tcp_port": 4150, "http_port": 4151}]}

ASKS = [
    (lambda c: c.lookup("t"), ("GET", "/lookup", T)),
    (lambda c: c.topics(), ("GET", "/topics", "")),
    (lambda c: c.channels("t"), ("GET", "/channels", T)),
    (lambda c: c.nodes(), ("GET", "/nodes", "")),
    (lambda c: c.info(), ("GET", "/info", "")),
    (lambda c: c.debug(), ("GET", "/debug", "")),
]
NODE = T + "&node=h%3A4151"
# Call, query, old path.
TELLS = [
    (lambda c: c.create_topic("t"), T, "/create_topic"),
    (lambda c: c.delete_topic("t"), T, "/delete_topic"),
    (lambda c: c.create_channel("t", "c"), TC, "/create_channel"),
    (lambda c: c.delete_channel("t", "c"), TC, "/delete_channel"),
    (lambda c: c.tombstone_topic("t", "h:4151"), NODE, "/tombstone_topic_producer"),
]


@pytest.mark.parametrize("old", [False, True], ids=["bare", "wrapped"])
def test_queries_are_answered_with_and_without_an_envelope(old):
    answer = wrapped(DATA) if old else reply(json.dumps(DATA).encode(), "200 OK", JSON)
    with http_peer(lambda asked, sock: answer) as served, LookupdClient.from_url(served.address) as client:
        assert [call(client) for call, _ in ASKS] == [DATA] * len(ASKS)

    assert [(asked.method, asked.path, asked.query) for asked in served.requests] == [expected for _, expected in ASKS]


def test_commands_to_old_servers_use_the_old_paths():
    known = knowing(*(path for _, _, path in TELLS), answer=wrapped(None))
    with http_peer(known) as served, LookupdClient.from_url(served.address) as client:
        assert [call(client) for call, _, _ in TELLS] == [b""] * len(TELLS)

    assert [(asked.line, asked.query, asked.body) for asked in served.requests] == [
        ("POST /topic/create", T, b""),
        *((f"POST {path}", query, b"") for _, query, path in TELLS),
    ]


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_unknown_topic_of_an_old_server_is_404(status):
    """The server calls the argument invalid."""
    answer = wrapped(None, 500, "INVALID_ARG_TOPIC", status)
    with http_peer(lambda asked, sock: answer) as served, LookupdClient.from_url(served.address) as client:
        with pytest.raises(NSQHttpError, match="no nsqd has that topic") as caught:
            client.lookup("t")

        assert caught.value.status == 404


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        pytest.param(wrapped(None, 500, "INVALID_REQUEST"), 500, "http error <500> INVALID_REQUEST", id="inside 200"),
        pytest.param(
            reply(b'{"message":"NOT_FOUND"}', "404 Not Found", JSON), 404, "is it nsqd's HTTP port .4151.", id="nsqd"
        ),
        pytest.param(OLD_404, 404, "in place of nsqlookupd's .4161.", id="old nsqd"),
        pytest.param(reply(b"404 page not found", "404 Not Found"), 404, "is it nsqd's HTTP port", id="oldest nsqd"),
        pytest.param(reply(b"OK"), 200, "answer is not nsqlookupd's: b'OK'|answer is not nsqlookupd's", id="text"),
        pytest.param(wrapped(None), 200, "answer is not nsqlookupd's", id="nothing"),
    ],
)
def test_errors_have_a_hint(answer, status, words):
    with http_peer(lambda asked, sock: answer) as served, LookupdClient.from_url(served.address) as client:
        with pytest.raises(NSQHttpError, match=words) as caught:
            client.lookup("t")

        assert caught.value.status == status


def test_invalid_arguments_are_refused_before_the_request():
    with http_peer(lambda asked, sock: reply()) as served, LookupdClient.from_url(served.address) as client:
        for node in ("host", "host:0", "host:x", ":1", "a b:1"):
            with pytest.raises(ValueError, match=f"node '{node}' must be host:port"):
                client.tombstone_topic("t", node)
        with pytest.raises(TypeError, match="node must be a str"):
            client.tombstone_topic("t", 4151)
        with pytest.raises(ValueError, match="topic name '\\*'"):
            client.lookup("*")
        with pytest.raises(ValueError, match="channel name 'c!'"):
            client.create_channel("t", "c!")

        assert served.connections == 0
