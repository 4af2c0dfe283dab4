"""Paths of requests: redirects are not followed; the old names of endpoints."""

import pytest

from gnsq.errors import NSQHttpError
from gnsq.httpclient import HTTPClient
from tests.kit.http_peer import http_peer, reply


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

OLD_404 = reply(b'{"status_code":404,"status_txt":"NOT_FOUND","data":null}', "404 Not Found", "application/json")


def knowing(*paths, unknown=OLD_404, answer=None):
    """A server that knows only these paths."""
    return lambda asked, sock: (answer or reply()) if asked.path in paths else unknown


@pytest.mark.parametrize(
    "unknown",
    [OLD_404, reply(b"404 page not found\n", "404 Not Found"), reply(b"", "405 Method Not Allowed")],
    ids=["old", "Go's", "405"],
)
def test_old_path_is_learned_once(unknown):
    with http_peer(knowing("/put", "/mput", unknown=unknown)) as served:
        client = HTTPClient.from_url(served.address)
        for _ in range(3):
            assert client.request("POST", "pub", body=b"x", old_path="put") == b"OK"
        assert client.request("POST", "mpub", body=b"x", old_path="mput") == b"OK"

    assert served.lines == ["POST /pub", "POST /put", "POST /put", "POST /put", "POST /mput"]


def test_new_path_is_learned_again_after_an_upgrade():
    known = ["/put"]
    with http_peer(lambda asked, sock: knowing(*known)(asked, sock)) as served:
        client = HTTPClient.from_url(served.address)
        client.request("POST", "pub", body=b"x", old_path="put")
        known[:] = ["/pub"]
        for _ in range(2):
            client.request("POST", "pub", body=b"x", old_path="put")

    assert served.lines == ["POST /pub", "POST /put", "POST /put", "POST /pub", "POST /pub"]


def test_server_with_old_and_new_paths_is_supported():
    """nsqd 0.2.22 knew both /pub and /put, but only /create_topic."""
    with http_peer(knowing("/pub", "/put", "/create_topic", "/delete_topic")) as served:
        client = HTTPClient.from_url(served.address)
        client.request("POST", "pub", old_path="put")
        client.request("POST", "topic/create", old_path="create_topic")
        client.request("POST", "topic/delete", old_path="delete_topic")
        client.request("POST", "pub", old_path="put")

    assert [line.split("/", 1)[1] for line in served.lines] == [
        *["pub", "topic/create", "create_topic", "delete_topic", "put"]
    ]


def test_error_of_the_first_path_is_raised_if_both_are_unknown():
    with http_peer(knowing()) as served, pytest.raises(NSQHttpError, match=r"/pub: http error <404> NOT_FOUND"):
        HTTPClient.from_url(served.address).request("POST", "pub", old_path="put")

    assert served.lines == ["POST /pub", "POST /put"]


def test_publish_is_not_sent_to_the_old_path_if_the_new_one_may_have_taken_it():
    with http_peer(lambda asked, sock: None) as served, pytest.raises(NSQHttpError, match="no response"):
        HTTPClient.from_url(served.address).request("POST", "pub", body=b"x", old_path="put")

    assert served.lines == ["POST /pub"]


def test_old_path_is_remembered_after_an_error_of_its_endpoint():
    refused = reply(b'{"status_code":500,"status_txt":"MSG_EMPTY","data":null}', "500 Oops", "application/json")
    with http_peer(knowing("/put", answer=refused)) as served:
        client = HTTPClient.from_url(served.address)
        for _ in range(2):
            with pytest.raises(NSQHttpError, match="<500> MSG_EMPTY"):
                client.request("POST", "pub", old_path="put")

    assert served.lines == ["POST /pub", "POST /put", "POST /put"]
