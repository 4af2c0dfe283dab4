"""BackoffTimer, exponential_delay() and ConsumerBackoff."""

import pytest

from gnsq.backofftimer import BackoffPhase, BackoffTimer, ConsumerBackoff, exponential_delay


def test_new_backoff_timer_does_not_wait_and_success_subtracts_one_failure_down_to_zero():
    timer = BackoffTimer()

    assert timer.is_reset()
    assert timer.get_interval() == 0
    assert timer.failure().failure().success().c == 1
    assert timer.success().success().c == 0
    assert timer.failure().reset().is_reset()


@pytest.mark.parametrize(
    ("options", "failures", "least", "most"),
    [({"ratio": 2}, 3, 0, 14), ({"max_interval": 5, "min_interval": 4}, 2000, 4, 5)],
    ids=["a part of the power", "within its limits"],
)
def test_interval_is_random(options, failures, least, most):
    timer = BackoffTimer(**options)
    for _ in range(failures):
        timer.failure()

    assert all(least <= timer.get_interval() <= most for _ in range(100))


@pytest.mark.parametrize(("failures", "delay"), [(1, 8), (2, 16), (3, 32), (5, 128), (6, 128), (10_000, 128)])
def test_exponential_delay_doubles_up_to_the_maximum(failures, delay):
    assert exponential_delay(failures, 8, 128) == delay


def test_failures_beyond_the_longest_pause_are_not_counted():
    backoff = ConsumerBackoff(lambda failures: 2.0 ** (failures - 1), 4.0)
    now = 0.0
    for _ in range(10):
        backoff.record_failure(now)
        now = backoff.until
        backoff.update(now)

    assert backoff.failures == 3
    assert [backoff.record_success(now), backoff.phase, backoff.duration] == [True, BackoffPhase.WAITING, 2.0]


def test_jitter_shortens_a_pause_by_up_to_its_share():
    durations = set()
    for _ in range(100):
        backoff = ConsumerBackoff(lambda failures: 10.0, 100.0, jitter=0.3)
        backoff.record_failure(0.0)
        durations.add(backoff.duration)

    assert all(7.0 <= duration <= 10.0 for duration in durations)
    assert len(durations) > 1
