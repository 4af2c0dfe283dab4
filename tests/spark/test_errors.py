import pytest

from gnsq.spark.errors import root_cause, startup_error

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
FULL = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "x.py", line 1, in f
py4j.protocol.Py4JJavaError: An error occurred while calling o1144.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat x
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat x
Caused by: java.io.IOException: No space left on device

\tat py4j.Protocol
=== Streaming Query ===
"""
WORKER = """Return Message: Traceback (most recent call last):
py4j.protocol.Py4JJavaError: An error occurred while calling o131.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 2.0 (TID 4) (localhost executor driver): org.apache.spark.SparkException: Worker crashed
\tat x
Caused by: java.io.EOFException
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(PYTHON, "gnsq.spark.errors.SpoolError: spool x: no", id="Python"),
        pytest.param(PYTHON.replace("SpoolError", "JobFailed"), "spool x: no", id="for users"),
        pytest.param(JAVA, "org.apache.X: no such thing", id="Java"),
        pytest.param(
            FULL,
            "org.apache.spark.SparkException: Job aborted: java.io.IOException: No space left on device",
            id="full disk",
        ),
        pytest.param(WORKER, "org.apache.spark.SparkException: Worker crashed: java.io.EOFException", id="worker"),
        pytest.param("\nsome line SQLSTATE: 4\nmore", "some line", id="anything else"),
        pytest.param(
            "[STREAM_FAILED] Query [id = a] terminated with exception:  SQLSTATE: XXKST\n=== Streaming Query ===",
            "a Python process of Spark has ended: was it killed, or out of memory? Start again, nothing is lost",
            id="no reason",
        ),
        pytest.param("", "", id="nothing"),
    ],
)
def test_root_cause_is_one_line(text, line):
    assert root_cause(text) == line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "WARNING: Using incubator modules: jdk.incubator.vector\n"
            'Exception in thread "main" org.apache.spark.SparkException: Master must be local\n\tat org.apache.X\n',
            "Master must be local",
            id="an exception",
        ),
        pytest.param(
            "Invalid maximum heap size: -Xmxlots\nError: Could not create the Java Virtual Machine.\n",
            "Invalid maximum heap size: -Xmxlots",
            id="Java itself",
        ),
        pytest.param("NOTE: none\n\n", "", id="nothing"),
    ],
)
def test_startup_error_is_found_in_the_output_of_java(text, words):
    assert startup_error(text) == words
