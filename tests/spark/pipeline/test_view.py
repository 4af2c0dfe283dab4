"""The live view, on terminals of different sizes."""

import io
import logging
import sys
from itertools import pairwise

import pytest
from rich.console import Console

from fakensqd.clock import ManualClock
from gnsq.spark.pipeline.report import Batch
from gnsq.spark.pipeline.view import LiveView, shortened, sparkline, terminal_view

HIDE_CURSOR, SHOW_CURSOR, ERASE_LINE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self):
        return True


@pytest.fixture
def make():
    """Make a view on a terminal; returns it with the terminal and the clock."""

    def make(*queries, width=80, height=24):
        terminal, clock = Terminal(), ManualClock()
        console = Console(file=terminal, force_terminal=True, width=width, height=height, color_system=None)
        return LiveView("gnsq-pipeline clicks", queries, console, clock.monotonic), terminal, clock

    return make


def drawn(view):
    """The lines of a view."""
    console = view._live.console
    with console.capture() as capture:
        console.print(view)
    return [line.rstrip() for line in capture.get().splitlines()]


def batch(query="archive", rows=1000, **values):
    return Batch(query, 7, rows, 2.0, **{"waiting": 1200, "spooled": 300, "lag": 3.26, **values})


def test_query_has_a_line_with_its_last_batch(make):
    view, _, clock = make("archive", "metrics", width=110)
    view.record(batch())
    view.record(batch("metrics", state_rows=9, state_bytes=3 * 2**20, waiting=None))
    clock.advance(65.0)

    title, header, archive, metrics = drawn(view)

    assert title == "gnsq-pipeline clicks, 0:01:05; Ctrl-C stops it in order"
    assert header.split()[:7] == ["query", "rows/s", "backlog", "lag", "batch", "updated", "state"]
    assert archive.split()[:9] == ["archive", "500", "1,500", "3.3", "s", "7", "65", "s", "ago"]
    assert "  3.0 MiB          -        300  " in metrics


def test_query_without_progress_has_no_numbers(make):
    view, _, _ = make("archive")

    assert drawn(view)[2].split() == ["archive", "-", "-", "-", "-", "-"]


def test_idle_query_has_no_rate_and_no_lag(make):
    view, _, _ = make("archive")
    view.record(batch())

    view.record(Batch("archive", 8, 0, 0.1, waiting=0, spooled=0))

    assert drawn(view)[2].split()[:5] == ["archive", "0", "0", "0.0", "s"]
    assert drawn(view)[2].split()[-2:] == ["█▁", "█▁"]


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
def test_view_leaves_room_for_the_echo_of_an_interrupt(make, width):
    names = ["archive", "metrics", *(f"metrics.sensor.temperature{number}.pages" for number in range(10))]
    view, _, _ = make(*names, width=width, height=40)
    for name in names:
        for number in range(100):
            view.record(batch(name, rows=number * 1000, waiting=432_000_000 - number, trouble="nsqd does not answer"))

    lines = drawn(view)

    assert max(map(len, lines)) <= width - len("^C")
    assert len([line for line in lines if "rows/s" in line or "432," in line]) == (13 if width >= 40 else 1)


def test_terminal_without_room_shows_the_queries_that_need_attention(make):
    names = [f"metrics.{number}" for number in range(12)]
    view, _, _ = make(*names, height=8)
    for number, name in enumerate(names):
        view.record(batch(name, waiting=number, trouble="full" if number == 3 else ""))

    lines = drawn(view)

    assert len(lines) < 8
    assert [line.split()[0] for line in lines[2:5]] == ["metrics.3", "metrics.10", "metrics.11"]
    assert lines[-2] == "9 more queries with less backlog"
    assert lines[-1] == "metrics.3: full"


def test_trouble_is_named_once_for_all_its_queries_and_goes_when_it_is_over(make):
    view, _, _ = make("archive", "metrics")
    for query in ("archive", "metrics"):
        view.record(Batch(query, 1, 0, 0.1, trouble="a:4150 not connected: refused"))
    during = drawn(view)[-1]

    for query in ("archive", "metrics"):
        view.record(Batch(query, 1, 0, 0.1))

    assert during == "archive, metrics: a:4150 not connected: refused"
    assert drawn(view)[-1].startswith("metrics ")


def test_long_trouble_is_cut_with_dots_where_there_is_no_room(make):
    view, _, _ = make("archive", width=40, height=9)
    view.record(batch(trouble="the spool is full " * 20))

    lines = drawn(view)

    assert (len(lines), lines[-1]) == (6, "...")


def test_view_is_drawn_when_something_has_changed_and_once_a_second(make):
    view, terminal, clock = make("archive")
    sizes = []

    def draw():
        view.refresh()
        sizes.append(len(terminal.getvalue()))

    with view:
        draw()
        clock.advance(0.2)
        draw()
        view.record(batch())
        draw()
        clock.advance(1.0)
        draw()

    assert [after > before for before, after in pairwise(sizes)] == [False, True, True]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_terminal_is_clean_at_the_end_however_the_block_ends(make, error):
    view, terminal, _ = make("archive")
    try:
        with view:
            view.record(batch())
            view.refresh()
            if error is not None:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        pass

    output = terminal.getvalue()
    assert output.count(HIDE_CURSOR) == output.count(SHOW_CURSOR) == 1
    after = output.rpartition("archive")[2]
    assert SHOW_CURSOR in after
    assert after.count(ERASE_LINE) == 3


def test_log_lines_appear_above_the_view_and_stay(make, monkeypatch):
    view, terminal, _ = make("archive")
    monkeypatch.setattr(sys, "stderr", Terminal())
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    before = sys.stderr

    with LiveView("t", ["archive"], view._live.console) as running:
        logging.getLogger("gnsq.test").warning("query archive: no nsqd answers")
        running.refresh()
    logging.getLogger("gnsq.test").warning("later")

    shown = terminal.getvalue()
    assert "query archive: no nsqd answers\n" in shown
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

    assert (terminal_view("t", ["archive"]) is not None) == is_shown


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
