import pytest

from gnsq.spark.pipeline.report import Batch, Silence, Summary, batch_line, summary_lines


def test_batch_is_one_line():
    tables = {"dead": [4], "archive": [40_000, 9_996]}
    line = batch_line(Batch("archive", 7, 50_000, 2.5, waiting=1200, spooled=300, lag=3.26, tables=tables))

    assert line == (
        "archive  batch      7:    50,000 rows,    20,000 rows/s, archive 49,996 rows in 2 files, "
        "dead 4 rows in 1 file, backlog 1,200 at nsqd + 300 in the spool, lag 3.3 s"
    )


def test_tables_of_many_topics_are_told_together():
    tables = {f"t{number}/{name}": [5, 5] for number in range(3) for name in ("archive", "dead")}
    line = batch_line(Batch("archive", 7, 60, 2.5, tables=tables))

    assert line.endswith("rows/s, archive 30 rows in 6 files of 3 topics, dead 30 rows in 6 files of 3 topics")


def test_trouble_of_the_source_is_told():
    assert batch_line(Batch("metrics", 0, 5, 0.0, trouble="a:1 refused")).endswith("0 rows/s, a:1 refused")


def test_what_is_not_known_is_left_out():
    assert batch_line(Batch("metrics", 0, 5, 0.0)) == "metrics  batch      0:         5 rows,         0 rows/s"


def test_summary_adds_up():
    summary = Summary(merged=40, tables={"archive": "5 rows in 1 file, 0.1 MiB"}, seconds=61.4)
    summary.set_aside = {"archive": (1, 500)}
    for batch in (
        Batch("archive", 0, 1000, 1.0, malformed=4, duplicates=10),
        Batch("archive", 1, 500, 1.0, malformed=1),
        Batch("metrics", 0, 1500, 1.0, dropped=3, malformed=5),
    ):
        summary.add(batch)

    assert summary_lines(summary, ("archive", "metrics")) == [
        "archive  1,500 rows in 2 batches, 10 duplicates left out, 1 segment with 500 rows set aside as unreadable",
        "metrics  1,500 rows in 1 batch",
        "table    archive: 5 rows in 1 file, 0.1 MiB",
        "job      5 dead letters, 3 counts later than keep_windows left out, 40 files merged, 61 s",
    ]


def test_summary_of_nothing():
    assert summary_lines(Summary(), ("archive",)) == ["archive  0 rows in 0 batches", "job      0 s"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param({"waiting": 1200}, "1,200 messages wait at nsqd, and none comes", id="waiting"),
        pytest.param({"spool_rows": 0}, "what waits at nsqd is not known", id="nobody answers"),
        pytest.param({"waiting": 0, "trouble": "a:4150 not connected"}, "a:4150 not connected", id="trouble"),
    ],
)
def test_silence_is_told_once_when_it_lasts(source, words):
    silence = Silence(is_asked=True)

    assert [silence.notice(0, source) for _ in range(3)] == [False, True, False]
    assert words in silence.trouble
    assert [silence.notice(rows, source) for rows in (5, 0)] == [False, False]
    assert silence.trouble == ""
    assert silence.notice(0, source)
    assert words in silence.trouble


@pytest.mark.parametrize(
    ("is_asked", "source"),
    [
        pytest.param(True, {"waiting": 0}, id="nothing there"),
        pytest.param(True, {}, id="nothing said yet"),
        pytest.param(False, {"spool_rows": 0}, id="nobody to ask"),
    ],
)
def test_idle_query_is_no_trouble(is_asked, source):
    silence = Silence(is_asked=is_asked)

    assert [silence.notice(0, source) for _ in range(3)] == [False, False, False]
    assert silence.trouble == ""
