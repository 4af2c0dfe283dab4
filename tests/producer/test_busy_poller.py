"""The event loop stays awake for answers to publishes in a row, and only for those."""

import gevent
import pytest

from fakensqd import FakeNsqd
from gnsq import Producer
from gnsq.producer.dispatcher import MAX_SKIPPED, POLL_SECONDS, SEQUENTIAL_WITHIN, BusyPoller
from gnsq.producer.publish import PendingPublish
from tests.helpers import wait_until
from tests.producer.conftest import dispatcher_with

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
def poller(time):
    made = BusyPoller(time.monotonic)
    yield made
    made.close()


def publish():
    return PendingPublish("topic", b"x", 0.0, 60.0)


def rounds(poller):
    """How many the loop makes for its sake, while nothing else is to be done."""
    before = poller.rounds
    # Several times: one that has passed when the loop looks, as on a busy machine, leaves no round in between.
    for _ in range(5):
        gevent.sleep(0.0005)
    return poller.rounds - before


def keep_late(poller, time):
    """One in a row whose answer does not come in time; whether the loop stayed awake for it."""
    time.now += SOON
    poller.poll(publish())
    awake = rounds(poller) > 0
    time.now += POLL_SECONDS
    wait_until(lambda: not poller._is_polling)
    assert rounds(poller) == 0
    return awake


def test_loop_sleeps_after_a_publish_that_follows_no_other(poller, time):
    poller.poll(publish())
    assert rounds(poller) == 0
    time.now += 1.0
    poller.poll(publish())
    assert rounds(poller) == 0


def test_loop_polls_after_sequential_publishes_and_runs_other_greenlets(poller, time):
    poller.poll(publish())
    time.now += SOON
    poller.poll(publish())
    served = []
    other = gevent.spawn_later(0.001, served.append, True)
    assert rounds(poller) > 1
    assert other.ready()
    assert served == [True]


def test_loop_sleeps_again_if_an_answer_is_late(poller, time):
    poller.poll(publish())
    assert keep_late(poller, time)


def test_polling_after_late_answers_is_skipped_more_and_more_often(poller, time):
    poller.poll(publish())
    awake = [keep_late(poller, time) for _ in range(20)]
    assert [place for place, was in enumerate(awake) if was] == [0, 2, 6, 14]
    for _ in range(20):
        poller._skip = 2 * poller._skip + 1
        poller._left_to_skip = 0
        keep_late(poller, time)
    assert poller._skip == MAX_SKIPPED


def test_answer_in_time_resets_the_number_of_skips(poller, time):
    poller.poll(publish())
    assert [keep_late(poller, time) for _ in range(3)] == [True, False, True]
    for _ in range(3):
        time.now += SOON
        poller.poll(publish())
    time.now += SOON
    answered = publish()
    poller.poll(answered)
    answered.done = True
    time.now += POLL_SECONDS
    wait_until(lambda: not poller._is_polling)
    assert [keep_late(poller, time) for _ in range(3)] == [True, False, True]


def test_closed_busy_poller_does_not_poll(poller, time):
    poller.poll(publish())
    time.now += SOON
    poller.poll(publish())
    poller.close()
    assert rounds(poller) == 0
    poller.poll(publish())
    assert rounds(poller) == 0


class Recorder:
    """A busy poller that records publishes."""

    def __init__(self):
        self.publishes = []
        self.poll = self.publishes.append

    def close(self):
        pass


@pytest.fixture
def recorder():
    return Recorder()


def test_busy_poller_is_asked_for_a_publish_only_if_no_other_is_pending(clock, link, recorder):
    dispatcher = dispatcher_with(clock, link, busy_poller=recorder)
    alone, together = publish(), publish()

    waiting = [gevent.spawn(dispatcher.publish, each, True) for each in (alone, together)]
    gevent.sleep(0)

    assert recorder.publishes == [alone]
    gevent.killall(waiting)


@pytest.mark.parametrize(
    ("links", "options"), [(0, {}), (1, {"batch_messages": 10})], ids=["waits for a connection", "waits for a batch"]
)
def test_busy_poller_is_not_asked_for_a_publish_that_was_not_sent(clock, link, recorder, links, options):
    dispatcher = dispatcher_with(clock, *[link][:links], busy_poller=recorder, **options)

    waiting = gevent.spawn(dispatcher.publish, publish(), True)
    gevent.sleep(0)

    assert recorder.publishes == []
    waiting.kill()


@pytest.mark.parametrize("busy_poll", [True, False])
def test_option_busy_poll_decides_whether_the_loop_stays_awake(busy_poll):
    with FakeNsqd() as nsqd, Producer(nsqd.tcp_address, busy_poll=busy_poll) as producer:
        for _ in range(5):
            assert producer.publish("topic", b"x") == b"OK"

        assert (producer._lifecycle.runtime.dispatcher._busy_poller is not None) is busy_poll
