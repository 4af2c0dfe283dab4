"""Shows a snapshot as a table that fits the terminal: chooses columns, and orders rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gnsq.census import Counts, Node, NodeStats, short_address
from gnsq.cli.sums import Row, Snapshot
from gnsq.texts import counted, printable

__all__ = ["SORTS", "StatsView"]

# Characters of the first column that are shown even if other columns must be left out for them.
_MIN_NAME = 20
_GAP = 2


# --- columns


@dataclass(frozen=True)
class _Column:
    """A column.

    Attributes:
        rank: Columns with a lower rank are left out first.
        key: Of the number that it shows, which a topic or channel may not have.
        justify: Side at which its texts stand.
    """

    title: str
    rank: int
    key: str
    justify: Literal["left", "right"] = "right"


_NAME = "topic, channel"  # title of the first column
_PAUSED = _Column("paused", 9, "paused", "left")
_COLUMNS = (
    _Column("depth", 10, "depth"),
    _Column("in flight", 7, "in_flight_count"),
    _Column("deferred", 4, "deferred_count"),
    _Column("requeued", 2, "requeue_count"),
    _Column("timed out", 5, "timeout_count"),
    _Column("published/s", 8, "publish_rate"),
    _Column("delivered/s", 1, "deliver_rate"),
    _Column("finished/s", 8, "finish_rate"),
    _Column("clients", 6, "client_count"),
    _PAUSED,
)
# Names of --sort, and the numbers of topics and channels by which they order.
SORTS: Mapping[str, tuple[str, ...]] = {
    "name": (),
    "depth": ("depth",),
    "in-flight": ("in_flight_count",),
    "deferred": ("deferred_count",),
    "requeued": ("requeue_count",),
    "timed-out": ("timeout_count",),
    "rate": ("publish_rate", "finish_rate"),
    "clients": ("client_count",),
}


def _rate(value: float | None) -> str:
    """Write a rate. Small ones have a digit after the point: a rate of 0.2 is not 0."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def _value(row: Row, sort: str) -> float:
    """The number by which a row is ordered; for a topic, the highest one of the topic and its channels."""
    own = [row.counts.get(key) or 0 for key in SORTS[sort]]
    return max([*own, *(_value(channel, sort) for channel in row.channels)], default=0)


def ordered(rows: Sequence[Row], sort: str, *, reverse: bool) -> list[Row]:
    """Order topics or channels: by name from A, by a number from the highest one. reverse turns the order around."""
    by_name = sorted(rows, key=lambda row: row.key)
    if sort == "name":
        return by_name[::-1] if reverse else by_name
    return sorted(by_name, key=lambda row: _value(row, sort), reverse=not reverse)


# --- the view


@dataclass(frozen=True)
class _Line:
    """A line of the table. Sums are of several nsqds."""

    name: str
    counts: Counts
    nsqds: int = 1
    style: str = "dim"

    def cell(self, column: _Column) -> str:
        """Write the cell of a column."""
        if column is _PAUSED:
            paused: int = self.counts["paused"]
            return "" if not paused else "paused" if paused == self.nsqds else f"{paused} of {self.nsqds} paused"
        if column.key not in self.counts:
            return ""
        number = self.counts[column.key]
        if column.key.endswith("_rate"):
            return _rate(number)
        return "?" if number is None else f"{number:,}"


@dataclass(frozen=True)
class _Cells:
    """The texts of a column, one for each line."""

    column: _Column
    texts: list[str]

    @property
    def width(self) -> int:
        """Characters of the longest text or the title."""
        return max(map(len, (self.column.title, *self.texts)))


@dataclass(frozen=True)
class StatsView:
    """A snapshot as rich shows it.

    Attributes:
        sort: A name of SORTS.
        by_nsqd: Show the numbers of each nsqd under their sum.
        has_failures: Show why servers fail, too, above the table.
    """

    snapshot: Snapshot
    sort: str = "depth"
    reverse: bool = False
    by_nsqd: bool = False
    has_failures: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.snapshot.reached:
            yield self._summary()
        if self.has_failures:
            yield from (Text(failure, style="red") for failure in self.snapshot.failures)
        if lines := list(self._lines()):
            columns = list(self._columns(lines))
            name_width = max(map(len, (_NAME, *(line.name for line in lines))))
            shown = _fitting(columns, name_width, options.max_width)
            yield _table(lines, shown, name_width, options)
            if left_out := [each.column for each in columns if each not in shown]:
                titles = ", ".join(column.title for column in sorted(left_out, key=lambda column: column.rank))
                yield Text(f"no room in {options.max_width} columns for: {titles}", style="dim")
        if self.snapshot.clients:
            yield Text()
            yield from self._clients()
        if self.snapshot.reached:
            yield Text()
        yield from self._servers()

    def _summary(self) -> Text:
        snapshot = self.snapshot
        topics, channels = snapshot.topic_total, snapshot.channel_total
        parts = [
            counted(len(snapshot.topics), "topic", spec=","),
            counted(sum(len(row.channels) for row in snapshot.topics), "channel", spec=","),
            f"depth {topics['depth'] + channels['depth']:,}",
            f"in flight {channels['in_flight_count']:,}",
        ]
        if snapshot.seconds is not None:
            parts += [f"published {_rate(topics['publish_rate'])}/s", f"finished {_rate(channels['finish_rate'])}/s"]
        parts.append(datetime.fromtimestamp(snapshot.time).strftime("%H:%M:%S"))
        return Text(", ".join(parts), style="bold")

    def _lines(self) -> Iterator[_Line]:
        for topic in ordered(self.snapshot.topics, self.sort, reverse=self.reverse):
            yield from self._row_lines(topic, "", "bold")
            for channel in ordered(topic.channels, self.sort, reverse=self.reverse):
                yield from self._row_lines(channel, "  ", "")

    def _row_lines(self, row: Row, indent: str, style: str) -> Iterator[_Line]:
        yield _Line(indent + printable(row.channel or row.topic), row.counts, len(row.by_nsqd), style)
        for address, counts in sorted(row.by_nsqd.items()) if self.by_nsqd else ():
            yield _Line(f"{indent}  @ {short_address(address)}", counts)

    def _columns(self, lines: Sequence[_Line]) -> Iterator[_Cells]:
        for column in _COLUMNS:
            cells = _Cells(column, [line.cell(column) for line in lines])
            has_no_rates = self.snapshot.seconds is None and column.key.endswith("_rate")
            if not has_no_rates and (column is not _PAUSED or any(cells.texts)):
                yield cells

    def _clients(self) -> Iterator[Text]:
        """Describe the consumers of a channel, by host."""
        for address, client in sorted(self.snapshot.clients, key=lambda each: (each[1].hostname, each[1].client_id)):
            own = "" if client.client_id in ("", client.hostname) else f"{client.client_id} on "
            parts = [f"client {printable(own + client.hostname)}", printable(client.user_agent) or "unknown version"]
            parts += [f"from {printable(client.remote_address)} at nsqd {short_address(address)}"]
            parts += [f"RDY {client.ready_count:,}", f"in flight {client.in_flight_count:,}"]
            parts += [f"since {_date(client.connect_ts)}"] if client.connect_ts else []
            yield Text("  ".join(parts))

    def _servers(self) -> Iterator[Text]:
        """Describe the nsqds that have answered, those with errors first."""
        for node in sorted(self.snapshot.nodes, key=lambda node: (_is_healthy(node), node.address)):
            if node.same_as:
                yield Text(
                    f"nsqd {short_address(node.address)}: the same nsqd as {short_address(node.same_as)}, counted once"
                )
            elif node.stats is not None:
                yield Text(_describe(node, node.stats), style="" if _is_healthy(node) else "red")


def _fitting(columns: Iterable[_Cells], name_width: int, width: int) -> list[_Cells]:
    """Leave out columns, the lowest rank first, until names fit or have _MIN_NAME characters. One column stays."""
    shown = list(columns)
    while len(shown) > 1 and width - _taken(shown) < min(name_width, _MIN_NAME):
        shown.remove(min(shown, key=lambda each: each.column.rank))
    return shown


def _taken(columns: Iterable[_Cells]) -> int:
    """Return how many characters of a line columns take, with their gaps. rich has one after the last, too."""
    return _GAP + sum(each.width + _GAP for each in columns)


def _table(lines: Sequence[_Line], columns: Sequence[_Cells], name_width: int, options: ConsoleOptions) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="underline")
    # rich would make all columns narrower, but a part of a number is wrong.
    width = max(min(name_width, options.max_width - _taken(columns)), 1)
    table.add_column(_NAME, no_wrap=True, overflow=_overflow(options), width=width)
    for each in columns:
        table.add_column(each.column.title, no_wrap=True, justify=each.column.justify, width=each.width)
    for line, *row in zip(lines, *(each.texts for each in columns), strict=True):
        table.add_row(Text(line.name), *map(Text, row), style=line.style)
    return table


def _overflow(options: ConsoleOptions) -> Literal["crop", "ellipsis"]:
    """Choose how rich cuts a text. Its ellipsis is a character that an ASCII terminal does not have."""
    return "crop" if options.ascii_only else "ellipsis"


def _describe(node: Node, stats: NodeStats) -> str:
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
