import pytest

from gnsq.spark.source.drain import Depth, DepthSample, Drain, EmptyBatchTrigger, NoReceiverWarning, Outcome

EMPTY = Depth(0, 0, 0)
BUSY = Depth(5, 5, 0)
# One of the nsqds does not answer.
PART = Depth(5, 5, 0, exact=False)


def drain(rows=10, looks=2, idle_timeout=60, **changes):
    """A drain that knows what was there at the start."""
    made = Drain(idle_timeout, 0, **changes)
    for _ in range(looks):
        made.record(0, Depth(rows, 0, 0))
    return made


def test_depth_counts_what_can_come_soon():
    assert Depth(waiting=3, in_flight=2, deferred=7).total == 5


def test_done_when_what_was_there_has_come():
    some = drain(10)

    assert not some.update(DepthSample(9, BUSY), 1)
    end = some.update(DepthSample(10, BUSY), 2)
    assert end.outcome is Outcome.DRAINED
    assert "at the start" in end.reason


def test_one_look_at_nothing_proves_nothing():
    some = drain(0, looks=1)

    assert not some.update(DepthSample(0), 0)
    # What was between topic and channel.
    assert not some.update(DepthSample(0, BUSY), 0.2)
    assert not some.update(DepthSample(9, BUSY), 0.4)
    assert some.update(DepthSample(10, BUSY), 0.4)


def test_nothing_at_the_start_is_done_after_two_looks():
    some = drain(0, looks=1)

    assert some.update(DepthSample(0, EMPTY), 0.2).outcome is Outcome.DRAINED


def test_empty_channel_has_to_be_seen_twice():
    some = drain()

    assert not some.update(DepthSample(4, EMPTY), 1)
    assert "empty" in some.update(DepthSample(4, EMPTY), 1.2).reason


def test_message_between_two_looks_begins_anew():
    some = drain()
    some.update(DepthSample(4), 0)

    assert not some.update(DepthSample(4, EMPTY), 1)
    # It was in the spool, though not yet when that was looked at.
    assert not some.update(DepthSample(5), 1.2)
    assert not some.update(DepthSample(5, EMPTY), 1.4)
    assert some.update(DepthSample(5, EMPTY), 1.6)


def test_busy_channel_between_two_looks_begins_anew():
    some = drain()

    assert not some.update(DepthSample(4, EMPTY), 1)
    assert not some.update(DepthSample(4, BUSY), 1.2)
    assert not some.update(DepthSample(4, EMPTY), 1.4)


def test_looks_that_were_not_taken_prove_nothing():
    some = drain()

    some.update(DepthSample(4, EMPTY), 1)
    assert not any(some.update(DepthSample(4), 1 + second) for second in range(50))


def test_without_statistics_silence_is_the_end():
    some = Drain(60, 0, has_http=False)

    assert not some.update(DepthSample(4), 1)
    assert not some.update(DepthSample(4), 2.9)
    end = some.update(DepthSample(4), 3)
    assert end.outcome is Outcome.LEFT
    assert "nothing has come" in end.reason


def test_without_statistics_constant_publishing_ends_too():
    some = Drain(60, 0, has_http=False)

    ends = [some.update(DepthSample(second), second) for second in range(1, 61)]

    assert not any(ends[:-1])
    assert ends[-1].outcome is Outcome.LEFT


def test_silence_is_no_end_before_anybody_was_reached():
    some = Drain(60, 0, has_http=False)

    assert not some.update(DepthSample(0, is_reached=False), 59)
    end = some.update(DepthSample(0, is_reached=False), 60)
    assert end.outcome is Outcome.FAILED
    assert "no nsqd was reached" in end.reason


def test_part_of_the_depth_sets_the_target_and_proves_no_emptiness():
    some = Drain(60, 0)
    for _ in range(2):
        some.record(0, PART)
    nothing = Depth(0, 0, 0, exact=False)

    assert not any(some.update(DepthSample(9, nothing), second) for second in (1, 2, 3, 4))
    assert not some.update(DepthSample(10, nothing), 5)
    end = some.update(DepthSample(10, nothing), 7)
    assert end.outcome is Outcome.LEFT
    assert "not every nsqd says" in end.reason


def test_part_of_the_depth_ends_under_constant_publishing():
    some = Drain(60, 0)

    ends = [some.update(DepthSample(20 * second, PART), second) for second in range(1, 61)]

    assert not any(ends[:-1])
    assert ends[-1].outcome is Outcome.LEFT


def test_messages_that_never_come_are_left_and_told_of():
    some = drain()

    some.update(DepthSample(4, BUSY), 1)
    assert not some.update(DepthSample(4, BUSY), 60)
    end = some.update(DepthSample(4, BUSY), 61)
    assert end.outcome is Outcome.LEFT
    assert "10 messages wait" in end.reason


def test_statistics_that_fail_are_waited_for():
    some = Drain(60, 0)

    assert not some.update(DepthSample(0), 59)
    assert "not known to be empty" in some.update(DepthSample(0), 60).reason


def test_first_answers_say_what_was_there():
    some = Drain(60, 0)

    assert not some.update(DepthSample(4, BUSY), 1)
    assert not some.update(DepthSample(4, BUSY), 1.2)
    assert not some.update(DepthSample(13, BUSY), 2)
    assert "at the start" in some.update(DepthSample(14, BUSY), 3).reason


def test_time_of_the_query_is_not_idle():
    some = drain()

    assert not some.update(DepthSample(4), 1)
    some.begin(1000)
    assert not some.update(DepthSample(4), 1059)
    assert some.update(DepthSample(4), 1061)


def test_idleness_is_counted_anew_when_a_pause_ends():
    some = drain()

    assert not some.update(DepthSample(4, is_paused=True), 1)
    assert not some.update(DepthSample(4, is_paused=True), 60)
    assert not some.update(DepthSample(4), 62)
    assert not some.update(DepthSample(4), 121)


def test_pause_that_does_not_end_is_an_error():
    some = drain()

    assert not some.update(DepthSample(4, is_paused=True), 1)
    end = some.update(DepthSample(4, is_paused=True), 61)
    assert end.outcome is Outcome.FAILED
    assert "spool is full" in end.reason


# --- nudges


@pytest.mark.parametrize(
    ("facts", "due"),
    [
        pytest.param({"waiting": None, "idle": 0, "is_paused": True}, True, id="paused"),
        pytest.param({"waiting": 0, "idle": 99, "is_paused": True}, False, id="paused, and nothing waits"),
        pytest.param({"waiting": 7, "idle": 0.4}, False, id="messages wait, for a moment"),
        pytest.param({"waiting": 7, "idle": 0.5}, True, id="messages wait"),
        pytest.param({"waiting": None, "idle": 4.9}, False, id="nobody knows, for a moment"),
        pytest.param({"waiting": None, "idle": 5}, True, id="nobody knows"),
        pytest.param({"waiting": 0, "idle": 99}, False, id="nothing waits"),
    ],
)
def test_nudge(facts, due):
    assert EmptyBatchTrigger().is_due(100, now=0, **{"is_paused": False, **facts}) is due


def test_nothing_to_delete_is_no_reason_for_a_nudge():
    assert not EmptyBatchTrigger().is_due(0, None, 99, 0, is_paused=True)


def test_nudges_in_vain_become_rare():
    nudge = EmptyBatchTrigger()

    nudges = [second for second in range(200) if nudge.is_due(100, None, 0, second, is_paused=True)]

    assert nudges == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert nudge.is_ineffective


@pytest.mark.parametrize("left", [0, 99])
def test_nudge_that_helped_is_followed_by_the_next_at_once(left):
    nudge = EmptyBatchTrigger()
    nudge.is_due(100, None, 0, 0, is_paused=True)

    nudge.is_due(left, 0, 0, 0, is_paused=True)

    assert nudge.is_due(100, None, 0, 0, is_paused=True)
    assert not nudge.is_ineffective


# --- nobody receives


def test_unattended_channel_is_told_of_now_and_then():
    waiting = Depth(1, 0, 0, subscribers=0)
    unattended = NoReceiverWarning(now=0)

    told = [second for second in range(150) if unattended.is_due(waiting, second)]

    assert told == [10, 70, 130]


def test_channel_is_not_unattended_while_somebody_receives_or_nothing_waits():
    unattended = NoReceiverWarning(now=0)
    fine = [Depth(1, 0, 0, subscribers=1), Depth(0, 9, 9), None]

    assert not any(unattended.is_due(depth, 20) for depth in fine)
    # From here on it begins anew.
    assert not unattended.is_due(Depth(1, 0, 0), 29)
    assert unattended.is_due(Depth(1, 0, 0), 30)
