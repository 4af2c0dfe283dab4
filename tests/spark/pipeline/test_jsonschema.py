"""JSON Schema as a type of Spark's."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from gnsq.spark.pipeline.jsonschema import json_schema_type
from tests.strategies import json_values

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
    ("[" * 100_000, "the JSON Schema is nested too deeply"),
    ('{"items": ' * 900 + "{}" + "}" * 900, "the JSON Schema is nested too deeply"),
    ('{"properties": ["a"]}', 'the JSON Schema has properties ["a"], and an object is due'),
    ('{"properties": {"a": {"$ref": 5}}}', "a has $ref 5, and a string is due"),
    ('{"properties": {"a": {"type": [{}]}}}', "a has type [{}], and a string is due, or a list of them"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_no_json_schema_of_an_event_is_refused_by_its_place(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        json_schema_type(text)


KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf"),
        *(
            "if",
            "then",
            "else",
            "$ref",
            "$defs",
            "format",
            "nullable",
            "additionalProperties",
            "patternProperties",
            "a",
        ),
    ]
)
NAMES = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array", "#", "#/$defs/a", "date"])
SCHEMAS = st.dictionaries(
    KEYWORDS,
    st.deferred(lambda: SCHEMAS | st.lists(SCHEMAS | NAMES, max_size=2) | NAMES | json_values(KEYWORDS)),
    max_size=3,
)


@given(st.dictionaries(st.sampled_from(["a", "b"]), SCHEMAS, max_size=2), SCHEMAS)
def test_any_schema_is_a_type_or_refused(properties, beside):
    for schema in ({**beside, "properties": properties, "$defs": properties}, beside):
        try:
            kind = json_schema_type(json.dumps(schema))
        except ValueError:
            continue
        assert isinstance(kind, StructType)
