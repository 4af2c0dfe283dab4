"""Report of the demo: one HTML file that loads nothing, for light and dark screens of any width. Reads no tables."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from gnsq.spark.pipeline.report import Batch
from gnsq.texts import counted

__all__ = ["DemoRun", "ShownTable", "binned", "demo_html", "labelled_times", "rate_after_first"]

# Colours that plots are drawn with. Each is replaced by a variable of the style sheet, which knows light and dark.
_INK, _GRID, _ARCHIVE, _METRICS = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {_INK: "var(--ink)", _GRID: "var(--grid)", _ARCHIVE: "var(--archive)", _METRICS: "var(--metrics)"}
_COLOURS = {"archive": _ARCHIVE, "metrics": _METRICS}
# Inches. The font of 10 points is legible if the plot is as wide as a phone.
_SIZE = (4.6, 2.5)
_MINUTE, _HOUR, _DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)
# Width of the bars of events by time, with its name, and how many bars there are at most.
_STEPS = [(_MINUTE, "minute"), (_HOUR, "hour"), (_DAY, "day"), (30 * _DAY, "30 days")]
MAX_BINS = 400
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# Times between two labels.
_LABEL_STEPS = [
    *(number * _MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    *(number * _DAY for number in (1, 2, 7, 30, 90, 365)),
]
MAX_PAGES = 12
# Most labels of times below a plot.
MAX_LABELS = 5


class ShownTable(NamedTuple):
    """A table of the job, with its size in words and the names of its columns."""

    name: str
    size: str
    columns: Sequence[str]
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """Content of the report.

    Attributes:
        seconds: How long the demo took.
        published: Number of published events.
        batches: Batches of all queries, each with the seconds from the start of the demo to its end.
        account: Where the published events are, in words, and their numbers.
        checks: Conditions of the account, and whether they are fulfilled.
        minutes: Start of a window of a minute -> number of events; without windows that have none.
        pages, reasons: Number of events of each page, and of dead letters with each reason.
        tables: The tables of the job.
        kept: Where the tables are; None if they were deleted.
        facts: Names and texts of what ran: versions, machine, settings.
    """

    started_at: dt.datetime
    seconds: float
    published: int
    batches: Sequence[tuple[float, Batch]]
    account: Mapping[str, int]
    checks: Mapping[str, bool]
    minutes: Mapping[dt.datetime, int]
    pages: Mapping[str, int]
    reasons: Mapping[str, int]
    tables: Sequence[ShownTable]
    kept: Path | None
    facts: Mapping[str, str]

    def of(self, query: str) -> list[tuple[float, Batch]]:
        """The batches of one query."""
        return [(at, batch) for at, batch in self.batches if batch.query == query]


# --- numbers


def rate_after_first(batches: Sequence[tuple[float, Batch]]) -> float:
    """Compute rows per second after the end of the first batch, in which Spark compiles; of one batch, its own rate."""
    if len(batches) == 1:
        [(_, batch)] = batches
        return batch.rows / batch.seconds if batch.seconds else 0.0
    seconds = batches[-1][0] - batches[0][0] if batches else 0.0
    return sum(batch.rows for _, batch in batches[1:]) / seconds if seconds else 0.0


def binned(minutes: Mapping[dt.datetime, int]) -> tuple[str, list[dt.datetime], list[int]]:
    """Add up events by minute, or by a longer time if there would be more than MAX_BINS.

    Returns:
        The name of the time; the starts of all bins and the end of the last; the number of events in each.
    """
    first, last = min(minutes), max(minutes)
    step, name = next((each for each in _STEPS if (last - first) / each[0] < MAX_BINS), _STEPS[-1])
    if step in (_HOUR, _DAY):
        first = first.replace(minute=0, hour=first.hour if step == _HOUR else 0)
    numbers = [0] * ((last - first) // step + 1)
    for minute, number in minutes.items():
        numbers[(minute - first) // step] += number
    return name, [first + step * index for index in range(len(numbers) + 1)], numbers


def labelled_times(first: dt.datetime, last: dt.datetime) -> list[dt.datetime]:
    """Choose up to MAX_LABELS + 1 times for the labels of an axis: full minutes, hours or days."""
    fitting = (step for step in _LABEL_STEPS if (last - first) / step <= MAX_LABELS)
    step = next(fitting, (last - first) / MAX_LABELS)
    begin = (_EPOCH - first) % step
    return [first + begin + index * step for index in range((last - first - begin) // step + 1)]


# --- plots


def _plot(name: str, label: str, draw: Callable[[Any], object]) -> str:
    """Draw a plot as SVG, for a page with other plots.

    Args:
        name: Makes the ids of the plot differ from those of others.
        draw: Draws on matplotlib's axes.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    settings: Any = {  # Any: the names of all settings of matplotlib
        "svg.fonttype": "none",  # text stays text, in the font of the page
        "svg.hashsalt": name,
        "font.size": 10,
        "axes.edgecolor": _GRID,
        "grid.color": _GRID,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], _INK),
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        draw(axes)
        file = io.StringIO()
        nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _run_plots(run: DemoRun) -> Iterable[tuple[str, str, str]]:
    """Draw throughput, backlog and lag: title, meaning and SVG of each. Before the first batch, Spark starts."""
    begun = min((at - batch.seconds for at, batch in run.batches), default=0.0)

    def lines(points: Callable[[str], list[tuple[float, float]]], mark: str) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for query, colour in _COLOURS.items():
                found = points(query)
                x, y = [at for at, _ in found], [value for _, value in found]
                axes.plot(x, y, color=colour, marker=mark, markersize=4, linewidth=1.8)
            axes.set_xlim(begun, max((at for at, _ in run.batches), default=run.seconds) + 0.5)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("seconds after the start of the demo")

        return draw

    def rates(query: str) -> list[tuple[float, float]]:
        # A batch begins when the one before ends.
        points: list[tuple[float, float]] = []
        for at, batch in run.of(query):
            rate = batch.rows / batch.seconds if batch.seconds else 0.0
            points += [(points[-1][0] if points else at - batch.seconds, rate), (at, rate)]
        return points

    def backlogs(query: str) -> list[tuple[float, float]]:
        # Not by what nsqd and the spool have said: messages that move between the two answers are counted twice.
        times = [begun, *(at for at, _ in run.of(query))]
        read = itertools.accumulate((batch.rows for _, batch in run.of(query)), initial=0)
        return [(at, float(max(run.published - number, 0))) for at, number in zip(times, read, strict=True)]

    def lags(query: str) -> list[tuple[float, float]]:
        return [(at, batch.lag) for at, batch in run.of(query) if batch.lag is not None]

    yield (
        "Rows per second",
        f"Each level is a batch. Spark starts for {begun:.0f} s before, and compiles what it runs in the first one.",
        _plot("rate", "Rows per second of each batch", lines(rates, "")),
    )
    yield (
        "Backlog, messages",
        "Published messages that are in no committed batch. All were published before Spark was started.",
        _plot("backlog", "Backlog of both queries over time", lines(backlogs, "o")),
    )
    yield (
        "Lag, seconds",
        "From the publishing of a batch's newest message to the end of the batch. All were published at once, so the "
        "last ones wait for longest.",
        _plot("lag", "Lag of both queries over time", lines(lags, "o")),
    )


def _events_plot(run: DemoRun) -> tuple[str, str]:
    """Draw the events by time. Returns the title and the SVG."""
    name, edges, numbers = binned(run.minutes)

    def draw(axes: Any) -> None:
        seconds = [(edge - edges[0]).total_seconds() for edge in edges]
        axes.stairs(numbers, seconds, fill=True, color=_METRICS, alpha=0.75, linewidth=0)
        axes.set_xlim(seconds[0], seconds[-1])
        times = labelled_times(edges[0], edges[-1])
        form = "%H:%M" if edges[-1] - edges[0] <= _DAY else "%Y-%m-%d"
        axes.set_xticks([(time - edges[0]).total_seconds() for time in times], [f"{time:{form}}" for time in times])

    return f"Events by {name}", _plot("events", f"Events by {name} of their own time, UTC", draw)


# --- HTML


def demo_html(run: DemoRun) -> str:
    """Make the page.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    plots = [_figure(*plot) for plot in _run_plots(run)]
    body = [
        "<header><h1>The pipeline on one machine</h1>",
        f"<p class=quiet>gnsq-pipeline, run by its demo on {run.started_at:%Y-%m-%d %H:%M} UTC. Two emulated nsqds, "
        "one nsqlookupd; the query <b class=archive>archive</b> writes each event to a table, the query "
        "<b class=metrics>metrics</b> counts them by minute and page.</p></header>",
        _verdict(run),
        _tiles(run),
        "<h2>The account</h2>",
        _table(["", "events"], [(escape(name), f"{number:,}") for name, number in run.account.items()], "numbers"),
        *(_check(text, agrees) for text, agrees in run.checks.items()),
        "<h2>The run</h2>",
        "<p class=legend><span class=archive>archive</span> <span class=metrics>metrics</span></p>",
        f"<div class=plots>{''.join(plots)}{_figure('By query', '', _queries(run))}</div>",
        "<h2>What was counted</h2>",
        f"<div class=plots>{_events(run)}{_figure('Events by page', _more_pages(run), _bars(run.pages, MAX_PAGES))}",
        f"{_letters(run)}</div>",
        "<h2>The tables</h2>",
        _tables(run),
        "<h2>What ran</h2>",
        _table(["", ""], [(escape(name), escape(text)) for name, text in run.facts.items()]),
    ]
    return _PAGE.replace("BODY", "\n".join(body))


def _verdict(run: DemoRun) -> str:
    if all(run.checks.values()):
        return f"<p class='verdict good'>All {counted(run.published, 'event', spec=',')} are accounted for.</p>"
    return "<p class='verdict bad'>The account does not agree. The output and the logs were kept; see below.</p>"


def _check(text: str, agrees: bool) -> str:
    kind, mark, words = ("good", "✓", "agrees") if agrees else ("bad", "✗", "DOES NOT AGREE")
    return f"<p class=check><b class={kind}>{mark} {words}</b> {escape(text)}</p>"


def _tiles(run: DemoRun) -> str:
    tiles = [(f"{run.published:,}", "events published")]
    for query in _COLOURS:
        if batches := run.of(query):
            tiles.append((f"{rate_after_first(batches):,.0f}", f"rows/s of {query} after its first batch"))
    tiles.append((f"{run.seconds:.0f} s", "for all, with Spark's start"))
    return f"<ul class=tiles>{''.join(f'<li><b>{number}</b> {escape(words)}</li>' for number, words in tiles)}</ul>"


def _queries(run: DemoRun) -> str:
    rows = []
    for query in _COLOURS:
        batches = [batch for _, batch in run.of(query)]
        lags = [batch.lag for batch in batches if batch.lag is not None]
        states = [batch.state_bytes / 2**20 for batch in batches if batch.state_rows]
        rows.append(
            (
                f"<b class={query}>{query}</b>",
                f"{sum(batch.rows for batch in batches):,}",
                f"{len(batches):,}",
                f"{rate_after_first(run.of(query)):,.0f}",
                f"{max((batch.rows for batch in batches), default=0):,}",
                f"{max(lags):,.1f} s" if lags else "unknown",
                f"{max(states):,.1f} MiB" if states else "none",
            )
        )
    turned = zip(("", "rows", "batches", "rows/s", "largest batch", "most lag", "state"), *rows, strict=True)
    titles, *lines = turned
    return _table(titles, lines, "numbers")


def _events(run: DemoRun) -> str:
    if not run.minutes:
        return _figure("Events by minute", "Nothing was counted.", "")
    title, svg = _events_plot(run)
    return _figure(title, "By the time in the events, UTC; from the table metrics/counts.", svg)


def _letters(run: DemoRun) -> str:
    if not run.reasons:
        return ""
    return _figure("Dead letters by reason", "", _bars(run.reasons, MAX_PAGES, "letters"))


def _more_pages(run: DemoRun) -> str:
    more = len(run.pages) - MAX_PAGES
    return (
        f"The most frequent; {counted(more, 'more page is', 'more pages are', spec=',')} in the table."
        if more > 0
        else ""
    )


def _bars(numbers: Mapping[str, int], most: int, kind: str = "") -> str:
    """Make horizontal bars of the largest numbers. kind is a class of the style sheet."""
    chosen = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))[:most]
    largest = max((number for _, number in chosen), default=1)
    rows = [
        f"<tr><th scope=row>{escape(name)}</th><td class=bar><span style='width:{100 * number / largest:.1f}%'></span>"
        f"</td><td>{number:,}</td></tr>"
        for name, number in chosen
    ]
    return f"<table class='bars {kind}'>{''.join(rows)}</table>"


def _tables(run: DemoRun) -> str:
    rows = [
        (f"<code>{escape(table.name)}</code>", escape(table.size), escape(table.meaning), _columns(table.columns))
        for table in run.tables
    ]
    if run.kept is None:
        place, folder = f"They were deleted at the end of the demo; <code>{_KEEP}</code> keeps them.", "OUTPUT"
    else:
        place, folder = f"They are in <code>{escape(str(run.kept))}</code>.", str(run.kept)
    code = _CODE.replace("FOLDER", folder)
    return (
        f"<p>All are Delta tables. {place} {_LOOK}</p>"
        f"{_table(['table', 'size', 'what it has', 'columns'], rows, 'tables')}<pre><code>{escape(code)}</code></pre>"
    )


def _columns(names: Iterable[str]) -> str:
    return ", ".join(f"<code>{escape(name)}</code>" for name in names)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Make a table of cells and titles in HTML. kind is a class of the style sheet."""
    head = "".join(f"<th scope=col>{title}</th>" for title in titles)
    lines = [
        f"<tr><th scope=row>{first}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for first, *cells in rows
    ]
    first_line = f"<tr>{head}</tr>" if any(titles) else ""
    return f"<div class=wide><table class='{kind}'>{first_line}{''.join(lines)}</table></div>"


def _figure(title: str, meaning: str, content: str) -> str:
    words = f" <span class=quiet>{escape(meaning)}</span>" if meaning else ""
    return f"<figure><figcaption><b>{escape(title)}</b>{words}</figcaption>{content}</figure>"


_LOOK = (
    "In <code>archive</code>, <code>body</code> is the event as it came, and <code>message_id</code> with "
    "<code>nsqd</code> identifies its message. In <code>dead</code>, <code>reason</code> says what is wrong with a "
    "body. Of the rows of <code>metrics/counts</code> with the same window and page, the one with the highest "
    "<code>version</code> is valid."
)
_KEEP = "python -m gnsq.spark.pipeline.demo --keep"
_CODE = """\
from deltalake import DeltaTable

from gnsq.spark.pipeline.windows import Metric, true_counts

DeltaTable("FOLDER/archive").to_pandas(columns=["event_time", "user", "page"])
DeltaTable("FOLDER/dead").to_pandas(columns=["reason", "body"])
true_counts(DeltaTable("FOLDER/metrics/counts").to_pyarrow_table(), Metric())
"""
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>gnsq: report of the demo</title>
<style>
:root { --paper: #fff; --card: #f6f8fa; --ink: #1f2328; --quiet: #57606a; --grid: #d0d7de; --archive: #0969da;
  --metrics: #bc4c00; --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --card: #161b22; --ink: #e6edf3; --quiet: #9198a1; --grid: #3d444d; --archive: #58a6ff;
    --metrics: #f0883e; --good: #3fb950; --bad: #ff7b72; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--grid); }
p { margin: .5rem 0; }
.quiet { color: var(--quiet); }
.archive { color: var(--archive); }
.metrics { color: var(--metrics); }
.good { color: var(--good); }
.bad { color: var(--bad); }
.verdict { margin: 1rem 0; padding: .7rem 1rem; border: 1px solid; border-left-width: .4rem; border-radius: .4rem;
  font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin: 0;
  padding: 0; list-style: none; }
.tiles li { padding: .7rem .9rem; background: var(--card); color: var(--quiet); font-size: .85rem;
  border-radius: .4rem; }
.tiles b { display: block; color: var(--ink); font-size: 1.5rem; line-height: 1.3; }
.legend span { margin-right: 1.2rem; font-weight: 600; }
.legend span::before { content: ""; display: inline-block; width: 1.4rem; margin-right: .4rem; vertical-align: .25em;
  border-top: .2rem solid; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; padding: .8rem .9rem; background: var(--card); border-radius: .4rem; }
figcaption { margin-bottom: .5rem; font-size: .85rem; line-height: 1.4; }
figcaption b { display: block; font-size: 1rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem 1rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 500; }
th[scope=col] { color: var(--quiet); }
.bars { width: 100%; }
.bars th, .bars td { border: 0; padding: .1rem 0; vertical-align: middle; }
.bars th { min-width: 7rem; padding-right: .7rem; overflow-wrap: anywhere; line-height: 1.2; }
.bars td:last-child { padding-left: .7rem; text-align: right; }
.bar { width: 50%; }
.numbers td, .numbers [scope=col] { text-align: right; }
.letters .bar span { background: var(--quiet); }
.bar span { display: block; height: .8rem; min-width: 2px; background: var(--metrics); opacity: .75;
  border-radius: 0 .2rem .2rem 0; }
code, pre { font: .85em/1.5 ui-monospace, monospace; }
p code { overflow-wrap: anywhere; }
.tables { min-width: 40rem; }
pre { overflow-x: auto; margin: 1rem 0 0; padding: .8rem .9rem; background: var(--card); border-radius: .4rem; }
</style>
</head>
<body>
BODY
</body>
</html>
"""
