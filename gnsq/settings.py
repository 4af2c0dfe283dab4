"""Options as settings of a program: the names of their flags, and values from texts. Pure.

A setting has one name, one type and one meaning on command lines, in environment variables and in TOML files: those of
its field. Does not use click, which is optional: gnsq.cli.parameters and fakensqd.cli.flags do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from gnsq.options import checked_value
from gnsq.texts import shown_argument

__all__ = [
    "TIME_UNITS",
    "Field",
    "flag_name",
    "form_text",
    "help_text",
    "is_list",
    "parse_number",
    "read_value",
]

Field = dataclasses.Field[Any]  # Any: each option has its own type

# Seconds of each unit that Go knows, with both micro signs of Unicode.
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# And those that people write: "5 minutes".
_WORDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
TIME_UNITS = {**_GO_UNITS, "d": 86400.0, **_WORDS, **{f"{word}s": seconds for word, seconds in _WORDS.items()}}
# As with GNU's programs, M is 1024 * 1024.
SIZE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# A blank before or after a unit.
_BLANK = re.compile(r" (?=[^\W\d])|(?<=[^\W\d]) ")
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([a-zA-Z\u00b5\u03bc]+)", re.ASCII)


def parse_number(text: str, units: Mapping[str, float]) -> float:
    """Convert a number without a unit, or the sum of numbers with units, such as ``1m30s``, with blanks around units.

    Raises:
        ValueError: If the text is neither.
    """
    with contextlib.suppress(ValueError):
        return float(text)
    text = _BLANK.sub("", " ".join(text.split()))
    sign = text[:1] if text[:1] in "-+" else ""
    number, end = 0.0, len(sign)
    # Part after part: a search would try to begin at each digit.
    while (part := _PART.match(text, end)) and part[2] in units:
        number, end = number + float(part[1]) * units[part[2]], part.end()
    if not len(sign) < end == len(text):
        raise ValueError("not a duration such as 1m30s or 250ms")
    return -number if sign == "-" else number


def is_list(field: Field) -> bool:
    """Return True for a setting that may be given several times."""
    return str(field.type).startswith("tuple")


def flag_name(setting: str, *, is_list: bool) -> str:
    """Return the name of a setting's flag, without dashes before it. That of a list is singular: a flag is one item."""
    name = re.sub("(ss)es$|s$", r"\1", setting) if is_list else setting
    return name.replace("_", "-")


def form_text(field: Field) -> str:
    """Return what stands for a value in the help of a setting's flag."""
    unit = field.metadata["unit"]
    return field.metadata["form"] or {"s": "TIME"}.get(unit, unit.upper()) or "TEXT"


def help_text(field: Field, default: object) -> str:
    """Return the text of a setting's flag: its meaning, and its default where it has one."""
    sentences = field.metadata["meaning"].split("; ")
    if is_list(field):
        sentences.append("repeat for several")
    elif default not in ("", None, False):
        shown = f"{default:g}{field.metadata['unit']}" if isinstance(default, float) else default
        sentences.append(f"default: {shown}")
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


# By the unit of a field: the units that a text may have, and what it must be.
_QUANTITIES: dict[str, tuple[Mapping[str, float], str]] = {
    "s": (TIME_UNITS, "a number of seconds, or a duration such as 500ms, 1m30s or 3d"),
    "bytes": (SIZE_UNITS, "a number of bytes, such as 500000, 100M or 1G"),
}
# What other values must be, by the type of the field.
_KINDS = {
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "str": "a string",
    "tuple[str, ...]": "a string or a list of strings",
}


def read_value(field: Field, value: object) -> Any:  # Any: each option has its own type
    """Return the value of a setting, from text or from a TOML file.

    Raises:
        TypeError, ValueError: If the value is not valid. The error's text begins with the name of the field.
    """
    kind = str(field.type).removesuffix(" | None")
    units, kind = _QUANTITIES.get(field.metadata["unit"], ({}, _KINDS.get(kind, kind)))
    given = value
    if units and isinstance(value, str):
        with contextlib.suppress(ValueError):
            given = parse_number(value, units)
    try:
        return checked_value(field, given, value)
    except TypeError:
        shown = shown_argument(value) if field.repr else f"a {type(value).__name__}"
        raise TypeError(f"{field.name} must be {kind}, not {shown}") from None
