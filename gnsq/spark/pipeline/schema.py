"""EventSchema: which fields an event has. PURE; events.py makes Spark expressions of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DIVIDING", "EventSchema", "RESERVED", "SCALARS", "plain_type"]

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


@dataclass(frozen=True)
class EventSchema:
    """Fields of the JSON object that a body has to be.

    Args:
        fields: Name -> Spark SQL type; each becomes a column of the archive.
        time_field: Has the event's time; becomes the column event_time.
        keys: Of fields; what is counted by.
        required_fields: Of fields; without them a body is malformed. Keys are among them always. None: all.

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
        """Build Spark's schema as DDL, with a column for bodies that can't be parsed."""
        fields = {name: "string" if as_strings else kind for name, kind in self.fields.items()}
        fields |= {self.time_field: "string", "_malformed": "string"}
        return ", ".join(f"`{name}` {kind}" for name, kind in fields.items())


def plain_type(kind: str) -> str:
    """Return the one spelling that a type and all its synonyms have."""
    kind = kind.strip().lower()
    match = _DECIMAL.fullmatch(kind)
    return f"decimal({int(match[1])},{int(match[2] or 0)})" if match is not None else _SYNONYMS.get(kind, kind)


def _check_name(setting: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"setting {setting}: {name!r} is not made of letters, digits and underscores")


def _is_scalar(kind: str) -> bool:
    kind = kind.strip().lower()
    match = _DECIMAL.fullmatch(kind)
    if match is None:
        return kind in SCALARS
    precision, scale = int(match[1]), int(match[2] or 0)
    return 1 <= precision <= 38 and scale <= precision
