"""Nothing is left over: sockets, threads, greenlets and watchers after many starts and stops, in and out of states."""

import gc
import os
import socket
import threading
import time

import gevent
import greenlet
import pytest

from fakensqd import FakeCluster, FakeNsqd
from fakensqd.addresses import split_address
from fakensqd.faults.relay import Relay
from fakensqd.faults.toxics import latency, slice_bytes
from gnsq.protocol import commands
from tests.kit import need_open_files
from tests.kit.wire import Client, consumer, request

pytestmark = pytest.mark.slow


def resources():
    """Count descriptors, threads, and active watchers of the hub."""
    return len(os.listdir("/proc/self/fd")), threading.active_count(), gevent.get_hub().loop.activecnt


@pytest.fixture
def nothing_left():
    """Compare resources before and after the test."""
    # Makes the resources that each hub has once.
    with FakeNsqd().in_thread(), FakeNsqd() as nsqd:
        request(nsqd.http_address, "GET", "/ping")
    gc.collect()
    # Older objects are left out of gc.get_objects(), and of later collections: to look at all of a long test run takes
    # 0.3 s each time.
    gc.freeze()
    before = resources()
    yield
    # A name may still be resolved by a thread, whose end a watcher reports.
    gevent.get_hub().threadpool.join()
    for _ in range(3):
        gevent.idle()
    gc.collect()
    after, new = resources(), [item for item in gc.get_objects() if isinstance(item, greenlet.greenlet)]
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)
    assert [item for item in new if isinstance(item, gevent.Greenlet) and not item.dead] == []
    # Hubs and main greenlets of threads, too. Those of the last thread are freed a moment after it.
    assert len(new) < 10


def test_servers_with_connected_and_disconnected_clients_leave_nothing(nothing_left):
    for _ in range(50):
        with FakeNsqd() as nsqd:
            clients = [consumer(nsqd.tcp_address, channel=channel) for channel in ("c", "d")]
            clients[0].send(commands.publish("t", b"x"))
            for client in clients:
                client.frame()
            clients[0].socket.close()
        clients[1].socket.close()
    Client.opened.clear()


def test_servers_on_threads_with_connected_clients_leave_nothing(nothing_left):
    for _ in range(100):
        with (
            FakeNsqd().in_thread() as nsqd,
            socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=10) as sock,
        ):
            sock.sendall(b"  V2FOO\n")
            assert sock.recv(100)


def test_servers_with_toxics_and_states_leave_nothing(nothing_left):
    for _ in range(50):
        with FakeNsqd() as nsqd, Relay(nsqd.tcp_address) as relay:
            nsqd.link.add(slice_bytes(3))
            relay.link.add(latency(3600.0), upstream=False)
            client = Client(relay.address)
            client.send(commands.publish("t", b"x"))
            nsqd.pause_heartbeats()
            nsqd.stop_reading()
            nsqd.restart()
            nsqd.resume_reading()
            nsqd.down()
        client.socket.close()
        Client.opened.clear()


@pytest.mark.parametrize("threaded", [False, True], ids=["in the hub", "on a thread"])
def test_clusters_leave_nothing(nothing_left, threaded):
    for _ in range(25):
        with FakeCluster().in_thread() if threaded else FakeCluster() as cluster:
            assert len(cluster.nsqd_tcp_addresses) == 2


def ping(address):
    """Send GET /ping; give back the seconds that the answer took."""
    begun = time.monotonic()
    with socket.create_connection(split_address(address), timeout=30) as sock:
        sock.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.")
    return time.monotonic() - begun


def test_server_with_4000_connections_answers_pings_and_stops_without_an_error():
    """So many take longer to end than the half second that stop() gives a hub in which nothing ends any more."""
    need_open_files(10_000)
    nsqd = FakeNsqd().in_thread()
    nsqd.start()
    address = split_address(nsqd.tcp_address)
    clients, pings = [], []

    try:
        for number in range(4000):
            clients.append(socket.create_connection(address, timeout=30))
            clients[-1].sendall(b"  V2")
            if number % 250 == 0:
                pings.append(ping(nsqd.http_address))
        nsqd.wait_until(lambda nsqd: len(nsqd.sessions), 4000, timeout=30)
    finally:
        nsqd.stop()  # raises if anything is left over
        for client in clients:
            client.close()

    assert max(pings) < 20
