"""Shows a snapshot as a table that fits the terminal: chooses columns, orders rows, and counts what is hidden."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from gnsq.cli.nodes import short_address
from gnsq.cli.snapshot import ChannelCounts, Node, Row, Snapshot, TopicCounts
from gnsq.texts import counted, printable

__all__ = ["SORTS", "History", "StatsView", "failures"]

# Characters of a sparkline, and the number of polls that it shows.
_BARS = "▁▂▃▄▅▆▇█"
POLLS_SHOWN = 16
# Characters of the first column that are shown even if other columns must be left out for them.
_MIN_NAME = 20
_GAP = 2


class History:
    """The depths of topics and channels at the last polls."""

    def __init__(self) -> None:
        self._depths: dict[tuple[str, str], deque[int]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add the depths of a snapshot, and forget topics and channels that it does not have."""
        rows = [row for topic in snapshot.topics for row in (topic, *topic.channels)]
        before = self._depths
        self._depths = {row.key: before.get(row.key, deque(maxlen=POLLS_SHOWN)) for row in rows}
        for row in rows:
            self._depths[row.key].append(row.counts.depth)

    def sparkline(self, key: tuple[str, str]) -> str:
        """Draw the depths, the last one at the right; the highest bar is the maximum. Empty before the second poll.

        A bar stands for at least one message: otherwise a depth that stays at 1 would look like a full queue.
        """
        depths = [max(depth, 0) for depth in self._depths.get(key, ())]
        highest = max(depths, default=0)
        if len(depths) < 2:
            return ""
        top = len(_BARS) - 1
        return "".join(_BARS[depth * top // max(highest, top)] for depth in depths)


# --- columns


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    """Write a rate. Small ones have a digit after the point: a rate of 0.2 is not 0."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def _paused(counts: TopicCounts | ChannelCounts) -> str:
    if not counts.paused:
        return ""
    return "paused" if counts.paused == counts.nsqds else f"{counts.paused} of {counts.nsqds} paused"


@dataclass(frozen=True)
class _Column:
    """A column of numbers.

    Attributes:
        rank: Columns with a lower rank are left out first.
        topic, channel: What it shows for them; None: nothing.
    """

    title: str
    rank: int
    topic: Callable[[TopicCounts], str] | None = None
    channel: Callable[[ChannelCounts], str] | None = None

    def cell(self, counts: TopicCounts | ChannelCounts) -> str:
        """Write the cell of a row."""
        if isinstance(counts, TopicCounts):
            return self.topic(counts) if self.topic else ""
        return self.channel(counts) if self.channel else ""


_HISTORY = _Column("last depths", 3)
_COLUMNS = (
    _Column("depth", 10, lambda topic: _number(topic.depth), lambda channel: _number(channel.depth)),
    _HISTORY,
    _Column("in flight", 7, None, lambda channel: _number(channel.in_flight_count)),
    _Column("deferred", 4, None, lambda channel: _number(channel.deferred_count)),
    _Column("requeued", 2, None, lambda channel: _number(channel.requeue_count)),
    _Column("timed out", 5, None, lambda channel: _number(channel.timeout_count)),
    _Column("published/s", 8, lambda topic: _rate(topic.publish_rate)),
    _Column("delivered/s", 1, None, lambda channel: _rate(channel.deliver_rate)),
    _Column("finished/s", 8, None, lambda channel: _rate(channel.finish_rate)),
    _Column("clients", 6, None, lambda channel: _number(channel.client_count)),
    _Column("paused", 9, _paused, _paused),
)


# --- order

# Names of --sort, and the numbers of topics and channels by which they order.
SORTS: Mapping[str, tuple[str, str]] = {
    "name": ("", ""),
    "depth": ("depth", "depth"),
    "in-flight": ("", "in_flight_count"),
    "deferred": ("", "deferred_count"),
    "requeued": ("", "requeue_count"),
    "timed-out": ("", "timeout_count"),
    "rate": ("publish_rate", "finish_rate"),
    "clients": ("", "client_count"),
}


def _value(row: Row, sort: str) -> float:
    """The number by which a row is ordered; for a topic, the highest one of the topic and its channels."""
    name = SORTS[sort][bool(row.channel)]
    own = getattr(row.counts, name) or 0 if name else 0
    return max([own, *(_value(channel, sort) for channel in row.channels)])


def ordered(rows: Sequence[Row], sort: str, *, reverse: bool) -> list[Row]:
    """Order topics or channels: by name from A, by a number from the highest one. reverse turns the order around."""
    by_name = sorted(rows, key=lambda row: row.key)
    if sort == "name":
        return by_name[::-1] if reverse else by_name
    return sorted(by_name, key=lambda row: _value(row, sort), reverse=not reverse)


# --- the view


@dataclass(frozen=True)
class _Line:
    name: str
    counts: TopicCounts | ChannelCounts
    history: str
    style: str = ""


class StatsView:
    """A snapshot as rich shows it.

    Args:
        sort: A name of SORTS.
        by_nsqd: Show the numbers of each nsqd under their sum.
        history: The last depths; None: do not show them.
        is_live: Leave out rows that the screen is too low for, and show why servers fail: there is no other place.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        sort: str = "depth",
        reverse: bool = False,
        by_nsqd: bool = False,
        history: History | None = None,
        is_live: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._sort = sort
        self._reverse = reverse
        self._by_nsqd = by_nsqd
        self._history = history
        self._is_live = is_live

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = console.height if self._is_live else None
        if self._snapshot.reached:
            yield from console.render(self._summary(options), options)
        nodes = self._node_lines(console, options, None if height is None else max(height // 2 - 2, 1))
        lines = list(self._lines())
        room = len(lines)
        if height is not None:
            # Besides the rows: the summary, the titles of the columns, an empty line, and the number of hidden rows.
            room = max(height - len(nodes) - 3, 0)
            if room < len(lines):
                room = max(room - 1, 0)
        if lines:
            yield from console.render(self._table(lines[:room], options), options)
            if hidden := len(lines) - room:
                yield Text(f"{counted(hidden, 'more row', spec=',')}: the screen is too low", style="dim", no_wrap=True)
        if self._snapshot.reached:
            yield Segment.line()
        for node in nodes:
            yield from node
            yield Segment.line()

    def _summary(self, options: ConsoleOptions) -> Text:
        snapshot = self._snapshot
        topics, channels = snapshot.topic_total, snapshot.channel_total
        parts = [
            counted(len(snapshot.topics), "topic", spec=","),
            counted(sum(len(row.channels) for row in snapshot.topics), "channel", spec=","),
            f"depth {topics.depth + channels.depth:,}",
            f"in flight {channels.in_flight_count:,}",
        ]
        if snapshot.seconds is not None:
            parts += [f"published {_rate(topics.publish_rate)}/s", f"finished {_rate(channels.finish_rate)}/s"]
        parts.append(datetime.fromtimestamp(snapshot.time).strftime("%H:%M:%S"))
        return Text(", ".join(parts), style="bold", no_wrap=True, overflow=_overflow(options))

    def _lines(self) -> Iterator[_Line]:
        for topic in ordered(self._snapshot.topics, self._sort, reverse=self._reverse):
            yield self._line(topic, "", "bold")
            yield from self._nsqd_lines(topic, "  ")
            for channel in ordered(topic.channels, self._sort, reverse=self._reverse):
                yield self._line(channel, "  ")
                yield from self._nsqd_lines(channel, "    ")

    def _line(self, row: Row, indent: str, style: str = "") -> _Line:
        history = self._history.sparkline(row.key) if self._history is not None else ""
        return _Line(indent + printable(row.channel or row.topic), row.counts, history, style)

    def _nsqd_lines(self, row: Row, indent: str) -> Iterator[_Line]:
        for address, counts in sorted(row.by_nsqd.items()) if self._by_nsqd else ():
            yield _Line(f"{indent}@ {short_address(address)}", counts, "", "dim")

    def _table(self, lines: Sequence[_Line], options: ConsoleOptions) -> Table:
        cells = [[self._cell(column, line) for column in _COLUMNS] for line in lines]
        widths = {
            column: max([len(column.title), *(len(row[index]) for row in cells)])
            for index, column in enumerate(_COLUMNS)
        }
        left_out = {_HISTORY} if self._history is None or options.ascii_only else set()
        if not any(row[-1] for row in cells):
            left_out.add(_COLUMNS[-1])  # nothing is paused
        shown = [column for column in _COLUMNS if column not in left_out]
        name_width = max(len("topic, channel"), *(len(line.name) for line in lines), 0)
        while True:
            # rich reserves a gap after the last column, too.
            left = options.max_width - _GAP - sum(widths[column] + _GAP for column in shown)
            if left >= min(name_width, _MIN_NAME) or len(shown) == 1:
                break
            shown.remove(min(shown, key=lambda column: column.rank))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="underline")
        # rich would make all columns narrower, but a part of a number is wrong.
        table.add_column(
            "topic, channel", no_wrap=True, overflow=_overflow(options), width=max(min(name_width, left), 1)
        )
        for column in shown:
            is_text = column in (_HISTORY, _COLUMNS[-1])
            justify: Literal["left", "right"] = "left" if is_text else "right"
            table.add_column(column.title, no_wrap=True, justify=justify, width=widths[column])
        for line, row in zip(lines, cells, strict=True):
            kept = [cell for cell, column in zip(row, _COLUMNS, strict=True) if column in shown]
            table.add_row(Text(line.name), *map(Text, kept), style=line.style)
        return table

    def _cell(self, column: _Column, line: _Line) -> str:
        return line.history.rjust(POLLS_SHOWN) if column is _HISTORY else column.cell(line.counts)

    # --- nsqds

    def _node_lines(self, console: Console, options: ConsoleOptions, limit: int | None) -> list[list[Segment]]:
        """Render the nsqds and nsqlookupds, those with errors first, in at most limit lines."""
        entries = list(self._nodes())
        rendered: list[list[Segment]] = []
        for index, entry in enumerate(entries):
            lines = console.render_lines(entry, options, pad=False)
            is_last = index == len(entries) - 1
            if limit is not None and len(rendered) + len(lines) + (not is_last) > limit:
                text = f"{len(entries) - index} more servers: the screen is too low"
                return [*rendered, *console.render_lines(Text(text, style="dim", no_wrap=True), options, pad=False)]
            rendered += lines
        return rendered

    def _nodes(self) -> Iterator[RenderableType]:
        if self._is_live:
            yield from (Text(failure, style="red") for failure in failures(self._snapshot))
        for node in sorted(self._snapshot.nodes, key=lambda node: (_is_healthy(node), node.address)):
            if node.same_as:
                yield Text(
                    f"nsqd {short_address(node.address)}: the same nsqd as {short_address(node.same_as)}, counted once"
                )
            elif node.stats is not None:
                yield Text(_describe(node), style=Style() if _is_healthy(node) else "red")


def failures(snapshot: Snapshot) -> Iterator[str]:
    """Say of each server that has not answered why."""
    for address, error in snapshot.lookupds.items():
        if error:
            yield f"nsqlookupd {short_address(address)}: {printable(error)}"
    for node in snapshot.unreached:
        yield f"nsqd {short_address(node.address)}: {printable(node.error)}"
    if not snapshot.nodes and not all(snapshot.lookupds.values()):
        yield "no nsqd is registered with nsqlookupd"


def _overflow(options: ConsoleOptions) -> Literal["crop", "ellipsis"]:
    """Choose how rich cuts a text. Its ellipsis is a character that an ASCII terminal does not have."""
    return "crop" if options.ascii_only else "ellipsis"


def _describe(node: Node) -> str:
    assert node.stats is not None  # only nsqds that have answered are described
    stats = node.stats
    parts = [f"nsqd {short_address(node.address)}", f"version {printable(stats.version) or 'unknown'}"]
    parts.append(f"health {printable(stats.health) or 'unknown'}")
    if stats.start_time is not None:
        parts.append(f"up since {_date(stats.start_time)}")
    return "  ".join(parts)


def _is_healthy(node: Node) -> bool:
    # Very old servers do not say their health.
    return node.stats is None or node.stats.health in ("OK", "")


def _date(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):  # a server may send any number
        return str(seconds)
