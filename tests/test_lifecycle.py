"""The life of a client, which a Consumer and a Producer share: start, close, join and their texts."""

import time

import gevent
import pytest

import gnsq
from tests.helpers import LIMIT, peer, refused_port


def make_consumer(addresses, **options):
    options = {"message_handler": lambda consumer, message: None, **options}
    return gnsq.Consumer("t", "c", addresses, **options)


def make_producer(addresses, **options):
    return gnsq.Producer(addresses, name="orders", **options)


@pytest.fixture(params=[make_consumer, make_producer], ids=["consumer", "producer"])
def make(request):
    """Make clients of one kind; they are closed at the end."""
    made = []

    def make(*arguments, **options):
        made.append(request.param(*arguments, **options))
        return made[-1]

    yield make
    for client in made:
        client.close(0)


def start(client):
    """Start a client, without waiting for its end."""
    if isinstance(client, gnsq.Consumer):
        client.start(block=False)
    else:
        client.start()


@pytest.fixture
def silent():
    """The address of a server that accepts connections and says nothing."""
    with peer(lambda sock: gevent.sleep(LIMIT)) as address:
        yield address


THREADED = pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])


# --- start


@THREADED
def test_start_returns_when_one_nsqd_is_connected(fakensqd, silent, make, threaded, lines):
    client = make([silent, fakensqd.tcp_address], threaded=threaded)
    began = time.monotonic()
    start(client)

    assert client.is_ready
    assert time.monotonic() - began < 0.9
    assert [line for line in lines() if silent in line]


@THREADED
def test_start_returns_after_a_second_if_no_nsqd_answers(silent, make, threaded):
    client = make([silent, f"127.0.0.1:{refused_port()}"], threaded=threaded)
    began = time.monotonic()
    start(client)

    assert client.is_running
    assert 0.9 < time.monotonic() - began < LIMIT / 2


def test_start_returns_when_all_nsqds_have_failed(make):
    client = make([f"127.0.0.1:{refused_port()}" for _ in range(2)])
    began = time.monotonic()
    start(client)

    assert time.monotonic() - began < 0.9


def test_start_does_not_wait_for_a_silent_nsqlookupd(fakensqd, silent, make):
    client = make(fakensqd.tcp_address, lookupd_http_addresses=silent)
    began = time.monotonic()
    start(client)

    assert client.is_ready
    assert time.monotonic() - began < 0.9
