"""Health over HTTP: why a receiver is not live, or not ready."""

import http.client
import socket

import gevent
import pytest

from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import Receiver
from gnsq.spark.receiver.health import HealthServer, ask_health, parse_health_address, why_not_live, why_not_ready
from tests.helpers import refused_port
from tests.spark.helpers import numbered, publish, wait_for


@pytest.fixture
def make(fakensqd, spool, hub):
    """Make a receiver; it is closed at the end."""
    receivers = []

    def make(**options):
        given = {"topic": "clicks", "channel": "archive", "nsqd_tcp_addresses": (fakensqd.tcp_address,), **options}
        receivers.append(hub.call(Receiver, ReadOptions(**given), spool, write_timeout=0.2))
        return receivers[-1]

    yield make
    for receiver in receivers:
        hub.call(receiver.close)


def test_receiver_is_ready_while_it_receives(hub, make):
    receiver = make()
    assert why_not_ready(receiver) == "the spool is not open yet"

    hub.call(receiver.start)
    wait_for(lambda: hub.call(lambda: receiver.subscriptions.nsqds))
    assert hub.call(why_not_ready, receiver) == ""

    hub.call(receiver.close)
    assert hub.call(why_not_ready, receiver) == "stopping"


def test_receiver_without_any_nsqd_that_answers_is_not_ready(hub, make):
    address = f"127.0.0.1:{refused_port()}"
    receiver = make(nsqd_tcp_addresses=(address,))

    hub.call(receiver.start)

    wait_for(lambda: hub.call(why_not_ready, receiver).startswith(f"{address} not connected: "))
    assert hub.call(why_not_live, receiver) == ""


def test_receiver_is_ready_although_nsqlookupd_names_no_nsqd(fakelookupd, hub, make):
    receiver = make(nsqd_tcp_addresses=(), lookupd_http_addresses=(fakelookupd.http_address,))

    hub.call(receiver.start)

    assert hub.call(why_not_ready, receiver) == ""


def test_failing_disk_makes_a_receiver_not_ready_but_leaves_it_live(fakensqd, hub, make, disk):
    disk.fail(".arrow", OSError(28, "No space left on device"))
    receiver = make()
    hub.call(receiver.start)
    publish(fakensqd, "clicks", numbered(1))

    wait_for(lambda: hub.call(why_not_ready, receiver) == "the spool can't be written, see the log")
    assert hub.call(why_not_live, receiver) == ""


def test_receiver_whose_write_hangs_is_not_live(fakensqd, hub, make, disk):
    disk.hold(".arrow")
    receiver = make()
    hub.call(receiver.start)
    publish(fakensqd, "clicks", numbered(1))
    assert disk.was_reached.wait(20)

    assert hub.call(why_not_live, receiver, 0.0).startswith("the spool's file system has not answered for ")
    assert hub.call(why_not_live, receiver) == ""


def test_receiver_with_an_internal_error_is_not_live(fakensqd, hub, make, disk):
    disk.fail(".arrow", RuntimeError("bug"))
    receiver = make()
    hub.call(receiver.start)
    publish(fakensqd, "clicks", numbered(1))

    wait_for(lambda: hub.call(why_not_live, receiver) == "internal error: RuntimeError('bug')")


# --- the server


@pytest.fixture
def answers(hub, tmp_path):
    """The answers of a server on a unix socket."""
    reasons = {"/live": "", "/ready": "not yet"}
    path = str(tmp_path / "health")
    server = hub.call(HealthServer, path, {name: lambda name=name: reasons[name] for name in reasons})
    yield path, reasons
    hub.call(server.close)
    assert not (tmp_path / "health").exists()


def get(path, url):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request("GET", url)
    response = connection.getresponse()
    with response:
        found = response.status, response.read().decode()
    connection.close()
    return found


def test_checks_are_answered_over_http(answers):
    path, reasons = answers

    assert get(path, "/live") == (200, "ok\n")
    assert get(path, "/ready") == (503, "not yet\n")
    assert get(path, "/") == (404, "known are /live, /ready\n")
    reasons["/ready"] = ""
    assert get(path, "/ready") == (200, "ok\n")


def test_answer_of_a_check_is_its_reason(answers, hub):
    path, _ = answers

    assert hub.call(ask_health, path, "/live", 5.0) == ""
    assert hub.call(ask_health, path, "/ready", 5.0) == "not yet"


def test_server_that_is_gone_or_hangs_is_a_reason(hub, tmp_path):
    path = str(tmp_path / "silent")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        assert hub.call(ask_health, path, "/live", 0.05) == "/live does not answer: no answer within 0.05 s"

    assert "Connection refused" in hub.call(ask_health, path, "/live", 5.0)


def test_socket_of_a_killed_process_is_replaced(hub, tmp_path):
    path = str(tmp_path / "health")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)

    server = hub.call(HealthServer, path, {"/live": str})

    assert hub.call(ask_health, path, "/live", 5.0) == ""
    hub.call(server.close)


@pytest.mark.parametrize("address", ["127.0.0.1", ":8080", "127.0.0.1:0", "127.0.0.1:http"])
def test_address_without_host_or_port_is_refused(address):
    with pytest.raises(ValueError, match="address"):
        parse_health_address(address)


def test_server_answers_on_a_port(hub):
    port = refused_port()
    server = hub.call(HealthServer, f"127.0.0.1:{port}", {"/live": str})

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/live")
    assert connection.getresponse().read() == b"ok\n"
    connection.close()
    hub.call(server.close)


def test_health_is_answered_while_other_greenlets_run(hub, answers):
    path, _ = answers
    busy = hub.call(gevent.spawn, lambda: [gevent.sleep(0) for _ in range(1000)])

    assert hub.call(ask_health, path, "/live", 5.0) == ""
    hub.call(busy.kill)
