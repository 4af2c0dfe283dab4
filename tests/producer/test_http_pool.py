"""Publishing over HTTP: which nsqds are used, when they are pinged again, and close()."""

import gc
import logging
import re
import threading

import gevent
import pytest

from fakensqd import FakeNsqd
from fakensqd.faults import answer, on
from gnsq import Producer
from gnsq.errors import (
    NSQNoConnections,
    NSQNotSentClosed,
    NSQUnknownClosed,
)
from tests.helpers import bodies, refused_port, run_program, wait_until
from tests.http.peer import http_peer, reply


@pytest.fixture
def producer(fakensqd):
    with Producer(nsqd_http_addresses=fakensqd.http_address, reconnect_initial=0.01) as made:
        yield made


# --- down and back


def test_publish_goes_to_the_other_nsqd_when_one_is_down(fakecluster):
    first, second = fakecluster.nsqds
    addresses = [first.http_address, second.http_address]
    with Producer(nsqd_http_addresses=addresses, strategy="primary") as producer:
        producer.publish("t", b"1")
        first.down()

        assert producer.publish("t", b"2", timeout=5) == b"OK"
        assert list(producer.stats().failures) == [first.http_address]
    assert bodies(second, "t") == [b"2"]


def test_nsqds_take_turns(fakecluster):
    with Producer(nsqd_http_addresses=[nsqd.http_address for nsqd in fakecluster.nsqds]) as producer:
        for _ in range(10):
            producer.publish("t", b"x")

    assert [len(bodies(nsqd, "t")) for nsqd in fakecluster.nsqds] == [5, 5]


def test_publish_waits_for_an_nsqd_that_comes_back(producer, fakensqd):
    producer.publish("t", b"1")
    fakensqd.down()
    results = [producer.publish_async("t", b"2", timeout=10) for _ in range(20)]
    wait_until(lambda: producer.stats().failures)

    fakensqd.up()

    assert [result.get(timeout=10) for result in results] == [b"OK"] * 20
    assert bodies(fakensqd, "t") == [b"1"] + [b"2"] * 20
    assert producer.stats().failures == {}


def test_unreachable_nsqd_is_named_in_the_error():
    port = refused_port()
    with (
        Producer(nsqd_http_addresses=f"127.0.0.1:{port}") as producer,
        pytest.raises(NSQNoConnections, match=rf"within 0.05 s; tried 127.0.0.1:{port}: .*can't connect"),
    ):
        producer.publish("t", b"x", timeout=0.05)


def test_tcp_port_in_place_of_the_http_port_says_so(fakensqd):
    with (
        Producer(nsqd_http_addresses=fakensqd.tcp_address) as producer,
        pytest.raises(NSQNoConnections, match="4151"),
    ):
        producer.publish("t", b"x", timeout=0.05)


def test_without_block_no_nsqd_raises_at_once():
    with (
        Producer(nsqd_http_addresses=f"127.0.0.1:{refused_port()}") as producer,
        pytest.raises(NSQNoConnections, match="any nsqd now"),
    ):
        producer.publish("t", b"x", block=False)


def test_nsqd_that_answers_pings_only_is_tried_more_and_more_rarely(fakensqd, caplog):
    caplog.set_level(logging.DEBUG)
    with (
        Producer(nsqd_http_addresses=fakensqd.http_address, reconnect_initial=0.05, reconnect_jitter=0) as producer,
        fakensqd.add(on.http("/pub").first(4), answer(502)),
    ):
        for _ in range(4):
            with pytest.raises(NSQUnknownClosed):
                producer.publish("t", b"x", timeout=5)
        producer.publish("t", b"x", timeout=5)

    assert re.findall(r"trying again (.*)", caplog.text) == ["at once", "in 0.1 s", "in 0.2 s", "in 0.4 s"]


def test_nsqd_with_a_full_disk_is_published_to(fakensqd):
    """nsqd reports a full disk until it can write a message."""
    with (
        fakensqd.add(on.http("/ping"), answer(500, b"NOK - no space left on device")),
        Producer(nsqd_http_addresses=fakensqd.http_address) as producer,
    ):
        assert producer.publish("t", b"x", timeout=5) == b"OK"


# --- which nsqds


def test_nsqds_that_nsqlookupd_knows_are_published_to(fakecluster):
    with Producer(lookupd_http_addresses=fakecluster.lookupd_http_addresses, http=True) as producer:
        for _ in range(4):
            producer.publish("t", b"x")
        stats = producer.stats()

    assert sorted(link.address for link in stats.connections) == sorted(nsqd.http_address for nsqd in fakecluster.nsqds)
    assert [len(bodies(nsqd, "t")) for nsqd in fakecluster.nsqds] == [2, 2]


def test_nsqd_that_nsqlookupd_drops_is_not_tried_again(fakecluster):
    gone, other = fakecluster.nsqds
    options = {"lookupd_poll_interval": 0.02, "reconnect_initial": 60}
    with Producer(lookupd_http_addresses=fakecluster.lookupd_http_addresses, http=True, **options) as producer:
        wait_until(lambda: len(producer.stats().connections) == 2)
        gone.down()

        wait_until(lambda: producer.publish("t", b"x", timeout=5) and len(producer.stats().connections) == 1)
        wait_until(lambda: not producer.stats().failures)

        assert [link.address for link in producer.stats().connections] == [other.http_address]


def test_one_more_nsqd_may_be_added(fakecluster):
    first, second = fakecluster.nsqds
    with Producer(nsqd_http_addresses=first.http_address) as producer:
        host, port = second.http_address.split(":")
        producer.connect_to_nsqd(host, int(port))
        producer.connect_to_nsqd(host, int(port))
        wait_until(lambda: len(producer.stats().connections) == 2)
        gevent.sleep(0)

        assert [link.address for link in producer.stats().connections] == [first.http_address, second.http_address]


def test_url_may_have_a_path_and_a_password_which_is_never_shown(caplog):
    with http_peer(lambda request, sock: reply()) as peer:
        url = f"http://user:secret@{peer.address}/nsqd1"
        with Producer(nsqd_http_addresses=[url, url]) as producer:
            producer.publish("t", b"x")
            stats = producer.stats()

    assert peer.lines == ["GET /nsqd1/ping", "POST /nsqd1/pub"]
    assert peer.requests[1].headers["authorization"] == "Basic dXNlcjpzZWNyZXQ="
    assert [link.address for link in stats.connections] == [f"http://{peer.address}/nsqd1/"]
    assert "secret" not in caplog.text


def test_options_of_http_go_with_each_request():
    with http_peer(lambda request, sock: reply()) as peer:
        options = {"headers": {"X-Team": "orders"}, "auth": ("user", "secret")}
        with Producer(nsqd_http_addresses=peer.address, http_options=options) as producer:
            producer.publish("t", b"x")

    assert peer.requests[1].headers["x-team"] == "orders"
    assert peer.requests[1].headers["authorization"] == "Basic dXNlcjpzZWNyZXQ="


def test_https_is_published_over(fakensqd_certificates):
    certificate, key = fakensqd_certificates.server(["127.0.0.1"])
    with FakeNsqd(threaded=True, tls_cert=str(certificate), tls_key=str(key)) as nsqd:
        url = f"https://{nsqd.https_address}"
        with Producer(nsqd_http_addresses=url, http_options={"ca_certs": str(fakensqd_certificates.ca)}) as producer:
            assert producer.publish("t", b"x") == b"OK"

        assert bodies(nsqd, "t") == [b"x"]


# --- the end


def test_close_waits_for_pending_publishes(fakensqd):
    producer = Producer(nsqd_http_addresses=fakensqd.http_address)
    results = [producer.publish_async("t", b"x") for _ in range(50)]

    assert producer.close() == []

    assert [result.get(timeout=0) for result in results] == [b"OK"] * 50


def test_close_returns_unconfirmed_publishes(fakensqd):
    producer = Producer(nsqd_http_addresses=fakensqd.http_address, http_requests_at_once=1)
    producer.start()
    fakensqd.stop_reading()
    results = [producer.publish_async("t", b"%d" % number) for number in range(3)]
    wait_until(lambda: producer.stats().connections[0].pending == 3)

    unconfirmed = producer.close(timeout=0.05)

    # By body: a request that was begun may be executed.
    found = {item.bodies[0]: type(item.error) for item in unconfirmed}
    assert found == {b"0": NSQUnknownClosed, b"1": NSQNotSentClosed, b"2": NSQNotSentClosed}
    with pytest.raises(NSQUnknownClosed, match="producer was closed"):
        results[0].get(timeout=1)
    fakensqd.resume_reading()


def greenlets():
    """Return the greenlets of gnsq that have not ended."""
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), gevent.Greenlet) and not thing.dead]
    return {greenlet for greenlet in found if greenlet.name.startswith("gnsq")}


def test_closed_producer_leaves_no_connection_and_no_greenlet():
    ended = []
    before = greenlets()

    def serve(request, sock):
        if request.body == b"silent":
            ended.append(sock.recv(1))
            return None
        return reply()

    with http_peer(serve) as peer:
        producer = Producer(nsqd_http_addresses=peer.address)
        producer.publish("t", b"x")
        producer.publish_async("t", b"silent")
        wait_until(lambda: len(peer.requests) == 3)

        producer.close(timeout=0.05)

        assert [greenlet.name for greenlet in greenlets() - before] == []
        wait_until(lambda: ended == [b""])


def test_publish_after_close_is_not_sent(fakensqd):
    producer = Producer(nsqd_http_addresses=fakensqd.http_address)
    producer.close()

    with pytest.raises(NSQNotSentClosed, match="make a new one"):
        producer.publish("t", b"x")


def test_nsqd_that_is_added_to_a_closed_producer_is_not_used(fakensqd):
    producer = Producer(nsqd_http_addresses=fakensqd.http_address)
    producer.start()
    runtime = producer._lifecycle.runtime
    producer.close()

    runtime.add(f"127.0.0.1:{refused_port()}")
    runtime.wait_attempted()

    assert runtime.failures() == {}


# --- threads and forks


def test_another_thread_publishes(producer, fakensqd):
    got = []
    producer.publish("t", b"1")

    thread = threading.Thread(target=lambda: got.append(producer.publish("t", b"2")))
    thread.start()
    wait_until(lambda: not thread.is_alive())

    assert got == [b"OK"]
    assert bodies(fakensqd, "t") == [b"1", b"2"]


def test_producer_with_a_thread_of_its_own(fakensqd):
    with Producer(nsqd_http_addresses=fakensqd.http_address, threaded=True) as producer:
        results = [producer.publish_async("t", b"%d" % number) for number in range(20)]

        assert [result.get(timeout=10) for result in results] == [b"OK"] * 20
    assert len(bodies(fakensqd, "t")) == 20


FORKING = """
import os, sys
import gevent, gevent.os
from gnsq import Producer

# Else gevent misses a child that ends before it is first waited for.
gevent.get_hub().loop.install_sigchld()

producer = Producer(nsqd_http_addresses=sys.argv[1])
producer.publish("t", b"before")
under_way = producer.publish_async("t", b"parent")
child = gevent.os.fork()
if not child:
    try:
        # Lets inherited greenlets run; not 0: the loop looks at its sockets.
        for _ in range(100):
            gevent.sleep(1e-6)
        print("child:", producer.publish("t", b"child", timeout=5).decode())
        print("child:", producer.close())
        sys.stdout.flush()
    finally:
        os._exit(0)
gevent.os.waitpid(child, 0)
print("parent:", under_way.get(timeout=5).decode(), producer.publish("t", b"after", timeout=5).decode())
print("parent:", producer.close())
"""


@pytest.mark.subprocess
def test_child_has_connections_of_its_own(fakensqd):
    done = run_program(FORKING, fakensqd.http_address)

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["child: OK", "child: []", "parent: OK OK", "parent: []"]
    assert sorted(bodies(fakensqd, "t")) == [b"after", b"before", b"child", b"parent"]
