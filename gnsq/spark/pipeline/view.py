"""Live view: where each query stands, on a terminal, in place of a line for each batch. Knows no Spark."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gnsq.spark.pipeline.report import Batch
from gnsq.texts import counted

__all__ = ["LiveView", "shortened", "sparkline", "terminal_view"]

# Seconds after which the view is drawn again although nothing has come, for the times in it.
REDRAW_INTERVAL = 1.0
# Progresses of a query that are kept for its two sparklines: one column of a terminal for each.
HISTORY = 60
# Least columns of a sparkline, and blanks between two columns of the table.
MIN_SPARKLINE, GAP = 8, 2
_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """Draw the last values, from 0 to their maximum, with one character for each. Values of 0 are the lowest block."""
    shown = values[-width:]
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
    """Texts of a column. It has min_width at least, so that the table does not move with each number."""

    title: str
    cells: list[str]
    min_width: int

    @property
    def width(self) -> int:
        return max([self.min_width, *map(len, self.cells)])


class _Query:
    """The numbers of one query."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        # The last progress, and when it came.
        self.last: Batch | None = None
        self.last_at = 0.0
        # Of the last batch with rows; 0 after all is read.
        self.lag: float | None = None
        self.rates: deque[float] = deque(maxlen=HISTORY)
        self.backlogs: deque[int] = deque(maxlen=HISTORY)

    def record(self, progress: Batch, now: float) -> None:
        self.last, self.last_at = progress, now
        self.rows += progress.rows
        if progress.rows:
            self.lag = progress.lag
        elif self.lag is not None and not (self.backlog or progress.trouble):
            self.lag = 0.0
        self.rates.append(progress.rows / progress.seconds if progress.seconds else 0.0)
        if self.backlog is not None:
            self.backlogs.append(self.backlog)

    @property
    def backlog(self) -> int | None:
        """Messages at nsqd and in the spool; None if neither is known."""
        known = [] if self.last is None else [self.last.waiting, self.last.spooled]
        numbers = [number for number in known if number is not None]
        return sum(numbers) if numbers else None

    @property
    def trouble(self) -> str:
        return "" if self.last is None else self.last.trouble


class LiveView:
    """Shows the queries in a ``with`` block. At its end the view is removed, and the terminal is as before.

    Has no thread: call refresh() several times a second. What is logged in the block to a terminal, by the handlers of
    the root logger, is shown above the view, and stays.

    Args:
        title: What runs.
        queries: Names of all queries.
        now: Returns the monotonic time.
    """

    def __init__(
        self, title: str, queries: Iterable[str], console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._queries = {query: _Query(query) for query in queries}
        self._now = now
        self._started_at = self._drawn_at = now()
        self._is_changed = False
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

    def record(self, progress: Batch) -> None:
        """Take the progress of a query, also that of an idle one."""
        self._queries[progress.query].record(progress, self._now())
        self._is_changed = True

    def refresh(self) -> None:
        """Draw the view if it has changed, and once a second for the times in it."""
        now = self._now()
        if self._is_changed or now - self._drawn_at >= REDRAW_INTERVAL:
            self._is_changed, self._drawn_at = False, now
            self._live.refresh()

    # --- drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # At Ctrl-C, terminals write ^C after the view. If that began a new line, the view could not be removed.
        width, height = max(options.max_width - len("^C"), 1), console.height
        elapsed = dt.timedelta(seconds=int(self._now() - self._started_at))
        troubles = self._trouble_lines(console, width)
        if len(troubles) > (most := max(height // 3, 1)):
            troubles = [*troubles[: most - 1], Text("...", "yellow")]
        # One line each for the title, the titles of the columns, and the cursor.
        queries = self._most_urgent(height - 3 - len(troubles))
        parts: list[Text | Table] = [
            Text(f"{self._title}, {elapsed}; Ctrl-C stops it in order", "bold", no_wrap=True, overflow="ellipsis"),
            self._table(queries, width, _ASCII_BLOCKS if options.ascii_only else _BLOCKS),
        ]
        if left := len(self._queries) - len(queries):
            text = f"{counted(left, 'more query', 'more queries')} with less backlog"
            parts.append(Text(text, "dim", no_wrap=True, overflow="ellipsis"))
        yield Constrain(Group(*parts, *troubles), width)

    def _trouble_lines(self, console: Console, width: int) -> list[Text]:
        """Lines with each trouble and the queries that have it."""
        troubled: dict[str, list[str]] = {}
        for query in self._queries.values():
            if query.trouble:
                troubled.setdefault(query.trouble, []).append(query.name)
        texts = [Text(f"{', '.join(names)}: {trouble}", "yellow") for trouble, names in troubled.items()]
        return [line for text in texts for line in text.wrap(console, width)]

    def _most_urgent(self, room: int) -> list[_Query]:
        """All queries, in their order; or, if there is no room, those with trouble or the largest backlog."""
        queries = list(self._queries.values())
        if len(queries) <= room:
            return queries
        # One line says that others are left out.
        urgent = sorted(queries, key=lambda query: (bool(query.trouble), query.backlog or 0), reverse=True)
        chosen = urgent[: max(room - 1, 1)]
        return [query for query in queries if query in chosen]

    def _table(self, queries: Sequence[_Query], width: int, blocks: str) -> Table:
        names = _Column("query", [shortened(query.name, max(width // 4, 8)) for query in queries], 7)
        first, *others = self._columns(queries)
        chosen, left = [first], width - names.width - GAP - first.width
        sparklines = [
            ("rows/s", [list(query.rates) for query in queries], "cyan"),
            ("backlog", [[float(number) for number in query.backlogs] for query in queries], "magenta"),
        ]
        # Most important first: lag and backlog, then the sparklines, then all others.
        for column in others[:2]:
            if left >= column.width + GAP:
                chosen.append(column)
                left -= column.width + GAP
        drawn = sparklines[: max(left, 0) // (MIN_SPARKLINE + GAP)]
        left -= len(drawn) * (MIN_SPARKLINE + GAP)
        for column in others[2:]:
            if left >= column.width + GAP:
                chosen.append(column)
                left -= column.width + GAP
        longest = MIN_SPARKLINE + left // len(drawn) if drawn else 0
        table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True, style="bold", width=names.width)
        for column in chosen:
            table.add_column(no_wrap=True, justify="right", width=column.width)
        for _, _, style in drawn:
            table.add_column(no_wrap=True, style=style, width=min(longest, HISTORY))
        titles = [*(column.title for column in [names, *chosen]), *(title for title, _, _ in drawn)]
        table.add_row(*(Text(title, "dim") for title in titles))
        for index in range(len(queries)):
            bars = [sparkline(values[index], min(longest, HISTORY), blocks) for _, values, _ in drawn]
            table.add_row(*(Text(text) for text in [*(column.cells[index] for column in [names, *chosen]), *bars]))
        return table

    def _columns(self, queries: Sequence[_Query]) -> list[_Column]:
        """Make the columns of numbers, the most important first."""
        now = self._now()
        return [
            _Column("rows/s", [f"{query.rates[-1]:,.0f}" if query.rates else "-" for query in queries], 7),
            _Column("backlog", [_number(query.backlog) for query in queries], 7),
            _Column("lag", [_seconds(query.lag) for query in queries], 7),
            _Column("batch", ["-" if query.last is None else f"{query.last.batch_id}" for query in queries], 6),
            _Column("updated", [_ago(query, now) for query in queries], 9),
            _Column("state", [_mebibytes(query.last) for query in queries], 9),
            _Column("at nsqd", [_number(query.last.waiting if query.last else None) for query in queries], 9),
            _Column("in spool", [_number(query.last.spooled if query.last else None) for query in queries], 9),
            _Column("rows", [f"{query.rows:,}" for query in queries], 11),
        ]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"


def _ago(query: _Query, now: float) -> str:
    return "-" if query.last is None else f"{now - query.last_at:.0f} s ago"


def _mebibytes(batch: Batch | None) -> str:
    return "-" if batch is None or not batch.state_rows else f"{batch.state_bytes / 2**20:,.1f} MiB"


def terminal_view(title: str, queries: Iterable[str]) -> LiveView | None:
    """Make a view on stdout. Return None if stdout is no terminal, or one that can't move its cursor (TERM=dumb)."""
    console = Console()
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        return None
    return LiveView(title, queries, console)
