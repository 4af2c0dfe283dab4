"""What can go wrong between NSQ and Spark; part of the one exception tree. Knows no files and no Spark."""

from __future__ import annotations

from gnsq.errors import NSQException

__all__ = ["JobFailed", "RowsNotPublished", "SegmentCorrupt", "SpoolError", "SpoolInUse", "SpoolIncomplete"]


class SpoolError(NSQException):
    """A spool can't be used as it is; the text says what to do."""


class SpoolInUse(SpoolError):
    """A spool belongs to another query, or another process reads it now."""


class SpoolIncomplete(SpoolError):
    """Segments that a checkpoint refers to are gone."""


class SegmentCorrupt(SpoolError):
    """A segment is no Arrow file of ours, is cut short, or has not the rows that its name says."""


class RowsNotPublished(NSQException):
    """nsqd has not confirmed some rows of a task; the text says which, and why."""


class JobFailed(NSQException):
    """The job can't begin, or a query ended with an error; the text is one line that says why."""
