"""Actions as functions, without a connection; and rules as JSON."""

import pytest

from fakensqd import faults
from fakensqd.effects import Close, Execute, ExpireMessage, HttpResponse, Send, Wait
from fakensqd.faults import actions
from fakensqd.faults.actions import answer, corrupt, delay, disconnect, drop, error, expire_message, inject
from fakensqd.faults.json_rules import decode_rules, encode_rule
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


def test_each_action_is_a_public_name():
    assert [name for name in actions.ACTIONS if name not in actions.__all__ or name not in faults.__all__] == []


@pytest.mark.parametrize("name", sorted(actions.ACTIONS))
def test_action_is_decoded_from_json_and_encoded_again(name):
    # Of each action that has arguments: the required ones, at least.
    arguments = {
        "error": {"code": "E_INVALID", "text": "no"},
        "delay": {"seconds": 0.5},
        "duplicate": {"times": 3},
        "corrupt": {"part": "body", "to": {"base64": "/w=="}},
        "inject": {"frame": {"base64": "/w=="}, "after": True},
        "answer": {"status": 500, "body": "no"},
    }.get(name, {})
    points = actions.ACTIONS[name](**arguments | {key: b"\xff" for key in ("to", "frame") if key in arguments}).points
    point = next(point for point in Point if point in points)
    action = {"action": name, **arguments}
    document = {"on": point.value.partition("_")[0], "actions": [action], "executed": True}
    if point.value != "http_answer":
        del document["executed"]

    (rule,) = decode_rules(document)

    assert encode_rule(rule)["actions"] == [action]


def test_function_of_the_user_is_encoded_as_its_name():
    def mine(steps, event):
        return steps

    rule = Rule(on.http("/pub", body=b"x", executed=True, where=callable), mine)

    described = encode_rule(rule)

    assert (described["actions"], described["body"], described["executed"]) == ([{"action": "mine"}], "x", True)
    assert rule.name == "on.http('/pub', body=b'x', where=callable, executed=True), mine"
