"""JSON as Go reads and writes it, as far as recorded sessions (identify-...) do not have it."""

import pytest

from fakensqd.golang.encoding_json import BOOL, INT, INT32, STRING, FieldType, decode, encode

FIELDS = {
    "name": STRING,
    "size": INT,
    "rate": INT32,
    "on": BOOL,
    "names": FieldType(list, items=STRING),
    "parts": FieldType(list, items=FieldType(dict, fields={"size": INT})),
}


@pytest.mark.parametrize(
    ("body", "values"),
    [
        pytest.param(b'{"SIZE": 1, "\xc5\xbfize": 2}', {"size": 2}, id="case, and the long s"),
        pytest.param(b'{"size": 1, "size": 2}', {"size": 2}, id="last wins"),
        pytest.param(b'{"other": %s}' % (b"1" * 9999), {}, id="unknown and long"),
        pytest.param(b'{"name": "a\xffb"}', {"name": "a\ufffdb"}, id="not UTF-8"),
        pytest.param(b'{"on": true, "rate": -2147483648}', {"on": True, "rate": -(2**31)}, id="types"),
        pytest.param(b'{"size": -0}', {"size": 0}, id="minus zero"),
        pytest.param(b'{"name": "\\ud800x\\ud83d\\ude00"}', {"name": "\ufffdx\U0001f600"}, id="half a pair"),
        pytest.param(b'{"names": ["a", null]}', {"names": ["a", ""]}, id="list"),
        pytest.param(b'{"parts": [{"SIZE": 1, "x": 2}, null]}', {"parts": [{"size": 1}, {}]}, id="objects"),
    ],
)
def test_body_is_decoded_by_gos_rules(body, values):
    assert decode(body, FIELDS) == values


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"names": {}}', id="object for list"),
        pytest.param(b'{"names": [1]}', id="int in list of strings"),
        pytest.param(b'{"parts": [[]]}', id="list for object"),
        pytest.param(b'{"parts": [{"size": "1"}]}', id="wrong type inside"),
        pytest.param(b'{"size": 9223372036854775808}', id="65 bits"),
        pytest.param(b'{"rate": 2147483648}', id="33 bits"),
        pytest.param(b'{"size": %s}' % (b"1" * 9999), id="long"),
        pytest.param(b'{"other": NaN}', id="NaN"),
        pytest.param(b'{"size": "1", "size": 2}', id="wrong type before the last"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_body_that_go_refuses_is_refused(body):
    with pytest.raises(ValueError, match=r"."):
        decode(body, FIELDS)


def test_encode_writes_no_spaces_and_escapes_html():
    assert encode({"b": [1, None, True], "a": "<ü&>\u2028"}) == (
        b'{"b":[1,null,true],"a":"\\u003c' + "ü".encode() + b'\\u0026\\u003e\\u2028"}'
    )
