"""One class for each E_ code, and what it knows."""

import pytest

from gnsq import errors
from gnsq.errors import ERROR_CODES, NSQErrorCode, NSQException, make_error

# Source: nsqd protocol_v2.go; only these three leave the connection open.
NOT_FATAL = {b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED", b"E_FINISH_FAILED", b"E_REQUEUE_FAILED"}


@pytest.mark.parametrize("code", sorted(ERROR_CODES))
def test_each_code_has_its_class_and_knows_whether_it_is_fatal(code):
    error = make_error(code + b" some text")

    assert type(error) is ERROR_CODES[code]
    assert error.fatal is (code not in NOT_FATAL)
    assert (error.code, error.text) == (code.decode(), "some text")
    assert str(error) == f"{code.decode()} some text"


def test_class_raised_by_hand_has_its_code():
    assert str(errors.NSQFinishFailed("FIN 1 failed")) == "E_FIN_FAILED FIN 1 failed"
    assert errors.NSQRequeueFailed.code == "E_REQ_FAILED"


def test_code_without_text():
    assert str(make_error(b"E_BAD_PROTOCOL")) == "E_BAD_PROTOCOL"


def test_unknown_code_is_a_plain_fatal_error():
    error = make_error(b"E_NEW thing")

    assert (type(error), error.code, error.fatal) == (NSQErrorCode, "E_NEW", True)


def test_text_that_is_not_utf8_is_kept_readable():
    assert make_error(b"E_INVALID \xff").text == "\\xff"


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.startswith("NSQ")])
def test_all_are_nsq_exceptions(name):
    assert issubclass(getattr(errors, name), NSQException)


def test_socket_error_is_an_os_error_with_errno():
    error = errors.NSQSocketError(111, "refused")

    assert isinstance(error, OSError)
    assert error.errno == 111


def test_requeue_message_carries_backoff():
    assert errors.NSQRequeueMessage().backoff is None
    assert errors.NSQRequeueMessage(backoff=False).backoff is False
