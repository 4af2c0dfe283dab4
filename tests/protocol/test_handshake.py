"""The handshake's steps, answered from lists."""

import json

import pytest

from gnsq.errors import NSQBadBody, NSQException, NSQProtocolError
from gnsq.options import ConnectionOptions
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, RESPONSE
from gnsq.protocol.handshake import Identity, ReadFrame, Write, handshake

# As nsqd 1.3.0 sends it.
ANSWER = (
    b'{"max_rdy_count":100,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
    b'"output_buffer_size":16384,"output_buffer_timeout":250}'
)


def run(frames, **options):
    """Answer each ReadFrame from the list. Gives back what was written and how it ended."""
    steps, answers, written = handshake(ConnectionOptions(**options)), iter(frames), []
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return written, end.value
        answer = None
        if isinstance(step, Write):
            written.append(step.data)
        else:
            assert isinstance(step, ReadFrame)
            answer = next(answers)


def test_magic_then_identify():
    written, _ = run([(RESPONSE, b"OK")], client_id="me", hostname="me.example")

    assert written[0] == b"  V2"
    assert written[1].startswith(b"IDENTIFY\n")
    assert json.loads(written[1][13:]) == {
        "client_id": "me",
        "hostname": "me.example",
        "short_id": "me",
        "long_id": "me.example",
        "feature_negotiation": True,
        "heartbeat_interval": 30000,
        "output_buffer_size": 16384,
        "output_buffer_timeout": 250,
        "user_agent": "gnsq/2.0.0.dev0",
    }


def test_answer_settles_the_identity():
    _, identity = run([(RESPONSE, ANSWER)])

    assert identity == Identity(
        version="1.3.0", max_rdy_count=100, msg_timeout=60.0, max_msg_timeout=900.0, answer=json.loads(ANSWER)
    )


def test_plain_ok_is_a_server_without_negotiation():
    _, identity = run([(RESPONSE, b"OK")])

    assert (identity.version, identity.max_rdy_count, identity.msg_timeout) == (None, 2500, None)


def test_heartbeat_before_the_answer_is_answered():
    written, identity = run([(RESPONSE, HEARTBEAT), (RESPONSE, ANSWER)])

    assert written[2:] == [b"NOP\n"]
    assert identity.version == "1.3.0"


def test_refusal_is_raised():
    with pytest.raises(NSQBadBody, match=r"E_BAD_BODY IDENTIFY heartbeat interval.*--max-heartbeat-interval"):
        run([(ERROR, b"E_BAD_BODY IDENTIFY heartbeat interval (5) is invalid")])


def test_required_auth_is_an_error_before_anything_else():
    with pytest.raises(NSQException, match="requires AUTH"):
        run([(RESPONSE, b'{"auth_required":true}')])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        pytest.param((MESSAGE, b"x"), "frame of type 2", id="message"),
        pytest.param((RESPONSE, b"hello"), "neither OK nor a JSON object", id="not json"),
        pytest.param((RESPONSE, b"[]"), "neither OK nor a JSON object", id="list"),
        pytest.param((RESPONSE, b'{"max_rdy_count":"1"}'), "max_rdy_count '1'", id="count is no integer"),
    ],
)
def test_other_answers_break_the_protocol(frame, words):
    with pytest.raises(NSQProtocolError, match=words):
        run([frame])


def test_options_travel_in_milliseconds():
    written, _ = run([(RESPONSE, b"OK")], heartbeat_interval=-1, msg_timeout=90.5, sample_rate=10)

    body = json.loads(written[1][13:])
    assert (body["heartbeat_interval"], body["msg_timeout"], body["sample_rate"]) == (-1, 90500, 10)
