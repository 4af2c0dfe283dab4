"""Metrics in a real Spark: windows that have got events are counted anew, from the files of their table."""

import contextlib
import dataclasses
import datetime as dt
import os
import random
import re
import shutil
import time
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline import metrics, reading, snapshot
from gnsq.spark.pipeline.archive import DEAD_SCHEMA
from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.metrics import Metric
from gnsq.spark.pipeline.replay import rebuild
from gnsq.spark.pipeline.snapshot import open_snapshot
from gnsq.spark.pipeline.status import status_lines
from gnsq.spark.pipeline.tables import SettingError
from tests.spark.pipeline.helpers import delta_table, table_rows, written
from tests.spark.pipeline.jobs import job, metric, table

pytestmark = pytest.mark.spark

START, EPOCH = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SECOND, MINUTE, HOUR, DAY = (dt.timedelta(seconds=seconds) for seconds in (1, 60, 3600, 86_400))
COLUMNS = {
    "user": pa.string(),
    "page": pa.string(),
    "ms": pa.int64(),
    "price": pa.decimal128(6, 2),
    "ratio": pa.float32(),
}
SCHEMA = pa.schema([*COLUMNS.items(), *((field.name, field.type) for field in DEAD_SCHEMA if field.name != "_reason")])


def at(minute=0, page="/", **columns):
    """An event."""
    return {"_time": START + minute * MINUTE, "page": page, "user": "u", "_topic": "clicks", **columns}


class Site:
    """A table of events, and a metric of it."""

    def __init__(self, spark, path, output=None, partition_by=("_day",)):
        self.spark = spark
        self._path = path
        self._output = str(output or path / "output")
        self._partition_by = partition_by
        self.batches = 0
        self.give()

    def give(self, take_over=False, **changes):
        """Give other settings, as at a start of the job."""
        self.settings = job(self._path, table(), metric(**changes), output=self._output)
        self.clicks, self.pages = map(self.settings.location_of, ("clicks", "pages"))
        self.metric = Metric(self.spark, self.settings, "pages", take_over=take_over)

    def check(self):
        self.metric.check(self._table().whole_schema())

    def _table(self):
        return Table("clicks", self.clicks, SCHEMA, self._partition_by)

    def put(self, *events, has_stats=True):
        """Commit a batch of the table's query, without Spark."""
        events_table = self._table()
        events_table.claim("ours", take_over=False)
        files = written(events_table, self.batches, events)
        if not has_stats:
            files = [dataclasses.replace(file, stats=f'{{"numRecords": {file.rows}}}') for file in files]
        self.batches += 1
        events_table.commit(BatchIdentity("ours", self.batches, 1, 1), files)

    def count(self, **options):
        return self.metric.count(**options)

    def rows(self):
        return table_rows(self.pages)

    @property
    def counts(self):
        """(minutes after START, page) -> count, of which each may be there once."""
        found = [((row["_window_start"] - START) / MINUTE, row["page"], row["count"]) for row in self.rows()]
        counts = {(minute, page): count for minute, page, count in found}
        assert len(counts) == len(found)
        return counts

    @property
    def version(self):
        return delta_table(self.pages).version()


@pytest.fixture
def site(spark, tmp_path):
    return Site(spark, tmp_path)


def test_windows_that_have_got_events_are_counted_anew_however_late_these_are(site):
    site.put(at(0), at(0, "/cart"), at(0.5), at(1), at(-DAY / MINUTE))
    assert site.count().version == 1
    assert site.counts == {(0, "/"): 2, (0, "/cart"): 1, (1, "/"): 1, (-1440, "/"): 1}
    files = {file.path for file in open_snapshot(site.pages).files}

    site.put(at(0.9), at(2))
    # One row of a window that is there, with another key, and a new window.
    assert site.count().rows == 3
    site.put(at(-DAY / MINUTE))
    site.count()

    assert site.counts == {(0, "/"): 3, (0, "/cart"): 1, (1, "/"): 1, (2, "/"): 1, (-1440, "/"): 2}
    assert not files & {file.path for file in open_snapshot(site.pages).files}
    assert all(row["_window_end"] - row["_window_start"] == MINUTE for row in site.rows())


def test_nothing_is_counted_before_there_is_something_new_and_the_status_tells_what_is_counted(site):
    assert site.count() is None
    site.put(at(0))
    site.count()
    version = site.version

    assert site.count() is None
    # The next start, and a merge.
    site.put(at(0))
    told = "\n".join(status_lines(site.settings, time.time()))
    assert "pages    counted up to version 1 of table clicks\n         table pages 1 row in 1 file" in told
    assert re.search(r"table pages .*, committed 20\d\d-", told)
    site.count()
    maintain_table(site.clicks, retention=None, quiet=-60)
    site.give()
    assert site.count() is None

    assert site.version == version + 1
    assert site.counts == {(0, "/"): 2}


@pytest.mark.parametrize(("is_s3", "batches"), [(False, 10), (True, 5)], ids=["path", "s3"])
def test_a_random_history_is_counted_exactly(spark, tmp_path, s3, is_s3, batches):
    rng = random.Random(1)
    output = s3.location("bucket/random", "KEY:SECRET@") if is_s3 else None
    site = Site(spark, tmp_path, output, partition_by=("page",))
    site.give(window=180)
    given = Counter()
    for number in range(batches):
        events = [at(rng.randint(-3000, 3000) / 7, f"/{rng.randint(0, 2)}") for _ in range(rng.randint(0, 5))]
        given.update((event["_time"], event["page"]) for event in events)
        site.put(*events)
        if rng.random() < 0.3:
            maintain_table(rng.choice([site.clicks, site.pages]), retention=None, quiet=-60)
        if rng.random() < 0.2:
            site.give(window=180)
        if number != 1:
            site.count()

    expected = Counter()
    for (time_, page), count in given.items():
        expected[float((time_ - START) // MINUTE // 3 * 3), page] += count
    assert site.counts == expected


@pytest.mark.parametrize(
    ("place", "is_counted"), [("pages/_day=", False), ("pages/_delta_log/00000000000000000002", True)]
)
def test_a_count_that_is_killed_has_changed_nothing_or_all_and_the_next_one_knows(site, disk, place, is_counted):
    site.put(at(0), at(1))
    site.count()
    site.put(at(0))
    disk.fail(place, OSError("killed"))
    with pytest.raises((JobFailed, OSError), match="killed"):
        site.count()
    disk.repair()
    assert site.counts == {(0, "/"): 1 + is_counted, (1, "/"): 1}

    site.give()
    assert (site.count() is None) == is_counted

    assert site.counts == {(0, "/"): 2, (1, "/"): 1}


def test_two_counts_and_maintenance_at_once_count_each_event_once(site, monkeypatch):
    site.put(at(0))
    site.count()
    site.put(at(0), at(1))
    own, other, divided = site.metric, Metric(site.spark, site.settings, "pages"), Metric._try_count

    def meanwhile(self, *arguments):
        if self is own:
            monkeypatch.undo()
            site.put(at(1))
            other.count()
            maintain_table(site.pages, retention=None, quiet=-60)
            site.put(at(2))
        return divided(self, *arguments)

    monkeypatch.setattr(Metric, "_try_count", meanwhile)
    site.count()

    assert site.counts == {(0, "/"): 2, (1, "/"): 2, (2, "/"): 1}


def test_files_of_others_without_statistics_are_counted(site):
    site.put(at(5))
    site.put(at(0), at(9), has_stats=False)
    site.count()
    assert site.counts == {(0, "/"): 1, (5, "/"): 1, (9, "/"): 1}
    site.put(at(0), at(9), has_stats=False)
    site.count()

    assert site.counts == {(0, "/"): 2, (5, "/"): 1, (9, "/"): 2}


def test_windows_of_files_that_a_deletion_has_written_anew_or_taken_away_are_counted_anew(site):
    site.give(keys=("upper(user) AS who",))
    site.put(at(0), at(5, user="ann"), at(9))
    site.put(at(7, user="ann"))
    site.count()
    delta_table(site.clicks).delete("user = 'ann'")
    delta_table(site.clicks).vacuum(0, dry_run=False, enforce_retention_duration=False)
    site.count()

    assert [(row["_window_start"], row["who"]) for row in site.rows()] == [(START, "U"), (START + 9 * MINUTE, "U")]


@pytest.mark.parametrize("change", ["log", "definition", "merge"])
def test_counts_of_a_day_that_is_dropped_stay_whatever_comes_later(site, change, caplog):
    zero = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    site.put({**at(), "_time": zero}, at(0), at(0), at(1), at(DAY / MINUTE))
    site.count()
    if change == "merge":
        site.put(at(1))
        site.count()
        maintain_table(site.clicks, retention=None, quiet=-60)
    delta_table(site.clicks).delete("_day = '2026-01-01'")
    site.put(at(DAY / MINUTE))
    site.count()
    if change == "definition":
        site.give(window=120)
    site.put(at(0), at(DAY / MINUTE))
    if change == "log":
        delta_table(site.clicks).create_checkpoint()
        os.remove(f"{site.clicks}/_delta_log/{delta_table(site.clicks).version():020}.json")
    site.count()

    counts = {minute: count for (minute, _), count in site.counts.items() if minute >= 0}
    assert counts == {0: 2, 1: 1 + (change == "merge"), 1440: 3}
    told = "metric pages: events of 1 window before 2026-01-01 10:01:01+00:00 are not counted"
    assert (told in caplog.text) == (change == "merge")
    told = "metric pages: events before 2026-01-01 10:01:01+00:00 are not counted"
    assert (told in caplog.text) == (change in ("log", "definition"))
    site.count(is_all=True)
    assert site.counts[0, "/"] == 1


def test_events_of_a_partition_that_has_no_time_do_not_stay_counted(spark, tmp_path):
    site = Site(spark, tmp_path, partition_by=("user",))
    site.put(at(0), at(0, user="ann"), at(1, user="ann"))
    site.count()
    delta_table(site.clicks).delete("user = 'ann'")
    site.count()
    assert site.counts == {(0, "/"): 1}

    delta_table(site.clicks).delete("user = 'u'")
    site.count()
    assert site.counts == {}
    assert site.count(is_all=True) is None


def test_a_rebuild_counts_all_windows_anew_but_keeps_the_counts_of_a_day_that_was_dropped(site):
    lines = []

    def rebuild_pages():
        rebuild(site.settings, "pages", lambda: contextlib.nullcontext(site.spark), report=lines.append)

    with pytest.raises(JobFailed, match=r"clicks has no events that metric pages could count"):
        rebuild_pages()
    site.put(at(0), at(0), at(DAY / MINUTE))
    site.count()
    rebuild_pages()
    assert lines == ["metric pages has 2 rows, of version 1 of its table"]
    assert site.count() is None
    delta_table(site.clicks).delete("_day = '2026-01-01'")
    rebuild_pages()
    site.put(at(0))
    site.count()

    assert site.counts == {(0, "/"): 2, (1440, "/"): 1}


def test_another_definition_counts_all_windows_from_the_first_event_on_in_the_place_of_those_that_they_overlap(site):
    site.give(window=86_400)
    site.put(at(0, user="a"), at(1, user="b"), at(-DAY / MINUTE))
    site.count()
    delta_table(site.clicks).delete("_day = '2025-12-31'")
    site.give(keys=("user",), aggregates=("count(*)", "approx_count_distinct(page) AS pages"), window=60)
    site.check()
    site.count()

    rows = [(row["_window_start"], row["user"], row["count"], row["pages"], row["page"]) for row in site.rows()]
    assert sorted(rows) == [
        (START - 34 * HOUR, None, 1, None, "/"),
        (START, "a", 1, 1, None),
        (START + MINUTE, "b", 1, 1, None),
    ]


@pytest.mark.parametrize("later", [0, 3])
def test_a_table_that_was_set_back_is_counted_anew(site, tmp_path, later):
    site.put(at(0))
    shutil.copytree(site.clicks, tmp_path / "copy")
    site.put(at(0), at(1))
    site.put(at(2))
    site.count()
    shutil.rmtree(site.clicks)
    shutil.copytree(tmp_path / "copy", site.clicks)
    for _ in range(later):
        site.put(at(3))
    site.give()
    site.count()

    assert {key: count for key, count in site.counts.items() if key[0] in (0, 3)} == {
        (0, "/"): 1,
        **({(3, "/"): later} if later else {}),
    }


def test_files_of_many_windows_and_many_files_count_what_they_may_have(site, monkeypatch):
    site.put(at(0), at(1), at(9))
    site.count()
    monkeypatch.setattr(metrics, "MAX_READ", 1)
    for _ in range(2):
        site.put(at(0), at(1), at(9))
    site.count()
    assert site.counts == {(0, "/"): 3, (1, "/"): 3, (9, "/"): 3}
    for name, limit in (("MAX_WINDOWS", 3), ("MAX_READ", 0)):
        monkeypatch.setattr(metrics, name, limit)
        site.put(at(0), at(9))
        site.count()
    monkeypatch.setattr(snapshot, "MAX_ENTRIES", 1)
    for _ in range(2):
        site.put(at(1))
    site.count()

    assert site.counts == {(0, "/"): 5, (1, "/"): 5, (9, "/"): 5}


def test_a_task_reads_so_much_that_other_tasks_need_not_wait_long(site, spark, monkeypatch):
    for minute in range(20):
        site.put(at(minute))
    table_now = open_snapshot(site.clicks)
    assert reading.table_rows(spark, table_now).rdd.getNumPartitions() == spark.sparkContext.defaultParallelism
    monkeypatch.setattr(reading, "TASK_BYTES", sum(file.size for file in table_now.files) // 10 + 1)

    assert reading.table_rows(spark, table_now).rdd.getNumPartitions() == 10


def test_a_count_that_is_stopped_writes_nothing(site):
    site.put(at(0))
    for asked in range(2):
        answers = iter([False] * asked + [True])
        with pytest.raises(JobFailed, match="given up"):
            site.count(is_stopped=lambda answers=answers: next(answers))

    assert site.rows() == []
    assert site.count().rows == 1


def test_a_table_of_counts_belongs_to_one_table_of_events(site):
    site.put(at(0))
    site.count()
    os.rename(site.clicks, f"{site.clicks}-moved")
    site.put(at(1))
    site.give()

    with pytest.raises(JobFailed, match=r"pages belongs to the table .*; this job's table is .*--take-over"):
        site.check()

    site.give(take_over=True)
    site.check()
    site.count()
    assert site.counts == {(0, "/"): 1, (1, "/"): 1}


def test_an_aggregate_of_another_type_than_before_is_refused(site):
    site.give(aggregates=("max(ms) AS most",))
    site.put(at(0, ms=1))
    site.count()
    site.give(aggregates=("max(page) AS most",))
    with pytest.raises(SettingError, match=r"^\[metrics.pages\] columns do not fit: .* has column most of type long"):
        site.check()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"keys": ("nothing",)}, "nothing", id="unknown"),
        pytest.param({"keys": ("concat(page, current_date()) AS at",)}, "gives something else", id="date"),
        pytest.param({"aggregates": ("max(ms) + rand() AS most",)}, "gives something else|nondeterministic", id="rand"),
        pytest.param({"aggregates": ("max(told_at(_time)) AS at",)}, r"told_at gets a TIMESTAMP", id="python"),
    ],
)
def test_what_can_not_be_counted_or_counts_otherwise_the_next_time_is_refused(site, spark, changes, words):
    spark.udf.register("told_at", str)
    site.give(**changes)

    with pytest.raises(SettingError, match=rf"^\[metrics.pages\] keys or aggregates: .*({words})"):
        site.check()


# --- what is counted


@pytest.fixture
def new_york():
    """The driver's own time zone, with hours that come twice."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def test_windows_of_any_length_know_no_time_zone_and_begin_in_the_year_1_or_later(site, new_york):
    site.give(window=420, keys=("user", "page"))
    # Windows begin at multiples of their length since 1970. So the first one of these begins before the year 1.
    zero = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    # 01:30 comes twice in New York on this day.
    times = [dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]
    times += [zero + 7 * MINUTE, dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]
    for _ in range(2):
        site.put(*({**at(), "_time": each} for each in (zero, *times)))
        site.count()

    starts = {EPOCH + (each - EPOCH) // (7 * MINUTE) * 7 * MINUTE for each in times}
    assert {(row["_window_start"], row["count"]) for row in site.rows()} == {(start, 2) for start in starts}
    assert all(row["_window_end"] - row["_window_start"] == 7 * MINUTE for row in site.rows())


def test_aggregates_are_any_that_spark_has_and_what_can_not_be_computed_is_a_null_or_lacks_these_values(site):
    site.give(
        keys=("upper(page) AS page", "_topic", "upper(raise_error(page)) AS other"),
        aggregates=(
            *("count(*)", "count(ms)", "sum(ms)", "avg(ms)", "max(ratio)", "sum(price)", "collect_list(ms)"),
            *("approx_count_distinct(user) AS users", "collect_set(user) AS who", "count(DISTINCT *) AS rows"),
            *("count_if((ms + 1) IS NULL) AS absent", "SUM(ms) FILTER (WHERE user IN ('a')) / count(*) AS mean"),
            "max(timestamp_millis(ms)) AS newest",
            "timestamp_millis(max(ms)) AS newest_of_all",
            "sum(ms + 1) / count(*) + count_if(element_at(array(1, 2), int(ms)) = 1) AS ratio",
            "count(*) FILTER (WHERE element_at(array(1, 2), int(ms)) = 1) AS ones",
            "percentile_approx(ms * 2, 0.5, 100) AS middle",
            "first(ms IGNORE NULLS) + 1 AS first",
        ),
    )
    site.put(
        at(page="x", user="a", ms=1, price=Decimal("1.25"), ratio=0.5),
        at(page="x", user="b", ms=4, price=Decimal("0.75"), ratio=2.5),
        at(page="x", user="a"),
        # A sum that is too large is none.
        *[at(page="y", ms=2**63 - 1)] * 2,
        *(at(page="z", ms=ms) for ms in (0, 1, 9 * 10**18)),
    )
    site.count()

    first, second, third = sorted(site.rows(), key=lambda row: row["page"])
    names = ("page", "_topic", "count", "count_ms", "sum_ms", "avg_ms", "max_ratio", "sum_price", "users")
    assert [first[name] for name in names] == ["X", "clicks", 3, 2, 5, 2.5, 2.5, Decimal("2.00"), 2]
    assert (sorted(first["who"]), first["absent"], first["mean"]) == (["a", "b"], 1, 1 / 3)
    assert (second["count"], second["sum_ms"]) == (2, None)
    names = ("other", "newest", "newest_of_all", "ones", "middle", "first")
    assert [third[name] for name in names] == [None, dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC), None, 1, 0, 1]
    assert third["ratio"] == pytest.approx(3e18 + 2)
    assert sorted(third["collect_list_ms"]) == [0, 1, 9 * 10**18]
