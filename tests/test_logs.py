"""Rate limits of log lines, by owner."""

import logging

from gnsq.logs import MAX_KINDS, LogOwner, RateLimitedLogger


def test_owners_are_limited_apart(clock, caplog):
    logger = logging.getLogger("gnsq.test")
    for label in ("one", "one", "two"):
        owner = LogOwner(label, clock.monotonic)
        owner.rate_limited(logger).log(logging.WARNING, "kind", "%s", label)

    assert caplog.messages == ["one", "one", "two"]


def test_lines_of_one_owner_are_limited_together(clock, caplog):
    logger, owner = logging.getLogger("gnsq.test"), LogOwner("one", clock.monotonic)
    for number in range(3):
        owner.rate_limited(logger).log(logging.WARNING, "kind", "%d", number)
    clock.advance(61.0)
    owner.rate_limited(logger).log(logging.WARNING, "kind", "%d", 3)

    assert caplog.messages == ["0", "3 (and 2 like it since the last such line)"]


def test_kinds_of_lines_are_not_kept_for_ever(clock):
    repeats = RateLimitedLogger(logging.getLogger("gnsq.test"), clock.monotonic)
    for number in range(10 * MAX_KINDS):
        repeats.log(logging.DEBUG, f"kind {number}", "x")
        clock.advance(1.0)

    assert len(repeats._kinds) <= MAX_KINDS
