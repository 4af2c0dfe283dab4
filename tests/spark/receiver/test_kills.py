"""Receivers killed at each step between nsqd and spool: only unfinished messages come twice."""

import pytest

from tests.kit import wait_for_program
from tests.spark.helpers import bodies_of, is_empty, numbered, publish
from tests.spark.kills import drain, receiver_process, run_until_killed

pytestmark = pytest.mark.subprocess


COUNT = 2000


def kill_at(point, nsqd, spool):
    """Run a receiver until it has killed itself; then nsqd delivers again what is not finished."""
    run_until_killed(point, nsqd, spool)
    nsqd.wait_until(lambda nsqd: len(nsqd.sessions), 0)
    # In place of the end of msg_timeout.
    nsqd.restart()


def duplicates(spool):
    bodies = bodies_of(spool)
    return len(bodies) - len(set(bodies))


def test_killed_before_its_segment_is_written(fakensqd, spool, hub):
    publish(fakensqd, "clicks", numbered(COUNT))

    kill_at("write", fakensqd, spool)
    drain(fakensqd, spool, hub)

    assert sorted(bodies_of(spool)) == numbered(COUNT)


def test_killed_between_segment_and_fin(fakensqd, spool, hub):
    publish(fakensqd, "clicks", numbered(COUNT))

    kill_at("durable", fakensqd, spool)
    twice = len(bodies_of(spool))
    drain(fakensqd, spool, hub)

    assert set(bodies_of(spool)) == set(numbered(COUNT))
    assert duplicates(spool) == twice > 0


def test_killed_between_its_fins(fakensqd, spool, hub):
    publish(fakensqd, "clicks", numbered(COUNT))

    kill_at("fins", fakensqd, spool)
    in_segment = len(bodies_of(spool))
    drain(fakensqd, spool, hub)

    assert set(bodies_of(spool)) == set(numbered(COUNT))
    assert duplicates(spool) == in_segment - in_segment // 2


def test_killed_after_its_fins(fakensqd, spool, hub):
    publish(fakensqd, "clicks", numbered(COUNT))

    with receiver_process(fakensqd, spool) as process:
        wait_for_program(process, lambda: is_empty(fakensqd, "clicks", "archive"))
        process.kill()
        process.wait()
    publish(fakensqd, "clicks", numbered(COUNT, first=COUNT))
    drain(fakensqd, spool, hub)

    assert sorted(bodies_of(spool)) == numbered(2 * COUNT)
