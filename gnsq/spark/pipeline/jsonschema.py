"""JSON Schema as a type of Spark's: one that takes all the values that a schema allows. Needs no Spark that runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from pyspark.sql import types as T

from gnsq.spark.pipeline.types import type_text

__all__ = ["json_schema_type"]


def json_schema_type(text: str) -> T.StructType:
    """Return the type of the events that a JSON Schema describes.

    Keywords that only restrict values (pattern, minimum, ...) are ignored. A value of which the schema says several
    types, or none, is STRING, which takes any JSON.

    Raises:
        ValueError: The text is no JSON Schema of an object; names the place.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the JSON Schema is not JSON: {error}") from error
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    try:
        kind = _settled(_JsonSchema(schema).convert(schema, "")[0])
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if not isinstance(kind, T.StructType):
        raise ValueError(f"the JSON Schema is of {type_text(kind)}, and an event is an object with properties")
    return kind


_JSON_TYPES: dict[str, T.DataType] = {
    "string": T.StringType(),
    "integer": T.LongType(),
    "number": T.DoubleType(),
    "boolean": T.BooleanType(),
}
_FORMATS: dict[str, T.DataType] = {"date": T.DateType(), "date-time": T.TimestampType()}
_ANYTHING = T.StringType()
_TOO_DEEP = "the JSON Schema is nested too deeply"
# Types that the values of keywords must have here.
_KEYWORDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("properties", "patternProperties"), (dict, "an object")),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum", "prefixItems"), (list, "a list")),
    **dict.fromkeys(("$ref", "format"), (str, "a string")),
}


class _JsonSchema:
    def __init__(self, root: Any) -> None:  # Any: JSON
        self._root = root

    def convert(self, schema: Any, path: str, used: frozenset[str] = frozenset({"#"})) -> tuple[T.DataType, bool]:
        """Return the type of a schema, VOID for null alone, and whether null is among its values.

        Args:
            used: The names of the schemas that it is in.
        """
        where = path or "the JSON Schema"
        schema, used = self._resolved(schema, where, used)
        alternatives, schema = _alternatives(schema)
        if alternatives:
            each = [self.convert({**schema, "allOf": [one]}, path, used) for one in alternatives if one is not False]
            return _common(kind for kind, _ in each), any(is_nullable for _, is_nullable in each)
        names = _names(schema)
        if not names:
            return _ANYTHING, True
        kinds = [self._named(name, schema, path, used) for name in sorted(names - {"null"})]
        return _common(kinds), "null" in names

    def _named(self, name: str, schema: dict[str, Any], path: str, used: frozenset[str]) -> T.DataType:  # Any: JSON
        match name:
            case "object":
                return self._object(schema, path, used)
            case "array":
                items = schema.get("items", False)
                items = [*schema.get("prefixItems", ()), *(items if isinstance(items, list) else [items])]
                return T.ArrayType(self._value(items, f"{path}[]", used))
            case _ if name not in _JSON_TYPES:
                raise ValueError(f"{path or 'the JSON Schema'} has the unknown type {name!r}")
        by_format = _FORMATS.get(schema.get("format", "")) if name == "string" else None
        return by_format or _JSON_TYPES[name]

    def _object(self, schema: dict[str, Any], path: str, used: frozenset[str]) -> T.DataType:  # Any: JSON
        properties, others = schema.get("properties", {}), schema.get("patternProperties", {})
        more = schema.get("additionalProperties")
        if not properties and (others or more is not False):
            return T.MapType(T.StringType(), self._value([*others.values(), more or False], f"{path}{{}}", used))
        required = _required(schema)
        fields = []
        for name, inner in properties.items():
            if inner is not False:
                kind, is_nullable = self.convert(inner, f"{path}.{name}" if path else name, used)
                fields.append(T.StructField(name, kind, nullable=is_nullable or name not in required))
        return T.StructType(fields)

    def _value(self, schemas: list[Any], path: str, used: frozenset[str]) -> T.DataType:  # Any: JSON
        return _common(self.convert(each, path, used)[0] for each in schemas if each is not False)

    def _resolved(self, schema: Any, where: str, used: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]]:
        """Put in what $ref and allOf name. Within itself a schema may be anything, since no type has itself."""
        if schema is True:
            return {}, used
        if not isinstance(schema, dict):
            raise ValueError(f"{where} is {json.dumps(schema)}, and a schema is due")
        for keyword, (due, text) in _KEYWORDS.items():
            if not isinstance(schema.get(keyword, due()), due):
                raise ValueError(f"{where} has {keyword} {json.dumps(schema[keyword])}, and {text} is due")
        names = schema.get("type", [])
        if not isinstance(names, str) and not (
            isinstance(names, list) and all(isinstance(each, str) for each in names)
        ):
            raise ValueError(f"{where} has type {json.dumps(names)}, and a string is due, or a list of them")
        parts = schema.get("allOf", [])
        if (name := schema.get("$ref")) is not None:
            if name not in used or not self._has_itself(name, where):
                parts = [self._referred(name, where), *parts]
            used |= {name}
        schema = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        for each in parts:
            part, used = self._resolved(each, where, used)
            schema = _joined(schema, part)
        return schema, used

    def _has_itself(self, name: str, where: str) -> bool:
        """Say whether a schema refers to itself, by others or not."""
        found: set[str] = set()
        nodes: list[Any] = [self._referred(name, where)]
        while nodes:
            match nodes.pop():
                case {"$ref": str(other), **rest}:
                    nodes.append(rest)
                    if other not in found:
                        found.add(other)
                        nodes.append(self._referred(other, where))
                case dict(node):
                    nodes += node.values()
                case list(node):
                    nodes += node
        return name in found

    def _referred(self, name: str, where: str) -> dict[str, Any]:  # Any: JSON
        if not name.startswith("#"):
            raise ValueError(f"{where} has $ref {name!r}, which is not in the same file")
        found = self._root
        try:
            for part in name[1:].split("/")[1:]:
                key = unquote(part).replace("~1", "/").replace("~0", "~")
                found = found[int(key) if isinstance(found, list) else key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ValueError(f"{where} has $ref {name!r}, which is not there") from None
        if not isinstance(found, dict):
            raise ValueError(f"{where} has $ref {name!r}, which is no schema")
        return found


def _alternatives(schema: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:  # Any: JSON
    """Return schemas of which each value has one at least, and what the schema says besides."""
    for keyword in ("anyOf", "oneOf", "if"):
        if keyword in schema:
            chosen = [schema.get("then", True), schema.get("else", True)] if keyword == "if" else schema[keyword]
            return chosen, {key: value for key, value in schema.items() if key != keyword}
    return [], schema


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Return the schema of values that have both."""
    joined = {**other, **one}
    if "type" in one and "type" in other:
        # Between integer and number either will do.
        joined["type"] = sorted(_given_names(one) & _given_names(other)) or one["type"]
    properties = dict(one.get("properties", {}))
    for name, inner in other.get("properties", {}).items():
        properties[name] = {"allOf": [properties[name], inner]} if name in properties else inner
    if properties:
        joined["properties"] = properties
    joined["required"] = [*_required(one), *_required(other)]
    for keyword in ("anyOf", "oneOf"):
        if keyword in one and keyword in other:
            joined[keyword] = [{"allOf": [each, {keyword: other[keyword]}]} for each in one[keyword]]
    return joined


def _required(schema: dict[str, Any]) -> list[str]:  # Any: JSON
    found = schema.get("required")
    # Draft 3 has true or false with each property.
    return found if isinstance(found, list) else []


def _given_names(schema: dict[str, Any]) -> set[str]:  # Any: JSON
    given = schema.get("type", [])
    return {given} if isinstance(given, str) else set(given)


def _names(schema: dict[str, Any]) -> set[str]:  # Any: JSON
    """Return the names of the types of a schema's values; none if they may be anything."""
    names = _given_names(schema)
    if not names:
        names = {_type_of(value) for value in schema.get("enum", [schema["const"]] if "const" in schema else [])}
    if not names:
        names |= {"object"} if {"properties", "patternProperties", "additionalProperties"} & set(schema) else set()
        names |= {"array"} if {"items", "prefixItems"} & set(schema) else set()
    return names | {"null"} if names and schema.get("nullable") is True else names


def _type_of(value: Any) -> str:  # Any: JSON
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
    return "object"


def _common(kinds: Iterable[T.DataType]) -> T.DataType:
    """Return a type that takes the values of all, STRING if there is no other; VOID if there are none."""
    return functools.reduce(_wider, kinds, T.NullType())


def _wider(one: T.DataType, other: T.DataType) -> T.DataType:
    match one, other:
        case (T.NullType(), kind) | (kind, T.NullType()):
            return kind
        case T.StructType(), T.StructType():
            fields = {field.name: field for field in one.fields}
            others = {field.name: field for field in other.fields}
            return T.StructType([_both(fields.get(name), others.get(name)) for name in {**fields, **others}])
        case T.ArrayType(), T.ArrayType():
            return T.ArrayType(_wider(one.elementType, other.elementType))
        case T.MapType(), T.MapType():
            return T.MapType(T.StringType(), _wider(one.valueType, other.valueType))
        case (T.LongType(), T.DoubleType()) | (T.DoubleType(), T.LongType()):
            return T.DoubleType()
    return one if one == other else _ANYTHING


def _both(one: T.StructField | None, other: T.StructField | None) -> T.StructField:
    """Return the field of a struct that is one of two; it may be missing in what only one of them requires."""
    found = [each for each in (one, other) if each is not None]
    is_nullable = len(found) < 2 or any(each.nullable for each in found)
    return T.StructField(found[0].name, _common(each.dataType for each in found), is_nullable)


def _settled(kind: T.DataType) -> T.DataType:
    """Give a type to what is null alone, and to the values of an object that has no known keys: STRING."""
    match kind:
        case T.NullType():
            return _ANYTHING
        case T.StructType() if kind.fields:
            return T.StructType([T.StructField(each.name, _settled(each.dataType), each.nullable) for each in kind])
        case T.StructType():
            return T.MapType(T.StringType(), _ANYTHING)
        case T.ArrayType():
            return T.ArrayType(_settled(kind.elementType))
        case T.MapType():
            return T.MapType(T.StringType(), _settled(kind.valueType))
    return kind
