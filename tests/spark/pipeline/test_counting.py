"""When metrics are counted, and what becomes of one that fails."""

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline import counting as counting_module
from gnsq.spark.pipeline.counting import Counting, pause_after
from gnsq.spark.pipeline.metrics import Count
from gnsq.spark.pipeline.status import CountStatus
from gnsq.spark.pipeline.tables import SettingError
from tests.spark.helpers import wait_for


class Context:
    """What a count needs of Spark."""

    def __init__(self):
        self.sparkContext = self
        self.cancelled = []

    def setLocalProperty(self, name, value):
        pass

    def setJobGroup(self, group, description, interruptOnCancel):
        pass

    def cancelJobGroup(self, group):
        self.cancelled.append(group)


class Scripted:
    """A metric whose counts end as they are given; then nothing has come."""

    def __init__(self, name, *ends):
        self.name = name
        self.counts = 0
        self._ends = list(ends)

    def count(self, *, is_stopped):
        self.counts += 1
        self.is_stopped = is_stopped
        end = self._ends.pop(0) if self._ends else None
        if isinstance(end, Exception):
            raise end
        return end() and None if callable(end) else end


@pytest.fixture
def told():
    return []


@pytest.fixture
def counting_of(told, monkeypatch, tmp_path):
    monkeypatch.setattr(counting_module, "TRY_PAUSE", 0.01)
    started = []

    def make(*metrics, every=None):
        statuses = [(each, CountStatus(each.name, str(tmp_path / each.name))) for each in metrics]
        made = Counting(Context(), statuses, told.append, every=every)
        started.append(made)
        return made

    yield make
    for each in started:
        each.stop()
        each.join()


def test_a_metric_that_fails_harms_no_other_and_is_counted_again(counting_of, told, caplog):
    pages = Scripted("pages", SettingError("keys: no such column"), Count(3, rows=5))
    users = Scripted("users", Count(2, rows=7))
    counting = counting_of(pages, users, every=0.01)

    counting.start()
    wait_for(lambda: len(told) == 2)

    assert [record.rows for record in told] == [7, 5]
    assert "metric pages is not counted: setting keys: no such column" in caplog.text
    assert [record.failure for record in counting.records] == ["", ""]
    assert counting.records[0].version == 3


def test_with_once_metrics_are_counted_at_the_end_and_one_that_fails_three_times(counting_of):
    pages, users = Scripted("pages", *[JobFailed("no space left")] * 9), Scripted("users")
    counting = counting_of(pages, users)
    counting.start()
    assert (counting.is_done, pages.counts) == (True, 0)

    counting.finish()
    wait_for(lambda: counting.is_done)

    assert (pages.counts, users.counts) == (3, 1)
    assert [record.failure for record in counting.records] == ["no space left", ""]


@pytest.mark.parametrize("asked", ["setJobGroup", "cancelJobGroup"])
def test_spark_that_has_ended_is_a_failure_of_the_metrics_and_lets_the_stop_end(counting_of, monkeypatch, asked):
    def ended(*_, **__):
        raise AttributeError("'NoneType' object has no attribute 'sc'")

    monkeypatch.setattr(Context, asked, ended)
    counting = counting_of(Scripted("pages"))
    counting.finish()
    counting.stop()
    counting.join()

    assert bool(counting.records[0].failure) == (asked == "setJobGroup")


def test_a_long_round_is_followed_by_a_longer_pause():
    assert [pause_after(took, 60.0) for took in (0.5, 20.0, 30.0)] == [60.0, 60.0, 90.0]


def test_the_end_does_not_wait_for_the_next_round_or_for_metrics_that_are_not_there(counting_of):
    pages = Scripted("pages")
    counting, nothing = counting_of(pages, every=600), counting_of(every=60)
    for each in counting, nothing:
        each.start()
    wait_for(lambda: counting.records[0].counted_at)

    for each in counting, nothing:
        each.finish()

    assert nothing.is_done
    wait_for(lambda: counting.is_done)
    assert pages.counts == 2


def test_a_count_that_is_stopped_is_no_failure(counting_of, caplog):
    def count():
        # It starts its Spark job after the first call, which cancels nothing.
        wait_for(lambda: len(counting._spark.cancelled) > 1)
        raise JobFailed("cancelled")

    pages = Scripted("pages", count)
    counting = counting_of(pages, every=60)
    counting.start()
    wait_for(lambda: pages.counts)
    assert not pages.is_stopped()
    counting.stop()
    assert (pages.is_stopped(), counting.is_done) == (True, False)
    counting.join()

    assert counting.is_done
    assert (counting.records[0].failure, caplog.text) == ("", "")
