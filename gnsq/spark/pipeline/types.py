"""Types of events without Spark, and what a body has that does not fit.

Tasks use explain() and rescued() on single bodies. They say in Python what events.py says in Spark's
expressions: which JSON values each type takes. A test compares both, value by value.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import IntEnum
from typing import Any

from pyspark.sql import types as T

__all__ = [
    *("EventColumn", "Shape", "Step", "Wrong"),
    *("explain", "rescued"),
    *("check_type", "json_path", "type_text"),
    *("BASE64", "DATE", "END", "LONE_SURROGATE", "MAX_DEPTH", "MAX_NUMBER", "NUMBER", "PAIR_OR_ESCAPE", "PARTS"),
    *("SCALARS", "TIMESTAMP", "ZONE"),
]

# Limit of the depth of a body, so that Python can walk it. Jackson's own is 1,000.
MAX_DEPTH = 500
# Jackson's limits.
MAX_KEY, MAX_NUMBER = 50_000, 1_000
# Characters of a value that a reason shows.
SHOWN = 100

# The following are for Java's regular expressions, too. The end of a text: Java's $ is before a last line break, too. A
# date, and a time without its zone.
END = r"(?![\s\S])"
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIMESTAMP = DATE + r"[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?"
ZONE = r"(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)"
# A number in a string.
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
# Digits before the point of a number, after it, and its exponent: DECIMAL and integers take none of five digits.
PARTS = r"-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,4}))?"
# Base64 whose last character has no bits that are lost.
BASE64 = r"[A-Za-z0-9+/]*(?:[A-Za-z0-9+/]|[AEIMQUYcgkosw048]=|[AQgw]==)?"
# Escapes that can't be lone surrogates; what is one when these are removed.
PAIR_OR_ESCAPE = r"\\(?:[^u]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
LONE_SURROGATE = r"\\u[dD][89a-fA-F]"

Step = str | int
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"\s]+) | \[(?:'(?P<single>[^']+)' | "(?P<double>[^"]+)" | (?P<index>\d+))\]""", re.VERBOSE
)
_PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")
# The nearest float of larger numbers is infinite.
_EXACT = Context(prec=2000, Emax=10**9, Emin=-(10**9))
_FLOAT_END = 2**128 - 2**103
_INTEGERS: dict[type[T.DataType], int] = {T.ByteType: 7, T.ShortType: 15, T.IntegerType: 31, T.LongType: 63}
SCALARS = (
    *(T.StringType, T.BooleanType, *_INTEGERS, T.FloatType, T.DoubleType, T.DecimalType),
    *(T.DateType, T.TimestampType, T.TimestampNTZType, T.BinaryType),
)


class Wrong(IntEnum):
    """Why an event is malformed. The numbers are those of the column _wrong."""

    BODY = 1  # not UTF-8, not one JSON object, a lone surrogate, or beyond a limit of the parser
    TYPE = 2
    MISSING = 3  # a field that is NOT NULL
    TIME = 4
    AHEAD = 5
    PARSE = 6  # the SQL of the setting parse gave null
    WHERE = 7  # can't be computed of the event
    SELECT = 8  # likewise; to this number, that of the expression in select is added


@dataclass(frozen=True)
class EventColumn:
    """A column of an event.

    Attributes:
        path: Keys and indexes from the body to the value.
    """

    name: str
    path: tuple[Step, ...]
    type: T.DataType
    is_required: bool = False


@dataclass(frozen=True)
class Shape:
    """What tasks need to know of a table's events.

    Attributes:
        columns: Empty if bodies are not parsed as JSON by a schema.
        max_ahead: Seconds.
    """

    columns: tuple[EventColumn, ...] = ()
    time: str = ""
    max_ahead: float = 0.0
    where: str = ""
    select: tuple[str, ...] = ()


class _Number(str):
    """A number of JSON as it was written."""

    __slots__ = ()


class _Malformed(ValueError):
    """A body is not one JSON object. The text is the reason."""


def _constant(name: str) -> None:
    raise _Malformed(f"body is not JSON: {name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_constant)


def explain(body: bytes, wrong: int, shape: Shape) -> str:
    """Say why an event is malformed.

    Args:
        wrong: The event's value of the column _wrong.
    """
    if wrong >= Wrong.SELECT:
        return f"select can't be computed: {shape.select[wrong - Wrong.SELECT]}"
    match Wrong(wrong):
        case Wrong.BODY:
            return _explain_body(body)
        case Wrong.TYPE | Wrong.MISSING:
            return _explain_fields(body, shape, wrong)
        case Wrong.TIME:
            return f"{shape.time or 'time'} gives no time of the years 1 to 9999"
        case Wrong.AHEAD:
            return f"{shape.time or 'time'} is more than {shape.max_ahead:g} s after the publishing"
        case Wrong.PARSE:
            return "parse gives null, or can't be computed"
        case Wrong.WHERE:
            return f"where can't be computed: {shape.where}"
    raise AssertionError(wrong)


def rescued(body: bytes, shape: Shape) -> str | None:
    """Return the values that do not fit, as a JSON object of path -> value; None if there are none."""
    found = {_path_text(each.path): each.value for each in _problems(_decode(body), shape) if each.kind is not None}
    return _dump(found) if found else None


# What a body has


def _decode(body: bytes) -> dict[str, Any]:
    """Read a body; its numbers stay as they were written. Of a key that is there twice, the last one counts.

    Raises:
        _Malformed: The body is not one JSON object.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _Malformed(f"body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise _Malformed(f"body is more than one JSON value: the second begins at character {error.pos}") from None
        raise _Malformed(f"body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _Malformed(f"body is nested more than {MAX_DEPTH} deep") from None
    if not isinstance(value, dict):
        raise _Malformed(f"body is not a JSON object: {_shown(value)}")
    return value


def _explain_body(body: bytes) -> str:
    try:
        event = _decode(body)
    except _Malformed as error:
        return str(error)
    text = body.decode()
    escaped = re.search(LONE_SURROGATE + "[0-9a-fA-F]{2}", re.sub(PAIR_OR_ESCAPE, " ", text))
    if escaped:
        return f"body has half of a surrogate pair, which is no character: {escaped[0]}"
    nodes: list[tuple[Any, int]] = [(event, 1)]
    while nodes:
        node, depth = nodes.pop()
        if depth > MAX_DEPTH:
            return f"body is nested more than {MAX_DEPTH} deep"
        if isinstance(node, dict):
            if any(len(key) > MAX_KEY for key in node):
                return f"body has a key of more than {MAX_KEY:,} characters"
            nodes += [(child, depth + 1) for child in node.values() if child is not None]
        elif isinstance(node, list):
            nodes += [(child, depth + 1) for child in node if child is not None]
        elif isinstance(node, _Number) and sum(map(str.isdigit, node)) > MAX_NUMBER:
            return f"body has a number of more than {MAX_NUMBER:,} digits"
    return "body is beyond a limit of Spark's JSON parser"


def _explain_fields(body: bytes, shape: Shape, wrong: int) -> str:
    for each in _problems(_decode(body), shape):
        path = _path_text(each.path)
        if each.kind is not None and (wrong == Wrong.TYPE or each.is_required):
            return f"{path} {_shown(each.value)} is not {type_text(each.kind)}"
        if each.kind is None and wrong == Wrong.MISSING:
            return f"{path} is missing or null"
    return "a value does not fit the schema"


def _path_text(path: tuple[Step, ...]) -> str:
    """Write a path as people do: items[2].price, headers['user-agent']."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step) and not (not text and "-" in step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def _shown(value: Any) -> str:
    text = _dump(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _dump(value: Any) -> str:
    """Write JSON, numbers as they came."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_dump(each)}" for key, each in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


# What fits


@dataclass(frozen=True)
class _Problem:
    """A value that does not fit its type, or, with kind None, one that is missing."""

    path: tuple[Step, ...]
    value: Any  # JSON
    kind: T.DataType | None
    is_required: bool = True


def _problems(event: dict[str, Any], shape: Shape) -> Iterator[_Problem]:  # Any: JSON
    for column in shape.columns:
        value = event
        for step in column.path:
            value = _child(value, step)
        yield from _misfits(value, column.type, column.path, is_required=column.is_required)


def _child(value: Any, step: Step) -> Any:  # Any: JSON
    if isinstance(step, str):
        return value.get(step) if isinstance(value, dict) else None
    return value[step] if isinstance(value, list) and step < len(value) else None


def _misfits(
    value: Any,  # JSON
    kind: T.DataType,
    path: tuple[Step, ...],
    *,
    is_required: bool,
) -> Iterator[_Problem]:
    if value is None:
        if is_required:
            yield _Problem(path, None, None)
    elif isinstance(kind, T.StructType) and isinstance(value, dict):
        for field in kind.fields:
            inner = value.get(field.name)
            yield from _misfits(inner, field.dataType, (*path, field.name), is_required=not field.nullable)
    elif isinstance(kind, T.MapType) and isinstance(value, dict):
        for key, inner in value.items():
            yield from _misfits(inner, kind.valueType, (*path, key), is_required=False)
    elif isinstance(kind, T.ArrayType) and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _misfits(inner, kind.elementType, (*path, index), is_required=False)
    elif not _fits(value, kind):
        yield _Problem(path, value, kind, is_required)


def _fits(value: Any, kind: T.DataType) -> bool:  # Any: JSON that is not null
    """Say whether a scalar type takes a value."""
    is_text = type(value) is str
    match kind:
        case T.StringType():
            return True
        case T.BooleanType():
            return isinstance(value, bool)
        case T.BinaryType():
            return is_text and len(value) % 4 == 0 and re.fullmatch(BASE64, value) is not None
        case T.DateType():
            return is_text and re.fullmatch(DATE, value) is not None and _is_date(value)
        case T.TimestampType():
            return is_text and re.fullmatch(f"{TIMESTAMP}{ZONE}?", value) is not None and _is_moment(value)
        case T.TimestampNTZType():
            return is_text and re.fullmatch(TIMESTAMP, value) is not None and _is_moment(value)
        case T.DecimalType():
            if is_text and (len(value) > MAX_NUMBER or re.fullmatch(NUMBER, value) is None):
                return False
            return isinstance(value, str) and _fits_decimal(value, kind.precision, kind.scale)
    if not isinstance(value, _Number) or not isinstance(kind, T.NumericType):
        return False
    if bits := _INTEGERS.get(type(kind)):
        return _fits_decimal(value, 19, 0) and -(2**bits) <= Decimal(value) < 2**bits
    return _is_finite(value, kind)


def _fits_decimal(text: str, precision: int, scale: int) -> bool:
    if re.fullmatch(PARTS, text) is None:
        return False
    # Unscaled, it is a whole number of so many digits. abs() would round.
    unscaled = Decimal(text).scaleb(scale, _EXACT)
    is_whole = unscaled == unscaled.to_integral_value(context=_EXACT)
    return is_whole and -(10**precision) < unscaled < 10**precision


def _is_finite(text: str, kind: T.DataType) -> bool:
    if isinstance(kind, T.DoubleType):
        return math.isfinite(float(text))
    # Half a step beyond the largest float.
    return -_FLOAT_END < Decimal(text) < _FLOAT_END


def _is_date(text: str) -> bool:
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_moment(text: str) -> bool:
    numbers = [int(number) for number in re.findall("[0-9]+", text[:19])]
    if text[16:17] != ":":
        numbers = numbers[:5]
    zone = re.search(r"([+-])([0-9]{2}):?([0-9]{2})?$", text[16:])
    try:
        moment = dt.datetime(*numbers)  # type: ignore[arg-type]  # five or six numbers
        if zone:
            hours, minutes = int(zone[2]), int(zone[3] or 0)
            if minutes > 59 or 60 * hours + minutes > 18 * 60:
                return False
            moment -= int(f"{zone[1]}1") * dt.timedelta(hours=hours, minutes=minutes)
    except (ValueError, OverflowError):
        return False
    return True


# Types and paths


def json_path(text: str) -> tuple[Step, ...]:
    """Read a JSONPath of keys and indexes, such as $.headers['user-agent'], $.items[0].price.

    Raises:
        ValueError: If it is something else.
    """
    if not text.startswith("$"):
        raise ValueError(f"{text!r} must begin with $, as in $.geo.lat or $.headers['user-agent']")
    steps: list[Step] = []
    position = 1
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(
                f"{text!r} can't be read from {text[position:]!r}: a path has keys (.name, ['a name']) and indexes "
                "([0]); for all elements of an array give the column the type ARRAY<...>"
            )
        name = match["name"] or match["single"] or match["double"]
        steps.append(int(match["index"]) if name is None else name)
        position = match.end()
    if not steps or isinstance(steps[0], int):
        raise ValueError(f"{text!r} names no key: a body is an object")
    return tuple(steps)


def type_text(kind: T.DataType) -> str:
    """Write a type as in DDL."""
    text: str = kind.simpleString()
    return text.upper() if isinstance(kind, SCALARS) else text


def check_type(kind: T.DataType, path: str = "", *, is_json: bool = True) -> None:
    """Refuse types that tables do not have, or JSON, and names that Spark can't tell apart.

    Raises:
        ValueError: The text names the field.
    """
    if isinstance(kind, T.StructType):
        if not kind.fields:
            raise ValueError(f"{path or 'the event'} has no fields")
        seen: dict[str, str] = {}
        for field in kind.fields:
            name = f"{path}.{field.name}" if path else field.name
            if (other := seen.get(field.name.lower())) is not None:
                raise ValueError(
                    f"{name} and {other} differ only by case or not at all, and Spark can't tell them apart"
                )
            seen[field.name.lower()] = name
            if is_json and (not field.name or {"'", '"'} <= set(field.name)):
                raise ValueError(f"{name!r} is empty, or has both kinds of quotes, which Spark can't look for in JSON")
            check_type(field.dataType, name, is_json=is_json)
    elif isinstance(kind, T.ArrayType):
        check_type(kind.elementType, f"{path}[]", is_json=is_json)
    elif isinstance(kind, T.MapType):
        if is_json and not isinstance(kind.keyType, T.StringType):
            raise ValueError(f"{path} is a MAP with keys of {type_text(kind.keyType)}: keys of JSON are STRING")
        check_type(kind.keyType, f"{path} (keys)", is_json=is_json)
        check_type(kind.valueType, f"{path}{{}}", is_json=is_json)
    elif type(kind) not in SCALARS or (isinstance(kind, T.StringType) and kind != T.StringType()):
        name = kind.simpleString().upper()
        instead = "STRING, which takes any JSON as its text" if isinstance(kind, T.VariantType) else "STRING"
        raise ValueError(f"{path} is {name}, which tables or JSON do not have: use {instead}")
