"""Data of a publish, and the rules that decide how it ends."""

import pytest

from gnsq.errors import (
    NSQBadMessage,
    NSQBadTopic,
    NSQConnectionClosed,
    NSQDPubFailed,
    NSQMPubFailed,
    NSQPubFailed,
    NSQUnauthorized,
)
from gnsq.producer.publish import (
    Decision,
    DeferredPublish,
    Failure,
    MultiPublish,
    PendingPublish,
    copy_error,
    decide,
    is_topic_error,
)

EXITING = NSQPubFailed("PUB failed exiting")
FULL_DISK = NSQMPubFailed("MPUB failed write: no space left on device")
TOO_BIG = NSQBadMessage("PUB message too big")
CLOSED = NSQConnectionClosed("nsqd closed the connection")


@pytest.mark.parametrize(
    ("error", "refusals", "nsqds", "decision"),
    [
        pytest.param(EXITING, 0, 1, Decision.RETRY, id="the only nsqd gets a second try"),
        pytest.param(EXITING, 1, 1, Decision.REFUSED, id="and no third"),
        pytest.param(NSQDPubFailed("DPUB failed exiting"), 1, 3, Decision.RETRY, id="each of three is tried"),
        pytest.param(EXITING, 2, 3, Decision.REFUSED, id="once"),
        pytest.param(TOO_BIG, 0, 3, Decision.REFUSED, id="a bad message is bad everywhere"),
        pytest.param(FULL_DISK, 0, 3, Decision.UNKNOWN, id="some messages may be stored"),
        pytest.param(NSQPubFailed(FULL_DISK.text), 0, 3, Decision.RETRY, id="a single one is whole"),
        pytest.param(NSQMPubFailed("MPUB failed exiting"), 0, 3, Decision.RETRY, id="an nsqd that exits has none"),
    ],
)
def test_refused_publish_is_retried_on_each_nsqd_if_the_error_concerns_the_nsqd(error, refusals, nsqds, decision):
    assert decide(Failure.REFUSED, error, refusals=refusals, nsqds=nsqds) is decision


@pytest.mark.parametrize(
    ("failure", "error", "options", "decision"),
    [
        pytest.param(Failure.NOT_EXECUTED, CLOSED, {}, Decision.RETRY, id="not executed"),
        pytest.param(Failure.NOT_EXECUTED, CLOSED, {"may_retry": False}, Decision.NOT_SENT, id="not executed, closed"),
        pytest.param(Failure.LOST, CLOSED, {}, Decision.UNKNOWN, id="lost"),
        pytest.param(
            *(Failure.LOST, CLOSED, {"allow_duplicates": True}, Decision.RETRY_POSSIBLY_DUPLICATED), id="lost, allowed"
        ),
        pytest.param(
            *(Failure.LOST, CLOSED, {"allow_duplicates": True, "may_retry": False}, Decision.UNKNOWN), id="lost, closed"
        ),
        pytest.param(
            *(Failure.REFUSED, FULL_DISK, {"allow_duplicates": True}, Decision.RETRY_POSSIBLY_DUPLICATED), id="partly"
        ),
        pytest.param(Failure.REFUSED, TOO_BIG, {"batch_size": 2}, Decision.RETRY_ALONE, id="one of a batch is bad"),
        pytest.param(Failure.REFUSED, TOO_BIG, {"batch_size": 1}, Decision.REFUSED, id="the only one is bad"),
        pytest.param(Failure.REFUSED, EXITING, {"batch_size": 2}, Decision.RETRY, id="a batch goes to another nsqd"),
        pytest.param(Failure.REFUSED, EXITING, {"may_retry": False}, Decision.REFUSED, id="refused, closed"),
    ],
)
def test_failed_publish_is_retried_or_ended(failure, error, options, decision):
    assert decide(failure, error, refusals=0, nsqds=1, **options) is decision


@pytest.mark.parametrize(
    ("error", "concerns_topic"),
    [
        pytest.param(NSQUnauthorized("AUTH failed for PUB"), True, id="not allowed"),
        pytest.param(NSQBadTopic("PUB topic name is not valid"), True, id="a bad name"),
        pytest.param(TOO_BIG, False, id="a bad message"),
        pytest.param(EXITING, False, id="an nsqd that exits"),
    ],
)
def test_errors_of_topics_differ_from_errors_of_messages(error, concerns_topic):
    assert is_topic_error(error) is concerns_topic


def test_copy_of_an_error_has_its_text_and_cause_and_no_traceback():
    try:
        raise NSQPubFailed("PUB failed exiting") from KeyError("cause")
    except NSQPubFailed as error:
        raised = error

    copied = copy_error(raised)

    assert (type(copied), str(copied), copied.text) == (NSQPubFailed, str(raised), raised.text)
    assert copied.__cause__ is raised.__cause__
    assert copied.__traceback__ is None


@pytest.mark.parametrize(
    "publish",
    [
        pytest.param(PendingPublish("topic", b"body", 0.0, 1.0), id="PUB"),
        pytest.param(DeferredPublish("topic", b"body", 500, 0.0, 1.0), id="DPUB"),
        pytest.param(MultiPublish("topic", [b"1", b"22"], 0.0, 1.0), id="MPUB"),
    ],
)
def test_size_of_a_publish_is_that_of_its_command(publish):
    assert publish.size == len(publish.encode())
    assert publish.largest_message == max(map(len, publish.bodies))
