"""Paths of requests: redirects are not followed; the old names of endpoints."""

import pytest

from gnsq.errors import NSQHttpError
from gnsq.httpclient import HTTPClient
from tests.kit.http_peer import OLD_404, http_peer, knowing, reply, wrapped


@pytest.mark.parametrize("location", ["/right?a=1", "http://elsewhere.invalid/x", "http://[/x"])
def test_redirect_is_not_followed(location):
    """Another server must not get messages and passwords."""
    answer = reply(b"", "301 Elsewhere", "text/html", f"Location: {location}")
    with http_peer(lambda asked, sock: answer) as served:
        client = HTTPClient.from_url(f"http://user:secret@{served.address}")
        with pytest.raises(NSQHttpError, match=r"<301> Elsewhere \(redirects to '.*': give the client") as caught:
            client.request("POST", "x", body=b"x")

    assert caught.value.status == 301
    assert served.lines == ["POST /x"]


# --- old servers ------------------------------------------------------------------------------------------------------

# The names of the endpoints, and the old ones.
OLD = {"pub": "put", "mpub": "mput", "topic/create": "create_topic", "topic/delete": "delete_topic"}


@pytest.mark.parametrize(
    ("known", "asked", "sent"),
    [
        pytest.param("put mput", "pub pub mpub", "pub put put mput", id="an old server"),
        pytest.param(
            # nsqd 0.2.22
            "pub put create_topic delete_topic",
            "pub topic/create topic/delete pub",
            "pub topic/create create_topic delete_topic put",
            id="old and new paths",
        ),
    ],
)
@pytest.mark.parametrize(
    "unknown",
    [OLD_404, reply(b"404 page not found\n", "404 Not Found"), reply(b"", "405 Method Not Allowed")],
    ids=["old", "Go's", "405"],
)
def test_old_path_is_learned_once(known, asked, sent, unknown):
    with http_peer(knowing(*(f"/{path}" for path in known.split()), unknown=unknown)) as served:
        client = HTTPClient.from_url(served.address)
        for path in asked.split():
            assert client.request("POST", path, old_path=OLD[path]) == b"OK"

    assert served.lines == [f"POST /{path}" for path in sent.split()]


def test_new_path_is_learned_again_after_an_upgrade():
    known = ["/put"]
    with http_peer(lambda asked, sock: knowing(*known)(asked, sock)) as served:
        client = HTTPClient.from_url(served.address)
        client.request("POST", "pub", body=b"x", old_path="put")
        known[:] = ["/pub"]
        for _ in range(2):
            client.request("POST", "pub", body=b"x", old_path="put")

    assert served.lines == ["POST /pub", "POST /put", "POST /put", "POST /pub", "POST /pub"]


def test_error_of_the_first_path_is_raised_if_both_are_unknown():
    with http_peer(knowing()) as served, pytest.raises(NSQHttpError, match=r"/pub: http error <404> NOT_FOUND"):
        HTTPClient.from_url(served.address).request("POST", "pub", old_path="put")

    assert served.lines == ["POST /pub", "POST /put"]


def test_publish_is_not_sent_to_the_old_path_if_the_new_one_may_have_taken_it():
    with http_peer(lambda asked, sock: None) as served, pytest.raises(NSQHttpError, match="no response"):
        HTTPClient.from_url(served.address).request("POST", "pub", body=b"x", old_path="put")

    assert served.lines == ["POST /pub"]


def test_old_path_is_remembered_after_an_error_of_its_endpoint():
    with http_peer(knowing("/put", answer=wrapped(None, 500, "MSG_EMPTY", "500 Oops"))) as served:
        client = HTTPClient.from_url(served.address)
        for _ in range(2):
            with pytest.raises(NSQHttpError, match="<500> MSG_EMPTY"):
                client.request("POST", "pub", old_path="put")

    assert served.lines == ["POST /pub", "POST /put", "POST /put"]
