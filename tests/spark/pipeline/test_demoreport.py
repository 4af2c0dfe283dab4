"""The page that the demo leaves."""

import datetime as dt
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gnsq.spark.pipeline.demo import write_report
from gnsq.spark.pipeline.demoreport import DemoRun, ShownTable, binned, demo_html, labelled_times, rate_after_first
from gnsq.spark.pipeline.report import Batch
from tests.docs.pages import hooks

UTC = dt.UTC
START = dt.datetime(2026, 1, 15, 9, 0, tzinfo=UTC)
BATCHES = [
    (10.0, Batch("archive", 0, 100, 4.0, waiting=300, spooled=200, lag=8.0)),
    (11.0, Batch("metrics", 0, 100, 4.0, waiting=300, spooled=200, lag=9.0, state_rows=5, state_bytes=3 * 2**20)),
    (12.0, Batch("archive", 1, 500, 2.0, waiting=0, spooled=0, lag=10.0)),
]


def run_of(**changes):
    given = {
        "started_at": START,
        "seconds": 20.0,
        "published": 600,
        "batches": BATCHES,
        "account": {"published, confirmed by nsqd": 600},
        "checks": {"published 600 = archived 599 + dead-lettered 1": True},
        "minutes": {START + dt.timedelta(minutes=number): 6 for number in range(100)},
        "pages": {"/": 400, "/cart": 199},
        "reasons": {"page is missing": 1},
        "tables": [ShownTable("archive", "599 rows in 1 file, 0.1 MiB", ["event_time", "body"], "each event")],
        "kept": None,
        "facts": {"machine": "Linux"},
    }
    return DemoRun(**{**given, **changes})


class Page(HTMLParser):
    """The elements, ids and words of a page; fails if an element is not closed in order."""

    VOID = frozenset({"meta"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.words = [], Counter(), [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] += 1
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@pytest.mark.slow
def test_page_has_the_account_the_run_and_the_tables():
    page = Page(demo_html(run_of()))

    words = " ".join(page.words.split())
    assert page.tags["svg"] == 4
    assert "All 600 events are accounted for." in words
    assert "✓ agrees published 600 = archived 599 + dead-lettered 1" in words
    assert "250 rows/s of archive after its first batch" in words
    assert "they were deleted at the end of the demo" in words.lower()


def test_page_loads_nothing_and_its_ids_are_unique():
    text = demo_html(run_of())
    page = Page(text)

    assert hooks.foreign_addresses(text) == hooks.foreign_addresses(text, css=True) == []
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert len(page.ids) == len(set(page.ids)) > 0
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)


def test_colours_of_plots_are_those_of_the_style_sheet():
    text = demo_html(run_of())

    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert set(re.findall(r"(?:fill|stroke): (?!none|var)([^;\"]+)", drawings)) == set()
    used = set(re.findall(r"var\((--\w+)\)", text))
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert set(re.findall(r"(--\w+):", light)) == set(re.findall(r"(--\w+):", dark)) >= used


def test_account_that_does_not_agree_is_told():
    text = demo_html(run_of(checks={"published 600 = archived 598 + dead-lettered 1": False}, kept=Path("/tmp/demo-1")))

    words = " ".join(Page(text).words.split())
    assert "The account does not agree." in words
    assert "✗ DOES NOT AGREE published 600" in words
    assert 'DeltaTable("/tmp/demo-1/archive")' in words


def test_names_from_events_are_text():
    names = {"<script>alert(1)</script>": 2, "$x^2$ & ü": 1}

    page = Page(demo_html(run_of(pages=names, reasons=names)))

    assert page.tags["script"] == 0
    assert page.words.count("<script>alert(1)</script>") == page.words.count("$x^2$ & ü") == 2


def test_run_without_events_has_a_page():
    page = Page(demo_html(run_of(batches=[], minutes={}, pages={}, reasons={}, published=0)))

    assert "Nothing was counted." in page.words
    assert "unknown" in page.words


@pytest.mark.parametrize(
    ("apart", "name", "bins"),
    [
        pytest.param(dt.timedelta(0), "minute", 1, id="one minute"),
        pytest.param(dt.timedelta(hours=2), "minute", 121, id="hours"),
        pytest.param(dt.timedelta(days=5), "hour", 121, id="days"),
        pytest.param(dt.timedelta(days=90), "day", 91, id="months"),
        pytest.param(dt.timedelta(days=30 * 200), "30 days", 201, id="years"),
    ],
)
@pytest.mark.slow
def test_events_are_added_up_by_a_time_that_suits_them(apart, name, bins):
    found, edges, numbers = binned({START: 5, START + apart: 7} if apart else {START: 12})

    assert (found, len(numbers), sum(numbers)) == (name, bins, 12)
    assert len(edges) == bins + 1
    assert edges[0] <= START <= START + apart < edges[-1]
    assert Page(demo_html(run_of(minutes={START: 5, START + apart: 7}))).tags["svg"] == 4


@pytest.mark.parametrize(
    ("minutes", "labels"),
    [
        pytest.param(190, ["09:00", "10:00", "11:00"], id="hours"),
        pytest.param(25, ["08:20", "08:25", "08:30", "08:35", "08:40", "08:45"], id="minutes"),
    ],
)
def test_labels_are_round_times(minutes, labels):
    first = START - dt.timedelta(minutes=40)

    times = labelled_times(first, first + dt.timedelta(minutes=minutes))

    assert [f"{time:%H:%M}" for time in times] == labels


def test_labels_of_thousands_of_years_are_few():
    times = labelled_times(dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9998, 1, 1, tzinfo=UTC))

    assert 1 <= len(times) <= 6


@pytest.mark.parametrize(
    ("batches", "rate"),
    [
        pytest.param([], 0.0, id="no batch"),
        pytest.param([(4.0, Batch("archive", 0, 100, 4.0))], 25.0, id="one batch"),
        pytest.param(BATCHES[::2], 250.0, id="after the first"),
    ],
)
def test_rate_leaves_the_first_batch_out(batches, rate):
    assert rate_after_first(batches) == rate


def test_missing_matplotlib_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    write_report(run_of())

    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("no report: it needs matplotlib: pip install matplotlib (")
    assert list(tmp_path.iterdir()) == []


def test_report_that_can_not_be_written_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text("no directory")

    write_report(run_of())

    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("no report: demo/report.html can't be written: ")
