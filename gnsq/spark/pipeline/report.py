"""Texts for the job's user: a line for each batch, and the summary. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnsq.texts import counted

__all__ = ["Batch", "Silence", "Summary", "batch_line", "state_text", "summary_lines", "table_text"]

# Most tables that the line of a batch names one by one.
SHOWN_TABLES = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that a query has finished.

    Attributes:
        rows: Number of messages that the source gave.
        duplicates, malformed: How many of these messages are duplicates (with the setting deduplicate), or malformed.
        seconds: How long the batch took.
        waiting: Messages that nsqd still has for the query; None if unknown.
        spooled: Messages that wait in the spool; None if unknown.
        lag: Seconds from the newest message's publishing to the end of the batch; None if there was no message.
        dropped: Rows that Spark has left out as too late. In the query metrics, all such rows of a window and its keys
            count as one; in the query archive the number is 0 unless the driver's clock was set back.
        trouble: What keeps messages from being received, in the words of the source; "" for nothing.
        state_rows, state_bytes: Size of the query's state after the batch; bytes on disk and in memory.
        tables: Table -> number of rows of each file that the batch has committed to it.
    """

    query: str
    batch_id: int
    rows: int
    seconds: float
    malformed: int = 0
    duplicates: int = 0
    waiting: int | None = None
    spooled: int | None = None
    lag: float | None = None
    dropped: int = 0
    trouble: str = ""
    state_rows: int = 0
    state_bytes: int = 0
    tables: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Silence:
    """Notices that a query gets no messages though it should: without a batch there is no line that shows it.

    Args:
        is_asked: True if an HTTP address is configured, so that the number of waiting messages is asked for.

    Attributes:
        trouble: The trouble that the last two progresses show; "" for none.
    """

    def __init__(self, *, is_asked: bool) -> None:
        self.trouble = ""
        self._is_asked = is_asked
        self._before = False

    def notice(self, rows: int, source: Mapping[str, Any]) -> bool:
        """Record a progress. Return True if it is the second one in a row that shows trouble.

        Args:
            source: Spark's latestOffset of the source: its backlog, and its trouble.
        """
        trouble = "" if rows else self._trouble(source)
        was_told = bool(self.trouble)
        self.trouble = trouble if self._before else ""
        self._before = bool(trouble)
        return bool(self.trouble) and not was_told

    def _trouble(self, source: Mapping[str, Any]) -> str:
        if source.get("trouble"):
            return str(source["trouble"])
        if self._is_asked and source and "waiting" not in source:
            return "no rows, and what waits at nsqd is not known: nsqd or nsqlookupd does not answer"
        if source.get("waiting"):
            return counted(source["waiting"], "message waits", "messages wait", spec=",") + " at nsqd, and none comes"
        return ""


@dataclass(slots=True)
class Summary:
    """Result of a run; mappings by the names of queries.

    Attributes:
        finished: True if the queries have ended by themselves: with once, all messages have been read.
        rows, batches, duplicates: Numbers of messages read, of batches with rows, and of duplicates left out.
        due: With once, number of messages that existed at the start.
        dead_letters: Number of malformed messages.
        late: Number of windows and keys that were left out, in all batches, since they were later than keep_windows.
        set_aside: Numbers of segments of the spool that could not be read, and of their messages.
        state: Rows and bytes of a query's state after its last batch.
        tables: Table -> its size, last commit and maintenance at the end, as text.
        merged: Number of files of tables that maintenance has merged.
        seconds: How long the run took.
    """

    finished: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    late: int = 0
    set_aside: dict[str, tuple[int, int]] = field(default_factory=dict)
    state: dict[str, tuple[int, int]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    merged: int = 0
    seconds: float = 0.0

    def add(self, batch: Batch) -> None:
        """Add the numbers of a batch."""
        for counts, number in ((self.rows, batch.rows), (self.batches, 1), (self.duplicates, batch.duplicates)):
            counts[batch.query] = counts.get(batch.query, 0) + number
        self.state[batch.query] = (batch.state_rows, batch.state_bytes)
        if batch.query == "archive":
            self.dead_letters += batch.malformed
        else:
            self.late += batch.dropped

    def progress(self) -> str:
        """Describe, for a run with once that was stopped, how many of its messages each query has read."""
        return ", ".join(f"{query} {self.rows.get(query, 0):,} of {due:,}" for query, due in self.due.items())


def batch_line(batch: Batch) -> str:
    """Format a batch as one line of text."""
    rate = batch.rows / batch.seconds if batch.seconds else 0.0
    parts = [f"{batch.query:8} batch {batch.batch_id:6}: {counted(batch.rows, 'row', spec='9,')}, {rate:9,.0f} rows/s"]
    parts += _tables_text(batch.tables)
    backlog = [
        f"{number:,} {place}"
        for number, place in ((batch.waiting, "at nsqd"), (batch.spooled, "in the spool"))
        if number is not None
    ]
    if backlog:
        parts.append("backlog " + " + ".join(backlog))
    if batch.lag is not None:
        parts.append(f"lag {batch.lag:,.1f} s")
    if batch.state_rows:
        parts.append(state_text(batch.state_rows, batch.state_bytes))
    if batch.trouble:
        parts.append(batch.trouble)
    return ", ".join(parts)


def _tables_text(tables: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Describe what was committed: by table; those of many topics together."""
    if len(tables) <= SHOWN_TABLES:
        for table, rows in sorted(tables.items()):
            yield f"{table} {_rows_in_files(sum(rows), len(rows))}"
        return
    kinds: dict[str, list[Sequence[int]]] = {}
    for table, rows in sorted(tables.items()):
        kinds.setdefault(table.rpartition("/")[2], []).append(rows)
    for kind, found in kinds.items():
        files = [number for rows in found for number in rows]
        yield f"{kind} {_rows_in_files(sum(files), len(files))} of {counted(len(found), 'topic')}"


def state_text(rows: int, size: int) -> str:
    """Format the size of a state."""
    return f"state {counted(rows, 'row', spec=',')}, {size / 2**20:,.1f} MiB"


def table_text(rows: int, files: int, size: int) -> str:
    """Format the size of a table."""
    return f"{_rows_in_files(rows, files)}, {size / 2**20:,.1f} MiB"


def _rows_in_files(rows: int, files: int) -> str:
    return f"{counted(rows, 'row', spec=',')} in {counted(files, 'file', spec=',')}"


def summary_lines(summary: Summary, queries: Iterable[str]) -> list[str]:
    """Format the summary as lines. Numbers that are 0 are left out, except rows, batches and seconds."""
    lines = []
    for query in queries:
        batches = counted(summary.batches.get(query, 0), "batch", "batches", spec=",")
        line = f"{query:8} {counted(summary.rows.get(query, 0), 'row', spec=',')} in {batches}"
        if summary.duplicates.get(query):
            line += f", {counted(summary.duplicates[query], 'duplicate', spec=',')} left out"
        segments, rows = summary.set_aside.get(query, (0, 0))
        if segments:
            aside = counted(segments, "segment", spec=","), counted(rows, "row", spec=",")
            line += f", {aside[0]} with {aside[1]} set aside as unreadable"
        state = summary.state.get(query, (0, 0))
        if state[0]:
            line += f", {state_text(*state)}"
        lines.append(line)
    others = [
        (summary.dead_letters, f"{counted(summary.dead_letters, 'dead letter', spec=',')}"),
        (summary.late, f"{counted(summary.late, 'count', spec=',')} later than keep_windows left out"),
        (summary.merged, f"{counted(summary.merged, 'file', spec=',')} merged"),
    ]
    told = [text for number, text in others if number] + [f"{summary.seconds:,.0f} s"]
    lines += [f"table    {name}: {text}" for name, text in summary.tables.items()]
    return [*lines, f"{'job':8} {', '.join(told)}"]
