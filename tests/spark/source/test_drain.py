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


KNOWN = [Depth(10, 0, 0)] * 2
NONE_THERE = Depth(0, 0, 0, exact=False)


def at(*samples):
    """Samples at one time after another: (seconds, rows) or (seconds, rows, depth)."""
    return [(second, DepthSample(rows, *depth)) for second, rows, *depth in samples]


def paused(*seconds):
    return [(second, DepthSample(4, is_paused=True)) for second in seconds]


# What is known of the depth at the start, settings, the samples, and how a drain ends with the last of them.
DRAINS = [
    pytest.param(
        KNOWN, {}, at((1, 9, BUSY), (2, 10, BUSY)), Outcome.DRAINED, "at the start", id="initial messages have come"
    ),
    pytest.param(
        KNOWN[:1],
        {},
        # At 0.2 s the message was between topic and channel.
        at((0, 0), (0.2, 0, BUSY), (0.4, 9, BUSY), (0.4, 10, BUSY)),
        Outcome.DRAINED,
        "",
        id="one sample is not enough",
    ),
    pytest.param([EMPTY], {}, at((0.2, 0, EMPTY)), Outcome.DRAINED, "", id="never had any"),
    pytest.param(
        KNOWN,
        {},
        # The message of 1.2 s was in the spool before, though not yet when that was looked at.
        at((0, 4), (1, 4, EMPTY), (1.2, 5), (1.4, 5, EMPTY), (1.6, 5, EMPTY)),
        Outcome.DRAINED,
        "empty",
        id="empty, a message, and empty",
    ),
    pytest.param(
        KNOWN, {}, at((1, 4, EMPTY), *((1 + second, 4) for second in range(50))), None, "", id="empty, and no answers"
    ),
    pytest.param([], {"has_http": False}, at((1, 4), (2.9, 4), (3, 4)), Outcome.LEFT, "nothing has come", id="silence"),
    pytest.param(
        [],
        {"has_http": False, "segment_wait": 5},
        at((6.9, 0), (7, 0)),
        Outcome.LEFT,
        "",
        id="silence while messages may wait for their segment",
    ),
    pytest.param(
        [],
        {"has_http": False},
        at(*((second, second) for second in range(1, 61))),
        Outcome.LEFT,
        "",
        id="constant publishing without statistics",
    ),
    pytest.param(
        [],
        {"has_http": False},
        [(second, DepthSample(0, is_reached=False)) for second in (59, 60)],
        Outcome.FAILED,
        "no nsqd was reached",
        id="nobody was reached",
    ),
    pytest.param(
        [PART] * 2,
        {},
        at(*((second, 9, NONE_THERE) for second in (1, 2, 3, 4)), (5, 10, NONE_THERE), (7, 10, NONE_THERE)),
        Outcome.LEFT,
        "not every nsqd tells",
        id="part of the depth sets the target and proves no emptiness",
    ),
    pytest.param(
        KNOWN,
        {},
        at((1, 4, BUSY), (60, 4, BUSY), (61, 4, BUSY)),
        Outcome.LEFT,
        "10 messages wait",
        id="messages that do not come",
    ),
    pytest.param([], {}, at((59, 0), (60, 0)), Outcome.LEFT, "not known to be empty", id="statistics that fail"),
    pytest.param(
        [],
        {},
        at((1, 4, BUSY), (1.2, 4, BUSY), (2, 13, BUSY), (3, 14, BUSY)),
        Outcome.DRAINED,
        "at the start",
        id="the target is the largest of the first depths",
    ),
    pytest.param(
        KNOWN, {}, [*paused(1, 60), *at((62, 4), (121, 4))], None, "", id="idleness is counted anew after a pause"
    ),
    pytest.param(KNOWN, {}, paused(1, 61), Outcome.FAILED, "spool is full", id="a pause that does not end"),
]


@pytest.mark.parametrize(("known", "settings", "samples", "outcome", "words"), DRAINS)
def test_drain_ends_with_the_last_sample_and_not_before(known, settings, samples, outcome, words):
    drain = Drain(60, 0, **settings)
    for depth in known:
        drain.record(0, depth)

    *before, end = [drain.update(sample, second) for second, sample in samples]

    assert not any(before)
    assert (end and end.outcome) is outcome
    assert words in (end.reason if end else "")


def test_time_of_the_query_is_not_idle():
    drain = Drain(60, 0)
    drain.record(0, KNOWN[0])

    assert not drain.update(DepthSample(4), 1)
    drain.begin(1000)
    assert not drain.update(DepthSample(4), 1059)
    assert drain.update(DepthSample(4), 1061)


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
        pytest.param({"waiting": None, "idle": 99, "read": 0}, False, id="nothing is read"),
    ],
)
def test_trigger_is_due_for_facts(facts, due):
    assert EmptyBatchTrigger().is_due(**{"read": 100, "now": 0, "is_paused": False, **facts}) is due


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
