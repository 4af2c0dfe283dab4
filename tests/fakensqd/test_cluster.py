"""FakeCluster: wired when it has started."""

import pytest

from fakensqd import FakeCluster
from tests.fakensqd.wire import request


@pytest.mark.parametrize(("nsqds", "lookupds"), [(2, 1), (3, 2), (1, 0)])
def test_every_nsqd_registers_with_every_nsqlookupd(nsqds, lookupds):
    with FakeCluster(nsqds, lookupds, max_rdy_count=7) as cluster:
        assert len(cluster.nsqd_tcp_addresses) == len(set(cluster.nsqd_tcp_addresses)) == nsqds
        assert len(cluster.lookupd_http_addresses) == lookupds
        for address in cluster.lookupd_http_addresses:
            assert len(request(address, "GET", "/nodes")["producers"]) == nsqds
        assert {nsqd.options.max_rdy_count for nsqd in cluster.nsqds} == {7}

    assert cluster.errors == []


def test_it_can_be_started_again():
    cluster = FakeCluster()
    with cluster:
        addresses = cluster.nsqd_tcp_addresses
    with cluster:
        assert cluster.nsqd_tcp_addresses == addresses
        assert len(request(cluster.lookupd_http_addresses[0], "GET", "/nodes")["producers"]) == 2
