"""BusyPoller: when the event loop polls, and when it sleeps."""

import gevent
import pytest

from gnsq.concurrency.busy_poller import MAX_SKIPPED, POLL_SECONDS, SEQUENTIAL_WITHIN, BusyPoller
from tests.helpers import wait_until

SOON = SEQUENTIAL_WITHIN / 2


class Time:
    """A clock that the test sets."""

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


class Response:
    """What is awaited."""

    done = False


def rounds(poller):
    """Return how many rounds of the loop the poller causes while nothing else runs."""
    before = poller.rounds
    # Several times: on a busy machine a timer may be over when the loop checks it, so that there is no round.
    for _ in range(5):
        gevent.sleep(0.0005)
    return poller.rounds - before


def poll_late(poller, time):
    """Poll for a sequential publish whose response is late. Returns: whether the loop stayed awake."""
    time.now += SOON
    poller.poll(Response())
    awake = rounds(poller) > 0
    time.now += POLL_SECONDS
    wait_until(lambda: not poller._is_polling)
    assert rounds(poller) == 0
    return awake


def test_loop_sleeps_after_a_publish_that_follows_no_other(poller, time):
    poller.poll(Response())
    assert rounds(poller) == 0
    time.now += 1.0
    poller.poll(Response())
    assert rounds(poller) == 0


def test_loop_polls_after_sequential_publishes_and_runs_other_greenlets(poller, time):
    poller.poll(Response())
    time.now += SOON
    poller.poll(Response())
    served = []
    other = gevent.spawn_later(0.001, served.append, True)
    assert rounds(poller) > 1
    assert other.ready()
    assert served == [True]


def test_loop_sleeps_again_if_an_answer_is_late(poller, time):
    poller.poll(Response())
    assert poll_late(poller, time)


def test_polling_after_late_answers_is_skipped_more_and_more_often(poller, time):
    poller.poll(Response())
    awake = [poll_late(poller, time) for _ in range(20)]
    assert [place for place, was in enumerate(awake) if was] == [0, 2, 6, 14]
    for _ in range(20):
        poller._skip = 2 * poller._skip + 1
        poller._left_to_skip = 0
        poll_late(poller, time)
    assert poller._skip == MAX_SKIPPED


def test_answer_in_time_resets_the_number_of_skips(poller, time):
    poller.poll(Response())
    assert [poll_late(poller, time) for _ in range(3)] == [True, False, True]
    for _ in range(3):
        time.now += SOON
        poller.poll(Response())
    time.now += SOON
    answered = Response()
    poller.poll(answered)
    answered.done = True
    time.now += POLL_SECONDS
    wait_until(lambda: not poller._is_polling)
    assert [poll_late(poller, time) for _ in range(3)] == [True, False, True]


def test_closed_busy_poller_does_not_poll(poller, time):
    poller.poll(Response())
    time.now += SOON
    poller.poll(Response())
    poller.close()
    assert rounds(poller) == 0
    poller.poll(Response())
    assert rounds(poller) == 0
