"""Backoff of a consumer: RDY 0 after failures, then one message as a probe, until a success."""

from datetime import timedelta
from itertools import accumulate

import pytest
from gevent.event import Event

from fakensqd import FakeNsqd, on
from fakensqd.faults import delay, error
from gnsq.errors import NSQGiveUp, NSQRequeueMessage
from gnsq.message import finish_all


def doubling(failures):
    """The default backoff, but without jitter."""
    return 2.0 ** (failures - 1)


EXACT = {"backoff": doubling, "requeue_delay": 0}
# The failed message is not delivered again during the test.
LATER = {"backoff": doubling, "requeue_delay": 100_000}


class Holder:
    """Handler that fails once, and leaves the next messages unanswered."""

    def __init__(self):
        self.seen = []

    def __call__(self, consumer, message):
        self.seen.append(message)
        if len(self.seen) == 1:
            raise RuntimeError
        message.enable_async()


class Worker:
    """Handler that raises while ``failing`` is set."""

    def __init__(self, clock):
        self.clock = clock
        self.failing = True
        self.times = []

    def __call__(self, consumer, message):
        self.times.append(round(self.clock.monotonic(), 3))
        if self.failing:
            raise RuntimeError("downstream is down")


@pytest.fixture
def worker(clock):
    return Worker(clock)


def rdy(nsqd):
    """RDY of each connection of the channel."""
    channel = nsqd.broker.topics["t"].channels["c"]
    return [subscriber.ready_count for subscriber in channel.subscribers]


def phases(consumer):
    events = []
    consumer.on_backoff.connect(
        lambda sender, phase, failures, duration: events.append((phase, failures, duration)), weak=False
    )
    return events


def test_successes_halve_the_pause_until_there_is_none(nsqd, clock, publish, started, worker, lines):
    consumer = started(worker, nsqd, max_in_flight=10, **EXACT)
    events = phases(consumer)
    publish(nsqd, b"1")
    clock.advance(1 + 2)
    worker.failing = False
    publish(nsqd, b"2", b"3", b"4", b"5", b"6")

    clock.advance(4 + 2 + 1)

    assert events == [
        ("start", 1, 1.0),
        ("continue", 2, 2.0),
        ("continue", 3, 4.0),
        ("continue", 2, 2.0),
        ("continue", 1, 1.0),
        ("end", 0, 0.0),
    ]
    assert worker.times == [0, 1, 3, 7, 9, 10, 10, 10, 10]
    assert consumer.stats().backoff == "off"
    error = "; last error: RuntimeError: downstream is down"
    assert [line for line in lines() if line.endswith(error)] == [
        f"t/c: failed; no messages for 1.0 s, then 1 to try{error}",
        f"t/c: failed; no messages for 2.0 s, then 2 to try one by one{error}",
        f"t/c: failed; no messages for 4.0 s, then 3 to try one by one{error}",
        f"t/c: it works again; 2 more to try one by one, the next in 2.0 s{error}",
        f"t/c: it works again; 1 more to try, the next in 1.0 s{error}",
        f"t/c: messages are handled again, as many as before{error}",
    ]


def test_probe_may_be_finished_together_with_messages_from_before_the_pause(nsqd, clock, publish, started):
    seen = []

    def hold(consumer, message):
        message.enable_async()
        seen.append(message)

    consumer = started(hold, nsqd, max_in_flight=10, **LATER)
    publish(nsqd, b"failed", b"2", b"3")
    seen[0].requeue()
    publish(nsqd, b"probe")
    clock.advance(1)
    _, *others, probe = seen
    assert (probe.body, len(others), consumer.stats().backoff) == (b"probe", 2, "probing")

    assert finish_all([probe, *others]) == []

    assert (consumer.stats().backoff, consumer.stats().counts.finished) == ("off", 3)


def test_pause_is_for_all_nsqds_and_the_probe_for_one_of_them(nsqds, clock, publish, started, worker):
    consumer = started(worker, *nsqds, max_in_flight=30, **LATER)
    publish(nsqds[0], b"x")

    assert consumer.total_ready_count == 0
    assert consumer.stats().backoff_remaining == pytest.approx(1.0)
    clock.advance(0.999)
    assert consumer.total_ready_count == 0
    clock.advance(0.001)
    assert sum(sum(rdy(nsqd)) for nsqd in nsqds) == 1


def test_failures_during_a_pause_count_once(nsqd, clock, publish, started, worker):
    consumer = started(worker, nsqd, max_in_flight=10, max_tries=0, **EXACT)
    worker.failing = False
    publish(nsqd, b"warm")
    worker.failing = True

    publish(nsqd, *[b"%d" % number for number in range(10)])

    assert len(worker.times) == 11
    assert consumer.stats().backoff_failures == 1


def test_probe_goes_to_another_nsqd_if_the_first_has_no_message(nsqds, clock, publish, started, worker):
    consumer = started(worker, *nsqds, max_in_flight=30, low_ready_idle_timeout=10, **EXACT)
    publish(nsqds[0], b"x")
    worker.failing = False

    clock.advance(1 + 60 * (10 + 1))

    assert len(worker.times) == 2
    assert consumer.stats().backoff == "off"


def test_another_probe_follows_if_the_message_of_the_first_is_never_answered(nsqd, clock, publish, started):
    holder = Holder()
    started(holder, nsqd, max_in_flight=10, **EXACT)
    publish(nsqd, *[b"%d" % number for number in range(20)])
    clock.advance(1.0)
    first = len(holder.seen)

    clock.advance(61.0)

    assert (first, len(holder.seen)) == (2, 3)


def test_requeue_without_backoff_is_neither_success_nor_failure(nsqd, clock, publish, started):
    times = []

    def handle(consumer, message):
        times.append(round(clock.monotonic(), 3))
        if len(times) == 1:
            raise RuntimeError
        if len(times) == 2:
            raise NSQRequeueMessage(backoff=False)

    consumer = started(handle, nsqd, max_in_flight=10, **EXACT)
    publish(nsqd, b"x")
    clock.advance(1.0)
    clock.advance(1.0)

    assert times[:3] == [0, 1, times[2]]
    assert consumer.stats().backoff == "off"


# Answers of a handler: a number is the nsqd whose message is answered.
FIRST_PAUSES = [
    pytest.param("0 fails, 0 fails", True, id="two failures"),
    pytest.param("0 fails, 1 fails", True, id="of two nsqds"),
    pytest.param("0 fails, 0 works, 0 fails", False, id="a success between"),
    pytest.param("0 fails, 1 works, 0 fails", False, id="a success of another nsqd between"),
    pytest.param("0 fails, 0 works, 0 fails, 0 works, 0 fails, 0 fails", True, id="two at last"),
    pytest.param("0 fails, 0 waits, 0 fails", True, id="a requeue without backoff between"),
    pytest.param("0 fails, 0 is bad, 0 fails", True, id="a message given up between"),
    pytest.param("0 works, 0 is requeued, 0 is requeued", True, id="by hand"),
    pytest.param("0 fails, 0 is requeued", True, id="one by hand"),
]


@pytest.mark.parametrize(("answers", "is_paused"), FIRST_PAUSES)
def test_pause_begins_with_the_second_failure_in_a_row(nsqds, publish, started, answers, is_paused):
    def handle(consumer, message):
        match message.body:
            case b"fails":
                raise RuntimeError
            case b"is bad":
                raise NSQGiveUp("it is bad")
            case b"waits":
                raise NSQRequeueMessage(backoff=False)
            case b"is requeued":
                message.requeue(100_000)

    consumer = started(handle, *nsqds, max_in_flight=9, requeue_delay=100_000)
    *before, last = answers.split(", ")
    for answer in before:
        publish(nsqds[int(answer[0])], answer[2:].encode())
        assert consumer.stats().backoff == "off"
    publish(nsqds[int(last[0])], last[2:].encode())

    assert consumer.stats().backoff == ("waiting" if is_paused else "off")


@pytest.mark.parametrize(
    ("bad", "in_flight"), [({150}, 1), (set(range(0, 300, 50)), 50)], ids=["poison", "2 % fail once"]
)
def test_failures_among_messages_that_work_never_pause(nsqd, clock, publish, started, bad, in_flight):
    def handle(consumer, message):
        clock.sleep(0.01)
        if int(message.body) in bad and (len(bad) == 1 or message.attempts == 1):
            raise RuntimeError

    consumer = started(handle, nsqd, max_in_flight=in_flight)
    events = phases(consumer)
    publish(nsqd, *[b"%d" % number for number in range(300)])
    clock.advance(0.01 * 300 / in_flight + 0.2)

    assert events == []
    assert consumer.stats().counts.finished >= 300 - len(bad)


PAUSES = [
    pytest.param(5, [5, 5, 5, 5], 1, id="number"),
    pytest.param(lambda failures: 3.0 * failures, [3, 6, 9, 12], 4, id="function"),
    pytest.param(lambda failures: timedelta(seconds=failures), [1, 2, 3, 4], 4, id="function of timedelta"),
    pytest.param(lambda failures: 0 if failures < 3 else 7, [0, 0, 7, 7], 1, id="only from the third failure on"),
    pytest.param(lambda failures: 0 if failures == 2 else 5, [5, 0, 5, 5], 1, id="0 after a pause"),
    pytest.param(lambda failures: 9**failures, [9, 20, 20, 20], 2, id="longer than allowed"),
    pytest.param(lambda failures: 1 / 0, [0, 1, 2, 4], 3, id="raises"),
]


@pytest.mark.parametrize(("backoff", "pauses", "successes"), PAUSES)
def test_backoff_option_decides_about_the_pauses(nsqd, clock, publish, started, worker, backoff, pauses, successes):
    consumer = started(worker, nsqd, max_tries=0, max_backoff_duration=20, backoff=backoff, requeue_delay=0)
    ended = []
    consumer.on_backoff.connect(
        lambda _, phase, **__: ended.append(len(worker.times) if phase == "end" else 0), weak=False
    )
    publish(nsqd, *[b"x"] * 10)
    clock.advance(sum(pauses[:3]))
    assert worker.times == [0, *accumulate(pauses[:3])]
    assert consumer.stats().backoff_failures == successes

    worker.failing = False
    clock.advance(100.0)

    # The first message was tried four times, and the backoff ended with the last of the successes that it needed.
    assert ended[-1] == 4 + successes


def test_backoff_of_0_never_pauses(nsqd, clock, publish, started, worker):
    consumer = started(worker, nsqd, max_tries=0, backoff=0, requeue_delay=1000)
    publish(nsqd, b"x")
    clock.advance(3.0)

    assert (worker.times, consumer.stats().backoff) == ([0, 1, 2, 3], "off")


def test_pause_by_the_user_outlasts_backoff(nsqd, clock, publish, started, worker):
    consumer = started(worker, nsqd, **EXACT)
    publish(nsqd, b"x")
    consumer.pause()
    clock.advance(100.0)
    assert worker.times == [0]

    worker.failing = False
    consumer.resume()
    clock.advance(11.0)

    assert len(worker.times) == 2


def test_finish_that_nsqd_refuses_is_still_a_success_of_the_handler(nsqd, clock, publish, started, worker):
    consumer = started(worker, nsqd, **EXACT)
    publish(nsqd, b"x")
    worker.failing = False

    with nsqd.add(on.command("FIN"), error("E_FIN_FAILED")):
        clock.advance(1.0)

    assert consumer.stats().backoff == "off"


def test_first_probe_goes_to_the_nsqd_that_had_messages(nsqds, clock, publish, started, worker):
    started(worker, *nsqds, max_in_flight=30, **EXACT)
    for _ in range(5):
        publish(nsqds[1], b"x")
        worker.failing = False
        clock.advance(1.0)
        worker.failing = True

    # Each failure led to one pause, without a wait for an nsqd that has no messages.
    assert len(worker.times) == 10


def test_short_idle_timeout_does_not_prevent_a_probe(nsqds, clock, publish, started, worker):
    started(worker, *nsqds, max_in_flight=1, low_ready_idle_timeout=0.5, **EXACT)
    publish(nsqds[2], b"x")
    clock.advance(20.0)
    worker.failing = False
    clock.advance(60.0)

    assert (nsqds[2].depth("t", "c"), nsqds[2].in_flight("t", "c")) == (0, 0)


def test_another_probe_follows_if_the_connection_dies_with_the_message(nsqds, clock, publish, started):
    holder = Holder()
    consumer = started(holder, *nsqds, max_in_flight=9, **LATER)
    publish(nsqds[0], b"x")
    publish(nsqds[0], b"y")
    clock.advance(1.0)
    assert [message.nsqd for message in holder.seen] == [nsqds[0].tcp_address] * 2
    nsqds[0].down()
    clock.advance(0.1)

    assert consumer.stats().backoff == "probing"
    assert consumer.total_ready_count == 1


def test_message_of_a_probe_may_take_its_msg_timeout(nsqds, clock, publish, started):
    holder = Holder()
    started(holder, *nsqds[:2], max_in_flight=9, low_ready_idle_timeout=1.0, **LATER)
    publish(nsqds[0], b"1")
    publish(nsqds[0], b"2")
    publish(nsqds[1], b"3")
    clock.advance(1.0 + 59.0)
    assert [message.body for message in holder.seen] == [b"1", b"2"]

    clock.advance(20.0)
    assert b"3" in [message.body for message in holder.seen]


@pytest.mark.parametrize("at_once", [True, False], ids=["with messages at hand", "with messages later"])
@pytest.mark.parametrize("old", [False, True], ids=["nsqd 1.3.0", "nsqd 0.2.31"])
def test_probe_is_one_message_while_messages_in_flight_are_answered(clock, publish, started, old, at_once):
    """The probe's RDY is one above the messages in flight, so it must be lowered with each answer."""
    release, tried = Event(), []

    def handle(consumer, message):
        if message.body == b"long":
            release.wait()
            raise NSQRequeueMessage(backoff=False)
        if message.body == b"fails":
            raise RuntimeError
        tried.append(message)
        message.enable_async()

    with FakeNsqd(clock=clock, release="0.2.31" if old else "1.3.0") as nsqd:
        consumer = started(handle, nsqd, max_in_flight=10, **LATER)
        publish(nsqd, *[b"long"] * 3, b"fails")
        clock.advance(1.0)
        assert (consumer.stats().backoff, rdy(nsqd)) == ("probing", [4])

        release.set()
        if not at_once:
            clock.advance(0.0)
            assert rdy(nsqd) == [1]
        publish(nsqd, *[b"%d" % number for number in range(5)])
        clock.advance(1.0)

        assert (len(tried), rdy(nsqd)) == (1, [0])


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_switching_backoff_off_ends_the_pause_and_the_probe(nsqds, clock, publish, started, worker, seconds):
    consumer = started(worker, *nsqds, max_in_flight=30, **LATER)
    events = phases(consumer)
    publish(nsqds[0], b"x")
    clock.advance(seconds)

    consumer.max_backoff_duration = 0
    clock.advance(1.1)

    assert events[-1][0] == "end"
    assert consumer.total_ready_count > 3


def test_success_on_an_nsqd_that_connects_while_the_backoff_begins_ends_it(nsqds, clock, publish, started, worker):
    first, second = nsqds[:2]
    second.down()
    consumer = started(worker, first, second, max_in_flight=10, reconnect_initial=1.0, **LATER)
    second.up()
    with second.add(on.command("IDENTIFY"), delay(0.5)):
        clock.advance(1.2)
        publish(first, b"x")
        assert (consumer.stats().backoff, len(consumer.stats().connections)) == ("waiting", 1)
        clock.advance(0.6)
    first.down()
    worker.failing = False

    publish(second, b"y")
    clock.advance(1.0)

    assert len(worker.times) == 2
    assert consumer.stats().backoff == "off"


def test_message_of_a_probe_times_out_after_the_backoff_is_switched_off(nsqds, clock, publish, started):
    holder = Holder()
    first, second = nsqds[:2]
    consumer = started(holder, first, second, max_in_flight=1, msg_timeout=5.0, low_ready_idle_timeout=3.0, **LATER)
    publish(first, b"x")
    clock.advance(10.0)
    # The other one has no turn, but is probed, since the first has no message.
    publish(second, b"y")
    clock.advance(4.0)
    assert [message.body for message in holder.seen] == [b"x", b"y"]

    consumer.max_backoff_duration = 0
    publish(first, b"z")
    clock.advance(60.0)

    assert b"z" in [message.body for message in holder.seen]
