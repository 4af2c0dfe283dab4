"""Options as settings of a program: the names of their flags, and values from texts. Pure.

A setting has one name, one type and one meaning on command lines, in environment variables and in TOML files: those of
its field. Does not use click, which is optional: gnsq.cli.parameters does. fakensqd reads nsqd's flags itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from gnsq.options import checked_value

__all__ = ["GO_UNITS", "Field", "flag_name", "is_list", "parse_duration", "parse_seconds", "read_value"]

Field = dataclasses.Field[Any]  # Any: each option has its own type

# Seconds of each unit that Go knows. The last but one and the one before it are micro signs.
GO_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS = {**GO_UNITS, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)([a-z\u00b5\u03bc]+)", re.ASCII)


def parse_duration(text: str, units: Mapping[str, float] = GO_UNITS) -> float:
    """Convert a duration such as ``1m30s`` or ``250ms`` to seconds, as Go does.

    Raises:
        ValueError: If the text is not a duration. Each number needs a unit, unless the text is 0.
    """
    unsigned = text.removeprefix("-") if text[:1] == "-" else text.removeprefix("+")
    parts = _DURATION_PART.findall(unsigned)
    is_whole = "".join(number + unit for number, unit in parts) == unsigned and all(unit in units for _, unit in parts)
    if unsigned != "0" and not (parts and is_whole):
        raise ValueError("not a duration such as 1m30s or 250ms")
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    return -seconds if text[:1] == "-" else seconds


def parse_seconds(text: str) -> float:
    """Convert a number of seconds, or a duration such as ``1m30s``, ``250ms`` or ``3d``.

    Raises:
        ValueError: If the text is neither.
    """
    with contextlib.suppress(ValueError):
        return float(text)
    return parse_duration(text.strip(), _UNITS)


def is_list(field: Field) -> bool:
    """Return True for a setting that may be given several times."""
    return str(field.type).startswith("tuple")


def flag_name(setting: str, *, is_list: bool) -> str:
    """Return the name of a setting's flag, without dashes before it. That of a list is singular: a flag is one item."""
    name = re.sub("(ss)es$|s$", r"\1", setting) if is_list else setting
    return name.replace("_", "-")


def read_value(field: Field, value: object) -> Any:  # Any: each option has its own type
    """Return the value of a setting, from text or from a TOML file.

    Raises:
        TypeError, ValueError: If the value is not valid. The error's text begins with the name of the field.
    """
    if isinstance(value, str) and field.metadata["unit"] == "s":
        try:
            value = parse_seconds(value)
        except ValueError:
            example = "a number of seconds, or a duration such as 500ms, 1m30s or 3d"
            raise ValueError(f"{field.name} must be {example}, not {value!r}") from None
    return checked_value(field, value)
