"""The event loop stays awake for answers to publishes in a row, and only for those."""

import gevent
import pytest

from fakensqd import FakeNsqd
from gnsq import Producer
from gnsq.producer.dispatcher import MAX_SKIPPED, POLL_SECONDS, SEQUENTIAL_WITHIN, BusyPoller
from gnsq.producer.publish import PendingPublish
from tests.helpers import wait_until

SOON = SEQUENTIAL_WITHIN / 2


class Time:
    """In place of the module's time: stands still until told."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def vigil(time):
    made = BusyPoller(time.monotonic)
    yield made
    made.close()


def publish():
    return PendingPublish("topic", b"x", 0.0, 60.0)


def rounds(vigil):
    """How many the loop makes for its sake, while nothing else is to be done."""
    before = vigil.rounds
    # Several times: one that has passed when the loop looks, as on a busy machine, leaves no round in between.
    for _ in range(5):
        gevent.sleep(0.0005)
    return vigil.rounds - before


def keep_late(vigil, time):
    """One in a row whose answer does not come in time; whether the loop stayed awake for it."""
    time.now += SOON
    vigil.poll(publish())
    awake = rounds(vigil) > 0
    time.now += POLL_SECONDS
    wait_until(lambda: not vigil._is_polling)
    assert rounds(vigil) == 0
    return awake


def test_loop_sleeps_over_a_publish_that_comes_alone(vigil, time):
    vigil.poll(publish())
    assert rounds(vigil) == 0
    time.now += 1.0
    vigil.poll(publish())
    assert rounds(vigil) == 0


def test_loop_stays_awake_for_one_behind_another_and_serves_others_meanwhile(vigil, time):
    vigil.poll(publish())
    time.now += SOON
    vigil.poll(publish())
    served = []
    other = gevent.spawn_later(0.001, served.append, True)
    assert rounds(vigil) > 1
    assert other.ready()
    assert served == [True]


def test_loop_sleeps_again_when_an_answer_takes_its_time(vigil, time):
    vigil.poll(publish())
    assert keep_late(vigil, time)


def test_late_answers_are_waited_for_so_ever_more_seldom(vigil, time):
    vigil.poll(publish())
    awake = [keep_late(vigil, time) for _ in range(20)]
    assert [place for place, was in enumerate(awake) if was] == [0, 2, 6, 14]
    for _ in range(20):
        vigil._skip = 2 * vigil._skip + 1
        vigil._left_to_skip = 0
        keep_late(vigil, time)
    assert vigil._skip == MAX_SKIPPED


def test_answer_in_time_makes_up_for_late_ones(vigil, time):
    vigil.poll(publish())
    assert [keep_late(vigil, time) for _ in range(3)] == [True, False, True]
    for _ in range(3):
        time.now += SOON
        vigil.poll(publish())
    time.now += SOON
    answered = publish()
    vigil.poll(answered)
    answered.done = True
    time.now += POLL_SECONDS
    wait_until(lambda: not vigil._is_polling)
    assert [keep_late(vigil, time) for _ in range(3)] == [True, False, True]


def test_loop_sleeps_when_the_producer_is_closed_meanwhile(vigil, time):
    vigil.poll(publish())
    time.now += SOON
    vigil.poll(publish())
    vigil.close()
    assert rounds(vigil) == 0
    vigil.poll(publish())
    assert rounds(vigil) == 0


@pytest.fixture
def kept(monkeypatch):
    """Publishes that a producer has kept the loop awake for, or thought of it."""
    made = []
    monkeypatch.setattr(BusyPoller, "poll", lambda self, publish: made.append(publish))
    return made


def test_only_a_publish_without_company_is_thought_of(kept):
    with FakeNsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("topic", b"alone")
        assert len(kept) == 1
        gevent.joinall([gevent.spawn(producer.publish, "topic", b"together") for _ in range(10)], raise_error=True)
        # The first of them has none yet.
        assert len(kept) == 2


def test_publish_that_waits_for_a_connection_or_a_batch_is_not_thought_of(kept):
    with FakeNsqd() as nsqd, Producer(nsqd.tcp_address, batch_messages=10, batch_linger=0.001) as producer:
        producer.publish("topic", b"in a batch")
    assert kept == []
