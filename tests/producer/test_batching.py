"""Batches: when they are sent, and the outcomes of their members."""

import pytest

from fakensqd import FakeNsqd, on
from fakensqd.faults import error
from gnsq.producer.batching import Batcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import PendingPublish, WaitingFor
from tests.producer.conftest import stored

# --- when it is sent


@pytest.mark.parametrize("size", [92, 93, 5000], ids=["just full", "fuller by a byte", "longer than any batch"])
def test_full_batch_does_not_wait_for_more(nsqd, clock, producing, begin, size):
    producer = producing(nsqd, batch_messages=100, batch_bytes=100, batch_linger=50.0)

    job = begin(producer.publish, "t", b"x" * size)
    clock.advance(1.0)

    assert job.outcome == "confirmed"


def test_batch_is_sent_before_a_publish_that_does_not_fit(nsqd, clock, producing, begin):
    producer = producing(nsqd, batch_messages=100, batch_bytes=100, batch_linger=50.0)

    jobs = [begin(producer.publish, "t", bytes([number]) * 40) for number in (1, 2, 3)]
    clock.advance(1.0)

    assert [job.outcome for job in jobs] == ["confirmed", "confirmed", None]
    assert len(nsqd.transcript.select("command", name="MPUB")) == 1


def test_batches_keep_within_the_body_size_that_nsqd_allows(clock, producing, begin):
    with FakeNsqd(clock=clock, record=True, max_msg_size=200, max_body_size=500) as nsqd:
        producer = producing(nsqd, batch_messages=100, max_body_size=500)

        # 4 bytes of each one's length and 4 of their number: 8 of 58 bytes are 500.
        jobs = [begin(producer.publish, "t", b"%02d" % number + b"x" * 56) for number in range(17)]
        clock.advance(1.0)

        assert [job.outcome for job in jobs] == ["confirmed"] * 17
        assert len(nsqd.transcript.select("connect")) == 1
        assert len(nsqd.transcript.select("command", name="MPUB")) == 2


# --- what its members end as


@pytest.mark.parametrize("code", ["E_UNAUTHORIZED", "E_BAD_TOPIC"])
def test_batch_whose_topic_is_refused_is_not_tried_one_by_one(nsqd, clock, producing, begin, code):
    producer = producing(nsqd, batch_messages=5)
    nsqd.add(on.command("MPUB"), error(code))

    jobs = [begin(producer.publish, "t", b"%d" % number) for number in range(5)]
    clock.advance(1.0)

    assert [job.outcome for job in jobs] == ["refused"] * 5
    assert len(nsqd.transcript.select("connect")) == 2
    assert stored(nsqd) == []


def test_members_of_a_refused_batch_have_errors_of_their_own(nsqd, clock, producing, begin):
    producer = producing(nsqd, batch_messages=3)
    nsqd.add(on.command("MPUB").always(), error("E_MPUB_FAILED", "MPUB failed exiting"))

    jobs = [begin(producer.publish, "t", b"%d" % number) for number in range(3)]
    clock.advance(3.0)

    assert {job.error.reason for job in jobs} == {"E_MPUB_FAILED MPUB failed exiting"}
    assert len({id(job.error) for job in jobs}) == 3


def test_members_that_expire_after_sending_hold_no_bytes(clock, dispatcher, link):
    batcher = Batcher(link.submit, ProducerOptions(batch_messages=2), clock)
    hasty, patient = PendingPublish("t", b"hasty", 0.0, 1.0), PendingPublish("t", b"patient", 0.0, 9.0)
    for member in (hasty, patient):
        member.owner = dispatcher
        batcher.add(member)
    (batch,) = link.send()

    dispatcher.expire(batch, WaitingFor.RESPONSE, 1.0)

    assert hasty.done
    assert (hasty.body, patient.body, batch.bodies) == (b"", b"patient", ())
    assert batch.deadline == 9.0
    assert list(batcher.waiting()) == []
