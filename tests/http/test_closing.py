"""close() ends what is under way, and a child of a fork begins anew."""

import subprocess
import sys
import textwrap

import gevent
import pytest
from gevent.event import Event

from gnsq.errors import NSQHttpError
from gnsq.httpclient import HTTPClient
from tests.helpers import refused_port, wait_until
from tests.http.peer import http_peer, reply


def failing(client):
    with pytest.raises(NSQHttpError) as caught:
        client.request("GET", "x")
    return str(caught.value)


def test_close_ends_calls_under_way():
    release = Event()
    with http_peer(lambda asked, sock: release.wait() and None) as peer:
        client = HTTPClient.from_url(peer.address)
        callers = [gevent.spawn(failing, client) for _ in range(6)]
        wait_until(lambda: len(peer.requests) == 4)
        client.close()

        for caller in callers:
            assert "client was closed" in caller.get(timeout=5)
        assert len(peer.requests) == 4
        release.set()


def test_close_ends_retries():
    client = HTTPClient("127.0.0.1", refused_port(), retries=1000)
    caller = gevent.spawn(failing, client)
    workers = client._calls._workers
    wait_until(lambda: len(workers) == 1 and workers._unfinished == 0)
    client.close()

    assert "client was closed" in caller.get(timeout=5)


def test_closed_client_opens_anew():
    with http_peer(lambda asked, sock: reply()) as peer, HTTPClient.from_url(peer.address) as client:
        client.request("GET", "x")
        client.close()
        client.close()

        assert client.request("GET", "x") == b"OK"
        assert peer.connections == 2


def test_close_ends_threads_and_connections():
    gone = Event()

    def answer(asked, sock):
        gevent.spawn(watch, sock)
        return reply()

    def watch(sock):
        gevent.socket.wait_read(sock.fileno(), timeout=10)
        gone.set()

    with http_peer(answer) as peer, HTTPClient.from_url(peer.address) as client:
        client.request("GET", "x")
        workers = client._calls._workers
        assert len(workers) == 1
        client.close()

        assert gone.wait(10)
        wait_until(lambda: len(workers) == 0)


FORK = """
    import os, sys
    import gevent, gevent.os
    from gnsq.httpclient import HTTPClient

    address, how = sys.argv[1:]
    client = HTTPClient.from_url(address, timeout=20)
    assert client.request("GET", "ping") == b"OK"
    fork = gevent.fork if how == "gevent" else os.fork
    if how == "gevent":
        # Else it misses a child that ends before it is first waited for.
        gevent.get_hub().loop.install_sigchld()
    pid = fork()
    if not pid:
        done = 1
        try:
            done = 0 if [client.request("GET", "ping") for _ in range(3)] == [b"OK"] * 3 else 2
            client.close()
        finally:
            os._exit(done)
    assert [client.request("GET", "ping") for _ in range(20)] == [b"OK"] * 20
    # gevent reaps the children of its own fork().
    waitpid = gevent.os.waitpid if how == "gevent" else os.waitpid
    assert os.waitstatus_to_exitcode(waitpid(pid, 0)[1]) == 0
    assert client.request("GET", "ping") == b"OK"
    print("both")
"""


@pytest.mark.parametrize("how", ["os", "gevent"])
def test_child_of_a_fork_makes_connections_and_threads_of_its_own(fakensqd, how):
    # Since Python 3.12 a process of several threads is warned when it forks.
    unwarned = ["-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *unwarned, "-c", textwrap.dedent(FORK), fakensqd.http_address, how]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("both\n", "")
