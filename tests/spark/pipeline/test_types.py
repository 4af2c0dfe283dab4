"""Types of events without Spark: JSON Schema, JSONPath, and what a body has that does not fit."""

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
    json_schema_type,
    rescued,
    rest,
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
    pytest.param('{"a": 1}'.encode("utf-16"), "body is not UTF-8: invalid start byte at byte 0", id="UTF-16"),
    pytest.param(b"", "body is not JSON: Expecting value at character 0", id="empty"),
    pytest.param(b'{"a": NaN}', "body is not JSON: NaN is no number of JSON", id="NaN"),
    pytest.param(b'[{"a": 1}]', 'body is not a JSON object: [{"a":1}]', id="array"),
    pytest.param(b'{"a": 1} {', "body is more than one JSON value: the second begins at character 9", id="second"),
    pytest.param(b'{"a": "\\ud83d"}', r"body has half of a surrogate pair, which is no character: \ud83d", id="half"),
    pytest.param(b'{"a": ' + 600 * b"[" + 600 * b"]" + b"}", "body is nested more than 500 deep", id="deep"),
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
    pytest.param("x", Wrong.PARSE, "parse gives null", id="parse"),
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


RESTS = [
    pytest.param('{"user": "a", "ms": 1}', None, id="nothing"),
    pytest.param('{"new": 1.50, "n": null, "ü": "é"}', '{"new":1.50,"n":null,"ü":"é"}', id="keys"),
    pytest.param('{"headers": {"user-agent": "a", "host": "b"}}', '{"headers":{"host":"b"}}', id="beside a path"),
    pytest.param('{"headers": "none"}', '{"headers":"none"}', id="in place of a path"),
    pytest.param(
        '{"items": [{"sku": "a"}, {"sku": "b", "color": "red"}]}', '{"items":[null,{"color":"red"}]}', id="in an array"
    ),
    pytest.param('{"tags": {"a": {"b": 1}}, "items": 5}', None, id="what does not fit"),
    pytest.param('{"at": [1, 2, {"a": 3}]}', '{"at":[null,2,{"a":3}]}', id="elements"),
    pytest.param('{"big": 123456789012345678901234567890, "e": 1e400}', None, id="numbers"),
]


@pytest.mark.parametrize(("body", "left"), RESTS)
def test_the_rest_is_what_no_column_takes(body, left):
    if "big" in body:
        left = body.replace(" ", "")
    assert rest(body.encode(), SHAPE) == left


PATHS = [
    ("$.a", ("a",)),
    ("$.headers['user-agent']", ("headers", "user-agent")),
    ('$["it\'s"].b', ("it's", "b")),
    ("$['a.b c'].@type", ("a.b c", "@type")),
    ("$.größe[0][12].x-y", ("größe", 0, 12, "x-y")),
]


@pytest.mark.parametrize(("text", "path"), PATHS)
def test_paths_have_keys_and_indexes(text, path):
    assert json_path(text) == path


@pytest.mark.parametrize("text", ["a.b", "$", "$[0]", "$.a[*]", "$..a", "$.a[-1]", "$.a[?(@.b)]", "$.a.", "$.a b"])
def test_another_path_is_refused_by_its_text(text):
    with pytest.raises(ValueError, match=r"can't be read|must begin|names no key") as failure:
        json_path(text)
    assert repr(text) in str(failure.value)


SCHEMA = """{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["user", "at", "note", "items"],
  "properties": {
    "user": {"type": "string", "format": "email", "minLength": 1},
    "ms": {"type": "integer", "minimum": 0},
    "ratio": {"type": ["number", "integer", "null"]},
    "at": {"type": "string", "format": "date-time"},
    "day": {"type": "string", "format": "date"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "kind": {"enum": ["a", "b", null]},
    "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    "tags": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "owner": {"allOf": [{"$ref": "#/$defs/person"}, {"properties": {"age": {"type": "integer"}}, "required": ["age"]}]}
  },
  "$defs": {
    "item": {"properties": {"sku": {"type": "string"}, "price": {"type": "number"}}, "required": ["sku"]},
    "person": {"type": "object", "properties": {"name": {"type": "string"}}}
  }
}"""


def test_a_json_schema_gives_types_and_what_is_required():
    found = json_schema_type(SCHEMA)

    assert found.simpleString() == (
        "struct<user:string,ms:bigint,ratio:double,at:timestamp,day:date,note:string,kind:string,"
        "items:array<struct<sku:string,price:double>>,tags:map<string,boolean>,owner:struct<name:string,age:bigint>>"
    )
    assert [field.name for field in found if not field.nullable] == ["user", "at", "items"]
    assert [field.nullable for field in found["items"].dataType.elementType] == [False, True]
    assert [field.nullable for field in found["owner"].dataType] == [True, False]


# A value's schema and its type.
VALUES = [
    pytest.param("{}", "string", id="anything"),
    pytest.param("true", "string", id="true"),
    pytest.param('{"type": "null"}', "string", id="null alone"),
    pytest.param('{"type": ["string", "integer", "null"]}', "string", id="several types"),
    pytest.param('{"enum": ["a", 1]}', "string", id="values of several types"),
    pytest.param('{"oneOf": [{"type": "integer"}, {"type": "string", "format": "date-time"}]}', "string", id="scalars"),
    pytest.param('{"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}', "double", id="numbers"),
    pytest.param('{"type": "object"}', "map<string,string>", id="object of anything"),
    pytest.param('{"type": "object", "additionalProperties": false}', "map<string,string>", id="empty object"),
    pytest.param('{"patternProperties": {"^x": {"type": "integer"}}}', "map<string,bigint>", id="keys of a pattern"),
    pytest.param('{"type": "array"}', "array<string>", id="array of anything"),
    pytest.param('{"prefixItems": [{"type": "integer"}, {"type": "number"}]}', "array<double>", id="tuple"),
    pytest.param('{"items": [{"type": "integer"}, {"type": "string"}]}', "array<string>", id="tuple of before 2020"),
    pytest.param(
        """{"oneOf": [
          {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}, "at": {"type": "null"}}},
          {"properties": {"kind": {"const": "b"}, "x": {"type": "number"}, "at": {"type": "string", "format": "date"}}},
          {"properties": {"tags": {"type": "array", "items": {"type": "string"}}}}
        ]}""",
        "struct<kind:string,x:double,at:date,tags:array<string>>",
        id="objects",
    ),
    pytest.param(
        '{"anyOf": [{"items": {"type": "integer"}}, {"items": {"type": "number"}}]}', "array<double>", id="arrays"
    ),
    pytest.param('{"anyOf": [{"type": "string"}, {"properties": {"x": {}}}]}', "string", id="an object or its id"),
    pytest.param(
        """{"properties": {"x": {"type": "integer"}}, "anyOf": [{"required": ["x"]}, {"properties": {"y": {}}}]}""",
        "struct<x:bigint,y:string>",
        id="alternatives beside a type",
    ),
    pytest.param(
        '{"allOf": [{"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, {"oneOf": [{"properties": {"z": {}}}, {}]}]}',
        "struct<x:bigint,y:string,z:string>",
        id="alternatives of each part",
    ),
    pytest.param(
        '{"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"x": {"maximum": 9}, "y": {"type": "null"}}}]}',
        "struct<x:bigint,y:string>",
        id="a narrower property",
    ),
    pytest.param('{"$ref": "#/$defs/a", "properties": {"z": {}}}', "struct<z:string,x:bigint,y:string>", id="more"),
    pytest.param(
        '{"properties": {"x": {}}, "if": {"required": ["x"]}, "then": {"properties": {"y": {}}}}',
        "struct<x:string,y:string>",
        id="a condition",
    ),
    pytest.param('{"properties": {"x": {}, "y": false}}', "struct<x:string>", id="never there"),
    pytest.param('{"$ref": "#"}', "string", id="the event within itself"),
    pytest.param('{"$ref": "#/$defs/node"}', "struct<x:bigint,nodes:array<string>>", id="a tree"),
    pytest.param(
        '{"allOf": [{"$ref": "#/$defs/a"}], "properties": {"z": {"$ref": "#/$defs/a"}}}',
        "struct<z:struct<x:bigint,y:string>,x:bigint,y:string>",
        id="the same twice",
    ),
]
DEFINITIONS = """"$defs": {
    "a": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": ["string", "null"]}}},
    "node": {"properties": {"x": {"type": "integer"}, "nodes": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
}"""


@pytest.mark.parametrize(("schema", "kind"), VALUES)
def test_a_json_schema_gives_the_type_that_takes_all_its_values(schema, kind):
    found = json_schema_type(f'{{"properties": {{"value": {schema}}}, {DEFINITIONS}}}')

    assert found["value"].dataType.simpleString() == kind


def test_of_several_objects_only_what_all_require_is_required():
    either = """{"properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}},
        "required": ["a"], "oneOf": [{"required": ["b", "c"]}, {"required": ["b"]}]}"""

    assert [field.nullable for field in json_schema_type(either)] == [False, False, True]


REFUSED = [
    ('{"type": "array", "items": {"type": "string"}}', "of array<string>, and an event is an object"),
    ('{"type": "object"}', "an event is an object with properties"),
    ('{"properties": {"a": {"type": "text"}}}', "a has the unknown type 'text'"),
    ('{"properties": {"a": {"$ref": "other.json#/x"}}}', "not in the same file"),
    ('{"properties": {"a": {"$ref": "#/$defs/x"}}}', "which is not there"),
    ('{"properties": {"a": {"properties": {"b": 5}}}}', "a.b is 5, and a schema"),
    ("{", "the JSON Schema is not JSON"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_no_json_schema_of_an_event_is_refused_by_its_place(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        json_schema_type(text)


TYPES = [
    (T.CharType(3), "a is CHAR(3)"),
    (T.VariantType(), "a is VARIANT"),
    (T.NullType(), "a is VOID"),
    (T.DayTimeIntervalType(), "a is INTERVAL"),
    (T.StringType("UNICODE"), "a is STRING COLLATE UNICODE"),
    (T.MapType(T.IntegerType(), T.IntegerType()), "a is a MAP with keys of INT"),
    (T.ArrayType(T.StructType().add("x", "integer").add("X", "integer")), "a[].X and a[].x differ only by case"),
    (T.StructType(), "a has no fields"),
]


@pytest.mark.parametrize(("kind", "reason"), TYPES)
def test_types_that_tables_do_not_have_are_refused(kind, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_type(T.StructType().add("a", kind))
