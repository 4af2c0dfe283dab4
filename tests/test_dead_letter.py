"""Dead letters: written and read without loss, and nothing else is taken for one."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.dead_letter import DeadLetter, decode_dead_letter, encode_dead_letter
from tests.strategies import values

LETTER = DeadLetter(
    topic="orders",
    channel="billing",
    nsqd="127.0.0.1:4150",
    id="0123456789abcdef",
    timestamp=1_700_000_000_123_456_789,
    attempts=6,
    given_up_at=1_700_000_900.25,
    error="ValueError",
    reason="bad country",
    body=b'{"country": "XX"}',
)
RECORD = json.loads(encode_dead_letter(LETTER))


@pytest.mark.parametrize("body", [b"{}", "größer\n".encode(), b"\xff\x00", b"\x00"], ids=repr)
@pytest.mark.parametrize("nsqd", ["127.0.0.1:4150", None])
def test_dead_letter_is_read_as_it_was_written(body, nsqd):
    letter = dataclasses.replace(LETTER, body=body, nsqd=nsqd)

    assert decode_dead_letter(encode_dead_letter(letter)) == letter


@pytest.mark.parametrize(
    "record",
    [
        pytest.param({**RECORD, "nsq_dead_letter": True}, id="a version that is true"),
        pytest.param({**RECORD, "attempts": "6"}, id="a wrong type"),
        pytest.param({**RECORD, "encoding": "hex"}, id="an unknown encoding"),
        pytest.param({**RECORD, "body": "*", "encoding": "base64"}, id="no base64"),
        pytest.param({name: value for name, value in RECORD.items() if name != "body"}, id="no body"),
        pytest.param({"order": 1}, id="other JSON"),
        pytest.param(["nsq_dead_letter"], id="a list"),
    ],
)
def test_other_json_is_not_taken_for_a_dead_letter(record):
    assert decode_dead_letter(json.dumps(record).encode()) is None


@pytest.mark.parametrize("data", [b"", b"text", b'"nsq_dead_letter"', b'{"nsq_dead_letter": 1', b"[" * 100_000])
def test_what_is_not_json_is_not_taken_for_a_dead_letter(data):
    assert decode_dead_letter(data + b'"nsq_dead_letter"') is None


def test_unknown_keys_of_a_dead_letter_are_ignored():
    assert decode_dead_letter(json.dumps({**RECORD, "host": "a"}).encode()) == LETTER


@given(st.fixed_dictionaries({}, optional={name: st.just(value) | values for name, value in RECORD.items()}))
def test_any_record_is_a_dead_letter_or_none(fields):
    letter = decode_dead_letter(json.dumps({**RECORD, **fields}).encode())

    assert letter is None or decode_dead_letter(encode_dead_letter(letter)) == letter
