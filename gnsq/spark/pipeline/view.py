"""Live view: where each query stands, on a terminal, in place of a line for each batch. Knows no Spark."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gnsq.spark.pipeline.status import QueryStatus

__all__ = ["LiveView", "shortened", "sparkline", "terminal_view"]

# Seconds after which the view is drawn again although nothing has come, for the times in it.
REDRAW_INTERVAL = 1.0
# Progresses of a query that are kept for its two sparklines: one column of a terminal for each.
HISTORY = 60
# Least columns of a sparkline, and blanks between two columns of the table.
MIN_SPARKLINE, GAP = 8, 2
_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


def sparkline(values: Iterable[float], width: int, blocks: str = _BLOCKS) -> str:
    """Draw the last values, from 0 to their maximum, with one character for each. Values of 0 are the lowest block."""
    shown = [*values][-width:]
    most = max(shown, default=0)
    steps = len(blocks) - 1
    # A value above 0 is never drawn like 0.
    return "".join(blocks[0 if value <= 0 else max(round(value / most * steps), 1)] for value in shown)


def shortened(name: str, width: int) -> str:
    """Leave out the middle of a name that is longer than width: names of queries differ most at their ends."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


class _Column(NamedTuple):
    """A column of the table: a cell for each query, and its least width, so that the table does not move with each
    number. A sparkline has a style, and for each query the values that it draws."""

    title: str
    cells: Sequence[str]
    min_width: int
    style: str = ""
    values: Sequence[Iterable[float]] = ()

    @property
    def width(self) -> int:
        return max([self.min_width, *map(len, self.cells)])


class _Query:
    """What is shown of one query: its last record, and the history of its progresses."""

    def __init__(self, record: QueryStatus) -> None:
        self.record = record
        self.rates: deque[float] = deque(maxlen=HISTORY)
        self.backlogs: deque[float] = deque(maxlen=HISTORY)

    def update(self, record: QueryStatus) -> None:
        if record.progress_at != self.record.progress_at:
            self.rates.append(record.rate or 0.0)
            if record.backlog is not None:
                self.backlogs.append(record.backlog)
        self.record = record


class LiveView:
    """Shows the queries in a ``with`` block. At its end the view is removed, and the terminal is as before.

    Has no thread: call refresh() several times a second. What is logged in the block to a terminal, by the handlers of
    the root logger, is shown above the view, and stays.

    Args:
        title: What runs.
        records: Returns the present records of all queries, always in the same order.
        now: Returns the Unix time.
    """

    def __init__(
        self,
        title: str,
        records: Callable[[], Sequence[QueryStatus]],
        console: Console,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._title = title
        self._records = records
        self._queries = [_Query(record) for record in records()]
        self._now = now
        self._started_at = self._drawn_at = now()
        self._handlers: list[logging.StreamHandler[TextIO]] = []
        self._live = Live(
            self, console=console, auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty()
        )

    def __enter__(self) -> Self:
        stderr = sys.stderr
        self._live.start(refresh=True)
        # Handlers keep the stderr that they were made with. The live view has put another one in its place, which
        # writes above the view.
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stderr:
                handler.setStream(sys.stderr)
                self._handlers.append(handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()
        for handler in self._handlers:
            handler.setStream(sys.stderr)

    def refresh(self) -> None:
        """Draw the view if a record has changed, and once a second for the times in it."""
        now = self._now()
        is_changed = False
        for query, record in zip(self._queries, self._records(), strict=True):
            is_changed |= record is not query.record
            query.update(record)
        # abs(): the clock may be set back.
        if is_changed or abs(now - self._drawn_at) >= REDRAW_INTERVAL:
            self._drawn_at = now
            self._live.refresh()

    # --- drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # At Ctrl-C, terminals write ^C after the view. If that began a new line, the view could not be removed.
        width, now = max(options.max_width - len("^C"), 1), self._now()
        elapsed = dt.timedelta(seconds=max(int(now - self._started_at), 0))
        title = Text(f"{self._title}, {elapsed}; Ctrl-C stops it gracefully", "bold", no_wrap=True, overflow="ellipsis")
        table = self._table(width, now, _ASCII_BLOCKS if options.ascii_only else _BLOCKS)
        lines = console.render_lines(Constrain(Group(title, *self._troubles(now), table), width), options, pad=False)
        # A view that is higher than the terminal could not be removed, either. One line is for the cursor.
        if len(lines) > (room := max(console.height - 1, 1)):
            lines = [*lines[: room - 1], [Segment("...")]]
        for line in lines:
            yield from [*line, Segment.line()]

    def _troubles(self, now: float) -> list[Text]:
        """Make a text of each trouble and the queries that have it."""
        troubled: dict[str, list[str]] = {}
        for query in self._queries:
            if problem := query.record.problem(now):
                troubled.setdefault(problem, []).append(query.record.name)
        return [Text(f"{', '.join(names)}: {problem}", "yellow") for problem, names in troubled.items()]

    def _table(self, width: int, now: float, blocks: str) -> Table:
        """Make the table of the columns for which there is room. The sparklines get the room that is left."""
        names = [shortened(query.record.name, max(width // 4, 8)) for query in self._queries]
        rates, backlogs = [query.rates for query in self._queries], [query.backlogs for query in self._queries]
        numbers = _columns([query.record for query in self._queries], now)
        # Most important first.
        columns = [
            _Column("query", names, 7),
            *numbers[:3],
            _Column("rows/s", (), MIN_SPARKLINE, "cyan", rates),
            _Column("backlog", (), MIN_SPARKLINE, "magenta", backlogs),
            *numbers[3:],
        ]
        chosen: list[_Column] = []
        left = width + GAP
        for column in columns:
            if left >= column.width + GAP:
                chosen.append(column)
                left -= column.width + GAP
        sparklines = [column for column in chosen if column.style]
        longest = min(MIN_SPARKLINE + left // max(len(sparklines), 1), HISTORY)
        table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        shown = [column for column in chosen if not column.style]
        for column in shown:
            is_name = column is shown[0]
            table.add_column(
                no_wrap=True,
                style="bold" if is_name else "",
                justify="left" if is_name else "right",
                width=column.width,
            )
        for column in sparklines:
            table.add_column(no_wrap=True, style=column.style, width=longest)
        table.add_row(*(Text(column.title, "dim") for column in [*shown, *sparklines]))
        for index in range(len(names)):
            bars = [sparkline(column.values[index], longest, blocks) for column in sparklines]
            table.add_row(*(Text(text) for text in [*(column.cells[index] for column in shown), *bars]))
        return table


def _columns(records: Sequence[QueryStatus], now: float) -> list[_Column]:
    """Make the columns of numbers, the most important first."""

    def column(title: str, form: str, value: Callable[[QueryStatus], Any], min_width: int) -> _Column:
        values = [value(record) for record in records]
        return _Column(title, ["-" if each is None else form.format(each) for each in values], min_width)

    return [
        column("rows/s", "{:,.0f}", lambda record: record.rate, 7),
        column("backlog", "{:,}", lambda record: record.backlog, 7),
        column("lag", "{:,.1f} s", lambda record: record.lag, 7),
        column("batch", "{}", lambda record: record.committed if record.committed >= 0 else None, 6),
        column("updated", "{:.0f} s ago", lambda record: max(now - record.progress_at, 0.0), 9),
        column("state", "{:,.1f} MiB", lambda record: record.state_bytes / 2**20 if record.state_rows else None, 9),
        column("at nsqd", "{:,}", lambda record: record.waiting, 9),
        column("in spool", "{:,}", lambda record: record.spooled, 9),
        column("rows", "{:,}", lambda record: record.total.rows, 11),
    ]


def terminal_view(title: str, records: Callable[[], Sequence[QueryStatus]]) -> LiveView | None:
    """Make a view on stdout. Return None if stdout is no terminal, or one that can't move its cursor (TERM=dumb)."""
    console = Console()
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        return None
    return LiveView(title, records, console)
