"""What is tried again, and what a refusal leaves open: decisions by values."""

import pytest

from gnsq.errors import (
    NSQBadMessage,
    NSQDPubFailed,
    NSQMPubFailed,
    NSQPubFailed,
)
from gnsq.producer.outcomes import leaves_open, tries_elsewhere


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
