"""The pool keeps connections open, and gives up on nothing that is permanent."""

import gevent
import pytest
from gevent.event import Event

from gnsq.clock import RealClock
from gnsq.errors import NSQException, NSQInvalid, NSQSocketError
from gnsq.options import ConnectionOptions
from gnsq.pool import ConnectionPool, ReconnectOptions
from gnsq.protocol.frames import RESPONSE, encode_frame
from tests.helpers import peer, refused_port, wait_until


class Log:
    """A pool whose callbacks write down what happened."""

    def __init__(self, setup=lambda connection: None, **reconnect):
        self.events = []
        options = {"reconnect_initial": 0.001, "reconnect_maximum": 0.01, **reconnect}
        self.pool = ConnectionPool(
            ConnectionOptions(timeout=2),
            ReconnectOptions(**options),
            RealClock(),
            prepare=lambda connection: self.events.append("prepare"),
            setup=lambda connection: (setup(connection), self.events.append("setup")),
            on_lost=lambda connection: self.events.append("lost"),
        )


@pytest.fixture
def made():
    """Make pools that are closed at the end."""
    pools = []

    def make(**options):
        log = Log(**options)
        pools.append(log.pool)
        return log

    yield make
    for pool in pools:
        pool.close(1)


def test_address_is_connected_once(made, fakensqd):
    log = made()
    for _ in range(3):
        log.pool.add(fakensqd.tcp_address, permanent=True)
    log.pool.wait_tried()

    assert list(log.pool.connections) == [fakensqd.tcp_address]
    assert log.events == ["prepare", "setup"]
    assert log.pool.failures() == {}


def test_failure_is_remembered_and_tried_again(made):
    address = f"127.0.0.1:{refused_port()}"
    log = made()
    log.pool.add(address, permanent=True)
    log.pool.wait_tried()

    (error,) = log.pool.failures().values()
    assert isinstance(error, NSQSocketError)
    wait_until(lambda: len(log.events) > 3)


def test_passing_address_is_forgotten_when_it_fails(made):
    log = made()
    log.pool.add(f"127.0.0.1:{refused_port()}", permanent=False)
    log.pool.wait_tried()
    wait_until(lambda: not log.pool._keepers)

    assert log.events == ["prepare"]


def test_passing_address_is_forgotten_when_it_is_lost(made, fakensqd):
    log = made()
    log.pool.add(fakensqd.tcp_address, permanent=False)
    log.pool.wait_tried()

    fakensqd.stop()
    wait_until(lambda: not log.pool._keepers)

    assert log.events == ["prepare", "setup", "lost"]


def test_lost_connection_is_opened_again(made, fakensqd):
    log = made()
    log.pool.add(fakensqd.tcp_address, permanent=True)
    log.pool.wait_tried()

    fakensqd.stop()
    wait_until(lambda: "lost" in log.events)
    fakensqd.start()
    wait_until(lambda: log.events.count("setup") == 2)

    assert list(log.pool.connections) == [fakensqd.tcp_address]


def test_setup_that_is_refused_counts_as_a_failure(made, fakensqd):
    def refuse(connection):
        raise NSQInvalid("no")

    log = made(setup=refuse)
    log.pool.add(fakensqd.tcp_address, permanent=False)
    log.pool.wait_tried()
    wait_until(lambda: not log.pool._keepers)

    assert log.pool.connections == {}
    assert log.events == ["prepare"]


def test_close_ends_attempts_that_hang():
    hang = Event()
    log = Log()
    with peer(lambda sock: hang.wait(10)) as address:
        log.pool.add(address, permanent=True)
        wait_until(lambda: log.events)

        log.pool.close(0.1)
        hang.set()

    assert log.pool.connections == {}
    log.pool.add(address, permanent=True)
    assert log.pool._keepers == {}


def test_close_ends_the_wait_for_another_try():
    log = Log(reconnect_initial=60, reconnect_maximum=60)
    log.pool.add(f"127.0.0.1:{refused_port()}", permanent=True)
    log.pool.wait_tried()

    with gevent.Timeout(2, NSQException("close hangs")):
        log.pool.close(1)


def test_bug_in_a_callback_is_logged_and_tried_again(made, fakensqd, caplog):
    log = made(setup=lambda connection: 1 / 0)
    log.pool.add(fakensqd.tcp_address, permanent=True)
    log.pool.wait_tried()
    wait_until(lambda: log.events.count("prepare") > 1)

    assert "internal error while connecting" in caplog.text
    assert log.pool.connections == {}


def test_connection_that_ends_at_once_counts_as_a_failure(made):
    failures = []

    def answer_and_hang_up(sock):
        said = b""
        while not said.endswith(b"}"):
            said += sock.recv(4096)
        sock.sendall(encode_frame(RESPONSE, b"OK"))

    with peer(answer_and_hang_up) as address:
        log = made()
        log.pool._wait = lambda count: failures.append(count) or 0.001
        log.pool.add(address, permanent=True)
        wait_until(lambda: len(failures) >= 3)

    assert failures[:3] == [1, 2, 3]
    assert log.events.count("setup") >= 3
