import json

import pytest

from gnsq.spark.pipeline.account import Account, drain_topic, sum_highest_versions
from tests.spark.helpers import numbered, publish, wait_for


def test_account_that_agrees():
    assert [agrees for _, agrees in Account(10, 9, 1, 9, 9).checks()] == [True, True]


def test_lost_and_duplicated_events_show():
    assert [agrees for _, agrees in Account(10, 9, 0, 9, 8).checks()] == [False, False]
    assert [agrees for _, agrees in Account(10, 9, 1, 10, 9).checks()] == [True, False]


def test_highest_version_counts():
    names = ("window", "page", "count", "epoch", "version")
    rows = [("10:00", "/", 2, 1, 0), ("10:00", "/", 5, 1, 3), ("10:00", "/", 4, 1, 1), ("10:01", "/", 1, 1, 1)]
    # A new checkpoint counts anew.
    rows.append(("10:00", "/", 2, 2, 9))
    bodies = [json.dumps(dict(zip(names, row, strict=True))).encode() for row in rows]

    assert sum_highest_versions(bodies) == (8, 3)
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
