import pytest

from gnsq.spark.pipeline.failures import essence

PYTHON = """[STREAM_FAILED] Query terminated. Reason: Traceback (most recent call last):
  File "x.py", line 1, in f
    raise SpoolError("no")
gnsq.spark.errors.SpoolError: spool x: no SQLSTATE: 39000
=== Streaming Query ===
Identifier: x
ValueError: not this
"""
JAVA = """An error occurred while calling o1.start.
: org.apache.X: no such thing
\tat org.apache.Y
"""
CAUSE = "\n\nCaused by: java.io.IOException: disk\n\tat x"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(PYTHON, "gnsq.spark.errors.SpoolError: spool x: no", id="Python"),
        pytest.param(JAVA, "org.apache.X: no such thing", id="Java"),
        pytest.param(CAUSE, "java.io.IOException: disk", id="cause"),
        pytest.param("\nsome line SQLSTATE: 4\nmore", "some line", id="anything else"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_failure_comes_down_to_one_line(text, line):
    assert essence(text) == line
