import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gnsq.spark.pipeline.account import Account, count_rows, drain_topic, sum_highest_versions
from tests.spark.helpers import numbered, publish, wait_for


def test_account_that_agrees():
    assert [agrees for _, agrees in Account(10, 9, 1, 7, 2).checks()] == [True, True]


def test_lost_and_duplicated_events_show():
    assert [agrees for _, agrees in Account(10, 9, 0, 8, 2).checks()] == [False, False]


def test_rows_of_all_files_are_counted(tmp_path):
    for name, rows in (("hour=a/x.parquet", 3), ("hour=b/y.parquet", 4)):
        (tmp_path / name).parent.mkdir()
        pq.write_table(pa.table({"a": list(range(rows))}), tmp_path / name)

    assert count_rows(tmp_path) == 7
    assert count_rows(tmp_path / "none") == 0


def test_highest_version_counts():
    rows = [("10:00", "/", 2, 0), ("10:00", "/", 5, 3), ("10:00", "/", 4, 1), ("10:01", "/", 1, 1)]
    bodies = [json.dumps(dict(zip(("window", "key", "count", "version"), row, strict=True))).encode() for row in rows]

    assert sum_highest_versions(bodies) == (6, 2)
    assert sum_highest_versions([]) == (0, 0)


@pytest.mark.slow
def test_topic_is_read_to_its_end(fakecluster, hub):
    for nsqd, first in zip(fakecluster.nsqds, (0, 500), strict=True):
        publish(nsqd, "out", numbered(500, first))
    lookupds = list(fakecluster.lookupd_http_addresses)
    from gnsq import LookupdClient

    lookupd = LookupdClient.from_url(lookupds[0])
    wait_for(lambda: len([node for node in lookupd.nodes()["producers"] if "out" in node["topics"]]) == 2)
    lookupd.close()

    assert sorted(hub.call(drain_topic, "out", lookupds, 1000)) == numbered(1000)
    assert hub.call(drain_topic, "out", lookupds, 0) == []
    assert hub.call(drain_topic, "out", lookupds, 5) == []
