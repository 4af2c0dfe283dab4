import datetime as dt
import os
import re
from dataclasses import replace

import pyarrow as pa

from gnsq.spark.offsets import encode_offset
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.layout import archive_tables
from gnsq.spark.pipeline.lock import WorkLock
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.parquet import write
from gnsq.spark.pipeline.progress import Notebook
from gnsq.spark.pipeline.status import SpoolState, spool_state, status_lines
from gnsq.spark.pipeline.topics import TopicSettings
from gnsq.spark.pipeline.windows import Metric
from gnsq.spark.spool.spool import Spool
from tests.spark.helpers import columns, publish
from tests.spark.pipeline.helpers import OPERATOR, config_for, put_note

NOW = dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)


def fill(config, query="archive"):
    """Two receivers, one of which has ended: three segments of 2 rows each; one of another is damaged."""
    spool = Spool(config.spool_of(query))
    spool.prepare()
    first, second = spool.writer("first"), spool.writer("second")
    for number in (1, 2):
        first.write(number, columns(number, number + 10))
    first.close(2)
    second.write(1, columns(5, 6))
    for segment in spool.listing().segments:
        os.utime(f"{config.spool_of(query)}/{segment.path}", (NOW.timestamp() - segment.number * 60,) * 2)
    return spool


def test_tables_are_told(config):
    archive, dead = archive_tables(config, "clicks")
    for table in (archive, dead):
        table.claim("a", take_over=False)
    target = dead.target(0)
    row = {"reason": "bad", "body": b"x", "message_id": "1", "nsqd": "n", "published_at": NOW}
    batch = pa.RecordBatch.from_pylist([row], schema=target.schema)
    for batch_id in range(2):
        dead.commit(BatchIdentity("a", batch_id, 1, 1), write([batch], lambda rows: [(target, rows)]))
    maintain_table(f"{config.output}/dead", retention=None, quiet=0)

    lines = [line for line in status_lines(config, dt.datetime.now(dt.UTC)) if "table" in line]

    assert lines[0] == "         table archive 0 rows in 0 files, 0.0 MiB"
    assert re.fullmatch(
        r" +table dead 2 rows in 1 file, 0.0 MiB, committed 20.* ago\), files merged 20.* ago\)", lines[1]
    )


def test_where_a_query_stands(fakensqd, config, tmp_path):
    fill(config)
    publish(fakensqd, "clicks", [b"1", b"2", b"3"])
    put_note(
        config,
        offset=encode_offset({"first": 1}, "clicks/archive"),
        batchId=4,
        timestamp="2026-01-01T00:58:53.500Z",
        stateOperators=[OPERATOR],
    )
    Notebook(config, "archive").begin(5)
    size = sum(segment.size for segment in Spool(config.spool_of("archive")).listing().segments)

    with WorkLock(str(tmp_path / "work"), lambda seconds: True):
        lines = list(status_lines(config, NOW))

    assert lines[0] == f"job      running, process {os.getpid()}"
    assert lines[1].startswith(
        "archive  batch 4 committed 2026-01-01 00:58:55 UTC (0:01:05 ago), lag 3,545.0 s, batch 5 begun"
    )
    assert lines[2] == "         state 1,200 rows, 3.0 MiB"
    assert lines[3].startswith("         spool 4 rows, ")
    assert lines[3].endswith(" bytes waiting, the oldest for 0:02:00, 1 receiver not closed")
    assert f"{size:,}" not in lines[3]
    assert lines[4:] == [
        "         nsqd 3 messages waiting or in flight",
        "metrics  no batch yet",
        "         spool 0 rows, 0 bytes waiting",
        "         nsqd 3 messages waiting or in flight",
    ]


def test_depths_are_told_by_topic_and_channel(fakensqd, config):
    for topic, count in (("clicks", 3), ("views", 2)):
        publish(fakensqd, topic, [b"1"] * count)

    lines = status_lines(replace(config, topic="clicks,views", metrics=(Metric("a", topic="views"),)), NOW)

    assert [line.strip() for line in lines if "nsqd" in line] == [
        "nsqd topic clicks 3 messages waiting or in flight",
        "nsqd topic views 2 messages waiting or in flight",
        "nsqd 2 messages waiting or in flight",
    ]


def test_pattern_for_external_receivers_is_told(tmp_path):
    given = {"topic": "", "topics": {"v.*": TopicSettings()}, "lookupd_http_addresses": ("127.0.0.1:1",)}
    config = config_for(tmp_path, receivers="external", **given)

    assert f"         receivers need --topic-pattern '{config.topic_pattern}'" in list(status_lines(config, NOW))


def test_raw_bodies_have_one_query(tmp_path):
    lines = "\n".join(status_lines(config_for(tmp_path, raw=True), NOW))

    assert "archive" in lines
    assert "metrics" not in lines


def test_nothing_has_run_and_nobody_answers(tmp_path):
    config = config_for(tmp_path, nsqd_http_addresses=("127.0.0.1:1",))

    lines = list(status_lines(config, NOW))

    assert lines[:3] == ["job      not running", "archive  no batch yet", "         spool 0 rows, 0 bytes waiting"]
    assert lines[3].startswith("         nsqd unknown: ")
    assert not (tmp_path / "work").exists()


def test_what_can_not_be_read_is_told(tmp_path):
    config = config_for(tmp_path, spool=str(tmp_path / "spool"))
    fill(config)
    (tmp_path / "work/archive").mkdir(parents=True)
    (tmp_path / "work/archive/progress.json").write_text("[]")

    lines = list(status_lines(config, NOW))

    assert re.fullmatch("archive  .*/work/archive/progress.json is not a note of the job .*: delete it, .*", lines[1])


def test_segments_set_aside_are_counted(config):
    spool = fill(config)
    segment = next(each for each in spool.listing().segments if each.receiver == "second")
    path = f"{config.spool_of('archive')}/{segment.path}"
    with open(path, "r+b") as file:
        file.truncate(100)
    assert spool.read(segment) == []

    state = spool_state(config, "archive", None)

    assert (state.rows, state.set_aside, state.rows_set_aside) == (4, 1, 2)
    assert spool_state(config, "metrics", None) == SpoolState()
    assert "1 segment with 2 rows set aside as unreadable" in "\n".join(status_lines(config, NOW))


def test_bad_places_and_files_are_told(tmp_path):
    (tmp_path / "work").write_text("a file")
    https = {"nsqd_http_addresses": ("https://127.0.0.1:1",), "nsq": {"tlsCaFile": str(tmp_path / "none")}}
    config = config_for(tmp_path, **https)

    lines = list(status_lines(config, NOW))

    assert lines[0].startswith("job      unknown: ")
    assert [line for line in lines if line.startswith("         nsqd unknown: ")]


def test_status_changes_nothing(config, tmp_path):
    fill(config)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    list(status_lines(config, NOW))

    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
