"""JSON by the rules of Go's encoding/json, where they are not Python's.

Pure. Decoding fills named fields of fixed types; encoding writes no spaces and escapes what Go escapes. Source: Go's
encoding/json, as seen on nsqd's IDENTIFY.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from gnsq.texts import counted

__all__ = ["BOOL", "INT", "INT32", "STRING", "FieldType", "decode", "encode", "list_of", "object_of"]


@dataclass(frozen=True, slots=True)
class FieldType:
    """What a field takes: a Python type; how many bits an integer may have, what a list holds, an object's fields."""

    python: type
    bits: int = 0
    items: FieldType | None = None
    fields: Mapping[str, FieldType] | None = None


STRING = FieldType(str)
BOOL = FieldType(bool)
INT = FieldType(int, 64)
INT32 = FieldType(int, 32)


def list_of(items: FieldType) -> FieldType:
    """A list; null in it is an item's zero."""
    return FieldType(list, items=items)


def object_of(fields: Mapping[str, FieldType]) -> FieldType:
    """An object, of which some fields are known."""
    return FieldType(dict, fields=fields)


# Half of a pair, written as an escape, is no character to Go.
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Fraction:
    """A number with a point or an exponent, or one that is no JSON at all: no Go integer takes it."""


class _LongInteger:
    """An integer of so many digits that no field takes it."""


def decode(body: bytes, fields: Mapping[str, FieldType]) -> dict[str, object]:
    """Read an object; give back what it says about the fields that are known.

    Keys match without regard to case, the last of equal ones wins, null says nothing, unknown keys are skipped. A
    body of null is an empty object.

    Raises:
        ValueError: If it is not JSON, not an object, or a value has not the type of its field.
    """
    try:
        pairs = json.loads(
            # Bytes that are no UTF-8 pass inside of strings.
            body.decode("utf-8", "replace"),
            object_pairs_hook=_Pairs,
            parse_int=_integer,
            parse_float=lambda _: _Fraction(),
            parse_constant=_refuse,
        )
    except RecursionError:
        raise ValueError(f"JSON body of {counted(len(body), 'byte')} is nested too deeply") from None
    if pairs is None:
        return {}
    if not isinstance(pairs, _Pairs):
        raise ValueError("JSON body is not an object")
    return _filled(pairs, fields)


def _filled(pairs: _Pairs, fields: Mapping[str, FieldType]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        name = _folded(key)
        if name in fields and value is not None:
            values[name] = _checked(name, value, fields[name])
    return values


class _Pairs(list[tuple[str, object]]):
    """A JSON object: its keys and values in order, equal keys included."""


def _folded(key: str) -> str:
    # Go's simple folding has the long s and the Kelvin sign as further cases of s and k.
    return key.replace("\u017f", "s").replace("\u212a", "k").lower()


def _checked(name: str, value: object, field: FieldType) -> object:
    if field.fields is not None and isinstance(value, _Pairs):
        return _filled(value, field.fields)
    if field.items is not None and type(value) is list:
        return [field.items.python() if item is None else _checked(name, item, field.items) for item in value]
    # type() and not isinstance(): True is an int to Python.
    if type(value) is not field.python:
        raise ValueError(f"JSON field {name} is {type(value).__name__}, not {field.python.__name__}")
    if isinstance(value, int) and field.bits and not -(2 ** (field.bits - 1)) <= value < 2 ** (field.bits - 1):
        raise ValueError(f"JSON field {name} {value} does not fit {field.bits} bits")
    return _SURROGATE.sub("\ufffd", value) if isinstance(value, str) and not value.isascii() else value


def _integer(digits: str) -> int | _LongInteger:
    return int(digits) if len(digits) < 100 else _LongInteger()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Go escapes these so that JSON can stand in HTML.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def encode(value: object) -> bytes:
    """Write JSON as Go does: no spaces, keys in the order given."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES)
    return text.encode("utf-8", "replace")
