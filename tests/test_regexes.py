"""No pattern of the project needs more than linear time for a text: bodies, names and error texts come from others."""

import pytest

from tests.regexes import Regex, TooSlow, long_texts, patterns_of_users, regexes, use

pytestmark = pytest.mark.slow


def test_no_long_text_takes_long():
    pytest.importorskip("pyspark")

    for regex in regexes():
        for text in long_texts(regex):
            use(regex, text)


def test_only_patterns_of_users_are_not_tried():
    pytest.importorskip("pyspark")

    assert patterns_of_users() == [
        "fakensqd/nsqd/auth.py: pattern",
        "gnsq/cli/topics.py: text",
        "gnsq/spark/options.py: self.topic_pattern",
        "gnsq/spark/options.py: topics[1:-1]",
        "gnsq/spark/pipeline/tables.py: pattern",
        "gnsq/spark/receiver/subscriptions.py: options.topic_pattern",
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"(\d+\.?\d*|\.\d+)([a-z]+)", id="digits by two repetitions"),
        pytest.param(r"\s+(?=\d)", id="a search that begins at each blank"),
        pytest.param(r"[0-9a-f]*:[0-9a-f:]*:[0-9a-f:]*!", id="three repetitions of one character"),
        pytest.param(r'"(?:[^"\\]|\\.)*+"', id="a string that has no end"),
        pytest.param("^.*[Ff]ailed: .*? on [^)]*\\): ", id="words that come again"),
    ],
)
def test_a_pattern_that_takes_long_is_found(pattern):
    regex = Regex("here", pattern, 0, frozenset({"search"}))

    with pytest.raises(TooSlow):
        [use(regex, text) for text in long_texts(regex)]
