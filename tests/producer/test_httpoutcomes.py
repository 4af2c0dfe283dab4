"""What HTTP answers mean for a publish."""

import pytest

from gnsq.errors import (
    NSQBadBody,
    NSQBadMessage,
    NSQBadTopic,
    NSQDPubFailed,
    NSQErrorCode,
    NSQHttpError,
    NSQInvalid,
    NSQMPubFailed,
    NSQPubFailed,
)
from gnsq.producer.httpoutcomes import answers, refusal

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
def test_refusal_is_what_tcp_would_give(status, words, kind):
    error = NSQHttpError(f"http error <{status}> {words}", status, b'{"message":"%s"}' % words.encode())

    refused = refusal(error)

    assert type(refused) is kind
    assert refused.__cause__ is error
    assert words in str(refused)


def test_exiting_is_called_by_what_was_published():
    error = NSQHttpError("EXITING", 503, EXITING)

    assert type(refusal(error, multi=True)) is NSQMPubFailed
    assert type(refusal(error, deferred=True)) is NSQDPubFailed


@pytest.mark.parametrize("status", [302, 401, 403, 404, 429])
def test_other_refusal_has_its_status_as_code(status):
    refused = refusal(NSQHttpError("no", status))

    assert type(refused) is NSQErrorCode
    assert refused.code == f"HTTP_{status}"


@pytest.mark.parametrize("status", [None, 200, 408, 500, 502, 503, 504])
def test_of_what_proxies_say_nobody_knows_whether_nsqd_has_it(status):
    assert refusal(NSQHttpError("oops", status)) is None


@pytest.mark.parametrize(("status", "up"), [(None, False), (502, False), (503, False), (500, True), (404, True)])
def test_only_proxies_speak_for_an_nsqd_that_is_not_there(status, up):
    assert answers(NSQHttpError("x", status)) is up
