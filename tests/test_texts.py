"""Parts of log lines and error texts."""

import pytest

from gnsq.texts import counted, nearest


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
