import pytest

from gnsq.spark.pipeline.compaction import closed_hours, mergeable

EIGHT, NINE, TEN = (f"hour=2026-01-01T{hour:02}" for hour in (8, 9, 10))


@pytest.mark.parametrize(
    ("directories", "delay", "closed"),
    [
        pytest.param([], 0, [], id="nothing"),
        pytest.param([TEN], 0, [], id="the latest is open"),
        pytest.param([NINE, TEN], 0, [NINE], id="no delay"),
        pytest.param([NINE, TEN], 1, [], id="ended less than the delay before"),
        pytest.param([TEN, EIGHT, NINE], 3600, [EIGHT], id="ended just the delay before"),
        pytest.param(["hour=2025-12-31T23", "hour=2026-01-01T00"], 0, ["hour=2025-12-31T23"], id="new year"),
        pytest.param([EIGHT, NINE, "_staging", "hour=__HIVE_DEFAULT_PARTITION__", "x"], 0, [EIGHT], id="foreign names"),
    ],
)
def test_an_hour_is_closed_when_it_ended_long_enough_before_the_latest(directories, delay, closed):
    assert closed_hours(directories, delay) == closed


FILES = [("merged-000001.parquet", None), ("batch-3", 3), ("batch-4", 4), ("batch-5", 5)]


@pytest.mark.parametrize(
    ("committed", "least", "names"),
    [
        pytest.param(4, 3, ["batch-3", "batch-4", "merged-000001.parquet"], id="what may run again is left out"),
        pytest.param(4, 4, [], id="too few"),
        pytest.param(-1, 1, [], id="one is never worth it"),
        pytest.param(9, 4, ["batch-3", "batch-4", "batch-5", "merged-000001.parquet"], id="all"),
    ],
)
def test_only_files_of_committed_batches_are_merged(committed, least, names):
    assert mergeable(FILES, committed, least) == names
