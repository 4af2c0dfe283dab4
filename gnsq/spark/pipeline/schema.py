"""EventSchema: which fields an event has. Pure; events.py makes Spark expressions of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DIVIDING", "EventSchema", "RESERVED", "SCALARS", "parse_fields", "plain_type"]

SCALARS = frozenset(
    {
        *["string", "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"],
        *["float", "real", "double", "date", "timestamp", "decimal"],
    }
)
# Types, without synonyms, whose values a table can be partitioned by.
DIVIDING = frozenset({"string", "boolean", "tinyint", "smallint", "int", "bigint", "date"})
# Columns that the job itself adds.
RESERVED = frozenset(
    {"event_time", "body", "message_id", "nsqd", "published_at", "hour", "reason", "_malformed", "_seen_at"}
)
_SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "decimal": "decimal(10,0)",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
# A column of Spark's DDL; and comments (COMMENT '...' and --), which are removed before columns are matched.
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|(\w+))\s*[:\s]\s*(\w+(?:\s*\([^()]*\))?)(\s+not\s+null)?\s*(?:,|\Z)", re.I)
_REMARK = re.compile(r"""\bcomment\s+(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|--[^\n]*""", re.I)
# Type, and format of a string, in JSON Schema -> Spark SQL type. Other formats only restrict values: they are ignored.
_JSON_TYPES = {"string": "string", "integer": "bigint", "number": "double", "boolean": "boolean"}
_JSON_FORMATS = {"date": "date", "date-time": "timestamp"}
# Keywords of JSON Schema that make a type depend on other schemas or on values.
_COMPOSED = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if")


@dataclass(frozen=True)
class EventSchema:
    """Fields of an event, which is a body that is a JSON object.

    Args:
        fields: Name -> Spark SQL type; each becomes a column of the archive.
        time_field: Name of the field with the event's time, which becomes the column event_time.
        keys: Names of the fields by which events are counted.
        required_fields: Names of fields without which a body is malformed; keys are required in any case. None: all.

    Raises:
        ValueError: If a name or a type can't be used; the text names the setting.
    """

    fields: Mapping[str, str]
    time_field: str
    keys: tuple[str, ...]
    required_fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, kind in self.fields.items():
            _check_name("fields", name)
            if name.lower() in RESERVED:
                raise ValueError(f"setting fields: {name!r} is a column of the job's own: rename the field")
            if kind.strip().lower() == "timestamp_ntz":
                raise ValueError(
                    f"setting fields: {name} has the type {kind!r}, which says no moment and which most readers of "
                    "tables do not know: use timestamp, or string"
                )
            if not _is_scalar(kind):
                raise ValueError(
                    f"setting fields: {name} has the type {kind!r}, one of {', '.join(sorted(SCALARS))} was due"
                )
        lower = [name.lower() for name in self.fields]
        twice = sorted({name for name in lower if lower.count(name) > 1})
        if twice:
            raise ValueError(f"setting fields: {', '.join(twice)} is there twice, to Spark, which ignores case")
        _check_name("time_field", self.time_field)
        if self.time_field.lower() == "_malformed":
            raise ValueError(f"setting time_field: {self.time_field!r} is a column of the job's own: rename the field")
        if self.time_field.lower() in lower:
            raise ValueError(
                f"setting time_field {self.time_field!r} is one of fields, too: it is the column event_time already"
            )
        for setting, names in (("metrics: key", self.keys), ("required_fields", self.required_fields or ())):
            for name in names:
                if name not in self.fields:
                    raise ValueError(f"setting {setting} {name!r} is none of fields: {', '.join(self.fields)}")

    @property
    def required(self) -> tuple[str, ...]:
        """Fields that every event must have, the keys first."""
        named = self.fields if self.required_fields is None else self.required_fields
        return (*self.keys, *(name for name in named if name not in self.keys))

    def ddl(self, *, as_strings: bool = False) -> str:
        """Build Spark's schema as DDL, with the time as a string, and a column for bodies that can't be parsed."""
        fields = {name: "string" if as_strings else kind for name, kind in self.fields.items()}
        fields |= {self.time_field: "string", "_malformed": "string"}
        return ", ".join(f"`{name}` {kind}" for name, kind in fields.items())


def parse_fields(text: str, time_field: str) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """Read fields from the text of a file: Spark's DDL, or a JSON Schema of an object with scalar properties.

    Args:
        time_field: May be among the fields, as a string or a timestamp. It is left out of the result.

    Returns:
        Fields (name -> Spark SQL type), which EventSchema must check; and the names of required fields, or None if the
        text has none.

    Raises:
        ValueError: If the text is neither of these, or a field in it can't be used.
    """
    fields, required = _json_fields(text) if text.lstrip().startswith("{") else _ddl_fields(text)
    kind = fields.pop(time_field, "string")
    if plain_type(kind) not in ("string", "timestamp"):
        raise ValueError(f"{time_field} has the type {kind!r}: the event's time is a string in ISO 8601")
    if not fields:
        raise ValueError("there are no fields")
    return fields, None if required is None else tuple(name for name in required if name != time_field)


def _ddl_fields(text: str) -> tuple[dict[str, str], list[str] | None]:
    fields: dict[str, str] = {}
    required = []
    text = _REMARK.sub("", text).strip()
    position = 0
    while position < len(text):
        match = _COLUMN.match(text, position)
        if match is None:
            found = " ".join(text[position : position + 60].split())
            raise ValueError(
                f"{found!r} is not understood: a column is NAME TYPE [NOT NULL], and its type is one of "
                f"{', '.join(sorted(SCALARS))}"
            )
        name = str(match[1] or match[2])
        if name in fields:
            raise ValueError(f"{name} is there twice")
        fields[name] = str(match[3])
        required += [name] if match[4] else []
        position = match.end()
    return fields, required or None


def _json_fields(text: str) -> tuple[dict[str, str], list[str] | None]:
    schema = json.loads(text)
    _check_composed("the schema", schema)
    properties, required = schema.get("properties"), schema.get("required")
    is_object = schema.get("type", "object") == "object" and isinstance(properties, dict)
    if not is_object or not isinstance(required or [], list):
        raise ValueError("the schema is not that of an object with properties")
    for name in required or ():
        if name not in list(properties):
            raise ValueError(f"{name} is required, and is none of properties")
    fields = {name: _json_type(name, each, name in (required or ())) for name, each in properties.items()}
    return fields, required


def _json_type(name: str, schema: Any, is_required: bool) -> str:  # Any: JSON
    schema = schema if isinstance(schema, dict) else {}
    _check_composed(name, schema)
    kind = schema.get("type")
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
        if is_required:
            raise ValueError(f"{name} is required and may be null, which is the same as missing to the job: give one")
        kind = next((each for each in kind if each != "null"), None)
    if not isinstance(kind, str) or kind not in _JSON_TYPES:
        raise ValueError(f"{name} has the type {kind!r}: one of {', '.join(_JSON_TYPES)}, or that and null, was due")
    return _JSON_FORMATS.get(str(schema.get("format")), "string") if kind == "string" else _JSON_TYPES[kind]


def _check_composed(name: str, schema: Mapping[str, Any]) -> None:
    for keyword in _COMPOSED:
        if keyword in schema:
            raise ValueError(f"{name} has {keyword}, by which its type can't be told: give the type itself")


def plain_type(kind: str) -> str:
    """Return the spelling that is used here for a type and for all its synonyms."""
    kind = kind.strip().lower()
    match = _DECIMAL.fullmatch(kind)
    return f"decimal({int(match[1])},{int(match[2] or 0)})" if match is not None else _SYNONYMS.get(kind, kind)


def _check_name(setting: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"setting {setting}: {name!r} is not made of letters, digits and underscores")


def _is_scalar(kind: str) -> bool:
    match = _DECIMAL.fullmatch(plain_type(kind))
    if match is None:
        return kind.strip().lower() in SCALARS
    return 1 <= int(match[1]) <= 38 and int(match[2]) <= int(match[1])
