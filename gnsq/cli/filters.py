"""--where and --contains: which messages a command chooses by their bodies. Pure."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from gnsq.cli.parameters import Parsed

__all__ = ["BodyFilter", "Condition", "filter_options"]

# An operator of another language, such as ==, =~, >= or one between spaces, would be a part of the field or the value,
# and match nothing.
_CONDITION = re.compile(
    r"(?P<path>[^=!~<>]*[^=!~<>\s])(?P<operator>!=(?![=~\s])|=(?![=~\s])|~)(?P<value>.*)", re.DOTALL
)
_INDEX = re.compile("[0-9]{1,9}")
_MISSING = object()


@dataclass(frozen=True)
class Condition:
    """A condition on a field of a JSON body.

    Attributes:
        path: Keys that lead to the field. A number is the index of an item of a list.
        operator: ``=``, ``!=`` or ``~``.
        value: Text to compare the field with, or JSON. So a text in quotes may begin with ``=``.
    """

    path: tuple[str, ...]
    operator: str
    value: str

    def is_true(self, body: Any) -> bool:  # Any: JSON
        """Compare the field of a body. A field that is missing is unequal to every value."""
        field = self._field(body)
        if self.operator == "~":
            return field is not _MISSING and self.value in _text(field)
        return self._equals(field) == (self.operator == "=")

    def _field(self, body: Any) -> Any:  # Any: JSON
        for key in self.path:
            if isinstance(body, dict) and key in body:
                body = body[key]
            elif isinstance(body, list) and _INDEX.fullmatch(key) and int(key) < len(body):
                body = body[int(key)]
            else:
                return _MISSING
        return body

    def _equals(self, field: Any) -> bool:  # Any: JSON, or _MISSING
        if field is _MISSING:
            return False
        if field == self.value:
            return True
        value = _parsed(self.value)
        # In Python True is 1, but not in JSON.
        return isinstance(field, bool) == isinstance(value, bool) and bool(field == value)


def _parsed(text: str | bytes) -> Any:  # Any: JSON, or _MISSING
    """Parse JSON. Return _MISSING if it is something else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _MISSING


def _text(field: Any) -> str:  # Any: JSON
    return field if isinstance(field, str) else json.dumps(field, ensure_ascii=False)


@dataclass(frozen=True)
class BodyFilter:
    """Chooses bodies for which all conditions are true.

    Attributes:
        where: Conditions on JSON. A body that is not JSON is not chosen if there is one.
        contains: Bytes that the body must contain.
    """

    where: tuple[Condition, ...] = ()
    contains: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.where or self.contains)

    def chooses(self, body: bytes) -> bool:
        """Return True if a body is chosen."""
        if not all(text in body for text in self.contains):
            return False
        if not self.where:
            return True
        parsed = _parsed(body)
        try:
            return parsed is not _MISSING and all(condition.is_true(parsed) for condition in self.where)
        except RecursionError:  # json writes fewer levels than it parses
            return False


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not FIELD=VALUE, FIELD!=VALUE or FIELD~TEXT, without spaces around the operator; a VALUE "
            "that begins with = or ~ needs quotes: FIELD='\"=x\"'"
        )
    return Condition(tuple(match["path"].split(".")), match["operator"], match["value"])


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: a command's function
    """Add --where and --contains to a command's function, which gets the argument ``body_filter`` in their place."""

    @click.option(
        "--where",
        metavar="CONDITION",
        multiple=True,
        type=Parsed("condition", _condition),
        help="Only JSON bodies with this: FIELD=VALUE, FIELD!=VALUE, or FIELD~TEXT (contains). FIELD may be a path "
        "such as user.country or items.0.id. Repeat: all must be true.",
    )
    @click.option("--contains", metavar="TEXT", multiple=True, help="Only bodies with this text. Repeat: all of them.")
    @functools.wraps(function)
    def with_filter(**values: Any) -> Any:  # Any: click's
        contains = tuple(text.encode("utf-8", "surrogateescape") for text in values.pop("contains"))
        return function(body_filter=BodyFilter(values.pop("where"), contains), **values)

    return with_filter
