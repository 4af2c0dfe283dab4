import pytest

from gnsq.spark.source.drain import (
    Depth,
    DepthSample,
    Drain,
    EmptyBatchTrigger,
    NoReceiverWarning,
    Outcome,
)

EMPTY = Depth(0, 0, 0)
BUSY = Depth(5, 5, 0)
# One of the nsqds does not answer.
PART = Depth(5, 5, 0, exact=False)


def drain(rows=10, looks=2, idle_timeout=60, **changes):
    """A drain that knows the depth at the start."""
    made = Drain(idle_timeout, 0, **changes)
    for _ in range(looks):
        made.record(0, Depth(rows, 0, 0))
    return made


def test_total_depth_excludes_deferred_messages():
    assert Depth(waiting=3, in_flight=2, deferred=7).total == 5


def test_drain_ends_after_the_initial_messages_have_come():
    some = drain(10)

    assert not some.update(DepthSample(9, BUSY), 1)
    end = some.update(DepthSample(10, BUSY), 2)
    assert end.outcome is Outcome.DRAINED
    assert "at the start" in end.reason


def test_one_empty_sample_does_not_end_a_drain():
    some = drain(0, looks=1)

    assert not some.update(DepthSample(0), 0)
    # It was between topic and channel.
    assert not some.update(DepthSample(0, BUSY), 0.2)
    assert not some.update(DepthSample(9, BUSY), 0.4)
    assert some.update(DepthSample(10, BUSY), 0.4)


def test_empty_drain_ends_after_two_samples():
    some = drain(0, looks=1)

    assert some.update(DepthSample(0, EMPTY), 0.2).outcome is Outcome.DRAINED


def test_empty_channel_has_to_be_seen_twice():
    some = drain()

    assert not some.update(DepthSample(4, EMPTY), 1)
    assert "empty" in some.update(DepthSample(4, EMPTY), 1.2).reason


def test_message_between_two_samples_restarts_the_count_of_empty_ones():
    some = drain()
    some.update(DepthSample(4), 0)

    assert not some.update(DepthSample(4, EMPTY), 1)
    # It was in the spool, though not yet when that was looked at.
    assert not some.update(DepthSample(5), 1.2)
    assert not some.update(DepthSample(5, EMPTY), 1.4)
    assert some.update(DepthSample(5, EMPTY), 1.6)


def test_busy_sample_restarts_the_count_of_empty_ones():
    some = drain()

    assert not some.update(DepthSample(4, EMPTY), 1)
    assert not some.update(DepthSample(4, BUSY), 1.2)
    assert not some.update(DepthSample(4, EMPTY), 1.4)


def test_samples_without_a_depth_are_not_counted():
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


def test_silence_is_no_end_while_messages_may_wait_for_their_segment():
    some = Drain(60, 0, has_http=False, segment_wait=5)

    assert not some.update(DepthSample(0), 6.9)
    assert some.update(DepthSample(0), 7).outcome is Outcome.LEFT


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
    assert "not every nsqd tells" in end.reason


def test_part_of_the_depth_ends_under_constant_publishing():
    some = Drain(60, 0)

    ends = [some.update(DepthSample(20 * second, PART), second) for second in range(1, 61)]

    assert not any(ends[:-1])
    assert ends[-1].outcome is Outcome.LEFT


def test_idle_drain_reports_the_messages_that_are_left():
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


def test_target_is_the_largest_of_the_first_depths():
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


# --- empty batches


@pytest.mark.parametrize(
    ("facts", "due"),
    [
        pytest.param({"waiting": None, "idle": 0, "is_paused": True}, True, id="paused"),
        pytest.param({"waiting": 0, "idle": 99, "is_paused": True}, False, id="paused, and nothing waits"),
        pytest.param({"waiting": 7, "idle": 0.4}, False, id="messages wait, for a moment"),
        pytest.param({"waiting": 7, "idle": 0.5}, True, id="messages wait"),
        pytest.param({"waiting": None, "idle": 4.9}, False, id="depth unknown, for a moment"),
        pytest.param({"waiting": None, "idle": 5}, True, id="depth unknown"),
        pytest.param({"waiting": 0, "idle": 99}, False, id="nothing waits"),
    ],
)
def test_trigger_is_due_for_facts(facts, due):
    assert EmptyBatchTrigger().is_due(100, now=0, **{"is_paused": False, **facts}) is due


def test_trigger_is_not_due_without_read_segments():
    assert not EmptyBatchTrigger().is_due(0, None, 99, 0, is_paused=True)


def test_ineffective_triggers_become_rare():
    trigger = EmptyBatchTrigger()

    due = [second for second in range(200) if trigger.is_due(100, None, 0, second, is_paused=True)]

    assert due == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert trigger.is_ineffective


@pytest.mark.parametrize("left", [0, 99])
def test_trigger_is_due_again_at_once_after_an_effect(left):
    trigger = EmptyBatchTrigger()
    trigger.is_due(100, None, 0, 0, is_paused=True)

    trigger.is_due(left, 0, 0, 0, is_paused=True)

    assert trigger.is_due(100, None, 0, 0, is_paused=True)
    assert not trigger.is_ineffective


# --- no receiver


def test_warning_of_a_channel_without_receiver_is_repeated():
    waiting = Depth(1, 0, 0, subscribers=0)
    warning = NoReceiverWarning(now=0)

    due = [second for second in range(150) if warning.is_due(waiting, second)]

    assert due == [10, 70, 130]


def test_no_warning_while_a_receiver_is_connected_or_no_message_waits():
    warning = NoReceiverWarning(now=0)
    fine = [Depth(1, 0, 0, subscribers=1), Depth(0, 9, 9), None]

    assert not any(warning.is_due(depth, 20) for depth in fine)
    # The time starts again.
    assert not warning.is_due(Depth(1, 0, 0), 29)
    assert warning.is_due(Depth(1, 0, 0), 30)
