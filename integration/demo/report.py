"""Report of the demo: one HTML file that loads nothing, for light and dark screens of any width. Reads no tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from gnsq.spark.pipeline.status import QueryStatus
from gnsq.texts import counted

# Most bars of events by time, and of pages.
MAX_BINS, MAX_PAGES = 120, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """Content of the report.

    Attributes:
        seconds: How long the demo took.
        numbers: Where the published events are, in words, and their numbers.
        checks: Conditions of the numbers, and whether they are fulfilled.
        queries: The last record of each query.
        minutes: Start of a window of a minute -> number of events; without windows that have none.
        pages, reasons: Number of events of each page, and of dead letters with each reason.
        tables: Of each table the name, the size in words, what it has, and the columns.
        kept: Where the tables are; None if they were deleted.
        settings, machine: The job's settings as text; versions and machine.
    """

    seconds: float
    numbers: Mapping[str, int]
    checks: Mapping[str, bool]
    queries: Sequence[QueryStatus]
    minutes: Mapping[dt.datetime, int]
    pages: Mapping[str, int]
    reasons: Mapping[str, int]
    tables: Sequence[Sequence[str]]
    kept: Path | None
    settings: str
    machine: str


def binned(minutes: Mapping[dt.datetime, int]) -> tuple[int, dict[dt.datetime, int]]:
    """Add up events by minute, or by as many minutes as are needed for MAX_BINS bins.

    Returns:
        How many minutes; the start of each bin, in their order, and its number of events.
    """
    if not minutes:
        return 1, {}
    first, last, minute = min(minutes), max(minutes), dt.timedelta(minutes=1)
    width = (last - first) // minute // MAX_BINS + 1
    numbers = {first + width * minute * index: 0 for index in range((last - first) // (width * minute) + 1)}
    for start, number in minutes.items():
        numbers[first + (start - first) // (width * minute) * width * minute] += number
    return width, numbers


def demo_html(run: DemoRun) -> str:
    """Make the page."""
    published = counted(next(iter(run.numbers.values())), "event", spec=",")
    if all(run.checks.values()):
        verdict = f"<p class='verdict good'>All {published} are accounted for, in {run.seconds:.0f} s.</p>"
    else:
        verdict = "<p class='verdict bad'>The account does not agree. The output and the logs were kept; see below.</p>"
    width, times = binned(run.minutes)
    by_time = {f"{time:%Y-%m-%d %H:%M}": number for time, number in times.items()}
    more = len(run.pages) - MAX_PAGES
    body = [
        "<header><h1>The pipeline on one machine</h1><p class=quiet>gnsq-pipeline, run by its demo with two emulated "
        "nsqds and one nsqlookupd. It writes each event to a table, and counts them by minute and page.</p></header>",
        verdict,
        "<h2>The account</h2>",
        _table(["", "events"], [(escape(name), f"{number:,}") for name, number in run.numbers.items()], "numbers"),
        *(_check(text, agrees) for text, agrees in run.checks.items()),
        "<h2>The queries</h2>",
        _queries(run.queries),
        "<h2>What was counted</h2><div class=plots>",
        _figure(f"Events by {width} min of their own time, UTC", _columns(by_time)),
        _figure("Events by page" + (f", without {more} more" if more > 0 else ""), _bars(run.pages)),
        _figure("Dead letters by reason", _bars(run.reasons)) if run.reasons else "",
        "</div><h2>The tables</h2>",
        _tables(run),
        f"<h2>What ran</h2><p>{escape(run.machine)}</p><pre><code>{escape(run.settings)}</code></pre>",
    ]
    return _PAGE.replace("BODY", "\n".join(body))


def _check(text: str, agrees: bool) -> str:
    kind, words = ("good", "✓ agrees") if agrees else ("bad", "✗ DOES NOT AGREE")
    return f"<p class=check><b class={kind}>{words}</b> {escape(text)}</p>"


def _queries(records: Sequence[QueryStatus]) -> str:
    rows = [
        (
            *(escape(record.name), f"{record.total.rows:,}", f"{record.total.malformed:,}", f"{record.batches:,}"),
            f"{record.state_bytes / 2**20:,.1f} MiB" if record.state_rows else "none",
        )
        for record in records
    ]
    return _table(["query", "messages", "malformed", "batches", "state"], rows, "numbers")


def _columns(numbers: Mapping[str, int]) -> str:
    """Make upright bars, one for each time."""
    if not numbers:
        return "<p>Nothing was counted.</p>"
    largest = max(numbers.values())
    bars = "".join(
        f"<rect x='{index}' y='{100 - 100 * number / largest:.1f}' width='1' height='{100 * number / largest:.1f}'>"
        f"<title>{label}: {number:,}</title></rect>"
        for index, (label, number) in enumerate(numbers.items())
    )
    drawing = f"<svg role=img aria-label='Events by time' viewBox='0 0 {len(numbers)} 100' preserveAspectRatio=none>"
    first, *_, last = [*numbers, *numbers]
    return (
        f"{drawing}{bars}</svg><p class=axis><span>{first}</span><span>up to {largest:,}</span><span>{last}</span></p>"
    )


def _bars(numbers: Mapping[str, int]) -> str:
    """Make horizontal bars of the largest numbers."""
    chosen = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))[:MAX_PAGES]
    rows = [
        f"<tr><th scope=row>{escape(name)}</th><td class=bar><span style='width:{100 * number / chosen[0][1]:.1f}%'>"
        f"</span></td><td>{number:,}</td></tr>"
        for name, number in chosen
    ]
    return f"<table class=bars>{''.join(rows)}</table>"


def _tables(run: DemoRun) -> str:
    place = "They were deleted; <code>python -m integration.demo --keep</code> keeps them."
    if run.kept is not None:
        place = f"They are in <code>{escape(str(run.kept))}</code>."
    code = escape(_CODE.replace("FOLDER", "OUTPUT" if run.kept is None else str(run.kept)))
    table = _table(["table", "size", "what it has", "columns"], [[*map(escape, row)] for row in run.tables], "tables")
    return f"<p>All are Delta tables. {place} {_LOOK}</p>{table}<pre><code>{code}</code></pre>"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> str:
    head = "".join(f"<th scope=col>{title}</th>" for title in titles)
    lines = [
        f"<tr><th scope=row>{first}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for first, *cells in rows
    ]
    return f"<div class=wide><table class={kind}><tr>{head}</tr>{''.join(lines)}</table></div>"


def _figure(title: str, content: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{content}</figure>"


_LOOK = (
    "In <code>clicks</code>, <code>_body</code> is the event as it came, and <code>_message_id</code> with "
    "<code>_nsqd</code> identifies its message."
)
_CODE = """\
from deltalake import DeltaTable

DeltaTable("FOLDER/clicks").to_pandas(columns=["_time", "user", "page"])
DeltaTable("FOLDER/clicks_dead").to_pandas(columns=["_reason", "_body"])
DeltaTable("FOLDER/pages").to_pandas()
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
:root { --paper: #fff; --card: #f6f8fa; --ink: #1f2328; --quiet: #57606a; --line: #d0d7de; --bar: #bc4c00;
  --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --card: #161b22; --ink: #e6edf3; --quiet: #9198a1; --line: #3d444d; --bar: #f0883e;
    --good: #3fb950; --bad: #ff7b72; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); }
p { margin: .5rem 0; overflow-wrap: anywhere; }
.quiet, th[scope=col] { color: var(--quiet); }
.good { color: var(--good); }
.bad { color: var(--bad); }
.verdict { padding: .7rem 1rem; border: 1px solid; border-left-width: .4rem; font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; padding: .8rem .9rem; background: var(--card); }
figcaption { margin-bottom: .5rem; font-weight: 600; }
svg { display: block; width: 100%; height: 12rem; fill: var(--bar); }
.axis { display: flex; justify-content: space-between; font-size: .85rem; }
.wide, pre { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem 1rem .25rem 0; text-align: left; vertical-align: top; font-weight: 400; }
.numbers td, .numbers [scope=col] { text-align: right; }
.bars { width: 100%; }
.bars th { overflow-wrap: anywhere; }
.bar { width: 50%; }
.bar span { display: block; height: 1rem; min-width: 2px; background: var(--bar); }
.tables { min-width: 40rem; }
pre { padding: .8rem .9rem; background: var(--card); }
</style>
</head>
<body>
BODY
</body>
</html>
"""
