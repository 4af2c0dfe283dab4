"""What is tried again, and what a refusal leaves open: decisions by values."""

import pytest

from gnsq.errors import (
    NSQBadMessage,
    NSQBadTopic,
    NSQDPubFailed,
    NSQMPubFailed,
    NSQPubFailed,
    NSQUnauthorized,
)
from gnsq.producer.publish import copied, forbids, is_about_the_topic, leaves_open, tries_elsewhere


@pytest.mark.parametrize(
    ("error", "refusals", "nsqds", "again"),
    [
        pytest.param(NSQPubFailed("PUB failed exiting"), 1, 1, True, id="the only nsqd gets a second try"),
        pytest.param(NSQPubFailed("PUB failed exiting"), 2, 1, False, id="and no third"),
        pytest.param(NSQDPubFailed("DPUB failed exiting"), 2, 3, True, id="each of three is tried"),
        pytest.param(NSQPubFailed("PUB failed exiting"), 3, 3, False, id="once"),
        pytest.param(NSQBadMessage("PUB message too big"), 1, 3, False, id="a bad message is bad everywhere"),
    ],
)
def test_what_an_nsqd_can_not_take_is_tried_elsewhere(error, refusals, nsqds, again):
    assert tries_elsewhere(error, refusals, nsqds) is again


@pytest.mark.parametrize(
    ("error", "left_open"),
    [
        pytest.param(NSQMPubFailed("MPUB failed exiting"), False, id="an nsqd that ends has taken none"),
        pytest.param(NSQMPubFailed("MPUB failed write: no space left on device"), True, id="a full disk, some"),
        pytest.param(NSQMPubFailed("POST /mpub: http error <503> EXITING"), True, id="HTTP says the same of both"),
        pytest.param(NSQPubFailed("PUB failed write: no space left on device"), False, id="a single one is whole"),
    ],
)
def test_refused_multipublish_may_have_been_taken_in_part(error, left_open):
    assert leaves_open(error) is left_open


@pytest.mark.parametrize(
    ("error", "about_the_topic", "forbidden"),
    [
        pytest.param(NSQUnauthorized("AUTH failed for PUB"), True, True, id="not allowed"),
        pytest.param(NSQBadTopic("PUB topic name is not valid"), True, False, id="a bad name, which HTTP tells, too"),
        pytest.param(NSQBadMessage("PUB message too big"), False, False, id="a bad message"),
        pytest.param(NSQPubFailed("PUB failed exiting"), False, False, id="an nsqd that ends"),
    ],
)
def test_refused_topic_is_told_from_a_refused_message(error, about_the_topic, forbidden):
    assert (is_about_the_topic(error), forbids(error)) == (about_the_topic, forbidden)


def test_copy_of_an_error_says_the_same_and_was_not_raised():
    try:
        raise NSQPubFailed("PUB failed exiting") from KeyError("cause")
    except NSQPubFailed as error:
        raised = error

    made = copied(raised)

    assert (type(made), str(made), made.text) == (NSQPubFailed, str(raised), raised.text)
    assert made.__cause__ is raised.__cause__
    assert made.__traceback__ is None
