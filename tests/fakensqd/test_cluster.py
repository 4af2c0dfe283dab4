"""FakeCluster: wired when it has started."""

import os

import pytest

from fakensqd import FakeCluster
from tests.kit.wire import request


@pytest.mark.parametrize(("nsqds", "lookupds"), [(3, 2), (1, 0)])
def test_every_nsqd_registers_with_every_nsqlookupd(nsqds, lookupds):
    with FakeCluster(nsqds, lookupds, max_rdy_count=7) as cluster:
        assert len(cluster.nsqd_tcp_addresses) == len(set(cluster.nsqd_tcp_addresses)) == nsqds
        assert len(cluster.lookupd_http_addresses) == lookupds
        for address in cluster.lookupd_http_addresses:
            assert len(request(address, "GET", "/nodes")["producers"]) == nsqds
        assert {nsqd.options.max_rdy_count for nsqd in cluster.nsqds} == {7}

    assert cluster.errors == []


def test_failed_start_of_a_cluster_leaves_no_server_running():
    with FakeCluster() as other:
        cluster = FakeCluster(tcp_address=other.nsqd_tcp_addresses[0])
        with pytest.raises(OSError, match=f"Address already in use: '{other.nsqd_tcp_addresses[0]}'"):
            cluster.start()

    assert not any(daemon.running for daemon in (*cluster.nsqds, *cluster.lookupds))


@pytest.mark.parametrize(
    ("host", "broadcast", "told", "asked"),
    [
        pytest.param("127.0.0.2", {}, "127.0.0.2", "127.0.0.2", id="host"),
        pytest.param("0.0.0.0", {}, os.uname().nodename, "127.0.0.1", id="all addresses"),
        pytest.param("0.0.0.0", {"broadcast_address": "nsq.test"}, "nsq.test", "127.0.0.1", id="given"),
    ],
)
def test_consumers_are_told_the_broadcast_address(host, broadcast, told, asked):
    with FakeCluster(host=host, **broadcast) as cluster:
        daemons = (*cluster.nsqds, *cluster.lookupds)
        for daemon in daemons:
            for address in (daemon.tcp_address, daemon.http_address):
                assert address.startswith(f"{host}:")
        (lookupd,) = cluster.lookupds
        at = f"{asked}:{lookupd.http_port}"
        assert {row["broadcast_address"] for row in request(at, "GET", "/nodes")["producers"]} == {told}
        # A new topic gets the channels that nsqlookupd knows, for which the nsqd asks it over HTTP.
        request(at, "POST", "/topic/create?topic=t")
        request(at, "POST", "/channel/create?topic=t&channel=c")
        cluster.nsqds[0].publish("t", b"x")
        cluster.nsqds[0].wait_until(lambda nsqd: nsqd.depth("t", "c"), 1)


PORTS = [
    pytest.param(65435, 2, 1, "base_port 65435 must be from 1 to 65434 with nsqds=2, lookupds=1", id="nsqds"),
    pytest.param(65435, 1, 2, "base_port 65435 must be from 1 to 65424 with nsqds=1, lookupds=2", id="nsqlookupds"),
]


@pytest.mark.parametrize(("base_port", "nsqds", "lookupds", "text"), PORTS)
def test_ports_that_do_not_exist_are_refused(base_port, nsqds, lookupds, text):
    with pytest.raises(ValueError, match=text):
        FakeCluster(nsqds, lookupds, base_port=base_port)
