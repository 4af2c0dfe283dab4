"""What a failure comes down to: one line out of Spark's pages. PURE."""

from __future__ import annotations

import re

from gnsq.errors import NSQException

__all__ = ["JobFailed", "essence"]

_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*: ")
_JAVA_ERROR = re.compile(r"^: (.+)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_SQLSTATE = re.compile(r" SQLSTATE: \w+.*$")


class JobFailed(NSQException):
    """The job can't begin, or a query ended with an error; the text is one line that says why."""


def essence(text: str) -> str:
    """Find what went wrong in Spark's account of it: the last error of a Python traceback, else the first of Java."""
    text = text.partition("=== Streaming Query ===")[0]
    errors = [line for line in text.splitlines() if _PYTHON_ERROR.match(line)]
    if "Traceback" in text and errors:
        return _SQLSTATE.sub("", errors[-1])
    java = _JAVA_ERROR.search(text) or _JAVA_CAUSE.search(text)
    line = java[1] if java is not None else text.strip().partition("\n")[0]
    return _SQLSTATE.sub("", line)
