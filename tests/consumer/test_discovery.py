"""Discovery by a consumer: its connections, its rounds of lookups, and its reconnects."""

import contextlib
import itertools

import gevent
import pytest

from fakensqd import FakeLookupd, FakeNsqd, on
from fakensqd.faults import answer, refuse
from gnsq import Consumer, LookupdClient
from gnsq.consumer.options import ConsumerOptions
from tests.kit import refused_port, wait_until

INTERVAL = 60.0
# The latest time of a round, with the default jitter.
LATEST = INTERVAL * 1.15


class Rounds:
    """Records rounds of lookups, and advances the clock while they end: lookups use sockets, which take real time."""

    def __init__(self, clock):
        self.clock = clock
        self.times = []
        self.running = 0

    @contextlib.contextmanager
    def record(self):
        self.times.append(self.clock.monotonic())
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def turn(self, seconds, step=1.0):
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.end()

    def end(self):
        wait_until(lambda: not self.running)
        self.clock.advance(0.0)


class RecordedConsumer(Consumer):
    """Consumer that records its rounds of lookups."""

    rounds = None

    def query_lookupd(self):
        with self.rounds.record():
            super().query_lookupd()


@pytest.fixture
def rounds(clock):
    return Rounds(clock)


@pytest.fixture
def lookupd(clock):
    with FakeLookupd(clock=clock) as made:
        yield made


@pytest.fixture
def other_lookupd(clock):
    with FakeLookupd(clock=clock) as made:
        yield made


@pytest.fixture
def started(clock, rounds):
    """Start consumers that are closed at the end."""
    made = []

    def start(nsqds=(), lookupds=(), handler=lambda consumer, message: None, wait=True, **options):
        consumer = RecordedConsumer(
            "t",
            "c",
            [nsqd.tcp_address for nsqd in nsqds],
            [lookupd.http_address for lookupd in lookupds],
            message_handler=handler,
            clock=clock,
            **options,
        )
        consumer.rounds = rounds
        made.append((consumer, gevent.spawn(consumer.start)))
        clock.advance(0.0)
        if wait:
            rounds.end()
        return consumer

    yield start
    for consumer, starting in made:
        gevent.spawn(consumer.close)
        clock.advance(40.0)
        wait_until(starting.ready)
        starting.get()


def registered(nsqd, *lookupds):
    """Register an nsqd and its topic with exactly these nsqlookupds."""
    nsqd.broker.ensure_topic("t")
    nsqd.set_lookupd_tcp_addresses(tuple(lookupd.tcp_address for lookupd in lookupds))
    nsqd.wait_registered()
    nsqd.clock.advance(0.0)


def connected(*nsqds):
    """Number of connections of each nsqd."""
    return [len(nsqd.sessions) for nsqd in nsqds]


def attempts(nsqd):
    """Times of the attempts to connect."""
    return [round(entry.time, 3) for entry in nsqd.transcript.select("connect")]


def gaps(times):
    return [round(after - before, 3) for before, after in itertools.pairwise(times)]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_nsqd_that_is_given_or_that_two_nsqlookupds_name_has_one_connection(
    lookupd, other_lookupd, nsqds, rounds, started
):
    first, given, both = nsqds
    registered(first, lookupd)
    registered(given, other_lookupd)
    registered(both, lookupd, other_lookupd)
    started([given], [lookupd, other_lookupd])
    rounds.turn(2 * LATEST)

    assert connected(first, given, both) == [1, 1, 1]


def down(lookupd):
    lookupd.down()


def answering(status, body=None):
    """Answer with this, and with the headers of JSON."""

    def spoil(lookupd):
        lookupd.add(on.http("/lookup", executed=True).always(), answer(status, body))

    return spoil


FAILING = [
    pytest.param(down, id="down"),
    pytest.param(answering(200, b"\xff\x00garbage"), id="garbage"),
    pytest.param(answering(200, b"{}"), id="no producers"),
    pytest.param(answering(200, b'{"producers": [{"broadcast_address": "a b", "tcp_port": 1}]}'), id="no host"),
    pytest.param(answering(404, b'{"message": "TOPIC_NOT_FOUND"}'), id="forgot the topic"),
]


@pytest.mark.parametrize("fail", FAILING)
def test_failing_nsqlookupd_hides_no_new_nsqd_and_drops_no_known_one(
    lookupd, other_lookupd, nsqds, rounds, started, fail
):
    known, new, _ = nsqds
    registered(known, lookupd)
    consumer = started(lookupds=[lookupd, other_lookupd])

    fail(lookupd)
    registered(new, other_lookupd)
    rounds.turn(2 * LATEST)

    assert len(rounds.times) >= 3
    assert connected(known, new) == [1, 1]
    assert consumer.is_healthy


@pytest.mark.parametrize("fail", FAILING[:2])
def test_failing_nsqlookupd_is_no_error_of_start_and_is_used_when_it_recovers(
    lookupd, nsqd, rounds, started, fail, capsys
):
    registered(nsqd, lookupd)
    fail(lookupd)
    consumer = started(lookupds=[lookupd])
    assert connected(nsqd) == [0]

    lookupd.up()
    lookupd.faults.sequences.clear()
    nsqd.wait_registered()
    rounds.turn(LATEST)

    assert connected(nsqd) == [1]
    assert consumer.is_running
    assert "Traceback" not in capsys.readouterr().err


# --- readiness and health ---------------------------------------------------------------------------------------------


def test_consumer_is_ready_as_long_as_an_nsqd_is_connected(lookupd, nsqd, rounds, started):
    registered(nsqd, lookupd)
    consumer = started(lookupds=[lookupd])
    assert (consumer.is_ready, consumer.stats().not_ready) == (True, "")

    nsqd.down()
    rounds.turn(1)

    assert not consumer.is_ready
    assert nsqd.tcp_address in consumer.stats().not_ready

    rounds.turn(300)
    assert consumer.stats().not_ready.endswith("no nsqd with topic t there")
    assert not consumer.is_ready  # it does not wait for a new topic


@pytest.mark.parametrize("is_connected", [False, True], ids=["", "connected"])
def test_http_port_of_nsqd_as_nsqlookupd_is_logged_and_not_healthy(lookupd, nsqds, started, caplog, is_connected):
    nsqd, other, _ = nsqds
    registered(nsqd, lookupd)
    consumer = started([], [lookupd, other] if is_connected else [other])

    hint = "is it nsqd's HTTP port (4151) in place of nsqlookupd's (4161)?"
    assert [record.levelname for record in caplog.records if hint in record.getMessage()] == ["WARNING"]
    assert (consumer.is_healthy, consumer.is_ready) == (False, is_connected)
    stats = consumer.stats()
    assert list(stats.lookupd_failures) == [f"http://{other.http_address}/"]
    assert (hint in stats.not_ready) is not is_connected


# --- nsqds found by lookups -------------------------------------------------------------------------------------------


def test_nsqd_that_no_nsqlookupd_names_is_dropped_only_when_its_connection_is_lost(
    lookupd, nsqd, rounds, started, publish
):
    got = []
    registered(nsqd, lookupd)
    started(lookupds=[lookupd], handler=lambda _, message: got.append(message.body))
    registered(nsqd)
    rounds.turn(5 * LATEST, step=5)
    publish(nsqd, b"still served")
    assert got == [b"still served"]

    nsqd.down()
    nsqd.up()
    rounds.turn(5 * LATEST, step=5)

    assert connected(nsqd) == [0]


@pytest.mark.parametrize("is_given", [False, True], ids=["found", "given"])
def test_long_lost_nsqd_is_connected_within_30_s_after_it_registers_again(lookupd, nsqd, rounds, started, is_given):
    registered(nsqd, lookupd)
    started([nsqd] if is_given else [], [lookupd], reconnect_maximum=3000)
    nsqd.down()
    rounds.turn(900, step=10)
    nsqd.up()
    nsqd.wait_registered()

    rounds.turn(29)

    assert connected(nsqd) == [1]


def test_lookups_are_made_at_the_interval_again_when_the_lost_nsqd_is_back(lookupd, nsqd, rounds, started):
    registered(nsqd, lookupd)
    started(lookupds=[lookupd], lookupd_poll_jitter=0)
    nsqd.down()
    rounds.turn(40)
    nsqd.up()
    nsqd.wait_registered()
    rounds.turn(130)

    assert gaps(rounds.times) == [25.0, 25.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("losses", "seconds"),
    [
        pytest.param([0], 25, id="now"),
        pytest.param([86_399], 25, id="a day ago"),
        pytest.param([86_400, 90_000], 60, id="longer ago"),
        pytest.param([90_000, 1], 25, id="another one"),
    ],
)
def test_lookups_are_more_frequent_for_a_day_after_the_loss_of_an_nsqd(losses, seconds):
    assert ConsumerOptions().poll_interval(losses) == seconds


def test_found_nsqd_is_connected_again_while_no_nsqlookupd_answers(lookupd, nsqd, rounds, started):
    registered(nsqd, lookupd)
    consumer = started(lookupds=[lookupd], lookupd_poll_jitter=0)
    rounds.turn(5)
    lookupd.down()
    nsqd.down()
    rounds.turn(120)
    assert list(consumer.stats().failures) == [nsqd.tcp_address]
    assert not consumer.is_healthy
    nsqd.up()

    rounds.turn(60)

    assert connected(nsqd) == [1]
    assert consumer.stats().failures == {}
    assert consumer.is_healthy


def test_failure_of_a_found_nsqd_is_in_the_stats_until_no_nsqlookupd_names_it(lookupd, clock, rounds, started):
    with FakeNsqd(clock=clock, broadcast_tcp_port=refused_port()) as unreachable:
        registered(unreachable, lookupd)
        consumer = started(lookupds=[lookupd], lookupd_poll_jitter=0)
        rounds.turn(5)
        (text,) = consumer.stats().failures.values()
        assert "refused" in text
        assert not consumer.is_healthy

        registered(unreachable)
        rounds.turn(120)

        assert consumer.stats().failures == {}
        assert consumer.is_healthy


def test_nsqd_that_refuses_the_subscription_is_tried_once_per_round(lookupd, nsqd, rounds, started):
    nsqd.record()
    registered(nsqd, lookupd)
    nsqd.add(on.connect().always(), refuse())
    started(lookupds=[lookupd], lookupd_poll_jitter=0)
    rounds.turn(180)

    assert attempts(nsqd) == [0.0, 60.0, 120.0, 180.0]


def test_silent_nsqd_is_not_tried_twice_at_once(lookupd, nsqds, rounds, started):
    silent, other, _ = nsqds
    silent.record()
    silent.stop_reading()
    registered(silent, lookupd)
    registered(other, lookupd)
    started(lookupds=[lookupd], lookupd_poll_interval=10, lookupd_poll_jitter=0)
    assert connected(other) == [1]

    rounds.turn(59)
    assert len(attempts(silent)) == 1
    silent.resume_reading()
    rounds.turn(20)

    assert connected(silent, other) == [1, 1]


@pytest.mark.parametrize("is_connected", [False, True], ids=["", "connected"])
def test_tombstone_ends_no_connection_and_lets_none_begin_until_it_is_gone(
    lookupd, nsqd, rounds, started, is_connected
):
    registered(nsqd, lookupd)
    options = {"lookupds": [lookupd], "lookupd_poll_interval": 10, "lookupd_poll_jitter": 0}
    if is_connected:
        started(**options)
    client = LookupdClient.from_url(lookupd.http_address)
    client.tombstone_topic("t", f"127.0.0.1:{nsqd.http_port}")
    client.close()
    if not is_connected:
        started(**options)
    rounds.turn(40)
    assert connected(nsqd) == [is_connected]

    rounds.turn(10)

    assert connected(nsqd) == [1]


# --- nsqds given by address -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"max_backoff_duration": 128}, [8, 16, 32, 64, 128, 128, 128, 128], id="as it is"),
        pytest.param({"max_backoff_duration": 0}, [8, 16, 32, 64, 128, 128, 128, 128], id="without backoff"),
        pytest.param({"reconnect_initial": 1, "reconnect_maximum": 5}, [1, 2, 4, 5, 5, 5, 5, 5], id="options"),
    ],
)
def test_reconnect_waits_double_up_to_reconnect_maximum(nsqd, clock, started, options, expected):
    nsqd.record()
    nsqd.add(on.connect().always(), refuse())
    started([nsqd], **options)
    clock.advance(1000.0)

    found = gaps(attempts(nsqd))[:8]
    assert all(0.7 * most <= gap <= most for gap, most in zip(found, expected, strict=True))
