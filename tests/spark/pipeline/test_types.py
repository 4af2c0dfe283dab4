"""Types of events without Spark: JSONPath, and what a body has that does not fit."""

import pickle
import re

import pytest
from pyspark.sql import types as T

from gnsq.spark.pipeline.types import (
    EventColumn,
    Shape,
    Wrong,
    check_type,
    explain,
    json_path,
    rescued,
)

ITEMS = T.ArrayType(T.StructType().add("sku", "string").add("price", T.DecimalType(18, 2), nullable=False))
SHAPE = Shape(
    (
        EventColumn("user", ("user",), T.StringType(), is_required=True),
        EventColumn("ms", ("ms",), T.IntegerType()),
        EventColumn("items", ("items",), ITEMS),
        EventColumn("agent", ("headers", "user-agent"), T.StringType()),
        EventColumn("tags", ("tags",), T.MapType(T.StringType(), T.LongType())),
        EventColumn("lon", ("at", 0), T.DoubleType()),
    ),
    time="timestamp_millis(ts)",
    max_ahead=600,
)

BODIES = [
    pytest.param(b'{"a": "\xff"}', "body is not UTF-8: invalid start byte at byte 7", id="not UTF-8"),
    pytest.param(b"", "body is not JSON: Expecting value at character 0", id="empty"),
    pytest.param(b'{"a": NaN}', "body is not JSON: NaN is no number of JSON", id="NaN"),
    pytest.param(b'[{"a": 1}]', 'body is not a JSON object: [{"a":1}]', id="array"),
    pytest.param(b'{"a": 1} {', "body is more than one JSON value: the second begins at character 9", id="second"),
    pytest.param(b'{"a": "\\ud83d"}', r"body has half of a surrogate pair, which is no character: \ud83d", id="half"),
    pytest.param(b'{"a": ' + 2000 * b"[" + 2000 * b"]" + b"}", "body is nested more than 500 deep", id="very deep"),
    pytest.param(b'{"%s": 1}' % (60_000 * b"k"), "body has a key of more than 50,000 characters", id="key"),
    pytest.param(b'{"a": %s}' % (2_000 * b"1"), "body has a number of more than 1,000 digits", id="number"),
]
FIELDS = [
    pytest.param('{"user": "a", "ms": 200.5}', Wrong.TYPE, "ms 200.5 is not INT", id="fraction"),
    pytest.param(
        '{"items": [{"price": 1}, {"price": 0.125}]}',
        Wrong.TYPE,
        "items[1].price 0.125 is not DECIMAL(18,2)",
        id="path",
    ),
    pytest.param('{"tags": {"a b": "x"}}', Wrong.TYPE, "tags['a b'] \"x\" is not BIGINT", id="key"),
    pytest.param('{"at": ["1"]}', Wrong.TYPE, 'at[0] "1" is not DOUBLE', id="index"),
    pytest.param('{"ms": "%s"}' % (200 * "x"), Wrong.TYPE, f'ms "{99 * "x"}... is not INT', id="cut"),
    pytest.param('{"ms": 1}', Wrong.MISSING, "user is missing or null", id="missing"),
    pytest.param(
        '{"user": "a", "items": [{"sku": "b"}]}', Wrong.MISSING, "items[0].price is missing or null", id="nested"
    ),
    pytest.param(
        '{"user": "a", "ms": "x", "items": [{"price": "x"}]}',
        Wrong.MISSING,
        'items[0].price "x" is not DECIMAL(18,2)',
        id="required does not fit",
    ),
    pytest.param("{}", Wrong.TIME, "timestamp_millis(ts) gives no time of the years 1 to 9999", id="time"),
    pytest.param("{}", Wrong.AHEAD, "timestamp_millis(ts) is more than 600 s after the publishing", id="ahead"),
]


@pytest.mark.parametrize(("body", "reason"), BODIES)
def test_a_reason_says_why_a_body_is_no_object(body, reason):
    assert explain(body, Wrong.BODY, SHAPE) == reason


@pytest.mark.parametrize(("body", "wrong", "reason"), FIELDS)
def test_a_reason_names_the_path_the_value_and_the_type(body, wrong, reason):
    assert explain(body.encode(), wrong, pickle.loads(pickle.dumps(SHAPE))) == reason


def test_what_does_not_fit_is_rescued_as_it_came():
    body = b'{"user": {"a": 1}, "ms": 1.50, "items": [{"price": 12345678901234567890.125}], "at": [null]}'

    assert rescued(body, SHAPE) == '{"ms":1.50,"items[0].price":12345678901234567890.125}'
    assert rescued(b'{"user": "a", "ms": 1}', SHAPE) is None


PATHS = [
    ("$.a", ("a",)),
    ("$.headers['user-agent']", ("headers", "user-agent")),
    ('$["it\'s"].b', ("it's", "b")),
    ("$['a.b c'].@type", ("a.b c", "@type")),
    ("$.größe[0][12].x-y", ("größe", 0, 12, "x-y")),
]


def test_paths_have_keys_and_indexes_and_another_one_is_refused_by_its_text():
    assert [json_path(text) for text, _ in PATHS] == [path for _, path in PATHS]
    for text in ("a.b", "$", "$[0]", "$.a[*]", "$..a", "$.a[-1]", "$.a[?(@.b)]", "$.a.", "$.a b"):
        with pytest.raises(ValueError, match=r"can't be read|must begin|names no key") as failure:
            json_path(text)
        assert repr(text) in str(failure.value)


TYPES = [
    (T.CharType(3), "a is CHAR(3)"),
    (T.VariantType(), "a is VARIANT"),
    (T.StringType("UNICODE"), "a is STRING COLLATE UNICODE"),
    (T.MapType(T.IntegerType(), T.IntegerType()), "a is a MAP with keys of INT"),
    (T.ArrayType(T.StructType().add("x", "integer").add("X", "integer")), "a[].X and a[].x differ only by case"),
    (T.StructType(), "a has no fields"),
]


@pytest.mark.parametrize(("kind", "reason"), TYPES)
def test_types_that_tables_do_not_have_are_refused(kind, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_type(T.StructType().add("a", kind))
