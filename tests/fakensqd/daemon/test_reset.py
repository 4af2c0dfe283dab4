"""reset(): a server that has been used is as new, on the same ports."""

import gevent.socket
import pytest
from gevent import socket

from fakensqd import FakeCluster, FakeLookupd, FakeNsqd, on
from fakensqd.faults import answer, delay, drop
from fakensqd.faults.control import RuleNeverActed
from fakensqd.faults.toxics import latency
from gnsq.protocol import commands
from tests.kit import wait_until
from tests.kit.wire import LIMIT, Client, request


def facts(daemon):
    """What clients and tests can see of a daemon, apart from its ports."""
    http = daemon.http_address
    return {
        "stats": request(http, "GET", "/stats?format=json") if isinstance(daemon, FakeNsqd) else None,
        "topics": request(http, "GET", "/topics") if isinstance(daemon, FakeLookupd) else daemon.messages("t"),
        "log_level": daemon.log_level if isinstance(daemon, FakeNsqd) else None,
        "states": daemon.states(),
        "rules": (list(daemon.faults.sequences), list(daemon.faults.added)),
        "link": (daemon.link.toxics, daemon.link.connections),
        "transcript": [str(entry) for entry in daemon.transcript],
        "errors": list(daemon.errors),
        "time": (
            daemon.clock.monotonic(),
            daemon.clock.time_ns(),
            daemon.wall_ns(0) if "wall_ns" in dir(daemon) else 0,
        ),
    }


@pytest.mark.parametrize("daemon_class", [FakeNsqd, FakeLookupd])
def test_server_is_as_new_after_a_reset(daemon_class, clock):
    with daemon_class(clock=clock, record=True, seed=5) as daemon:
        addresses, new = (daemon.tcp_address, daemon.http_address), facts(daemon)
        daemon.reset()
        client = gevent.socket.create_connection(("127.0.0.1", daemon.tcp_port), timeout=LIMIT)
        request(daemon.http_address, "POST", "/topic/create?topic=t")
        if daemon_class is FakeNsqd:
            daemon.publish("t", b"x", b"y")
            daemon.publish("t", b"z", delay=60.0)
            daemon.pause_heartbeats()
            request(daemon.http_address, "PUT", "/config/log_level", b"debug")
            request(daemon.http_address, "PUT", "/config/nsqlookupd_tcp_addresses", b'["127.0.0.1:1"]')
        daemon.add(on.connect(), drop(), optional=True)
        daemon.link.add(latency(1.0))
        daemon.set_processing_delay(1.0)
        daemon.stop_reading()
        daemon.errors.append(ValueError())
        clock.advance(10.0)

        daemon.reset()

        with client:
            assert client.recv(1) == b""
        assert (daemon.tcp_address, daemon.http_address) == addresses
        assert facts(daemon) == new


def test_nobody_gets_the_ports_of_a_server_that_goes_down_and_comes_up(nsqd, monkeypatch):
    def refuse(address, *, listening=True):
        raise AssertionError(f"{address} was free meanwhile")

    with monkeypatch.context() as patch:
        patch.setattr("fakensqd.ports.open_socket", refuse)
        nsqd.down()
        with pytest.raises(ConnectionRefusedError):
            Client(nsqd.tcp_address)
        nsqd.up()

    assert request(nsqd.http_address, "GET", "/ping") == "OK"
    host, port = nsqd.tcp_address.split(":")
    nsqd.stop()
    with socket.create_server((host, int(port))):  # it is free
        pass


def test_command_that_a_fault_held_back_is_not_executed_after_a_reset(nsqd, clock):
    nsqd.add(on.command("PUB"), delay(5.0))
    nsqd.link.add(latency(5.0), connection=2)
    for _ in range(2):
        Client(nsqd.tcp_address).send(commands.publish("t", b"x"))
    clock.advance(1.0)

    nsqd.reset()
    clock.advance(20.0)

    assert nsqd.messages("t") == []


def test_faults_have_the_same_random_numbers_after_a_reset(nsqd):
    def outcomes():
        nsqd.add(on.http("/ping").sometimes(0.5), answer(503))
        return [request(nsqd.http_address, "GET", "/ping") == "OK" for _ in range(20)]

    before = outcomes()
    nsqd.reset()

    assert outcomes() == before


def test_reset_tells_of_a_rule_that_never_acted(nsqd):
    nsqd.add(on.command("PUB"), drop())

    with pytest.raises(RuleNeverActed, match="nothing of that kind happened"):
        nsqd.reset()

    assert nsqd.unfired() == []
    assert nsqd.running


def test_reset_names_clients_that_wait_by_the_clock(nsqd, clock):
    clock.advance(3.0)
    timer = clock.call_later(60.0, print)
    nsqd.publish("t", b"x")

    with pytest.raises(RuntimeError, match="1 timer of this clock would be late after a reset"):
        nsqd.reset()

    assert (nsqd.running, nsqd.messages("t"), clock.monotonic()) == (True, [], 3.0)
    timer.cancel()
    nsqd.reset()
    assert clock.monotonic() == 0.0


def test_cluster_is_as_new_after_a_reset(clock):
    with FakeCluster(clock=clock, record=True, seed=5) as cluster:
        cluster.reset()
        new = [facts(daemon) | {"transcript": []} for daemon in (*cluster.lookupds, *cluster.nsqds)]
        addresses = cluster.nsqd_tcp_addresses
        cluster.publish("t", b"x")
        cluster.add(on.http("/topics"), drop(), optional=True)
        cluster.nsqds[1].down()
        clock.advance(10.0)

        cluster.reset()

        assert cluster.nsqd_tcp_addresses == addresses
        assert [facts(daemon) | {"transcript": []} for daemon in (*cluster.lookupds, *cluster.nsqds)] == new
        assert len(request(cluster.lookupd_http_addresses[0], "GET", "/nodes")["producers"]) == 2
        cluster.publish("t", b"first")
        assert cluster.nsqds[0].messages("t") == [b"first"]


def test_reset_nsqd_registers_with_the_nsqlookupd_of_its_cluster_again():
    with FakeCluster(nsqds=1) as cluster:
        cluster.nsqds[0].reset()

        wait_until(lambda: request(cluster.lookupd_http_addresses[0], "GET", "/nodes")["producers"])
