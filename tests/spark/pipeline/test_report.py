from gnsq.spark.pipeline.report import Batch, Summary, batch_line, summary_lines


def test_batch_is_one_line():
    line = batch_line(Batch("archive", 7, 50_000, 2.5, waiting=1200, spooled=300, lag=3.26))

    assert line == (
        "archive  batch      7:    50,000 rows,    20,000 rows/s, backlog 1,200 at nsqd + 300 in the spool, lag 3.3 s"
    )


def test_trouble_of_the_source_is_told():
    assert batch_line(Batch("metrics", 0, 5, 0.0, trouble="a:1 refused")).endswith("0 rows/s, a:1 refused")


def test_what_is_not_known_is_left_out():
    assert batch_line(Batch("metrics", 0, 5, 0.0)) == "metrics  batch      0:         5 rows,         0 rows/s"


def test_summary_adds_up():
    summary = Summary(late=3, compactions=2, compacted_files=40, seconds=61.4)
    summary.set_aside = {"archive": (1, 500)}
    for batch in (
        Batch("archive", 0, 1000, 1.0, malformed=4, duplicates=10),
        Batch("archive", 1, 500, 1.0, malformed=1),
        Batch("metrics", 0, 1500, 1.0, malformed=5),
    ):
        summary.add(batch)

    assert summary_lines(summary, ("archive", "metrics")) == [
        "archive  1,500 rows in 2 batches, 10 duplicates left out, 1 segments with 500 rows set aside as unreadable",
        "metrics  1,500 rows in 1 batches",
        "both     5 dead letters, 3 late, 2 compactions of 40 files, 61 s",
    ]


def test_summary_of_nothing():
    assert summary_lines(Summary(), ("archive",)) == ["archive  0 rows in 0 batches", "both     0 s"]
