"""The pool keeps connections open, and gives up on nothing that is permanent."""

import gevent
import pytest

from fakensqd import on
from fakensqd.faults import refuse
from gnsq.addresses import parse_address
from gnsq.backofftimer import exponential_delay
from gnsq.clock import RealClock
from gnsq.errors import NSQException
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.pool import ConnectionPool, ReconnectOptions
from gnsq.options import ConnectionOptions
from tests.kit import LIMIT, refused_port, wait_until


def new_connection(address, clock=None):
    return Connection(*parse_address(address), ConnectionOptions(timeout=2), clock)


class WithoutJitter(ReconnectOptions):
    """Delays that a test can foretell."""

    def delay(self, failures):
        return exponential_delay(failures, self.reconnect_initial, self.reconnect_maximum)


class Log:
    """A pool whose callbacks record events."""

    def __init__(
        self,
        setup=lambda connection: None,
        clock=None,
        closed_without_fault=None,
        options=ReconnectOptions,
        **reconnect,
    ):
        self.events = []
        self.pool = ConnectionPool(
            options(**{"reconnect_initial": 0.001, "reconnect_maximum": 0.01, **reconnect}),
            clock or RealClock(),
            make=lambda address: (self.events.append("make"), new_connection(address, clock))[1],
            setup=lambda connection: (setup(connection), self.events.append("setup")),
            on_lost=lambda connection: self.events.append("lost"),
            **({"closed_without_fault": closed_without_fault} if closed_without_fault else {}),
        )


def test_close_ends_the_wait_for_another_try_and_nothing_is_added_after_it():
    address = f"127.0.0.1:{refused_port()}"
    log = Log(reconnect_initial=2 * LIMIT, reconnect_maximum=2 * LIMIT)
    log.pool.add(address, permanent=True)
    wait_until(lambda: not log.pool.not_attempted)

    with gevent.Timeout(LIMIT, NSQException("close hangs")):
        log.pool.close(1)

    log.pool.add(address, permanent=True)
    assert log.pool._reconnectors == {}


@pytest.mark.parametrize("during", ["setup", "connected"])
def test_timeout_that_a_callback_leaves_behind_leaves_no_connection_open(fakensqd, caplog, during):
    opened = []

    def setup(connection):
        opened.append(connection)
        if len(opened) == 1:
            gevent.Timeout.start_new(0.01)
            gevent.sleep(LIMIT if during == "setup" else 0)

    log = Log(setup=setup)
    log.pool.add(fakensqd.tcp_address, permanent=True)
    wait_until(lambda: len(opened) > 1 and log.pool.connections)
    states = [connection.is_open for connection in opened]
    log.pool.close(1)

    assert states == [False, True]
    assert "internal error" in caplog.text


# --- by the clock -----------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(clock, nsqd):
    """A pool, on a clock that the test turns, that waits 8 s, 16 s and so on."""
    logs = []

    def keep(**options):
        waits = {"reconnect_initial": 8.0, "reconnect_maximum": 128.0}
        log = Log(clock=clock, options=WithoutJitter, **waits, **options)
        logs.append(log)
        log.pool.add(nsqd.tcp_address, permanent=True)
        clock.advance(0.0)
        return log

    yield keep
    for log in logs:
        log.pool.close(0)


def refuse_all(nsqd):
    nsqd.add(on.connect().always(), refuse())


def tries(nsqd):
    """When somebody tried to connect."""
    return [entry.time for entry in nsqd.transcript.select("connect")]


def lose(nsqd, clock):
    """Cut the connection, and let happen what happens at once."""
    nsqd.link.abort()
    clock.advance(0.0)


# --- release ----------------------------------------------------------------------------------------------------------


def test_released_connection_is_not_reopened_after_it_is_lost(kept, nsqd, clock):
    log = kept()
    log.pool.release(nsqd.tcp_address)
    clock.advance(1000.0)
    assert list(log.pool.connections) == [nsqd.tcp_address]

    lose(nsqd, clock)
    assert log.pool._reconnectors == {}
    clock.advance(1000.0)

    assert log.events == ["make", "setup", "lost"]


def test_release_ends_the_wait_for_another_try(kept, nsqd, clock):
    refuse_all(nsqd)
    log = kept()
    log.pool.release(nsqd.tcp_address)
    clock.advance(0.0)
    assert log.pool._reconnectors == {}
    assert log.pool.failures() == {}

    clock.advance(1000.0)

    assert tries(nsqd) == [0.0]


def test_release_before_the_first_try_lets_none_happen(kept, clock):
    log = kept()
    log.pool.release("127.0.0.1:1")  # unknown, which is no error
    log.pool.add("127.0.0.1:1", permanent=True)
    log.pool.release("127.0.0.1:1")
    clock.advance(0.0)

    assert "127.0.0.1:1" not in log.pool._reconnectors
    assert log.events.count("make") == 1


@pytest.mark.parametrize(
    ("pause", "expected"),
    [pytest.param(1.0, [0.0, 2.0, 10.0], id="later"), pytest.param(0.0, [0.0, 1.0, 17.0], id="in one breath")],
)
def test_released_address_that_is_added_again_is_tried_at_once(kept, nsqd, clock, pause, expected):
    refuse_all(nsqd)
    log = kept()
    clock.advance(1.0)
    log.pool.release(nsqd.tcp_address)
    if pause:
        clock.advance(pause)
    log.pool.add(nsqd.tcp_address, permanent=True)
    clock.advance(17.0 - 1.0 - pause)

    assert tries(nsqd) == expected


def test_released_connection_that_is_added_again_is_kept_again(kept, nsqd, clock):
    log = kept()
    log.pool.release(nsqd.tcp_address)
    clock.advance(1.0)
    log.pool.add(nsqd.tcp_address, permanent=True)
    clock.advance(1.0)
    assert tries(nsqd) == [0.0]

    lose(nsqd, clock)
    clock.advance(8.0)

    assert tries(nsqd) == [0.0, 10.0]
    assert list(log.pool.connections) == [nsqd.tcp_address]


def test_permanent_address_that_is_added_as_passing_stays_permanent(kept, nsqd, clock):
    log = kept()
    log.pool.add(nsqd.tcp_address, permanent=False)

    lose(nsqd, clock)
    clock.advance(8.0)

    assert tries(nsqd) == [0.0, 8.0]


# --- losses without fault of the nsqd


def test_loss_without_fault_is_reopened_at_once(kept, nsqd, clock):
    asked = []
    log = kept(closed_without_fault=lambda connection: asked.append(connection.address) or True)
    clock.advance(1.0)
    lose(nsqd, clock)

    assert tries(nsqd) == [0.0, 1.0]
    assert log.events == ["make", "setup", "lost", "make", "setup"]
    assert asked == [nsqd.tcp_address]


def test_losses_without_fault_in_quick_succession_are_no_busy_loop(kept, nsqd, clock):
    kept(closed_without_fault=lambda connection: True)
    for _ in range(100):
        lose(nsqd, clock)
        clock.advance(1.0)

    gaps = [after - before for before, after in zip(tries(nsqd), tries(nsqd)[2:], strict=False)]
    assert min(gaps) >= 8.0
    assert tries(nsqd)[-1] > 90.0


def test_loss_without_fault_is_not_counted_as_a_failure(kept, nsqd, clock):
    results = iter([True, False])
    kept(closed_without_fault=lambda connection: next(results))
    lose(nsqd, clock)
    lose(nsqd, clock)
    clock.advance(8.0)

    assert tries(nsqd) == [0.0, 0.0, 8.0]


def test_fault_is_not_checked_for_a_connection_that_was_not_set_up(kept, nsqd, clock):
    asked = []
    refuse_all(nsqd)
    kept(closed_without_fault=lambda connection: asked.append(connection) or True)
    clock.advance(8.0)

    assert tries(nsqd) == [0.0, 8.0]
    assert asked == []


def test_loss_without_fault_of_a_temporary_address_is_reopened(kept, nsqd, clock):
    log = kept(closed_without_fault=lambda connection: True)
    log.pool.release(nsqd.tcp_address)
    log.pool.add(nsqd.tcp_address, permanent=False)
    lose(nsqd, clock)

    assert list(log.pool.connections) == [nsqd.tcp_address]
