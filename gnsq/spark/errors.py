"""Exceptions of gnsq.spark, and functions that find the cause of a failure in Spark's long texts. Pure."""

from __future__ import annotations

import re

from gnsq.errors import NSQException

__all__ = [
    "JobFailed",
    "JobStopped",
    "RowsNotPublished",
    "SegmentCorrupt",
    "SpoolError",
    "SpoolInUse",
    "SpoolIncomplete",
    "root_cause",
    "startup_error",
]


class SpoolError(NSQException):
    """A spool can't be used. The text says what to do.

    What to do: see the text.
    """


class SpoolInUse(SpoolError):
    """A spool belongs to another query, or another process reads it.

    What to do: see the text, which names the owner. Give each query a spool of its own.
    """


class SpoolIncomplete(SpoolError):
    """Segments that a checkpoint needs do not exist any more.

    What to do: restore the files; or go on without them, with a new checkpoint.
    """


class SegmentCorrupt(SpoolError):
    """A segment is not an Arrow file of gnsq, is damaged, or does not have as many rows as its name says.

    What to do: see the text. A query renames a damaged segment to ``....arrow.corrupt`` and goes on without it.
    """


class RowsNotPublished(NSQException):
    """nsqd has not confirmed some rows of a task. The text says which, and why.

    What to do: see the text for the cause. A streaming query repeats its batch when it is started again.
    """


class JobFailed(NSQException):
    """The job can't begin, or a query has failed. The error's text is one line.

    What to do: do what the text says, then start the job again; it goes on where it ended.
    """


class JobStopped(JobFailed):
    """A signal has stopped a job before it was done.

    What to do: start the job again to go on.
    """


_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*: ")
_JAVA_ERROR = re.compile(r"^: (.+)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
# py4j's text before a Java error. It is removed: it names only the method that Python has called, not the cause.
_CALL = re.compile(r"(py4j\.protocol\.Py4J\w+: )?An error occurred while calling ")
_THREAD_ERROR = re.compile(r'Exception in thread "[^"]*" [\w.$]+: ')
_NOISE = ("WARNING:", "NOTE:", "Picked up ", "Using Spark's", "\tat ")
# Spark gives no reason if the Python process of a source has ended.
_NO_REASON = "a Python process of Spark has ended: was it killed, or out of memory? Start again, nothing is lost"


def root_cause(text: str) -> str:
    """Find the cause of a failure in Spark's text.

    Returns the last error of a Python traceback. If that error comes from Java, or there is no traceback, returns
    Java's error with its deepest cause, or else the first line of the text.
    """
    text = text.partition("=== Streaming Query ===")[0]
    errors = [line for line in text.splitlines() if _PYTHON_ERROR.match(line)]
    if "Traceback" in text and errors and not _CALL.match(errors[-1]):
        # The text of a JobFailed is for users already.
        return _error_in(errors[-1]).removeprefix(f"{__name__}.{JobFailed.__name__}: ")
    calls = [match.end() for match in _CALL.finditer(text)]
    java = text[calls[-1] :] if calls else text
    first, causes = _JAVA_ERROR.search(java), _JAVA_CAUSE.findall(java)
    if first is None:
        line = causes[-1] if causes else text.strip().partition("\n")[0]
        line = _error_in(line).rstrip()
        return _NO_REASON if line.endswith("terminated with exception:") else line
    line, cause = _error_in(first[1]), _error_in(causes[-1]) if causes else ""
    return line if cause in line else f"{line.rstrip('.')}: {cause}"


def _error_in(line: str) -> str:
    """Remove from a line of Spark which task of which executor it was, and the SQLSTATE at the end."""
    task = line.rpartition("ost recent failure: Lost task ")[2]
    return (task.partition(" executor ")[2].partition("): ")[2] or line).partition(" SQLSTATE: ")[0]


def startup_error(text: str) -> str:
    """Find in Java's output why Java did not start: the first error, else the first line that is not noise, else ""."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(_NOISE)]
    errors = [_THREAD_ERROR.sub("", line) for line in lines if _THREAD_ERROR.match(line)]
    return (errors or lines or [""])[0]
