"""Without Spark: a batch is what lies in the staging directory."""

import pytest

from gnsq.spark.pipeline.files import BatchFiles, batch_of
from tests.spark.pipeline.helpers import batch_name, ids_below, put_file

HOUR = "hour=2026-01-01T08"


class Rows:
    """What BatchFiles uses of a DataFrame: writes part files, as Spark does."""

    def __init__(self, *parts):
        self.parts = parts
        self.write = self

    def mode(self, mode):
        return self

    def partitionBy(self, column):
        return self

    def parquet(self, path):
        from pathlib import Path

        for index, (hour, numbers) in enumerate(self.parts):
            put_file(Path(path) / hour, f"part-{index:05}-x.snappy.parquet", numbers)
        Path(path).mkdir(parents=True, exist_ok=True)


def test_batch_that_ran_halfway_is_replaced(tmp_path):
    BatchFiles(str(tmp_path), "hour").write(Rows((HOUR, [1])), 0)
    # The first run had two files here and one in another hour, and was killed before it had moved the rest.
    put_file(tmp_path / HOUR, batch_name(1), [2])
    put_file(tmp_path / HOUR, batch_name(1, 1), [3])
    put_file(tmp_path / "hour=2026-01-01T09", batch_name(1, 2), [4])
    put_file(tmp_path / "_staging" / "1" / HOUR, "part-00003-y.snappy.parquet", [5])
    Rows().parquet(str(tmp_path / "_staging" / "1"))
    (tmp_path / "_staging" / "1" / HOUR / "part-00003-y.snappy.parquet").unlink()
    BatchFiles(str(tmp_path), "hour").write(Rows((HOUR, [2, 3, 4, 5])), 1)

    assert ids_below(tmp_path) == [1, 2, 3, 4, 5]
    assert list((tmp_path / "_staging").iterdir()) == []


def test_later_batches_leave_others_alone(tmp_path):
    files = BatchFiles(str(tmp_path), "hour")
    for batch_id in range(3):
        files.write(Rows((HOUR, [batch_id])), batch_id)

    assert ids_below(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "batch"),
    [(batch_name(12, 3), 12), ("merged-000001.parquet", None), ("batch-1-0.parquet", None), ("x", None)],
)
def test_file_names_tell_their_batch(name, batch):
    assert batch_of(name) == batch
