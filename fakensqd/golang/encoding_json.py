"""Reads and writes JSON by the rules of Go's encoding/json, which differ from those of Python.

Pure. Decoding fills named fields of fixed types; encoding writes no spaces, and escapes <, > and & (see
_ESCAPES). Source: Go's encoding/json, as seen in nsqd's IDENTIFY.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from gnsq.texts import counted

__all__ = ["BOOL", "INT", "INT32", "STRING", "FieldType", "decode", "encode"]


@dataclass(frozen=True, slots=True)
class FieldType:
    """Type of a field.

    Attributes:
        bits: Size of an integer, in bits; 0: not an integer.
        items: Type of the items of a list. A null in the list becomes the zero value of that type.
        fields: Types of the known fields of an object. Other fields are skipped.
    """

    python: type
    bits: int = 0
    items: FieldType | None = None
    fields: Mapping[str, FieldType] | None = None


STRING = FieldType(str)
BOOL = FieldType(bool)
INT = FieldType(int, 64)
INT32 = FieldType(int, 32)


# A surrogate without its other half. Go replaces it by U+FFFD; json.loads() has already joined complete pairs.
_SURROGATE = re.compile("[\ud800-\udfff]")


class _OtherNumber:
    """A number that no field accepts: it has a point, an exponent, or too many digits."""


def decode(body: bytes, fields: Mapping[str, FieldType]) -> dict[str, object]:
    """Decode an object; return the values of the known fields.

    Keys match in upper and lower case, and of equal keys the last one counts. A key is ignored if it is unknown or its
    value is null. A body that is null counts as an empty object.

    Raises:
        ValueError: If the body is not JSON, is nested too deeply or is no object, or a value does not fit its field.
    """
    try:
        pairs = json.loads(
            # Strings may have bytes that are not UTF-8.
            body.decode("utf-8", "replace"),
            object_pairs_hook=_Pairs,
            parse_int=lambda digits: int(digits) if len(digits) < 100 else _OtherNumber(),
            parse_float=lambda _: _OtherNumber(),
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
    """Keys and values of a JSON object in order. The same key may occur several times."""


def _folded(key: str) -> str:
    # Go ignores case, and takes U+017F (long s) as an s and U+212A (Kelvin sign) as a k.
    return key.replace("\u017f", "s").replace("\u212a", "k").lower()


def _checked(name: str, value: object, field: FieldType) -> object:
    if field.fields is not None and isinstance(value, _Pairs):
        return _filled(value, field.fields)
    if field.items is not None and type(value) is list:
        return [field.items.python() if item is None else _checked(name, item, field.items) for item in value]
    # Not isinstance(): True is an int in Python.
    if type(value) is not field.python:
        raise ValueError(f"JSON field {name} is {type(value).__name__}, not {field.python.__name__}")
    if isinstance(value, int) and field.bits and not -(2 ** (field.bits - 1)) <= value < 2 ** (field.bits - 1):
        raise ValueError(f"JSON field {name} {value} does not fit {field.bits} bits")
    return _SURROGATE.sub("\ufffd", value) if isinstance(value, str) and not value.isascii() else value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Go escapes these characters, so that JSON can be put into HTML.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def encode(value: object) -> bytes:
    """Encode like Go: without spaces, keys in the order of the dict."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES)
    return text.encode("utf-8", "replace")
