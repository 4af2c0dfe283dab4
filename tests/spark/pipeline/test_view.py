"""The live view, on terminals of different sizes."""

import dataclasses
import io
import logging
import sys
from itertools import pairwise

import pytest
from rich.console import Console

from fakensqd.clock import ManualClock
from gnsq.spark.pipeline.status import Counts, QueryStatus
from gnsq.spark.pipeline.view import LiveView, shortened, sparkline, terminal_view

HIDE_CURSOR, SHOW_CURSOR, ERASE_LINE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self):
        return True


class Job:
    """The records of some queries, on a clock that starts at 0."""

    def __init__(self, *queries):
        self.clock = ManualClock()
        self.started_at = self.clock.monotonic()
        self.told = 0
        self.records = {query: QueryStatus(name=query) for query in queries}

    def now(self):
        return self.clock.monotonic() - self.started_at

    def tell(self, query="clicks", **values):
        """Change the record of a query by a progress that has just come."""
        self.told += 1
        # No two progresses come at the same time.
        at = self.now() + self.told / 1e9
        self.records[query] = dataclasses.replace(self.records[query], progress_at=at, **values)


@pytest.fixture
def make():
    """Make a view on a terminal; returns it with the job and the terminal."""

    def make(*queries, width=80, height=24):
        terminal, job = Terminal(), Job(*queries)
        console = Console(file=terminal, force_terminal=True, width=width, height=height, color_system=None)
        return LiveView("gnsq-pipeline", lambda: list(job.records.values()), console, job.now), job, terminal

    return make


def drawn(view):
    """The lines of a view."""
    view.refresh()
    console = view._live.console
    with console.capture() as capture:
        console.print(view)
    return [line.rstrip() for line in capture.get().splitlines()]


BATCH = {
    "committed": 7,
    "last": Counts(1000),
    "total": Counts(1000),
    "rate": 500.0,
    "waiting": 1200,
    "spooled": 300,
    "lag": 3.26,
}


def test_query_has_a_line_with_its_last_batch(make):
    view, job, _ = make("clicks", "pages", width=110)
    job.tell(**BATCH)
    job.tell("pages", **{**BATCH, "state_rows": 9, "state_bytes": 3 * 2**20, "waiting": None})
    job.clock.advance(65.0)

    title, header, clicks, pages = drawn(view)

    assert title == "gnsq-pipeline, 0:01:05; Ctrl-C stops it gracefully"
    assert header.split()[:7] == ["query", "rows/s", "backlog", "lag", "batch", "updated", "state"]
    assert clicks.split()[:9] == ["clicks", "500", "1,500", "3.3", "s", "7", "65", "s", "ago"]
    assert "  3.0 MiB          -        300  " in pages


def test_query_without_progress_has_no_numbers(make):
    view, _, _ = make("clicks")

    assert drawn(view)[2].split()[:5] == ["clicks", "-", "-", "-", "-"]


def test_each_progress_is_in_the_sparklines(make):
    view, job, _ = make("clicks")
    job.tell(**BATCH)
    view.refresh()
    job.tell(rate=0.0, lag=0.0, waiting=0, spooled=0)

    assert drawn(view)[2].split()[:5] == ["clicks", "0", "0", "0.0", "s"]
    assert drawn(view)[2].split()[-2:] == ["█▁", "█▁"]


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
def test_view_leaves_room_for_the_echo_of_an_interrupt(make, width):
    names = ["clicks", "pages", *(f"sensor.temperature{number}.pages" for number in range(10))]
    view, job, _ = make(*names, width=width, height=40)
    for number in range(100):
        for name in names:
            job.tell(name, rate=500.0 * number, waiting=432_000_000 + number, trouble="nsqd does not answer")
        view.refresh()

    lines = drawn(view)

    assert max(map(len, lines)) <= width - len("^C")
    assert len([line for line in lines if "rows/s" in line or "432," in line]) == (13 if width >= 40 else 1)


def test_terminal_without_room_shows_the_troubles(make):
    names = [f"pages{number}" for number in range(12)]
    view, job, terminal = make(*names, height=8)
    job.tell("pages11", trouble="full")

    with view:
        view.refresh()

    assert [line.split()[0] for line in drawn(view)[1:]] == ["pages11:", "query", "pages0", "pages1", "pages2", "..."]
    assert "pages5" not in terminal.getvalue()


def test_trouble_is_named_once_for_all_its_queries_and_goes_when_it_is_over(make):
    view, job, _ = make("clicks", "pages")
    for query in ("clicks", "pages"):
        job.tell(query, trouble="a:4150 not connected: refused")
    during = drawn(view)[1]

    for query in ("clicks", "pages"):
        job.tell(query, trouble="")

    assert during == "clicks, pages: a:4150 not connected: refused"
    assert drawn(view)[1].startswith("query ")


def test_failed_query_shows_when_it_is_started_again(make):
    view, job, _ = make("clicks")
    job.tell(failure="no space left", restart_at=10.0)
    job.clock.advance(4.0)

    assert drawn(view)[1] == "clicks: no space left; starts again in 6 s"


def test_view_is_drawn_when_something_has_changed_and_once_a_second(make):
    view, job, terminal = make("clicks")
    sizes = []

    def draw():
        view.refresh()
        sizes.append(len(terminal.getvalue()))

    with view:
        draw()
        job.clock.advance(0.2)
        draw()
        job.tell(**BATCH)
        draw()
        job.clock.advance(1.0)
        draw()

    assert [after > before for before, after in pairwise(sizes)] == [False, True, True]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_terminal_is_clean_at_the_end_however_the_block_ends(make, error):
    view, job, terminal = make("clicks")
    try:
        with view:
            job.tell(**BATCH)
            view.refresh()
            if error is not None:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        pass

    output = terminal.getvalue()
    assert output.count(HIDE_CURSOR) == output.count(SHOW_CURSOR) == 1
    after = output.rpartition("clicks")[2]
    assert SHOW_CURSOR in after
    assert after.count(ERASE_LINE) == 3


def test_log_lines_appear_above_the_view_and_stay(make, monkeypatch):
    view, _, terminal = make("clicks")
    monkeypatch.setattr(sys, "stderr", Terminal())
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    before = sys.stderr

    with LiveView("t", list, view._live.console) as running:
        logging.getLogger("gnsq.test").warning("query clicks: no nsqd answers")
        running.refresh()
    logging.getLogger("gnsq.test").warning("later")

    shown = terminal.getvalue()
    assert "query clicks: no nsqd answers\n" in shown
    assert "later" not in shown
    assert handler.stream is before
    assert before.getvalue() == "later\n"


@pytest.mark.parametrize(
    ("stream", "term", "is_shown"),
    [
        pytest.param(Terminal, "xterm", True, id="terminal"),
        pytest.param(Terminal, "dumb", False, id="dumb terminal"),
        pytest.param(io.StringIO, "xterm", False, id="pipe"),
    ],
)
def test_view_is_for_terminals_only(monkeypatch, stream, term, is_shown):
    monkeypatch.setattr(sys, "stdout", stream())
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert (terminal_view("t", list) is not None) == is_shown


@pytest.mark.parametrize(
    ("values", "drawing"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([0, 0], "▁▁", id="zeros"),
        pytest.param([0, 50, 100], "▁▅█", id="from 0 to the maximum"),
        pytest.param([1, 100_000], "▂█", id="little is not nothing"),
        pytest.param([100, 1, 2, 3, 4], "▃▅▆█", id="the last ones"),
    ],
)
def test_sparkline(values, drawing):
    assert sparkline(values, 4) == drawing


def test_long_name_keeps_its_ends():
    assert [shortened("metrics.clicks.pages", width) for width in (20, 12, 8)] == [
        "metrics.clicks.pages",
        "metric…pages",
        "metr…ges",
    ]
