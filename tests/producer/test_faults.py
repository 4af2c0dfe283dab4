"""Faults between a producer and nsqds, and the outcomes of publishes."""

import logging

import gevent
import pytest

from fakensqd import FakeNsqd, on
from fakensqd.faults import disconnect, drop, error, inject
from fakensqd.faults.toxics import bandwidth, stall
from gnsq.errors import (
    NSQNoConnections,
    NSQNotSent,
    NSQNotSentTimeout,
    NSQPubFailed,
    NSQUnknown,
    NSQUnknownClosed,
    NSQUnknownTimeout,
)
from gnsq.protocol.frames import RESPONSE, encode_frame
from tests.kit import first_of
from tests.producer.conftest import stored


def outcomes(jobs):
    return [job.outcome for job in jobs]


def held_once(jobs, *nsqds):
    """Check that nsqds have stored each confirmed message once, and no refused or unsent one."""
    bodies = stored(*nsqds)
    return all(
        bodies.count(job.body) == (1 if job.outcome == "confirmed" else 0) for job in jobs if job.outcome != "unknown"
    )


# --- answers that do not come -----------------------------------------------------------------------------------------


def test_publish_whose_answer_is_lost_is_unknown(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    nsqd.add(on.reply("PUB").nth(3), disconnect())

    jobs = []
    for number in range(4):
        jobs.append(begin(producer.publish, "t", b"%d" % number))
        clock.advance(1.0)

    assert outcomes(jobs) == ["confirmed", "confirmed", "unknown", "confirmed"]
    assert isinstance(jobs[2].error, NSQUnknownClosed)
    assert stored(nsqd) == [b"0", b"1", b"2", b"3"]


def test_with_allow_duplicates_a_lost_publish_is_sent_again(nsqd, clock, producing, begin):
    producer = producing(nsqd, allow_duplicates=True)
    nsqd.add(on.reply("PUB"), disconnect())

    job = begin(producer.publish, "t", b"x")
    clock.advance(1.0)

    assert job.outcome == "confirmed"
    assert stored(nsqd) == [b"x", b"x"]
    assert producer.stats().possibly_duplicated == 1


def test_lost_publish_that_can_not_be_sent_again_stays_unknown(nsqd, clock, producing, begin):
    producer = producing(nsqd, allow_duplicates=True)
    nsqd.add(on.reply("PUB"), disconnect())
    nsqd.add(on.connect().always(), disconnect())

    job = begin(producer.publish, "t", b"x", timeout=3.0)
    clock.advance(5.0)

    assert isinstance(job.error, NSQUnknown)
    assert "it was sent before" in str(job.error)
    assert stored(nsqd) == [b"x"]


def test_publish_to_a_silent_nsqd_ends_by_its_deadline(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    nsqd.link.add(stall(), upstream=False)

    jobs = [begin(producer.publish, "t", b"%d" % number, timeout=2.0) for number in range(3)]
    clock.advance(1.99)
    assert outcomes(jobs) == [None, None, None]
    clock.advance(0.02)

    assert outcomes(jobs) == ["unknown", "not sent", "not sent"]
    assert isinstance(jobs[0].error, NSQUnknownTimeout)
    assert "publish not answered within 2 s; nsqd may have it" in str(jobs[0].error)
    assert isinstance(jobs[1].error, NSQNotSentTimeout)
    nsqd.link.clear()
    clock.advance(1.0)
    assert stored(nsqd) == [b"0"]


@pytest.mark.parametrize("batching", [{}, {"batch_messages": 2}], ids=["alone", "in batches"])
def test_late_answer_confirms_no_other_publish(nsqd, clock, producing, begin, batching):
    producer = producing(nsqd, **batching)
    begin(producer.publish, "t", b"first")
    clock.advance(1.0)
    with nsqd.link.add(stall(), upstream=False):
        late = [begin(producer.publish, "t", b"late%d" % number, timeout=1.0) for number in range(2)]
        clock.advance(2.0)
        good = [begin(producer.publish, "t", b"good%d" % number) for number in range(2)]

    clock.advance(1.0)

    assert outcomes(late) == ["unknown", "unknown"]
    assert outcomes(good) == ["confirmed", "confirmed"]
    assert producer.stats().pending == 0


def test_publish_without_a_response_by_its_deadline_ends_the_connection(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    begin(producer.publish, "t", b"first")
    clock.advance(1.0)
    nsqd.add(on.reply("PUB"), drop())

    lost = begin(producer.publish, "t", b"x", timeout=60.0)
    clock.advance(30.0)
    assert (lost.outcome, len(nsqd.transcript.select("connect"))) == (None, 1)
    unsent = begin(producer.publish, "t", b"larger than what nsqd has confirmed")
    # Heartbeats count as a word from nsqd, so the connection ends up to 5 s after the deadline.
    clock.advance(38.0)
    after = begin(producer.publish, "t", b"after")
    clock.advance(1.0)

    assert (lost.outcome, unsent.outcome, after.outcome) == ("unknown", "confirmed", "confirmed")
    assert len(nsqd.transcript.select("connect")) == 2
    assert stored(nsqd) == [b"first", b"x", b"larger than what nsqd has confirmed", b"after"]


def test_lost_response_lets_no_response_confirm_another_publish_after_the_deadline(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    begin(producer.publish, "t", b"first")
    clock.advance(1.0)
    nsqd.add(on.reply("PUB"), drop())

    jobs = [begin(producer.publish, "t", b"%d" % number, timeout=limit) for number, limit in enumerate([2, 60])]
    nsqd.add(on.reply("PUB"), drop())
    clock.advance(2.5)
    good = begin(producer.publish, "t", b"good")
    clock.advance(5.0)

    assert outcomes(jobs) == ["unknown", "unknown"]
    assert "a publish got no response within its timeout of 2 s; nsqd may have the publish to t" in str(jobs[1].error)
    assert good.outcome == "confirmed"
    assert stored(nsqd) == [b"first", b"0", b"1", b"good"]


def test_response_other_than_ok_ends_the_connection_and_confirms_nothing(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    begin(producer.publish, "t", b"first")
    clock.advance(1.0)
    nsqd.add(on.reply("PUB"), inject(encode_frame(RESPONSE, b"WHAT")))

    jobs = [begin(producer.publish, "t", b"%d" % number) for number in range(3)]
    clock.advance(1.0)
    after = begin(producer.publish, "t", b"after")
    clock.advance(1.0)

    assert outcomes(jobs) == ["unknown"] * 3
    assert "response b'WHAT' to a publish, expected OK" in str(jobs[0].error)
    assert after.outcome == "confirmed"
    assert producer.stats().pending == 0


def test_response_other_than_ok_after_the_deadline_is_not_counted_twice(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    nsqd.add(on.reply("PUB"), inject(encode_frame(RESPONSE, b"WHAT")))
    with nsqd.link.add(stall(), upstream=False):
        job = begin(producer.publish, "t", b"x", timeout=1.0)
        clock.advance(2.0)

    clock.advance(1.0)

    assert job.outcome == "unknown"
    assert (producer.stats().pending, producer.stats().pending_bytes) == (0, 0)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refused_publish_that_is_not_sent_again_in_time_stays_refused(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    nsqd.add(on.command("PUB"), error("E_PUB_FAILED"))
    nsqd.add(on.connect().always(), disconnect())

    job = begin(producer.publish, "t", b"x", timeout=3.0)
    clock.advance(3.1)

    assert isinstance(job.error, NSQPubFailed)


@pytest.mark.parametrize("batching", [{}, {"batch_messages": 2}], ids=["alone", "in batches"])
def test_nsqd_that_always_fails_costs_no_publish_if_two_others_run(nsqds, clock, producing, begin, batching):
    producer = producing(*nsqds, strategy=first_of(nsqds), connections_per_nsqd=3, **batching)
    nsqds[0].add(on.command("PUB").always(), error("E_PUB_FAILED"), optional=True)
    nsqds[0].add(on.command("MPUB").always(), error("E_MPUB_FAILED"), optional=True)

    jobs = []
    for number in range(20):
        jobs.append(begin(producer.publish, "t", b"%d" % number))
        if number % 2:
            clock.advance(0.5)

    assert outcomes(jobs) == ["confirmed"] * 20
    assert held_once(jobs, *nsqds)


@pytest.mark.parametrize(("timeout", "outcome"), [(60.0, "refused"), (1.0, "unknown")], ids=["refused", "expired"])
def test_member_of_a_batch_is_not_refused_for_another_one(clock, producing, begin, timeout, outcome):
    with FakeNsqd(clock=clock, record=True, max_msg_size=1000) as nsqd:
        producer = producing(nsqd, batch_messages=2)
        with nsqd.link.add(stall(), upstream=True):
            bad = begin(producer.publish, "t", b"x" * 1001, timeout=timeout)
            good = begin(producer.publish, "t", b"good")
            clock.advance(2.0)

        clock.advance(1.0)

        assert outcomes([bad, good]) == [outcome, "confirmed"]
        assert stored(nsqd) == [b"good"]


def test_strategy_that_raises_fails_its_publish_alone(nsqd, clock, producing, begin):
    calls = []

    def choose(links):
        calls.append(links)
        return links["bad" if len(calls) == 2 else 0]

    producer = producing(nsqd, strategy=choose)
    nsqd.down()
    clock.advance(0.1)
    jobs = [begin(producer.publish, "t", b"%d" % number) for number in range(3)]

    nsqd.up()
    clock.advance(2.0)

    assert outcomes(jobs) == ["confirmed", "not sent", "confirmed"]
    assert "strategy can't choose: TypeError" in str(jobs[1].error)
    assert producer.stats().pending == 0


# --- nsqds that are down, slow or stalled -----------------------------------------------------------------------------


def test_publishes_wait_for_an_nsqd_that_is_down(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    nsqd.down()
    clock.advance(0.1)
    patient = [begin(producer.publish, "t", b"%d" % number) for number in range(5)]
    hasty = begin(producer.publish, "t", b"hasty", timeout=10.0)
    clock.advance(10.01)
    assert isinstance(hasty.error, NSQNoConnections)
    clock.advance(20.0)
    assert outcomes(patient) == [None] * 5

    nsqd.up()
    clock.advance(2.0)

    assert outcomes(patient) == ["confirmed"] * 5
    assert stored(nsqd) == [b"0", b"1", b"2", b"3", b"4"]


def test_publish_that_waits_does_not_wait_long_for_the_next_attempt(nsqd, clock, producing, begin):
    producer = producing(nsqd, reconnect_initial=60.0, reconnect_maximum=60.0)
    nsqd.down()
    clock.advance(0.1)
    nsqd.up()

    job = begin(producer.publish, "t", b"x", timeout=10.0)
    clock.advance(1.1)

    assert outcomes([job]) == ["confirmed"]


def test_publishers_wait_for_capacity_of_a_slow_link_until_their_deadline(nsqd, clock, producing, begin):
    producer = producing(nsqd, max_pending_bytes=2000)
    begin(producer.publish, "t", b"y" * 500)
    clock.advance(1.0)

    most = []
    with nsqd.link.add(bandwidth(1000), upstream=True):
        jobs = [begin(producer.publish, "t", b"%03d" % number + b"x" * 497, timeout=5.0) for number in range(20)]
        for _ in range(51):
            clock.advance(0.1)
            most.append(producer.stats().pending_bytes)

        assert None not in outcomes(jobs)
    clock.advance(10.0)

    assert max(most) <= 2000
    assert outcomes(jobs).count("confirmed") in range(6, 11)
    assert "max_pending_bytes is 2000" in str(jobs[-1].error)
    assert held_once(jobs, nsqd)
    assert producer.stats().pending_bytes == 0


def test_publish_without_block_and_capacity_is_not_sent(nsqd, clock, producing, begin):
    producer = producing(nsqd, max_pending_bytes=1)
    nsqd.stop_reading()
    begin(producer.publish, "t", b"x")

    job = begin(producer.publish, "t", b"y", block=False)

    assert isinstance(job.error, NSQNotSentTimeout)
    assert "no capacity now" in str(job.error)


def test_stalled_nsqd_is_used_if_there_is_no_other(nsqds, clock, producing, begin):
    producer = producing(*nsqds[:2], strategy=first_of(nsqds))
    with nsqds[0].link.add(stall(), upstream=False):
        jobs = [begin(producer.publish, "t", b"%d" % number) for number in range(2)]
        clock.advance(8.0)
        nsqds[1].down()
        clock.advance(0.1)
        jobs.append(begin(producer.publish, "t", b"2"))

    clock.advance(1.0)

    assert outcomes(jobs) == ["confirmed"] * 3
    assert [stored(nsqds[0]), stored(nsqds[1])] == [[b"0", b"2"], [b"1"]]


def test_stalled_nsqd_of_three_gets_no_publishes_until_it_answers(nsqds, clock, producing, begin):
    producer = producing(*nsqds)
    with nsqds[0].link.add(stall()):
        jobs = [begin(producer.publish, "t", b"a%d" % number) for number in range(9)]
        clock.advance(8.0)
        # What was sent to it waits, what was not is with the others.
        assert outcomes(jobs).count(None) == 1
        jobs += [begin(producer.publish, "t", b"b%d" % number) for number in range(9)]
        clock.advance(1.0)
        assert outcomes(jobs).count(None) == 1
        assert [link.stalled for link in producer.stats().connections].count(True) == 1

    clock.advance(5.0)
    jobs += [begin(producer.publish, "t", b"c%d" % number) for number in range(9)]
    clock.advance(1.0)

    assert outcomes(jobs) == ["confirmed"] * 27
    assert len(stored(nsqds[0])) == 4
    assert held_once(jobs, *nsqds)


def test_members_of_a_batch_keep_their_own_deadlines(nsqd, clock, producing, begin):
    producer = producing(nsqd, batch_messages=3)
    nsqd.down()
    clock.advance(0.1)
    jobs = [begin(producer.publish, "t", b"%d" % number, timeout=limit) for number, limit in enumerate([1.0, 3.0, 60])]

    clock.advance(1.01)
    assert outcomes(jobs) == ["not sent", None, None]
    clock.advance(2.0)
    assert outcomes(jobs) == ["not sent", "not sent", None]
    nsqd.up()
    clock.advance(2.0)

    assert outcomes(jobs) == ["not sent", "not sent", "confirmed"]


def test_member_whose_deadline_comes_while_its_batch_fills_is_not_sent(nsqd, clock, producing, begin):
    producer = producing(nsqd, batch_messages=100, batch_linger=5.0)
    hasty = begin(producer.publish, "t", b"hasty", timeout=1.0)

    clock.advance(2.0)
    patient = begin(producer.publish, "t", b"patient")
    clock.advance(6.0)

    assert isinstance(hasty.error, NSQNotSentTimeout)
    assert "batch_linger is longer" in str(hasty.error)
    assert patient.outcome == "confirmed"
    # A batch without any other member is not sent at all.
    begin(producer.publish, "t", b"alone", timeout=1.0)
    clock.advance(6.0)
    assert stored(nsqd) == [b"patient"]
    assert producer.stats().pending == 0


def test_batch_is_sent_while_another_publish_waits_for_its_capacity(nsqd, clock, producing, begin):
    producer = producing(nsqd, max_pending_bytes=40, batch_messages=100, batch_linger=50.0)

    jobs = [begin(producer.publish, "t", b"%d" % number * 8) for number in range(9)]
    clock.advance(0.1)

    assert outcomes(jobs) == ["confirmed"] * 8 + [None]
    assert nsqd.transcript.select("command", name="MPUB")


# --- the end ----------------------------------------------------------------------------------------------------------


def test_close_returns_unconfirmed_publishes_with_their_errors(nsqd, clock, producing, begin):
    producer = producing(nsqd, max_pending_bytes=30)
    begin(producer.publish, "t", b"first")
    clock.advance(1.0)
    nsqd.link.add(stall())
    jobs = [begin(producer.publish, "t", body) for body in [b"sent", b"12345", b"waits for capacity"]]
    jobs += [begin(producer.publish, "t", b"7", defer=500), begin(producer.multipublish, "t", [b"5", b"6"])]

    closing = gevent.spawn(producer.close, 3.0)
    clock.advance(3.1)

    assert closing.ready()
    unconfirmed = {tuple(each.bodies): each for each in closing.get()}
    assert set(unconfirmed) == {(b"sent",), (b"12345",), (b"waits for capacity",), (b"7",), (b"5", b"6")}
    assert isinstance(unconfirmed[b"sent",].error, NSQUnknown)
    assert isinstance(unconfirmed[b"waits for capacity",].error, NSQNotSent)
    assert isinstance(unconfirmed[b"5", b"6"].error, NSQNotSent)
    assert {each.defer for each in unconfirmed.values() if each.bodies == [b"7"]} == {500}
    assert outcomes(jobs) == ["unknown", "unknown", "not sent", "not sent", "not sent"]


def test_close_sends_batches_that_fill_and_those_that_must_be_sent_again(nsqd, clock, producing, begin):
    producer = producing(nsqd, batch_messages=10, batch_linger=100.0)
    jobs = [begin(producer.publish, "t", b"%d" % number) for number in range(5)]
    nsqd.add(on.command("MPUB"), error("E_MPUB_FAILED"))
    clock.advance(1.0)
    assert outcomes(jobs) == [None] * 5

    closing = gevent.spawn(producer.close, 5.0)
    clock.advance(1.0)

    assert closing.get(block=False) == []
    assert outcomes(jobs) == ["confirmed"] * 5


def test_flush_returns_after_all_callers_were_woken(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    results = []

    def publish_and_flush():
        result = producer.publish_async("t", b"x")
        job = gevent.spawn(result.get)
        while producer.stats().connections[0].pending:
            gevent.sleep(0)
        results.extend([producer.flush(1.0), result.ready(), producer.stats().pending])
        job.kill()

    gevent.spawn(publish_and_flush)
    clock.advance(1.0)

    assert results == [True, True, 0]


def test_flush_says_when_its_time_is_over(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    nsqd.stop_reading()
    begin(producer.publish, "t", b"x")

    flushing = gevent.spawn(producer.flush, 2.0)
    clock.advance(2.1)

    assert flushing.get(block=False) is False


# --- those who do not wait to the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["waiting for the answer", "waiting for capacity"])
def test_publish_that_fails_after_its_greenlet_was_killed_is_logged(
    nsqd, clock, producing, begin, caplog, asynchronous
):
    producer = producing(nsqd, max_pending_bytes=1)
    nsqd.stop_reading()
    begin(producer.publish, "t", b"before", timeout=10.0)
    job = begin(producer.publish_async if asynchronous else producer.publish, "t", b"x", timeout=1.0)
    job.kill()

    with caplog.at_level(logging.WARNING, "gnsq.producer"):
        clock.advance(2.0)

    assert "a publish to t failed, and its caller no longer waits for it" in caplog.text


@pytest.mark.parametrize("batching", [{}, {"batch_messages": 3}], ids=["alone", "in batches"])
def test_greenlet_that_raises_when_woken_does_not_stop_the_others_from_being_woken(
    nsqd, clock, producing, begin, batching, capsys
):
    producer = producing(nsqd, **batching)

    def raise_behind_it():
        producer.publish("t", b"0")
        raise ValueError("of a greenlet without an owner")

    gevent.spawn_raw(raise_behind_it)
    jobs = [begin(producer.publish, "t", b"%d" % number) for number in (1, 2)]
    clock.advance(1.0)

    assert outcomes(jobs) == ["confirmed", "confirmed"]
    stats = producer.stats()
    assert (stats.pending, stats.confirmed, stats.latency.count) == (0, 3, 3)
    assert "of a greenlet without an owner" in capsys.readouterr().err


# --- other connections ------------------------------------------------------------------------------------------------
