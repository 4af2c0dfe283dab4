"""wrap() and unwrap(): headers go with a body, and no byte of a body is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.contrib.envelope import MAX_HEADERS_SIZE, unwrap, wrap
from tests.helpers import run_program

# Magic and version.
START = b"\x00NSQENV\x01"

BODIES = st.binary()
HEADERS = st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5)


def test_envelope_is_encoded_as_documented():
    envelope = bytes.fromhex("00 4E 53 51 45 4E 56  01  00 08  00 01 61  00 03 78 79 7A  68 65 6C 6C 6F")

    assert wrap(b"hello", {"a": "xyz"}) == envelope
    assert unwrap(envelope) == (b"hello", {"a": "xyz"})


@given(BODIES, HEADERS, HEADERS)
def test_envelope_in_an_envelope_is_unwrapped_one_by_one(body, inner, outer):
    assert unwrap(wrap(wrap(body, inner), outer)) == (wrap(body, inner), outer)


@given(BODIES, HEADERS, st.data())
def test_envelope_with_incomplete_headers_is_returned_unchanged(body, headers, data):
    length = data.draw(st.integers(0, len(wrap(b"", headers)) - 1))
    cut = wrap(body, headers)[:length]

    assert unwrap(cut) == (cut, {})


@given(BODIES, HEADERS, st.integers(min_value=0))
def test_body_cut_short_keeps_its_headers(body, headers, length):
    assert unwrap(wrap(b"", headers) + body[:length]) == (body[:length], headers)


@given(st.binary() | st.binary().map(START.__add__))
def test_any_bytes_are_returned_without_loss(body):
    got, headers = unwrap(body)

    assert (got, headers) == (body, {}) or wrap(got, headers) == body


PLAIN = [
    pytest.param(b"", id="empty"),
    pytest.param(b"hello", id="text"),
    pytest.param(b'{"traceparent": "00"}', id="JSON"),
    pytest.param(b"\x00NSQENV", id="magic alone"),
    pytest.param(START, id="no size"),
    pytest.param(START + b"\x00", id="half a size"),
    pytest.param(b"\x00NSQENV\x02\x00\x00hello", id="another version"),
    pytest.param(b" " + START + b"\x00\x00hello", id="not in front"),
    pytest.param(START + b"\x00\x06hello", id="headers longer than all"),
    pytest.param(START + b"\xff\xff" + b"\x00\x01a\x00\x01b", id="headers longer than can be"),
    pytest.param(START + b"\x00\x01\x00", id="half a name's size"),
    pytest.param(START + b"\x00\x04\x00\x03aahello", id="name beyond the headers"),
    pytest.param(START + b"\x00\x06\x00\x01a\x00\x02bhello", id="value beyond the headers"),
    pytest.param(START + b"\x00\x03\x00\x01ahello", id="no value"),
    pytest.param(START + b"\x00\x06\x00\x01\xff\x00\x01bhello", id="name that is not UTF-8"),
    pytest.param(START + b"\x00\x06\x00\x01a\x00\x01\xffhello", id="value that is not UTF-8"),
    pytest.param(START + b"\x00\x0c" + b"\x00\x01a\x00\x01b" * 2 + b"hello", id="a name twice"),
]


@pytest.mark.parametrize("body", PLAIN)
def test_bytes_without_an_envelope_are_returned_unchanged(body):
    got, headers = unwrap(body)

    assert got is body
    assert headers == {}


REFUSED = [
    pytest.param({"name": "v" * (MAX_HEADERS_SIZE - 7)}, "headers of 65536 bytes exceed .* 65535", id="too long"),
    pytest.param({f"{number:04}": "v" for number in range(8000)}, "headers of 72000 bytes exceed", id="too many"),
    pytest.param({"é" * 32766: ""}, "headers of 65536 bytes exceed", id="bytes are counted"),
    pytest.param({"name": "\ud800"}, "header 'name' can't be written in UTF-8", id="surrogate"),
]


@pytest.mark.parametrize(("headers", "words"), REFUSED)
def test_headers_that_no_envelope_can_hold_are_refused(headers, words):
    with pytest.raises(ValueError, match=words):
        wrap(b"body", headers)


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        pytest.param(b"body", {"name": b"v"}, "header 'name' must be str, not bytes", id="value"),
        pytest.param(b"body", {1: "v"}, "header 1 must be str, not int", id="name"),
        pytest.param("text", {}, "message body must be bytes, not str", id="body"),
    ],
)
def test_wrong_types_are_refused_by_wrap(body, headers, words):
    with pytest.raises(TypeError, match=words):
        wrap(body, headers)


@pytest.mark.subprocess
def test_envelope_module_imports_neither_gevent_nor_opentelemetry():
    code = """
import sys
sys.modules["gevent"] = sys.modules["opentelemetry"] = None
from gnsq.contrib.envelope import unwrap, wrap
print(unwrap(wrap(b"body", {"a": "b"})))
"""

    ran = run_program(code)

    assert ran.stdout == "(b'body', {'a': 'b'})\n"
