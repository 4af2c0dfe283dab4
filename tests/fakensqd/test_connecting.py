"""Connections to others that are not taken, or not answered, end by the daemon's clock."""

import contextlib

import gevent
import pytest
from gevent import socket

from fakensqd import FakeLookupd, FakeNsqd
from fakensqd.addresses import connect, join_address
from fakensqd.clock import RealClock
from fakensqd.effects import AskAuth
from fakensqd.nsqd.auth_client import AuthClient
from fakensqd.options import NsqdOptions
from tests.fakensqd.wire import request
from tests.helpers import peer, refused_port, wait_until


@pytest.fixture
def full():
    """An address whose queue of connections is full: connecting to it takes for ever."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


def test_a_connection_that_is_taken_has_no_limit_of_its_own():
    with peer(lambda sock: sock.sendall(b"x")) as address:
        host, port = address.split(":")
        with connect((host, int(port)), RealClock(), 10.0) as sock:
            assert (sock.recv(1), sock.gettimeout()) == (b"x", None)


def test_a_connection_that_is_refused():
    with pytest.raises(ConnectionRefusedError):
        connect(("127.0.0.1", refused_port()), RealClock(), 10.0)


def test_a_connection_that_is_not_taken(clock, full):
    connecting = gevent.spawn(connect, full, clock, 2.0)
    clock.advance(1.9)
    assert not connecting.ready()
    clock.advance(0.2)

    with pytest.raises(TimeoutError):
        connecting.get(timeout=10)


def test_an_auth_server_that_takes_no_connection_is_given_up(clock, full):
    options = NsqdOptions(auth_http_addresses=join_address(*full), http_client_connect_timeout=3.0)
    asking = gevent.spawn(AuthClient(options, clock).ask, AskAuth(b"s", "127.0.0.1", "", False))
    clock.advance(2.9)
    assert not asking.ready()
    clock.advance(0.2)

    assert asking.ready()
    assert asking.get() is None


def test_a_nsqlookupd_that_takes_no_connection_is_given_up(clock, full):
    with FakeNsqd(clock=clock, lookupd_tcp_addresses=join_address(*full)) as nsqd:
        waiting = gevent.spawn(nsqd.wait_registered)
        clock.advance(0.9)
        assert not waiting.ready()
        clock.advance(0.2)

        assert waiting.ready()


def test_a_nsqlookupd_that_does_not_answer_is_given_up(clock):
    asked = []

    def listen(sock):
        while said := sock.recv(65536):
            asked.append(said)

    with peer(listen) as address, FakeNsqd(clock=clock, lookupd_tcp_addresses=address) as nsqd:
        waiting = gevent.spawn(nsqd.wait_registered)
        wait_until(lambda: asked)
        clock.advance(0.9)
        assert not waiting.ready()
        clock.advance(0.2)

        assert waiting.ready()


def test_channels_that_are_not_told_hold_a_topic_up_for_so_long_only(clock):
    with (
        FakeLookupd(clock=clock, record=True) as lookupd,
        FakeNsqd(clock=clock, lookupd_tcp_addresses=lookupd.tcp_address) as nsqd,
    ):
        nsqd.wait_registered()
        lookupd.set_processing_delay(3600.0)
        channel = nsqd.broker.ensure_topic("t").ensure_channel("c", nsqd.now())
        request(nsqd.http_address, "POST", "/pub?topic=t", b"x")
        clock.advance(4.9)
        assert channel.depth == 0
        clock.advance(0.2)

        assert channel.depth == 1
