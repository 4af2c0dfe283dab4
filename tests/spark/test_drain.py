from gnsq.spark.drain import Depth, Drain, Unattended

EMPTY = Depth(0, 0, 0)
BUSY = Depth(5, 5, 0)


def test_depth_counts_what_can_come_soon():
    assert Depth(waiting=3, in_flight=2, deferred=7).total == 5


def test_done_when_what_was_there_has_come():
    drain = Drain(10, 60, now=0)

    assert not drain.is_done(9, BUSY, 1)
    assert "at the start" in drain.is_done(10, BUSY, 2)


def test_nothing_at_the_start_is_done_at_once():
    assert Drain(0, 60, now=0).is_done(0, None, 0)


def test_empty_channel_has_to_be_seen_twice():
    drain = Drain(10, 60, now=0)

    assert not drain.is_done(4, EMPTY, 1)
    assert "empty" in drain.is_done(4, EMPTY, 1.2)


def test_message_between_two_looks_begins_anew():
    drain = Drain(10, 60, now=0)

    assert not drain.is_done(4, EMPTY, 1)
    assert not drain.is_done(5, EMPTY, 1.2)
    assert drain.is_done(5, EMPTY, 1.4)


def test_busy_channel_between_two_looks_begins_anew():
    drain = Drain(10, 60, now=0)

    assert not drain.is_done(4, EMPTY, 1)
    assert not drain.is_done(4, BUSY, 1.2)
    assert not drain.is_done(4, EMPTY, 1.4)


def test_looks_that_were_not_taken_prove_nothing():
    drain = Drain(10, 60, now=0)

    drain.is_done(4, EMPTY, 1)
    assert not any(drain.is_done(4, None, 1 + second) for second in range(50))


def test_without_statistics_silence_is_the_end():
    drain = Drain(None, 60, now=0, askable=False)

    assert not drain.is_done(4, None, 1)
    assert not drain.is_done(4, None, 2.9)
    assert "nothing has come" in drain.is_done(4, None, 3)


def test_messages_that_never_come_are_left():
    drain = Drain(10, 60, now=0)

    drain.is_done(4, BUSY, 1)
    assert not drain.is_done(4, BUSY, 60)
    assert "not known to be empty" in drain.is_done(4, BUSY, 61)


def test_statistics_that_fail_are_waited_for():
    drain = Drain(None, 60, now=0)

    assert not drain.is_done(0, None, 59)
    assert "not known to be empty" in drain.is_done(0, None, 60)


def test_first_answer_says_what_was_there():
    drain = Drain(None, 60, now=0)

    assert not drain.is_done(4, BUSY, 1)
    assert not drain.is_done(13, BUSY, 2)
    assert "at the start" in drain.is_done(14, BUSY, 3)


def test_unattended_channel_is_told_of_now_and_then():
    waiting = Depth(1, 0, 0, consumers=0)
    unattended = Unattended(now=0)

    told = [second for second in range(150) if unattended.is_due(waiting, second)]

    assert told == [10, 70, 130]


def test_channel_is_not_unattended_while_somebody_receives_or_nothing_waits():
    unattended = Unattended(now=0)
    fine = [Depth(1, 0, 0, consumers=1), Depth(0, 9, 9), None]

    assert not any(unattended.is_due(depth, 20) for depth in fine)
    # From here on it begins anew.
    assert not unattended.is_due(Depth(1, 0, 0), 29)
    assert unattended.is_due(Depth(1, 0, 0), 30)
