"""Parts of log lines and error texts."""

import pytest

from gnsq.errors import NSQException, NSQSocketError
from gnsq.texts import counted, nearest, without_address


def test_one_thing_is_singular():
    assert [counted(number, "message") for number in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    assert [counted(number, "publish", "publishes") for number in (1, 2)] == ["1 publish", "2 publishes"]
    assert [counted(number, "row", spec=",") for number in (1, 1000)] == ["1 row", "1,000 rows"]


UNKNOWN = [
    pytest.param(["batch_mesages"], "; did you mean batch_messages? known are batch_messages, Timeout", id="misspelt"),
    pytest.param(["BatchMessages"], "; did you mean batch_messages? known are batch_messages, Timeout", id="case"),
    pytest.param(["xyz"], "; known are batch_messages, Timeout", id="far from all"),
    pytest.param(
        ["batch_message", "xyz", "timeouts"],
        "; did you mean batch_messages and Timeout? known are batch_messages, Timeout",
        id="several",
    ),
]


@pytest.mark.parametrize(("names", "text"), UNKNOWN)
def test_unknown_name_gets_similar_names_suggested(names, text):
    assert nearest(names, ["batch_messages", "Timeout"]) == text


ERRORS = [
    pytest.param(NSQException("a:1: lost"), "lost", id="begins with it"),
    pytest.param(NSQException("a:1 is no nsqd"), "is no nsqd", id="subject"),
    pytest.param(NSQException("a:1: a:1: lost"), "lost", id="twice"),
    pytest.param(NSQException("b:1: lost"), "b:1: lost", id="another one's"),
    pytest.param(NSQSocketError(111, "a:1: refused"), "refused", id="with a number"),
    pytest.param(NSQException("GET http://a:1/ping: 502"), "GET /ping: 502", id="URL"),
    pytest.param(NSQException("GET http://a:12/ping: 502"), "GET http://a:12/ping: 502", id="another URL"),
    pytest.param(NSQException(""), "", id="empty"),
]


@pytest.mark.parametrize(("error", "text"), ERRORS)
def test_error_without_its_address(error, text):
    assert without_address(error, "a:1") == text
