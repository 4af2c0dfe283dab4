"""Connections of an HTTP client: deadline, safe retries, close, forks, and errors; other greenlets run meanwhile."""

import http.client
import logging
import ssl
import textwrap
import threading

import gevent
import pytest
import requests
import urllib3
from gevent.event import Event

import gnsq.http.connections  # noqa: F401  # or the first short deadline would include loading requests
from gnsq.errors import NSQHttpError, NSQHttpTimeout, NSQHttpUnreachable, NSQNoConnections, NSQTimeout
from gnsq.http.connections import explain
from gnsq.httpclient import HTTPClient
from tests.kit import refused_port, resolve_to, run_program, silent_port, wait_until
from tests.kit.http_peer import http_peer, reply

# Seconds; long enough for what ends before it on a busy machine.
SHORT = 0.3


@pytest.fixture
def release():
    """An event that ends peers that delay a response."""
    event = Event()
    yield event
    event.set()


def holding(release, head=b""):
    """A peer that sends only the beginning of a response."""

    def answer(asked, sock):
        sock.sendall(head)
        release.wait()

    return answer


def trickling(release, head, dribble):
    """A peer that sends a response slowly, without an end."""

    def answer(asked, sock):
        sock.sendall(head)
        while not release.wait(0.02):
            sock.sendall(dribble)

    return answer


@pytest.fixture
def client_of():
    """Make clients that are closed at the end."""
    made = []

    def make(peer, **options):
        address = peer if isinstance(peer, str) else peer.address
        made.append(HTTPClient.from_url(address, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


# --- the deadline -----------------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("method", "head", "dribble"),
    [
        pytest.param("GET", b"", b"", id="silent"),
        pytest.param("GET", HEAD, b"X-H: 1\r\n", id="headers trickle"),
        pytest.param("GET", HEAD + b"Content-Length: 100000\r\n\r\n", b"x", id="body trickles"),
        pytest.param("POST", HEAD + b"\r\n", b"x", id="body without end"),
    ],
)
def test_slow_server_does_not_delay_a_call_beyond_its_deadline(release, client_of, method, head, dribble):
    with http_peer(trickling(release, head, dribble)) as peer:
        with gevent.Timeout(5), pytest.raises(NSQHttpTimeout, match=r"no response within 0\.3 s") as caught:
            client_of(peer, timeout=SHORT).request(method, "x")

        assert caught.value.status is None
        assert isinstance(caught.value, NSQTimeout)
        assert peer.lines == [f"{method} /x"]


def test_waiting_for_a_slot_counts(release, client_of):
    with http_peer(holding(release)) as peer:
        client = client_of(peer, timeout=60, maxsize=1)
        first = gevent.spawn(client.request, "GET", "first")
        wait_until(lambda: peer.requests)

        with pytest.raises(NSQHttpUnreachable, match="nothing could be sent within"):
            client.request("POST", "second", timeout=SHORT)

        first.kill()
        assert peer.lines == ["GET /first"]


def time_out(call, peer):
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        call()


def kill(call, peer):
    caller = gevent.spawn(call)
    wait_until(lambda: peer.requests)
    caller.kill()


@pytest.mark.parametrize("end", [time_out, kill])
def test_timeout_or_kill_of_the_caller_frees_its_slot_and_closes_its_connection(release, client_of, end):
    with http_peer(lambda asked, sock: release.wait() and None if asked.path == "/x" else reply()) as peer:
        client = client_of(peer, maxsize=1)

        end(lambda: client.request("GET", "x"), peer)

        assert client.request("GET", "y") == b"OK"
        assert peer.connections == 2


# --- connections ------------------------------------------------------------------------------------------------------


def test_connections_are_kept_and_used_again(client_of):
    with http_peer(lambda asked, sock: reply()) as peer:
        client = client_of(peer)
        for _ in range(5):
            client.request("POST", "x", body=b"body")

        assert (len(peer.requests), peer.connections) == (5, 1)


@pytest.mark.parametrize("destroyed", [True, False], ids=["destroyed", "left"])
def test_threads_share_a_client(client_of, fakensqd, destroyed):
    """Each thread has its own hub and its own connections, a thread with a second hub makes new ones."""
    client = client_of(fakensqd.http_address)
    results = []

    def ask():
        for _ in range(2):
            results.append(client.request("GET", "ping"))
            if destroyed:
                gevent.get_hub().destroy(destroy_loop=True)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert results == [b"OK"] * 8


def closing_second(how):
    """A peer that responds to the first request of each connection, and closes it at the second."""

    def answer(asked, sock):
        if asked.connection not in seen:
            seen.add(asked.connection)
            return reply()
        return how(sock)

    seen = set()
    return answer


def test_get_survives_a_connection_that_was_closed_after_sending(client_of):
    with http_peer(closing_second(lambda sock: None)) as peer:
        client = client_of(peer, retries=1)

        assert [client.request("GET", "x") for _ in range(3)] == [b"OK"] * 3
        assert peer.connections == 3


def test_post_is_not_retried_after_a_connection_was_closed_after_sending(client_of):
    with http_peer(closing_second(lambda sock: None)) as peer:
        client = client_of(peer, retries=5)
        client.request("POST", "pub", body=b"1")
        with pytest.raises(NSQHttpError, match="no response") as caught:
            client.request("POST", "pub", body=b"2")

        assert not isinstance(caught.value, NSQNoConnections)
        assert [asked.body for asked in peer.requests] == [b"1", b"2"]


def test_post_survives_a_connection_that_was_closed_before(client_of):
    closed = Event()

    def answer(asked, sock):
        if asked.connection > 1:
            return reply()
        sock.sendall(reply())
        sock.shutdown(2)
        closed.set()
        return None

    with http_peer(answer) as peer:
        client = client_of(peer, retries=0)
        client.request("POST", "pub", body=b"1")
        assert closed.wait(5)
        client.request("POST", "pub", body=b"2")

        assert [asked.body for asked in peer.requests] == [b"1", b"2"]


def test_error_responses_are_not_retried(client_of):
    with http_peer(lambda asked, sock: reply(b"", "503 Service Unavailable")) as peer:
        with pytest.raises(NSQHttpError, match="<503>"):
            client_of(peer, retries=5).request("GET", "x")

        assert len(peer.requests) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_method_is_retried_if_no_connection_could_be_made(client_of, caplog, method):
    caplog.set_level(logging.DEBUG, "urllib3.connectionpool")
    port = refused_port()
    caller = gevent.spawn(client_of(f"127.0.0.1:{port}", retries=100).request, method, "x")
    # urllib3 numbers them: the first has failed.
    wait_until(lambda: "Starting new HTTP connection (2)" in caplog.text)

    with http_peer(lambda asked, sock: reply(b"came up"), port):
        assert caller.get(timeout=10) == b"came up"


# --- a name with several addresses


def test_error_names_all_addresses_of_a_name(client_of, monkeypatch):
    refused = refused_port()
    with silent_port() as silent:
        resolve_to(monkeypatch, silent, refused)
        with pytest.raises(NSQHttpUnreachable) as caught:
            client_of("two.example:4151", connect_timeout=0.4, retries=0).request("GET", "x")

    tried = f"127.0.0.1:{silent}: no answer within 0.2 s; 127.0.0.1:{refused}: Connection refused"
    assert str(caught.value).endswith(f"can't connect: Connection refused (tried {tried})")


# --- close and fork


def failing(client):
    with pytest.raises(NSQHttpError) as caught:
        client.request("GET", "x")
    return str(caught.value)


def close_in_another_thread(client):
    thread = threading.Thread(target=client.close)
    thread.start()
    thread.join(10)


CLOSES = pytest.mark.parametrize(
    "close", [HTTPClient.close, close_in_another_thread], ids=["here", "in another thread"]
)


@CLOSES
def test_close_ends_calls_that_wait(close):
    release = Event()
    with http_peer(lambda asked, sock: release.wait() and None) as peer:
        client = HTTPClient.from_url(peer.address)
        callers = [gevent.spawn(failing, client) for _ in range(6)]
        wait_until(lambda: len(peer.requests) == 4)
        close(client)

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


@CLOSES
def test_close_closes_idle_connections(close):
    gone = Event()

    def answer(asked, sock):
        gevent.spawn(watch, sock)
        return reply()

    def watch(sock):
        gevent.socket.wait_read(sock.fileno(), timeout=10)
        gone.set()

    with http_peer(answer) as peer, HTTPClient.from_url(peer.address) as client:
        client.request("GET", "x")
        close(client)

        assert gone.wait(10)
        assert client.request("GET", "x") == b"OK"


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
            os.read(end_of_child, 1)  # natively: the child is first to run
        return pid

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    client = HTTPClient("127.0.0.1", listener.getsockname()[1], timeout=20)
    idle = HTTPClient.from_url(sys.argv[1], timeout=20)
    idle.request("GET", "ping")
    caller = gevent.spawn(call)
    while not arrived.is_set():
        gevent.sleep(0.01)
    mine, other = socketpair()
    end_of_child, begin_of_parent = os.pipe()
    forker = gevent.spawn(fork)
    gevent.sleep(0)
    # The response and the fork come in one round of the hub.
    release.set()
    sent.wait(10)
    other.send(b"x")
    if not forker.get():
        os.write(1, f"child: {caller.get(timeout=10)}\\n".encode())
        os.write(begin_of_parent, b"x")
        os._exit([idle.request("GET", "ping") for _ in range(3)] != [b"OK"] * 3)
    assert [idle.request("GET", "ping") for _ in range(20)] == [b"OK"] * 20
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    print("parent:", caller.get(timeout=10))
"""


@pytest.mark.subprocess
def test_call_that_waits_during_a_fork_fails_in_the_child_which_makes_connections_of_its_own(fakensqd):
    done = run_program(textwrap.dedent(FORK_DURING_A_CALL), fakensqd.http_address)

    assert (done.stdout, done.stderr) == (
        "child: connection belongs to process P, and this is its child\nparent: OK\n",
        "",
    )


# --- errors of requests, urllib3 and ssl


# Others are those of test_https.py.
@pytest.mark.parametrize(
    ("error", "words", "final"),
    [
        pytest.param(
            requests.exceptions.SSLError(urllib3.exceptions.SSLError(ssl.SSLEOFError(8, "EOF occurred"))),
            "if it always does",
            False,
            id="tls ended",
        ),
        pytest.param(
            requests.ConnectionError(urllib3.exceptions.ProtocolError("x", http.client.BadStatusLine("\0"))),
            "response is not HTTP",
            True,
            id="not http",
        ),
        pytest.param(
            requests.ConnectionError(ConnectionResetError(104, "Reset by peer")),
            "Reset by peer (is it nsqd's TCP port",
            False,
            id="reset",
        ),
        pytest.param(requests.ReadTimeout(TimeoutError("timed out")), "timed out", False, id="time"),
        pytest.param(ValueError("odd\nsecond line"), "odd", False, id="anything"),
        pytest.param(ValueError(), "ValueError", False, id="nothing said"),
    ],
)
def test_error_has_a_text_with_a_hint(error, words, final):
    _, reason, hint, is_final = explain(error)

    assert words in f"{reason} ({hint})"
    assert "\n" not in reason
    assert is_final == final


def test_server_text_is_cut_and_printable():
    assert explain(http.client.UnknownProtocol("HTTP/\x1b[0m" + "1" * 1000))[1] == "HTTP/ [0m" + "1" * 191 + "..."


def test_connection_that_breaks_while_it_is_made_is_a_lost_one(client_of, monkeypatch):
    def break_down(*given, **options):
        raise BrokenPipeError

    monkeypatch.setattr(gevent.socket, "getaddrinfo", break_down)

    with http_peer(lambda asked, sock: reply()) as peer, pytest.raises(NSQHttpError, match="no response"):
        client_of(peer).request("POST", "x")
