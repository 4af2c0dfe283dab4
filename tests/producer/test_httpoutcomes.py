"""What HTTP answers mean for a publish."""

import pytest

from gnsq.errors import (
    NSQBadBody,
    NSQBadMessage,
    NSQBadTopic,
    NSQDPubFailed,
    NSQHttpError,
    NSQInvalid,
    NSQMPubFailed,
    NSQPubFailed,
)
from gnsq.producer.http import is_nsqd_response, is_rejected_before_nsqd, refused_error, too_old

EXITING = b'{"message":"EXITING"}'

REFUSALS = [
    pytest.param(413, "MSG_TOO_BIG", NSQBadMessage, id="message"),
    pytest.param(400, "MSG_EMPTY", NSQBadMessage, id="empty"),
    pytest.param(413, "BAD_MESSAGE", NSQBadMessage, id="message of many"),
    pytest.param(413, "BODY_TOO_BIG", NSQBadBody, id="body"),
    pytest.param(413, "BAD_BODY", NSQBadBody, id="broken body"),
    pytest.param(400, "INVALID_TOPIC", NSQBadTopic, id="topic"),
    pytest.param(500, "INVALID_TOPIC", NSQBadTopic, id="topic, old server"),
    pytest.param(400, "INVALID_DEFER", NSQInvalid, id="defer"),
    pytest.param(403, "TLS_REQUIRED", NSQInvalid, id="tls"),
    pytest.param(503, "EXITING", NSQPubFailed, id="exiting"),
]


@pytest.mark.parametrize(("status", "words", "kind"), REFUSALS)
def test_http_error_becomes_the_error_that_tcp_has(status, words, kind):
    error = NSQHttpError(f"http error <{status}> {words}", status, b'{"message":"%s"}' % words.encode())

    refused = refused_error(error)

    assert type(refused) is kind
    assert refused.__cause__ is error
    assert words in str(refused)


def test_exiting_is_named_by_the_kind_of_the_publish():
    error = NSQHttpError("EXITING", 503, EXITING)

    assert type(refused_error(error, multi=True)) is NSQMPubFailed
    assert type(refused_error(error, deferred=True)) is NSQDPubFailed


@pytest.mark.parametrize("status", [302, 401, 403, 404, 405, 407, 429])
def test_rejection_by_a_proxy_is_not_an_error_of_nsqd(status):
    error = NSQHttpError("http error", status, b"<html>no</html>")

    assert is_rejected_before_nsqd(error)
    assert not is_rejected_before_nsqd(NSQHttpError("http error", status, b'{"message":"INVALID_TOPIC"}'))


@pytest.mark.parametrize("status", [400, 411, 413])
def test_http_error_without_nsqds_text_is_named_by_its_status(status):
    error = NSQHttpError("http error", status, b"<html>no</html>")

    assert not is_rejected_before_nsqd(error)
    assert refused_error(error).code == f"HTTP_{status}"


@pytest.mark.parametrize(
    ("status", "body", "up"),
    [(None, b"", False), (502, b"", False), (500, b"NOK - disk", True), (500, b"", False), (404, b"", False)],
)
def test_nok_of_nsqd_answers_a_ping_and_other_errors_do_not(status, body, up):
    assert is_nsqd_response(NSQHttpError("x", status, body)) is up


@pytest.mark.parametrize(
    ("version", "multi", "deferred", "words"),
    [
        pytest.param((0, 2, 22), True, False, "binary /mpub came with 0.2.23", id="no binary mpub"),
        pytest.param((0, 2, 23), True, False, "", id="first binary mpub"),
        pytest.param((0, 3, 5), False, True, "deferred messages came with 0.3.6", id="no defer"),
        pytest.param((0, 3, 6), False, True, "", id="first defer"),
        pytest.param((0, 2, 16), False, False, "", id="plain publish"),
        pytest.param((), True, True, "", id="unknown"),
    ],
)
def test_too_old_names_the_version_that_a_publish_needs(version, multi, deferred, words):
    found = too_old(version, multi=multi, deferred=deferred)

    assert found.startswith(words)
    assert bool(found) is bool(words)
