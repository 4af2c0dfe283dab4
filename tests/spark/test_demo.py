"""The demo: its events, its account, and the page that it leaves."""

import datetime as dt
import html
import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from gnsq.spark.pipeline.status import Counts, QueryStatus
from integration.demo.__main__ import account, main
from integration.demo.events import SPAN, START, batches, generate, read_lines
from integration.demo.report import MAX_BINS, DemoRun, binned, demo_html
from tests.docs.pages import hooks
from tests.spark.helpers import wait_for

# --- the whole demo


def test_missing_file_is_named(tmp_path):
    done = CliRunner().invoke(main, ["--file", str(tmp_path / "none")])

    assert done.exit_code == 2
    assert f"{tmp_path / 'none'}: No such file" in done.stderr


@pytest.mark.spark
def test_lines_of_a_file_are_accounted_for(shared_session, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.jsonl"
    event = '{"time":"2026-01-01T10:00:%02d+01:00","user":"u","page":"/"}\n'
    path.write_text("".join(event % second for second in range(50)) + "not json\n\n[]\n123\n" + event % 59)

    done = CliRunner().invoke(main, ["--file", str(path)], obj=shared_session)

    assert done.exit_code == 0, done.output
    assert "agrees: published 54 = archived 51 + dead 3" in done.output
    assert "agrees: archived 51 = counted 51" in done.output
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("gnsq-demo")] == []
    assert f"report: {tmp_path / 'demo/report.html'}\n" in done.output
    report = (tmp_path / "demo/report.html").read_text()
    assert "All 54 events are accounted for" in report
    assert "<th scope=row>clicks</th><td>51 rows in " in report


@pytest.mark.subprocess
def test_signal_while_it_publishes_stops_it_cleanly(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write_and_stop():
        path.write_text("x\n")  # it counts the lines first, and handles signals before it opens the file again
        wait_for(lambda: list(tmp_path.glob("gnsq-demo-*")))
        with path.open("w") as lines:
            os.kill(os.getpid(), signal.SIGTERM)
            lines.write("x\n" * 5_000)

    writer = threading.Thread(target=write_and_stop)
    writer.start()
    done = CliRunner().invoke(main, ["--file", str(path)])
    writer.join()

    assert done.exit_code == 130, done.output
    assert "stopped" in done.output
    assert list(tmp_path.iterdir()) == [path]


def test_lost_and_duplicated_events_show():
    assert list(account(10, 9, 1, 9).values()) == [True, True]
    assert list(account(10, 9, 0, 8).values()) == [False, False]
    assert list(account(10, 9, 1, 10).values()) == [True, False]


# --- events


def events(bodies):
    found = []
    for body in bodies:
        try:
            event = json.loads(body)
            dt.datetime.fromisoformat(event["time"])
        except ValueError:
            continue
        if event["page"]:
            found.append(event)
    return found


def test_a_small_share_is_malformed_and_some_events_come_late():
    bodies = list(generate(10_000, 1))
    good = events(bodies)

    # The same seed gives the same events.
    assert list(generate(200, 7)) == list(generate(200, 7)) != list(generate(200, 8))
    assert len(bodies) == 10_000
    assert 10 < len(bodies) - len(good) < 100
    assert all(bodies)
    times = [dt.datetime.fromisoformat(event["time"]) for event in good]
    latest, late = times[0], 0
    for time in times:
        latest = max(latest, time)
        late += latest - time > dt.timedelta(minutes=10)
    assert 25 < late < 200
    assert START - dt.timedelta(hours=1) < min(times)
    assert max(times) <= START + SPAN


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes(b'{"a":1}\r\n\nnot json\n\xff\xfe\nlast')

    assert list(read_lines(path)) == [b'{"a":1}', b"not json", b"\xff\xfe", b"last"]


def test_bodies_are_published_in_batches_that_nsqd_takes():
    bodies = [b"a" * 400_000] * 5 + [b"b"] * 1200

    found = list(batches(bodies))

    assert [body for batch in found for body in batch] == bodies
    assert all(len(batch) <= 500 and sum(map(len, batch)) <= 1024 * 1024 for batch in found)


# --- the page


def run_of(**changes):
    given = {
        "seconds": 20.0,
        "numbers": {"published, confirmed by nsqd": 600},
        "checks": {"published 600 = archived 599 + dead 1": True},
        "queries": [QueryStatus(name="clicks", total=Counts(600, 599, 1), batches=2)],
        "minutes": {START + dt.timedelta(minutes=number): 6 for number in range(100)},
        "pages": {"/": 400, "/cart": 199},
        "reasons": {"page is missing": 1},
        "tables": [("clicks", "599 rows in 1 file, 0.1 MiB", "each event", "user, page")],
        "kept": None,
        "settings": "[tables.clicks]",
        "machine": "Linux",
    }
    return DemoRun(**{**given, **changes})


def words_of(text):
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", "", text, flags=re.DOTALL))


def test_page_has_the_account_the_queries_and_the_tables_and_loads_nothing():
    text = demo_html(run_of())

    assert (text.count("<svg "), text.count("<rect ")) == (1, 100)
    for words in (
        "All 600 events are accounted for",
        "✓ agrees published 600 = archived 599 + dead 1",
        "Events by 1 min of their own time",
        "599 rows in 1 file",
        "They were deleted",
    ):
        assert words in words_of(text)
    assert hooks.foreign_addresses(text) == hooks.foreign_addresses(text, css=True) == []
    assert not re.search("<(script|img|link|iframe|object)", text)
    used = set(re.findall(r"var\((--\w+)\)", text))
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert set(re.findall(r"(--\w+):", light)) == set(re.findall(r"(--\w+):", dark)) >= used


def test_account_that_does_not_agree_and_a_run_without_events_are_told_and_names_from_events_are_text():
    nothing = {"minutes": {}, "pages": {}, "reasons": {}, "numbers": {"published": 0}}
    wrong = {"published 600 = archived 598 + dead 1": False}
    page = words_of(demo_html(run_of(checks=wrong, kept=Path("/tmp/demo-1"), **nothing)))

    for words in ("The account does not agree.", "✗ DOES NOT AGREE published 600", "Nothing was counted."):
        assert words in page
    assert 'DeltaTable("/tmp/demo-1/clicks")' in page

    names = {"<script>alert(1)</script>": 2, "$x^2$ & ü": 1}
    text = demo_html(run_of(pages=names, reasons=names))
    assert "<script" not in text
    assert [words_of(text).count(name) for name in names] == [2, 2]


def test_events_are_added_up_by_a_time_that_suits_them():
    for apart, width in (dt.timedelta(0), 1), (dt.timedelta(hours=2), 2), (dt.timedelta(days=90), 1081):
        found, numbers = binned({START: 5, START + apart: 7} if apart else {START: 12})

        assert (found, sum(numbers.values())) == (width, 12)
        assert min(numbers) == START
        assert len(numbers) <= MAX_BINS
