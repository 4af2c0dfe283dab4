"""No pattern of the project needs more than linear time for a text: bodies, names and error texts come from others."""

import types

import pytest

from gnsq.spark.pipeline.types import TIMESTAMP, ZONE
from tests.spark.regexes import OF_SPARK, Regex, TooSlow, long_texts, regexes, use

FOUND, UNKNOWN = regexes(
    "gnsq",
    "fakensqd",
    # What patterns are made of, in functions.
    any_kind=r"\.log|\.log\.old",
    any_compression=r"|\.gz",
    form=TIMESTAMP,
    kind=types.SimpleNamespace(scale=38),
    words="denied|no space left",
    zone=f"(?:{ZONE})?",
)


@pytest.mark.parametrize("regex", FOUND, ids=lambda regex: regex.place)
def test_no_long_text_takes_long(regex):
    for text in long_texts(regex):
        use(regex, text)


@pytest.mark.spark
@pytest.mark.parametrize("regex", [each for each in FOUND if each.uses & OF_SPARK], ids=lambda regex: regex.place)
def test_no_long_text_takes_all_of_the_stack_in_java(regex, spark):
    """Java does by recursion what Python does by a loop."""
    pattern = spark._jvm.java.util.regex.Pattern.compile(regex.pattern)

    for text in {text[:20_000] for text in long_texts(regex)}:
        pattern.matcher(text).replaceAll("")


def test_only_patterns_of_users_are_not_tried():
    assert UNKNOWN == [
        "fakensqd/nsqd/auth.py: pattern",
        "gnsq/cli/topics.py: text",
        "gnsq/spark/options.py: self.topic_pattern",
        "gnsq/spark/options.py: topics[1:-1]",
        "gnsq/spark/pipeline/settings.py: _excluding(pattern, ['any'])",
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
