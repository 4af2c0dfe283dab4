"""The patterns that Spark runs over bodies, in Java. tests/test_regexes.py tries all of them with Python."""

import pytest

from tests.regexes import OF_SPARK, long_texts, regexes


@pytest.mark.spark
def test_no_long_text_takes_all_of_the_stack_in_java(spark):
    """Java does by recursion what Python does by a loop."""
    for regex in regexes():
        if regex.uses & OF_SPARK:
            pattern = spark._jvm.java.util.regex.Pattern.compile(regex.pattern)
            for text in {text[:8_000] for text in long_texts(regex)}:
                pattern.matcher(text).replaceAll("")
