"""Error classes by E_ code, and their texts."""

import copy
import pickle

import pytest

from gnsq import errors
from gnsq.errors import ERROR_CODES, NSQErrorCode, NSQException, make_error
from gnsq.producer.publish_many import Chunk, NSQManyFailed
from gnsq.texts import MAX_SHOWN, option_names, printable

# Source: nsqd protocol_v2.go; only these three leave the connection open.
NOT_FATAL = {b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED", b"E_FINISH_FAILED", b"E_REQUEUE_FAILED"}


@pytest.mark.parametrize("code", sorted(ERROR_CODES))
def test_each_code_has_its_class_and_knows_whether_it_is_fatal(code):
    error = make_error(code + b" some text")

    assert type(error) is ERROR_CODES[code]
    assert error.fatal is (code not in NOT_FATAL)
    assert (error.code, error.text) == (code.decode(), "some text")
    assert error.reason == f"{code.decode()} some text"


def test_code_is_that_of_the_class_or_of_the_frame_or_of_the_system():
    assert str(errors.NSQFinishFailed("FIN 1 failed")) == "E_FIN_FAILED FIN 1 failed"
    assert errors.NSQRequeueFailed.code == "E_REQ_FAILED"
    assert str(make_error(b"E_BAD_PROTOCOL")) == "E_BAD_PROTOCOL"
    unknown = make_error(b"E_NEW thing")
    assert (type(unknown), unknown.code, unknown.fatal) == (NSQErrorCode, "E_NEW", True)
    of_the_system = errors.NSQSocketError(111, "refused")
    assert (of_the_system.code, of_the_system.errno, isinstance(of_the_system, OSError)) == ("ECONNREFUSED", 111, True)
    assert errors.NSQConnectionClosed("nsqd closed the connection").code == "CLOSED"


HOSTILE = [
    pytest.param(b"E_INVALID a\r\nERROR forged", "E_INVALID a  ERROR forged", id="line ends"),
    pytest.param(b"E_INVALID \x1b[31mred\x07\x00", "E_INVALID  [31mred", id="terminal escapes"),
    pytest.param(b"E_INVALID \xc2\x9b31m\xe2\x80\xae", "E_INVALID  31m", id="C1 control and direction of writing"),
    pytest.param(b"E_\x1b \xff", "E_  \\xff", id="code, no UTF-8"),
    pytest.param(b"\n", "error frame without a text", id="nothing but a line end"),
    pytest.param(b"E_INVALID " + b"x" * 1_000_000, "E_INVALID " + "x" * (MAX_SHOWN - 10) + "...", id="long"),
]


@pytest.mark.parametrize(("data", "shown"), HOSTILE)
def test_text_of_an_error_is_safe_for_a_log_line(data, shown):
    assert str(make_error(data)) == shown


def test_arguments_of_an_error_are_the_bytes_of_nsqd():
    assert make_error(b"E_INVALID a\nb\x1b\xff").args == (b"a\nb\x1b\xff",)
    assert make_error(b"E_BAD_PROTOCOL").args == (b"E_BAD_PROTOCOL",)


def facts(error):
    return {name: getattr(error, name) for name in ("address", "code", "name", "reason", "hint", "at_fault", "args")}


FACTS = [
    pytest.param(make_error(b"E_NEW a\nb", "h:1"), "h:1: E_NEW a b", id="error frame"),
    pytest.param(
        make_error(b"E_INVALID cannot SUB in current state (TLS required)"),
        "E_INVALID cannot SUB in current state (TLS required) (nsqd runs with --tls-required: give tls_v1=True)",
        id="hint",
    ),
    pytest.param(errors.NSQSocketError(111, "refused", address="h:1"), "h:1: refused", id="error of the system"),
    pytest.param(errors.NSQUnknownClosed("lost", address="h:1"), "h:1: lost", id="two bases"),
    pytest.param(
        errors.NSQHttpUnreachable("no response", 500, b"x", request="GET http://h:1/ping", address="http://h:1/"),
        "GET http://h:1/ping: no response",
        id="HTTP",
    ),
    pytest.param(NSQException("lost", hint="give {auth_secret}"), "lost (give auth_secret)", id="without an address"),
]


@pytest.mark.parametrize(("error", "text"), FACTS)
def test_text_is_made_of_facts_that_are_copied_and_pickled(error, text):
    for made in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(made), str(made), facts(made)) == (type(error), text, facts(error))


def test_program_names_the_options_that_errors_ask_for():
    error = NSQException("refused", hint="give {tls_v1=True} or {auth_secret}")

    with option_names({"tls_v1=True": "--tls"}):
        assert (str(error), error.hint) == ("refused (give --tls or auth_secret)", "give --tls or auth_secret")
    assert error.hint == "give tls_v1=True or auth_secret"


def test_error_that_another_one_has_led_to_has_its_facts():
    cause = NSQException("lost", address="h:1", code="TLS_CLOSED", name="tls_v1", hint="give {tls_v1=True}")

    error = errors.NSQNotSentClosed.after(cause, "not sent")

    assert str(error) == "h:1: not sent (give tls_v1=True)"
    assert (error.code, error.name) == ("TLS_CLOSED", "tls_v1")


# Source: nsqd 0.2.21 to 1.0.0, protocol_v2.go REQ; it writes a time.Duration, nanoseconds.
REQ_REFUSED = "REQ timeout 3600001000000 out of range 0-3600000000000"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errors.NSQInvalid(REQ_REFUSED), "requeue with at most 3600000 ms, nsqd's --max-req-timeout"),
        (errors.NSQInvalid("DPUB timeout 3600001 out of range 0-3600000"), "the limit of a delay, in ms, is nsqd's"),
        (make_error(b"E_BAD_MESSAGE PUB message too big 2 > 1"), "--max-msg-size"),
        (make_error(b"E_BAD_BODY MPUB body too big 2 > 1"), "--max-body-size"),
        (errors.NSQInvalid(REQ_REFUSED + "0" * 5000), ""),
        (errors.NSQInvalid("REQ timeout -1 out of range 0-x"), ""),
    ],
    ids=["delay of REQ", "delay of DPUB", "message", "body", "thousands of digits", "no number"],
)
def test_hint_of_a_limit_has_the_flag_of_nsqd(error, hint):
    assert hint in error.hint
    assert hint or not error.hint


def test_text_of_a_server_is_cut_and_cleaned():
    assert printable("\ud800x") == "x"
    for letter in ("𝄞", "𝄞".encode()):
        assert printable(letter * MAX_SHOWN) == "𝄞" * MAX_SHOWN
        assert printable(letter * (MAX_SHOWN + 1)) == "𝄞" * MAX_SHOWN + "..."


def test_all_are_nsq_exceptions():
    assert [
        name
        for name in errors.__all__
        if name.startswith("NSQ") and not issubclass(getattr(errors, name), NSQException)
    ] == []


AT_FAULT = [
    pytest.param(make_error(b"E_BAD_MESSAGE PUB message too big 2 > 1"), "message", id="body too large"),
    pytest.param(make_error(b"E_BAD_BODY IDENTIFY body too big 2 > 1"), "setup", id="IDENTIFY refused"),
    pytest.param(make_error(b"E_INVALID DPUB timeout 2 out of range 0-1"), "message", id="delay too long"),
    pytest.param(make_error(b"E_INVALID cannot PUB in current state (TLS required)"), "setup", id="TLS required"),
    pytest.param(make_error(b"E_PUB_FAILED"), "nsqd", id="disk full"),
    pytest.param(make_error(b"E_UNAUTHORIZED"), "setup", id="no right"),
    pytest.param(make_error(b"E_NEW"), "setup", id="unknown code"),
    pytest.param(errors.NSQNotSentTimeout(), "nsqd", id="not sent"),
    pytest.param(errors.NSQHttpUnreachable("x"), "nsqd", id="HTTP not reached"),
    pytest.param(errors.NSQFrameError(), "setup", id="not an nsqd"),
    pytest.param(NSQManyFailed([Chunk(0, 1, ValueError())]), "message", id="one chunk with a bad message"),
    pytest.param(
        NSQManyFailed([Chunk(0, 1, ValueError()), Chunk(1, 1, errors.NSQNotSent())]), "nsqd", id="chunks of two kinds"
    ),
]


@pytest.mark.parametrize(("error", "at_fault"), AT_FAULT)
def test_error_says_where_its_cause_lies(error, at_fault):
    assert error.at_fault == at_fault
    assert pickle.loads(pickle.dumps(error)).at_fault == at_fault
