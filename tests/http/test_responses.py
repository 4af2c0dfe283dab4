"""Results and errors from the responses of servers."""

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.errors import NSQHttpError
from gnsq.http.responses import Response, is_unknown_path, parse_result, shown
from tests.strategies import json_values

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html"


def result(status, content_type, body, reason="Reason"):
    return parse_result(Response(status, reason, content_type, body))


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        pytest.param(TEXT, b"OK", b"OK", id="text"),
        pytest.param("", b"", b"", id="empty"),
        pytest.param(JSON, b'{"topics":[]}', {"topics": []}, id="bare"),
        pytest.param("Application/JSON", b"[1]", [1], id="type in capitals, a list"),
        pytest.param(JSON, b'{"status_code":200,"status_txt":"OK","data":{"a":1}}', {"a": 1}, id="envelope"),
        pytest.param(JSON, b'{"status_code":200,"status_txt":"OK","data":null}', b"", id="envelope of nothing"),
        pytest.param(JSON, b'{"status_code":200,"status_txt":"OK"}', b"", id="envelope without data"),
        pytest.param(JSON, b'{"status_code":200,"status_txt":"OK","data":"OK"}', b"OK", id="envelope of text"),
        pytest.param(JSON, b'{"status_code":200,"data":[]}', [], id="envelope without words"),
        pytest.param(JSON, b'{"status_code":500}', {"status_code": 500}, id="no envelope"),
    ],
)
def test_response_is_parsed_by_its_content_type(content_type, body, expected):
    assert result(200, content_type, body) == expected


@pytest.mark.parametrize(
    ("status", "content_type", "body", "text"),
    [
        pytest.param(404, JSON, b'{"message":"TOPIC_NOT_FOUND"}', "<404> TOPIC_NOT_FOUND (the topic does", id="topic"),
        pytest.param(413, JSON, b'{"message":"MSG_TOO_BIG"}', "MSG_TOO_BIG (a message is longer than", id="message"),
        pytest.param(413, JSON, b'{"message":"BODY_TOO_BIG"}', "--max-body-size in one request", id="body"),
        pytest.param(413, HTML, b"<html>", "<413> Reason (a message is longer than nsqd's --max-msg-size", id="proxy"),
        pytest.param(
            403, JSON, b'{"message": "TLS_REQUIRED", "https_port": 4152}', "(use https and port 4152)", id="tls port"
        ),
        pytest.param(400, JSON, b'{"message":"INVALID_DEFER"}', "--max-req-timeout)", id="defer"),
        pytest.param(500, JSON, b'{"status_code":500,"status_txt":"INVALID_TOPIC"}', "<500> INVALID_TOPIC", id="old"),
        pytest.param(500, TEXT, b"NOK - disk full\n", "http error <500> NOK - disk full", id="ping"),
        pytest.param(400, "", b"Client sent an HTTP request to an HTTPS server.\n", "(use https)", id="Go's TLS port"),
        pytest.param(503, JSON, b'{"message":"EXITING"}', "down, or could not write to its disk)", id="exiting"),
        pytest.param(500, JSON, b"{", "http error <500> Reason", id="broken json"),
        pytest.param(500, JSON, b"[" * 100_000, "http error <500> Reason", id="deep json"),
        pytest.param(500, TEXT, b"a\r\nERROR b\x1b[0m", "<500> a  ERROR b [0m", id="no lines of its own"),
        pytest.param(500, JSON, b'{"message":{"a":1}}', "<500> {'a': 1}", id="message is not a text"),
        pytest.param(204, "", b"", "http error <204> Reason", id="204"),
        pytest.param(301, HTML, b"", "http error <301> Reason", id="redirect to nowhere"),
    ],
)
def test_any_status_but_200_is_an_error(status, content_type, body, text):
    with pytest.raises(NSQHttpError) as caught:
        result(status, content_type, body)

    assert text in str(caught.value)
    assert str(caught.value).startswith("http error <")
    assert (caught.value.status, caught.value.body) == (status, body)


def test_error_inside_of_an_old_servers_200_is_an_error():
    with pytest.raises(NSQHttpError, match="http error <500> INVALID_ARG_TOPIC") as caught:
        result(200, JSON, b'{"status_code":500,"status_txt":"INVALID_ARG_TOPIC","data":null}')

    assert caught.value.status == 500


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 100_000, rb'["\ud800"]', rb'["\uDc00"]', rb'{"\udfff":1}'],
    ids=["empty", "cut", "binary", "deep", "half of a pair", "second half", "in a key"],
)
def test_body_that_is_declared_as_json_and_is_not_is_an_error(body):
    with pytest.raises(NSQHttpError, match="body is not JSON") as caught:
        result(200, JSON, body)

    assert (caught.value.status, caught.value.body) == (200, body)


@pytest.mark.parametrize("status", [200, 500])
def test_long_numbers_are_refused(status):
    """Python itself limits the digits: to convert them takes time with the square of their number."""
    with pytest.raises(NSQHttpError) as caught:
        result(status, JSON, b'{"message":-%s,"https_port":1}' % (b"1" * 100_000))

    assert len(str(caught.value)) < 500
    assert ("body is not JSON" in str(caught.value)) is (status == 200)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("a\n\ud800\x1b", r"'a\n\ud800\x1b'", id="unprintable"),
        pytest.param([0] * 1_000_000, "[0, 0, 0, 0, 0, 0, ...]", id="long"),
    ],
)
def test_values_are_shown_printable(value, text):
    assert shown(value) == text


def test_answer_of_many_lists_is_parsed_without_collecting_garbage():
    """Collections would block the hub for ten times as long."""
    collections = []
    body = b"[" + b"[]," * 100_000 + b"1]"
    gc.collect()  # else what other tests have made may start one before
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        result(200, JSON, body)
    finally:
        gc.callbacks.pop()

    # One may follow at the end.
    assert collections.count("start") <= 1
    assert gc.isenabled()


def test_deep_and_long_values_are_shown_cut():
    deep = []
    for _ in range(100_000):
        deep = [deep]

    assert shown(deep) == "[[[...]]]"
    assert len(shown({"a" * 1000: "b" * 1000})) <= 200
    assert len(shown("a" * 1000)) <= 202


@pytest.mark.parametrize(
    ("status", "body", "unknown"),
    [
        pytest.param(404, b"404 page not found\n", True, id="Go's own"),
        pytest.param(404, b'{"message":"NOT_FOUND"}', True, id="new"),
        pytest.param(404, b'{"status_code":404,"status_txt":"NOT_FOUND","data":null}', True, id="old"),
        pytest.param(405, b"", True, id="method"),
        pytest.param(404, b'{"message":"TOPIC_NOT_FOUND"}', False, id="topic"),
        pytest.param(404, b'{"message":"CHANNEL_NOT_FOUND"}', False, id="channel"),
        pytest.param(500, b'{"message":"NOT_FOUND"}', False, id="another status"),
    ],
)
def test_unknown_path_is_distinguished_from_an_unknown_topic(status, body, unknown):
    with pytest.raises(NSQHttpError) as caught:
        result(status, TEXT, body)

    assert is_unknown_path(caught.value) is unknown


NAMES = st.sampled_from(["status_code", "status_txt", "data", "message", "https_port"]) | st.text(max_size=3)
BODIES = (
    json_values(NAMES).map(lambda value: json.dumps(value).encode())
    | st.dictionaries(NAMES, json_values(NAMES)).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=40)
    | st.sampled_from([b'{"message":"TLS_REQUIRED","https_port":%s}' % (b"9" * 5000), b"404 page not found\n"])
)


@given(
    st.sampled_from([100, 200, 204, 301, 400, 403, 404, 413, 500, 999]),
    st.sampled_from([JSON, TEXT, HTML, "", "application/json"]) | st.text(max_size=8),
    BODIES,
    st.text(max_size=8),
)
def test_any_response_is_a_result_or_an_error_in_words(status, content_type, body, reason):
    found = None
    try:
        assert isinstance(result(status, content_type, body, reason), (bytes, bool, int, float, dict, list, type(None)))
    except NSQHttpError as error:
        found = error

    assert found is not None or status == 200
    assert found is None or (str(found).isprintable() and len(str(found)) < 1000)
    assert found is None or isinstance(is_unknown_path(found), bool)
