"""The output buffer: what is kept back, for how long, and how much leaves."""

import math

import pytest

from fakensqd.nsqd.session import Output


def message(output, size):
    output.frames.append(b"m" * size)
    output.add([size])


def test_what_is_no_message_takes_all_with_it():
    output = Output(0.0)
    message(output, 50)
    output.hold(0.0, 0, 1000)
    assert output.take() == b""

    output.respond(b"OK")

    assert output.take() == b"m" * 50 + b"OK"
    assert (output.take(), output.due) == (b"", math.inf)


def test_a_message_waits_for_the_ticker():
    output = Output(0.0)
    output.start(10.0)
    message(output, 50)
    output.hold(10.3, 1.0, 1000)
    assert (output.take(), output.due) == (b"", 11.0)
    output.tick(10.9, 1.0)
    assert output.take() == b""

    output.tick(11.0, 1.0)

    assert len(output.take()) == 50
    message(output, 50)
    output.hold(11.1, 1.0, 1000)
    assert (output.take(), output.due) == (b"", 12.0)


def test_a_tick_that_nobody_waited_for_lets_the_first_message_go():
    output = Output(0.0)
    message(output, 50)
    output.hold(3.4, 1.0, 1000)
    assert len(output.take()) == 50

    message(output, 50)
    output.hold(3.5, 1.0, 1000)

    assert (output.take(), output.due) == (b"", 4.0)


# Sizes of frames, and how many bytes leave a buffer of 64; as Go's bufio.Writer has it.
FULL = [
    pytest.param([64], 0, id="just full"),
    pytest.param([65], 64, id="one more"),
    pytest.param([54] * 4, 192, id="whole buffers"),
    pytest.param([1000], 1000, id="the rest of a large one goes straight"),
    pytest.param([60, 4 + 4 + 200], 268, id="a large one behind another"),
    pytest.param([64, 8], 64, id="a header"),
]


@pytest.mark.parametrize(("sizes", "left"), FULL)
def test_whole_buffers_leave(sizes, left):
    output = Output(0.0)
    for size in sizes:
        message(output, size)
    output.hold(0.0, 0, 64)

    assert len(output.take()) == left

    output.flush()
    assert len(output.take()) == sum(sizes) - left


def test_the_ticker_goes_on_when_a_full_buffer_has_left():
    output = Output(0.0)
    message(output, 100)
    output.hold(0.1, 1.0, 64)

    assert (len(output.take()), output.due) == (64, 1.0)
    output.tick(1.0, 1.0)
    assert len(output.take()) == 36


def test_without_a_ticker_nothing_is_due():
    output = Output(0.0)
    message(output, 50)

    output.hold(5.0, 0, 1000)

    assert output.due == math.inf


def test_what_goes_through_a_tap_is_counted_only():
    output = Output(0.0)
    output.add([50])
    output.hold(0.0, 0, 64)
    assert not output.drain()
    output.add([50])
    output.hold(0.0, 0, 64)

    assert output.drain()
    assert not output.drain()
