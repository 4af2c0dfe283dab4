"""Actions as functions, without a connection."""

import pytest

from fakensqd.effects import Close, Execute, ExpireMessage, HttpResponse, Send, Wait
from fakensqd.faults import actions
from fakensqd.faults.actions import answer, corrupt, delay, disconnect, drop, error, expire_message, inject
from fakensqd.faults.rules import Event, Point, Rule, on
from gnsq.protocol.frames import ERROR, encode_frame

EVENT = Event(Point.COMMAND, "FIN", 0.0, message_id=b"0123456789abcdef", raw=b"raw")
ANSWER = HttpResponse(200, b"OK")

CHANGES = [
    pytest.param(drop(), [Wait(1.0), Execute()], [Wait(1.0)], id="drop keeps earlier steps"),
    pytest.param(delay(0), [Execute()], [Wait(0), Execute()], id="delay of 0"),
    pytest.param(delay(1, alone=True), [Send(b"x"), Close()], [Send(b"x", 1), Close()], id="alone"),
    pytest.param(
        error("E_INVALID"), [Close()], [Send(encode_frame(ERROR, b"E_INVALID FIN failed")), Close()], id="one close"
    ),
    pytest.param(disconnect(), [Wait(1.0), Send(b"x"), Close()], [Wait(1.0), Close()], id="close once"),
    pytest.param(expire_message(), [Execute()], [ExpireMessage(b"0123456789abcdef"), Execute()], id="before a command"),
    pytest.param(corrupt("body"), [Execute()], [Execute(b"\x8daw")], id="a command's body"),
    pytest.param(corrupt("body"), [Execute(b"")], [Execute(b"\xff")], id="no body"),
    pytest.param(corrupt("body"), [ANSWER, Close()], [HttpResponse(200, b"\xb0K"), Close()], id="an answer's body"),
    pytest.param(corrupt("size", 9), [ANSWER], [HttpResponse(200, b"OK", size=9)], id="an answer's size"),
    pytest.param(corrupt("size", 0), [Send(b"\0\0\0\6\0\0\0\0OK")], [Send(b"\0\0\0\0\0\0\0\0OK")], id="a frame's size"),
    pytest.param(answer(404), [ANSWER, Close()], [ANSWER, Close()], id="answer has no meaning elsewhere"),
]


@pytest.mark.parametrize(("action", "steps", "changed"), CHANGES)
def test_action_changes_the_steps(action, steps, changed):
    event = EVENT if action.name != "answer" else Event(Point.HTTP_ANSWER, "/pub", 0.0)

    assert action(steps, event) == (changed if action.name != "answer" else [HttpResponse(404, b"OK"), Close()])


@pytest.mark.parametrize("code", ["E_FIN_FAILED", "E_TOUCH_FAILED"])
def test_error_has_the_text_of_nsqd(code):
    (step,) = error(code)([Execute()], EVENT)

    assert step.data[8:] == f"{code} {code[2:-7]} 0123456789abcdef failed ID not in flight".encode()


MISUSE = [
    pytest.param(lambda: error("E_NONE"), id="code"),
    pytest.param(lambda: delay(-1), id="delay"),
    pytest.param(lambda: delay("1s"), id="a text as delay"),
    pytest.param(lambda: actions.duplicate(0), id="duplicate"),
    pytest.param(lambda: corrupt("nothing"), id="corrupt"),
    pytest.param(lambda: inject("nothing"), id="inject"),
    pytest.param(lambda: Rule(on.command(), delay(1, alone=True)), id="a command alone"),
    pytest.param(lambda: Rule(on.command(), answer(500)), id="an answer to a command"),
    pytest.param(lambda: Rule(on.http("/pub"), corrupt("body")), id="an answer that is not there"),
    pytest.param(lambda: Rule(on.connect(), expire_message()), id="a connection timed out"),
]


@pytest.mark.parametrize("make", MISUSE)
def test_invalid_argument_of_an_action_is_refused(make):
    with pytest.raises((TypeError, ValueError)):  # each has its own text
        make()
