"""close() ends waiting calls, in any thread; a forked child makes its own connections."""

import logging
import subprocess
import sys
import textwrap
import threading

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


def test_close_ends_calls_that_wait():
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


def test_close_ends_retries(caplog):
    caplog.set_level(logging.DEBUG, "urllib3.connectionpool")
    client = HTTPClient("127.0.0.1", refused_port(), retries=1000)
    caller = gevent.spawn(failing, client)
    wait_until(lambda: "Starting new HTTP connection (2)" in caplog.text)
    client.close()

    assert "client was closed" in caller.get(timeout=5)


def test_closed_client_opens_new_connections():
    with http_peer(lambda asked, sock: reply()) as peer, HTTPClient.from_url(peer.address) as client:
        client.request("GET", "x")
        client.close()
        client.close()

        assert client.request("GET", "x") == b"OK"
        assert peer.connections == 2


def test_close_closes_idle_connections():
    gone = Event()

    def answer(asked, sock):
        gevent.spawn(watch, sock)
        return reply()

    def watch(sock):
        gevent.socket.wait_read(sock.fileno(), timeout=10)
        gone.set()

    with http_peer(answer) as peer, HTTPClient.from_url(peer.address) as client:
        client.request("GET", "x")
        client.close()

        assert gone.wait(10)


def test_close_by_another_thread_ends_calls():
    release = Event()
    with http_peer(lambda asked, sock: release.wait() and None) as peer:
        client = HTTPClient.from_url(peer.address)
        caller = gevent.spawn(failing, client)
        wait_until(lambda: peer.requests)
        thread = threading.Thread(target=client.close)
        thread.start()
        thread.join(10)

        assert "client was closed" in caller.get(timeout=5)
        release.set()


def test_close_by_another_thread_closes_idle_connections():
    gone = Event()

    def answer(asked, sock):
        gevent.spawn(lambda: (gevent.socket.wait_read(sock.fileno(), timeout=10), gone.set()))
        return reply()

    with http_peer(answer) as peer, HTTPClient.from_url(peer.address) as client:
        client.request("GET", "x")
        thread = threading.Thread(target=client.close)
        thread.start()
        thread.join(10)

        assert gone.wait(10)
        assert client.request("GET", "x") == b"OK"


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
@pytest.mark.subprocess
def test_child_of_a_fork_makes_connections_of_its_own(fakensqd, how):
    # Since Python 3.12 a process of several threads is warned when it forks.
    unwarned = ["-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *unwarned, "-c", textwrap.dedent(FORK), fakensqd.http_address, how]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("both\n", "")


FORK_DURING_A_CALL = """
    import os, socket, sys, threading, time
    import gevent
    from gevent.socket import socketpair
    from gnsq.errors import NSQHttpError
    from gnsq.httpclient import HTTPClient

    arrived, release, sent = threading.Event(), threading.Event(), threading.Event()

    def serve():
        sock, _ = listener.accept()
        sock.recv(65536)
        arrived.set()
        release.wait(30)
        sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nOK")
        sent.set()
        release.clear()
        release.wait(30)

    def call():
        try:
            return client.request("POST", "x").decode()
        except NSQHttpError as error:
            return str(error).partition(": ")[2].replace(str(os.getppid()), "P")

    def fork():
        mine.recv(1)
        pid = os.fork()
        if pid:
            time.sleep(0.3)  # so that the child is first to run
        return pid

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    client = HTTPClient("127.0.0.1", listener.getsockname()[1], timeout=20)
    caller = gevent.spawn(call)
    while not arrived.is_set():
        gevent.sleep(0.01)
    mine, other = socketpair()
    forker = gevent.spawn(fork)
    gevent.sleep(0)
    # The response and the fork come in one round of the hub.
    release.set()
    sent.wait(10)
    other.send(b"x")
    if not forker.get():
        os.write(1, f"child: {caller.get(timeout=10)}\\n".encode())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    print("parent:", caller.get(timeout=10))
"""


@pytest.mark.subprocess
def test_call_that_waits_during_a_fork_fails_in_the_child_and_ends_in_the_parent():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(FORK_DURING_A_CALL)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == (
        "child: connection belongs to process P, and this is its child\nparent: OK\n",
        "",
    )
