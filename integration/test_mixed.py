"""Emulated and real servers together: they register with each other's nsqlookupd, and nsqadmin shows a fake cluster."""

import contextlib
import re
import shutil
import subprocess

import gevent
import pytest
from gevent.subprocess import PIPE, Popen

from fakensqd import FakeCluster, FakeLookupd, FakeNsqd
from integration.servers import running
from tests.kit import wait_until
from tests.kit.wire import request

pytestmark = pytest.mark.real


def needs(name):
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"there is no {name} on PATH")


def ports(node):
    return node["tcp_port"], node["http_port"]


def port_of(address):
    return int(address.rpartition(":")[2])


@needs("nsqd")
def test_a_real_nsqd_registers_with_a_fake_nsqlookupd():
    with FakeLookupd() as lookupd:
        with running("nsqd", f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd:
            wait_until(lambda: request(lookupd.http_address, "GET", "/nodes")["producers"])
            request(nsqd.http_address, "POST", "/pub?topic=t", b"x")
            request(nsqd.http_address, "POST", "/channel/create?topic=t&channel=c")
            wait_until(lambda: request(lookupd.http_address, "GET", "/channels?topic=t") == {"channels": ["c"]})
            (node,) = request(lookupd.http_address, "GET", "/lookup?topic=t")["producers"]
            assert ports(node) == (port_of(nsqd.tcp_address), port_of(nsqd.http_address))

            request(nsqd.http_address, "POST", "/channel/delete?topic=t&channel=c")
            request(nsqd.http_address, "POST", "/topic/delete?topic=t")
            wait_until(lambda: not request(lookupd.http_address, "GET", "/lookup?topic=t")["producers"])
        wait_until(lambda: request(lookupd.http_address, "GET", "/nodes") == {"producers": []})

    assert lookupd.errors == []


@needs("nsqlookupd")
def test_a_fake_nsqd_registers_with_a_real_nsqlookupd():
    with running("nsqlookupd", "--broadcast-address=127.0.0.1") as lookupd:
        with FakeNsqd(lookupd_tcp_addresses=lookupd.tcp_address) as nsqd:
            request(nsqd.http_address, "POST", "/topic/create?topic=t")
            request(nsqd.http_address, "POST", "/channel/create?topic=t&channel=c")
            wait_until(lambda: request(lookupd.http_address, "GET", "/channels?topic=t") == {"channels": ["c"]}, 1)
            (node,) = request(lookupd.http_address, "GET", "/lookup?topic=t")["producers"]
            assert ports(node) == (nsqd.tcp_port, nsqd.http_port)
            # For a known topic, nsqd creates the channels that nsqlookupd knows.
            with FakeNsqd(lookupd_tcp_addresses=lookupd.tcp_address) as other:
                request(other.http_address, "POST", "/pub?topic=t", b"x")
                wait_until(lambda: other.broker.topics["t"].channels.keys() == {"c"})
        wait_until(lambda: request(lookupd.http_address, "GET", "/nodes") == {"producers": []}, 1)

    assert nsqd.errors == other.errors == []


@contextlib.contextmanager
def nsqadmin(lookupds):
    """Run nsqadmin with nsqlookupds; returns its address."""
    words = [f"--lookupd-http-address={address}" for address in lookupds]
    process = Popen(["nsqadmin", "--http-address=127.0.0.1:0", *words], stderr=PIPE, stdout=subprocess.DEVNULL)
    try:
        with gevent.Timeout(10):
            lines = iter(process.stderr.readline, b"")
            found = next(match for line in lines if (match := re.search(rb"HTTP: listening on (\S+)", line)))
        drain = gevent.spawn(process.stderr.read)
        yield found[1].decode()
    finally:
        process.terminate()
        process.wait(10)
        drain.join(10)
        process.stderr.close()


@needs("nsqadmin")
def test_nsqadmin_shows_a_fake_cluster():
    with FakeCluster(nsqds=3, lookupds=2) as cluster, nsqadmin(cluster.lookupd_http_addresses) as admin:
        for nsqd in cluster.nsqds:
            request(nsqd.http_address, "POST", "/pub?topic=t", b"x")
            request(nsqd.http_address, "POST", "/channel/create?topic=t&channel=c")

        assert "<title>nsqadmin</title>" in request(admin, "GET", "/nodes")
        nodes = request(admin, "GET", "/api/nodes")["nodes"]
        assert {ports(node) for node in nodes} == {(nsqd.tcp_port, nsqd.http_port) for nsqd in cluster.nsqds}
        assert {len(node["remote_addresses"]) for node in nodes} == {2}
        assert request(admin, "GET", "/api/topics")["topics"] == ["t"]
        wait_until(lambda: request(admin, "GET", "/api/topics/t/c")["depth"] == 3)
        one = cluster.nsqds[0]
        assert request(admin, "GET", f"/api/nodes/{one.http_address}")["topics"][0]["topic_name"] == "t"

        # The requests of its buttons.
        request(admin, "POST", "/api/topics/t/c", b'{"action":"pause"}')
        assert all(nsqd.broker.topics["t"].channels["c"].paused for nsqd in cluster.nsqds)
        request(admin, "POST", "/api/topics/t/c", b'{"action":"empty"}')
        assert all(nsqd.broker.topics["t"].channels["c"].depth == 0 for nsqd in cluster.nsqds)
        request(admin, "DELETE", "/api/topics/t")
        assert [nsqd.broker.topics for nsqd in cluster.nsqds] == [{}, {}, {}]

    assert cluster.errors == []
