"""HealthApplication and serve_health(): what probes are answered, in each state of the clients."""

import json
import threading
from datetime import timedelta
from urllib.parse import urlsplit

import gevent
import pytest
from gevent import socket

from gnsq import Consumer, Producer
from gnsq.contrib.health import HealthApplication, serve_health
from tests.kit import LIMIT, refused_port, wait_until


def ask(application, path, method="GET"):
    """Return status, headers and text of an answer."""
    answer = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path}
    body = b"".join(application(environ, lambda status, headers: answer.extend([int(status[:3]), dict(headers)])))
    return *answer, body.decode()


def states(application):
    """Return the status of /live and of /ready."""
    return ask(application, "/live")[0], ask(application, "/ready")[0]


@pytest.fixture
def consumer(fakensqd, request):
    """Make consumers that are closed at the end."""

    def make(handler=lambda consumer, message: None, address=fakensqd.tcp_address, **options):
        made = Consumer("t", "c", address, message_handler=handler, **options)
        request.addfinalizer(lambda: made.close(timeout=1))
        return made

    return make


@pytest.fixture
def producer(fakensqd, request):
    """Make producers that are closed at the end."""

    def make(**options):
        made = Producer(fakensqd.tcp_address, **options)
        request.addfinalizer(lambda: made.close(timeout=1))
        return made

    return make


# --- /live and /ready


@pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])
def test_clients_that_work_are_live_and_ready(consumer, producer, threaded):
    clients = consumer(threaded=threaded), producer(threaded=threaded)
    for client in clients:
        client.start(**({"block": False} if isinstance(client, Consumer) else {}))
    application = HealthApplication(*clients)

    assert ask(application, "/live")[::2] == (200, "ok\n")
    assert ask(application, "/ready")[::2] == (200, "ok\n")


def test_clients_that_are_not_started_are_live_and_a_producer_is_ready(consumer, producer):
    application = HealthApplication(consumer(), producer(name="orders"))

    assert ask(application, "/live")[::2] == (200, "ok\n")
    assert ask(application, "/ready")[::2] == (503, "t/c: not started: start() does it\n")


def test_consumer_without_an_nsqd_is_neither_and_says_why(consumer):
    address = f"127.0.0.1:{refused_port()}"
    application = HealthApplication(one := consumer(address=address))
    one.start(block=False)

    live, ready = ask(application, "/live"), ask(application, "/ready")

    assert (live[0], ready[0]) == (503, 503)
    assert live[2] == ready[2]
    assert live[2].startswith(f"t/c: {address}: ")
    assert "Connection refused" in live[2]


def test_producer_without_an_nsqd_is_live(fakensqd, producer):
    fakensqd.down()
    application = HealthApplication(one := producer(name="orders"))
    one.start()

    assert states(application) == (200, 503)
    assert ask(application, "/ready")[2].startswith(f"orders: {fakensqd.tcp_address}: ")


@pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])
def test_consumer_that_drains_is_live_but_not_ready(fakensqd, consumer, threaded):
    fakensqd.publish("t", b"1")
    released = []
    one = consumer(lambda consumer, message: wait_until(lambda: released), threaded=threaded)
    application = HealthApplication(one)
    one.start(block=False)
    wait_until(lambda: one.stats().handling)

    gevent.spawn(one.close)
    wait_until(lambda: one.stats().state == "closing")

    assert states(application) == (200, 503)
    assert ask(application, "/ready")[2] == "t/c: closing\n"
    released.append(True)


def test_closed_client_is_neither_until_it_is_removed(consumer, producer):
    closed, works = consumer(), producer()
    closed.start(block=False)
    works.start()
    application = HealthApplication(closed)
    closed.close(timeout=1)
    application.add(works)

    before = ask(application, "/live"), ask(application, "/ready")
    application.remove(closed)

    assert [answer[::2] for answer in before] == [(503, "t/c: closed\n")] * 2
    assert states(application) == (200, 200)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_consumer_whose_thread_has_ended_is_not_live(fakensqd, consumer):
    def leave(consumer, message):
        raise SystemExit

    fakensqd.publish("t", b"1")
    application = HealthApplication(one := consumer(leave, threaded=True))
    one.start(block=False)
    wait_until(lambda: one.stats().state == "closed")

    assert ask(application, "/live")[::2] == (503, "t/c: closed: its thread has ended\n")


def test_threaded_consumer_whose_handler_blocks_is_not_live(fakensqd, consumer):
    fakensqd.publish("t", b"1")
    released = threading.Event()
    one = consumer(lambda consumer, message: released.wait(LIMIT), threaded=True)
    application = HealthApplication(one, blocked_after=timedelta(milliseconds=50))
    one.start(block=False)
    wait_until(lambda: one.stats().handling)

    blocked = ask(application, "/live")
    released.set()

    assert blocked[::2] == (
        503,
        "t/c: the hub of its thread has not run for 0.05 s: a handler or other code blocks it\n",
    )
    wait_until(lambda: states(application) == (200, 200))


def test_application_without_a_client_raises():
    with pytest.raises(ValueError, match="HealthApplication has no client"):
        HealthApplication()


# --- /stats


def test_statistics_are_json(fakensqd, consumer, producer):
    one, other = consumer(max_in_flight=7), producer(name="orders")
    one.start(block=False)
    other.publish("t", b"1")
    fakensqd.wait_until(lambda nsqd: len(nsqd.transcript.finished("t")), 1)

    status, headers, text = ask(HealthApplication(one, other), "/stats")
    stats = json.loads(text)

    assert (status, headers["Content-Type"]) == (200, "application/json")
    (first,), (second,) = stats["consumers"], stats["producers"]
    assert (first["name"], first["state"], first["max_in_flight"], first["rdy"]) == ("t/c", "running", 7, 7)
    assert (first["is_ready"], first["is_healthy"], first["counts"]["finished"]) == (True, True, 1)
    assert first["connections"][0]["address"] == fakensqd.tcp_address
    assert (second["name"], second["confirmed"], sum(second["latency"]["counts"])) == ("orders", 1, 1)


def test_keys_of_statistics_are_stable(consumer, producer):
    (first,), (second,) = HealthApplication(consumer(), producer()).stats().values()

    assert list(first) == [
        *["name", "is_ready", "is_healthy", "in_flight", "rdy", "topic", "channel", "state", "max_in_flight"],
        *["connections", "counts", "given_up", "failed", "waiting", "handling", "backoff", "backoff_failures"],
        *["backoff_remaining", "latency", "failures", "handlers_overdue", "handlers_timed_out", "async_timed_out"],
        *["lookupd_failures", "not_ready", "unanswered", "counts_by_nsqd"],
    ]
    assert list(second) == [
        *["name", "is_ready", "state", "confirmed", "refused", "not_sent", "unknown", "retried", "possibly_duplicated"],
        *["pending", "pending_bytes", "latency", "connections", "failures", "lookupd_failures", "not_ready"],
        "confirmed_by_nsqd",
    ]


def test_secret_is_not_in_the_statistics(consumer):
    assert "hunter2" not in ask(HealthApplication(consumer(auth_secret=b"hunter2")), "/stats")[2]


# --- HTTP


@pytest.mark.parametrize("path", ["/live", "/ready", "/stats"])
def test_head_has_the_headers_of_get_and_no_body(consumer, path):
    application = HealthApplication(consumer())

    status, headers, text = ask(application, path, "HEAD")
    got = ask(application, path)

    assert (status, headers, text) == (*got[:2], "")
    assert int(headers["Content-Length"]) == len(got[2])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/live/", 404), ("POST", "/other", 404), ("POST", "/live", 405)],
)
def test_other_requests_are_refused(consumer, method, path, status):
    assert ask(HealthApplication(consumer()), path, method)[0] == status


def get(server, path):
    """Ask a server; other greenlets run meanwhile."""
    with socket.create_connection(("127.0.0.1", server.server_port), LIMIT) as sock:
        sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: sock.recv(65536), b"")).decode()


def test_server_answers_in_the_background_until_it_is_stopped(consumer):
    server = serve_health(0, first := consumer(), consumer(), host="127.0.0.1")
    first.start(block=False)

    assert get(server, "/live").startswith("HTTP/1.1 200 OK\r\n")
    assert "not started" in get(server, "/ready")
    assert server.application.stats()["consumers"][0]["name"] == "t/c"
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        get(server, "/live")


def test_server_listens_on_all_addresses_by_default(consumer):
    server = serve_health(0, consumer())

    assert get(server, "/live").startswith("HTTP/1.1 200 OK\r\n")
    assert server.server_host in ("::", "0.0.0.0")
    server.stop()


def test_port_that_is_taken_raises(fakensqd, consumer):
    port = urlsplit(f"//{fakensqd.http_address}").port

    with pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{port}: Address already in use"):
        serve_health(port, consumer(), host="127.0.0.1")


def test_application_answers_in_a_thread_without_a_hub(consumer):
    application = HealthApplication(one := consumer(threaded=True))
    one.start(block=False)
    answers = []

    thread = threading.Thread(target=lambda: answers.append(states(application)))
    thread.start()
    wait_until(lambda: answers)
    thread.join()

    assert answers == [(200, 200)]
