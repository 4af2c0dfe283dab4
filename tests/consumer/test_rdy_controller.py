"""RDY counts over real connections: division, turns, pauses, and never more than max_in_flight in total."""

import contextlib
import itertools
from collections import Counter

import pytest

from fakensqd import FakeNsqd, on
from fakensqd.faults import delay
from fakensqd.faults.toxics import latency, slice_bytes
from gnsq import Consumer
from gnsq.protocol.frames import MESSAGE, RESPONSE, encode_frame, encode_message
from tests.kit import peer, wait_until

# Seconds until RDY that was taken from a connection is given to another.
GRACE = 1.1


def rdy(*nsqds):
    """RDY that each nsqd was sent last."""
    return [session.ready_count for nsqd in nsqds for session in nsqd.sessions]


def numbered(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def fill(nsqd, count):
    """Put messages into an nsqd, without running the hub."""
    nsqd.broker.ensure_topic("t").publish(numbered(count), nsqd.now())


class Handler:
    """Handler that takes some time for each message, and records the messages in flight."""

    def __init__(self, clock, seconds=0.0):
        self.clock = clock
        self.seconds = seconds
        self.served = Counter()
        self.running = self.most_running = 0
        # Above max_in_flight, as the consumer counts.
        self.excess = []

    def __call__(self, consumer, message):
        self.served[message.nsqd] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if consumer.total_in_flight > consumer.max_in_flight:
            self.excess.append((self.clock.monotonic(), consumer.total_in_flight, consumer.max_in_flight))
        try:
            if self.seconds:
                self.clock.sleep(self.seconds)
        finally:
            self.running -= 1

    def by(self, *nsqds):
        return [self.served[nsqd.tcp_address] for nsqd in nsqds]


@pytest.fixture
def handler(clock):
    return Handler(clock)


@pytest.fixture
def make(clock):
    """Make nsqds that are stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda count=1, **options: [stack.enter_context(FakeNsqd(clock=clock, **options)) for _ in range(count)]


@pytest.fixture
def warm(clock, publish):
    """Put a message into each nsqd, so that all get their RDY."""

    def warm(*nsqds):
        for nsqd in nsqds:
            publish(nsqd, b"warm")
        clock.advance(GRACE)

    return warm


# --- division ---------------------------------------------------------------------------------------------------------


def test_each_nsqd_begins_with_one_and_is_raised_with_its_first_message(nsqds, clock, publish, started, handler):
    started(handler, *nsqds, max_in_flight=30)
    clock.advance(5.0)
    assert rdy(*nsqds) == [1, 1, 1]

    publish(nsqds[0], b"x")
    assert rdy(*nsqds) == [28, 1, 1]

    publish(nsqds[1], b"x")
    publish(nsqds[2], b"x")
    clock.advance(GRACE)
    assert rdy(*nsqds) == [10, 10, 10]


def test_rdy_is_reserved_for_addresses_that_are_not_connected_yet(nsqds, clock, started):
    handler = Handler(clock, seconds=1.0)
    for nsqd in nsqds:
        fill(nsqd, 100)
    nsqds[1].add(on.command("IDENTIFY"), delay(0.5))
    nsqds[2].add(on.command("IDENTIFY"), delay(0.5))
    started(handler, *nsqds, max_in_flight=30)
    clock.advance(0.1)
    assert handler.by(*nsqds) == [10, 0, 0]
    clock.advance(0.5)

    assert handler.by(*nsqds) == [10, 10, 10]


def test_rdy_above_the_max_rdy_count_of_an_nsqd_goes_to_the_others(make, clock, started, handler, warm):
    nsqds = make(1, max_rdy_count=5) + make(2)
    consumer = started(handler, *nsqds, max_in_flight=31)
    warm(*nsqds)

    assert rdy(*nsqds) == [5, 13, 13]
    consumer.max_in_flight = 10_000
    clock.advance(0.0)
    assert rdy(*nsqds) == [5, 2500, 2500]
    assert sum(len(nsqd.errors) for nsqd in nsqds) == 0


def test_rdy_of_a_lost_nsqd_goes_to_the_others_until_it_is_connected_again(nsqds, clock, started, handler, warm):
    started(handler, *nsqds, max_in_flight=30)
    warm(*nsqds)

    nsqds[0].down()
    clock.advance(GRACE)
    assert rdy(*nsqds) == [15, 15]

    nsqds[0].up()
    clock.advance(8.0)
    warm(*nsqds)
    assert rdy(*nsqds) == [10, 10, 10]


# --- turns: max_in_flight below the number of nsqds -------------------------------------------------------------------


def test_busy_nsqd_keeps_its_turn_while_the_others_have_no_messages(make, clock, started):
    nsqds = make(3)
    handler = Handler(clock, seconds=0.5)
    fill(nsqds[0], 1000)
    started(handler, *nsqds, max_in_flight=1, low_ready_idle_timeout=10)

    clock.advance(40.0)
    handler.served.clear()

    # After each 15 s another nsqd has a turn of 1 s.
    clock.advance(160.0)

    assert 295 <= handler.served[nsqds[0].tcp_address] <= 310
    assert handler.excess == []


def test_turns_without_messages_follow_without_a_pause_and_in_random_order(nsqds, clock, started, handler):
    consumer = started(handler, *nsqds, max_in_flight=1, low_ready_idle_timeout=1)
    turns = []
    for _ in range(1000):
        clock.advance(0.1)
        assert consumer.total_ready_count == 1
        turns.append(rdy(*nsqds).index(1))

    assert {after for turn, after in itertools.pairwise(turns) if turn == 0 and after != 0} == {1, 2}


# --- idle and busy ----------------------------------------------------------------------------------------------------


def test_rdy_of_idle_nsqds_goes_to_the_busy_one_until_their_next_message(nsqds, clock, publish, started, warm):
    handler = Handler(clock, seconds=0.5)
    started(handler, *nsqds, max_in_flight=30, low_ready_idle_timeout=10)
    warm(*nsqds)
    assert rdy(*nsqds) == [10, 10, 10]

    fill(nsqds[0], 2000)
    clock.advance(11.0)
    assert rdy(*nsqds) == [28, 1, 1]

    publish(nsqds[1], *numbered(50))
    clock.advance(2.0)
    assert rdy(*nsqds) == [15, 14, 1] or rdy(*nsqds) == [14, 15, 1]


def test_nsqds_that_are_all_idle_keep_their_rdy(nsqds, clock, started, handler, warm):
    for nsqd in nsqds:
        nsqd.record()
    started(handler, *nsqds, max_in_flight=30, low_ready_idle_timeout=10)
    warm(*nsqds)
    for nsqd in nsqds:
        nsqd.transcript.clear()

    clock.advance(300.0)

    assert rdy(*nsqds) == [10, 10, 10]
    assert [nsqd.transcript.commands("RDY") for nsqd in nsqds] == [[], [], []]


# --- changes by the user ----------------------------------------------------------------------------------------------


def test_max_in_flight_can_be_raised_and_lowered_while_messages_flow(nsqds, clock, started):
    handler = Handler(clock, seconds=0.1)
    for nsqd in nsqds:
        fill(nsqd, 500)
    consumer = started(handler, *nsqds, max_in_flight=6)
    clock.advance(2.0)
    assert handler.most_running == 6

    consumer.max_in_flight = 60
    clock.advance(1.5)
    assert (handler.most_running, consumer.total_in_flight) == (60, 60)
    assert rdy(*nsqds) == [20, 20, 20]
    assert handler.excess == []

    consumer.max_in_flight = 6
    clock.advance(0.5)
    handler.most_running = 0
    handler.excess.clear()
    clock.advance(2.0)
    assert (handler.most_running, handler.excess) == (6, [])
    assert rdy(*nsqds) == [2, 2, 2]


def test_pause_stops_all_nsqds_and_resume_restores_rdy(nsqds, clock, started):
    handler = Handler(clock, seconds=0.1)
    for nsqd in nsqds:
        fill(nsqd, 300)
    consumer = started(handler, *nsqds, max_in_flight=30)
    clock.advance(1.0)

    consumer.pause()
    clock.advance(0.5)
    served = handler.by(*nsqds)
    assert (rdy(*nsqds), handler.running) == ([0, 0, 0], 0)
    clock.advance(100.0)
    assert handler.by(*nsqds) == served

    consumer.resume()
    clock.advance(GRACE)
    assert rdy(*nsqds) == [10, 10, 10]
    assert all(now > then for now, then in zip(handler.by(*nsqds), served, strict=True))


def test_nsqd_that_connects_during_a_pause_gets_rdy_0(nsqds, clock, started, handler):
    nsqds[2].down()
    consumer = started(handler, *nsqds, max_in_flight=30)
    consumer.pause()
    nsqds[2].up()
    fill(nsqds[2], 1)
    clock.advance(20.0)
    assert rdy(*nsqds) == [0, 0, 0]

    consumer.resume()
    clock.advance(0.0)

    assert handler.by(nsqds[2]) == [1]


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "toxic", [latency(0.2, jitter=0.1), slice_bytes(7, variation=5, delay=0.01)], ids=["late", "sliced"]
)
def test_never_more_than_max_in_flight_while_rdy_moves(nsqds, clock, started, toxic):
    handler = Handler(clock, seconds=0.3)
    consumer = started(handler, *nsqds, max_in_flight=2, low_ready_idle_timeout=2)
    for nsqd in nsqds:
        nsqd.link.add(toxic)
    # One nsqd after the other is busy, then all, then none.
    for busy in (nsqds[:1], nsqds[1:2], nsqds, nsqds[2:]):
        for nsqd in busy:
            fill(nsqd, 10)
        for _ in range(40):
            clock.advance(0.5)
            assert consumer.total_in_flight <= 2
    clock.advance(60.0)

    assert handler.excess == []
    assert handler.most_running <= 2
    assert handler.by(*nsqds) == [20, 20, 20]


OLD = {"release": "0.2.19"}


@pytest.mark.parametrize("max_in_flight", [1, 7])
@pytest.mark.parametrize("count", [1, 3])
def test_old_nsqds_that_count_rdy_down_are_served_without_stalling(make, clock, started, max_in_flight, count):
    nsqds = make(count, **OLD)
    handler = Handler(clock, seconds=0.01)
    for nsqd in nsqds:
        fill(nsqd, 200)
    consumer = started(handler, *nsqds, max_in_flight=max_in_flight, low_ready_idle_timeout=2)
    for _ in range(30):
        clock.advance(1.0)
        assert consumer.total_in_flight <= max_in_flight

    assert handler.by(*nsqds) == [200] * count
    assert handler.excess == []


def test_old_nsqds_do_not_wait_for_rdy_while_updates_rest(make, clock, started):
    # Enough connections for rests, each of which has RDY 1: it is sent again after each message.
    nsqds = make(11, **OLD)
    handler = Handler(clock)
    started(handler, *nsqds, max_in_flight=11)
    clock.advance(2.0)
    for nsqd in nsqds:
        fill(nsqd, 100)

    clock.advance(0.05)

    assert handler.by(*nsqds) == [100] * 11


def test_old_nsqd_is_served_while_slow_messages_are_in_flight(make, clock, started):
    (nsqd,) = make(1, **OLD)
    done = []

    def handle(consumer, message):
        # The other handlers end at different times.
        number = int(message.body)
        clock.sleep(60.0 if number < 2 else 0.001 * (1 + number % 20))
        done.append(number)

    fill(nsqd, 302)
    started(handle, nsqd, max_in_flight=10)

    clock.advance(1.0)

    assert len(done) == 300


# --- starved ----------------------------------------------------------------------------------------------------------


def test_is_starved_from_85_percent_of_the_rdy_of_one_connection_on(nsqds, clock, publish, started, warm):
    handler = Handler(clock)
    consumer = started(handler, *nsqds[:2], max_in_flight=40, low_ready_idle_timeout=100)
    warm(*nsqds[:2])
    assert rdy(*nsqds[:2]) == [20, 20]
    handler.seconds = 5.0

    starved = {}
    for count in (1, 16, 17, 20):
        publish(nsqds[0], *numbered(count))
        starved[count] = consumer.is_starved
        clock.advance(6.0)

    assert starved == {1: False, 16: False, 17: True, 20: True}
    consumer.pause()
    assert not consumer.is_starved


# --- nsqds that exceed RDY --------------------------------------------------------------------------------------------


def flooding_nsqd(count, size):
    """Run an nsqd that sends one message for RDY 1, and the rest of ``count`` for RDY 10; yields its address."""
    frames = [encode_frame(MESSAGE, encode_message(1, 1, b"%016d" % number, b"x" * size)) for number in range(count)]
    answers = {
        b"IDENTIFY": encode_frame(RESPONSE, b'{"version":"1.3.0","max_rdy_count":2500,"msg_timeout":60000}'),
        b"SUB t c\n": encode_frame(RESPONSE, b"OK"),
        b"RDY 1\n": frames[0],
        b"RDY 10\n": b"".join(frames[1:]),
        b"CLS\n": encode_frame(RESPONSE, b"CLOSE_WAIT"),
    }

    def answer(sock):
        while data := sock.recv(4096):
            for command, reply in answers.items():
                if command in data:
                    sock.sendall(reply)

    return peer(answer)


@pytest.mark.parametrize(
    ("count", "size", "is_refused"),
    [
        pytest.param(2510, 1, False, id="at the limit of their number"),
        pytest.param(2511, 1, True, id="above it"),
        pytest.param(131, 500_000, False, id="at the limit of their bytes"),
        pytest.param(131, 520_000, True, id="above it, with large messages"),
    ],
)
def test_nsqd_with_far_more_in_flight_than_rdy_is_disconnected(count, size, is_refused, caplog):
    with (
        flooding_nsqd(count, size) as address,
        Consumer(
            "t",
            "c",
            address,
            message_handler=lambda consumer, message: message.enable_async(),
            max_in_flight=10,
            close_timeout=0.1,
        ) as consumer,
    ):
        wait_until(lambda: "does not keep to RDY" in caplog.text if is_refused else consumer.total_in_flight == count)

        assert [connection.in_flight for connection in consumer.stats().connections] == ([] if is_refused else [count])
    text = (
        f"{address}: t/c: connection lost: {count} messages of this nsqd are in flight, with {count * size} bytes, and "
        "the highest RDY it was sent is 10: it does not keep to RDY"
    )
    assert any(message.startswith(text) for message in caplog.messages) is is_refused


def test_timed_out_messages_do_not_count_as_in_flight(make, clock, publish, started):
    # They time out between two checks of the messages in flight.
    (nsqd,) = make(max_rdy_count=6000, msg_timeout=1.5)
    consumer = started(
        lambda consumer, message: message.enable_async(), nsqd, max_in_flight=6000, max_tries=0, close_timeout=1.0
    )
    publish(nsqd, *numbered(6000))
    assert consumer.total_in_flight == 6000

    clock.advance(1.5)

    (connection,) = consumer.stats().connections
    assert (connection.counts.received, connection.counts.timed_out, connection.in_flight) == (12000, 6000, 6000)
