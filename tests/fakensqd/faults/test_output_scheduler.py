"""Order and time of what leaves a connection."""

import math

from fakensqd.effects import Close, ExpireMessage, Reset, Send, SendAfterNext, SendLater, Wait
from fakensqd.faults.interceptor import OutputScheduler


def test_what_is_ready_leaves_at_once_in_one_piece():
    line = OutputScheduler()
    line.put([Send(b"a"), ExpireMessage(b"id"), Send(b"b")], 0.0)

    assert (line.due, line.take(0.0)) == (math.inf, [Send(b"ab")])


def test_everything_waits_behind_a_wait():
    line = OutputScheduler()
    line.put([Send(b"a"), Wait(1.0), Send(b"b")], 0.0)
    line.put([Send(b"c"), Wait(1.0), Close()], 0.5)

    assert line.take(0.9) == [Send(b"a")]
    assert (line.due, line.blocked_until) == (1.0, 1.0)
    assert line.take(1.0) == [Send(b"bc")]
    assert line.due == 2.0
    assert line.take(2.0) == [Close()]


def test_what_is_late_alone_is_overtaken():
    line = OutputScheduler()
    line.put([SendLater(b"a", 1.0), Send(b"b")], 0.0)

    assert line.take(0.0) == [Send(b"b")]
    assert line.due == 1.0
    assert line.take(1.0) == [Send(b"a")]


def test_what_stands_behind_leaves_with_the_next_frame():
    line = OutputScheduler()
    line.put([SendAfterNext(b"a")], 0.0)
    assert line.take(0.0) == []

    line.put([Send(b"b")], 0.0)

    assert line.take(0.0) == [Send(b"ba")]


def test_nothing_comes_behind_the_end():
    line = OutputScheduler()
    line.put([SendLater(b"late", 1.0), SendAfterNext(b"a"), Reset(), Send(b"b")], 0.0)

    assert line.take(5.0) == [Send(b"a"), Reset()]
