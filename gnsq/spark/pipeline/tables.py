"""Settings of one table and of one metric, and what all settings have: each option() is read by its type and bounds.

Reads schema_file; connects to nothing, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnsq.options import option
from gnsq.protocol.names import assert_valid_topic_name
from gnsq.settings import Field, read_value
from gnsq.texts import duration_text

__all__ = [
    *("MetricSettings", "SettingError", "Settings", "TableSettings", "YEAR"),
    *("check_function", "is_mapping", "named_expression", "options_of"),
]

# Seconds.
DAY, YEAR = 86_400, 31_536_000
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_NAME = r"(?:[A-Za-z_]\w*|`(?:[^`]|``)+`)"
# What names a column in SQL: a column alone, a call with one column or *, or any expression with AS.
_COLUMN = re.compile(_NAME)
_CALL = re.compile(rf"([A-Za-z_]\w*)\(\s*(\*|{_NAME})\s*\)")
_AS = re.compile(rf"(.*\S)\s+AS\s+({_NAME})", re.IGNORECASE | re.DOTALL)
# Columns that each table of a metric has.
_METRIC_COLUMNS = ("_window_start", "_window_end", "_day")


class SettingError(ValueError):
    """A setting is missing, unknown, or can't be used. The text begins with it, as users write it.

    Attributes:
        section: The table of the TOML file: "tables.clicks", "metrics.pages", or "".
        text: Begins with the name of the setting.
    """

    def __init__(self, text: str, section: str = "") -> None:
        super().__init__(f"[{section}] {text}" if section else f"setting {text}")
        self.section = section
        self.text = text

    @property
    def name(self) -> str:
        """The name of the setting."""
        return re.split(r"\W", self.text, maxsplit=1)[0]


def options_of(settings: type) -> dict[str, Field]:
    """Return the fields of a class that are settings of their own, by name."""
    return {field.name: field for field in dataclasses.fields(settings) if "meaning" in field.metadata}


class Settings:
    """Reads the value of each setting by its type and bounds. A duration may be text, such as "5 minutes"."""

    @property
    def _section(self) -> str:
        return ""

    def _wrong(self, text: str) -> SettingError:
        return SettingError(text, self._section)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def _checked(self, setting: str, check: Callable[[str], object], value: str) -> None:
        try:
            check(value)
        except ValueError as error:
            raise self._wrong(f"{setting}: {error}") from error

    def __post_init__(self) -> None:
        for name, field in options_of(type(self)).items():
            value = getattr(self, name)
            try:
                self._set(**{name: _pairs(field, value) if is_mapping(field) else read_value(field, value)})
            except (TypeError, ValueError) as error:
                raise self._wrong(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class TableSettings(Settings):
    """One [tables.NAME]: where events come from, and how they become rows of a table.

    schema_file is read into schema. topics and keep have their defaults put in.
    """

    name: str
    topics: tuple[str, ...] = option((), "topics with the events; default: the topic of the table's name")
    topic_pattern: str = option(
        "",
        "in place of topics: a regular expression for whole names; topics that nsqlookupd gets later are added",
    )
    format: str = option(
        "json", "json, or raw: bodies are archived as they came, as bytes, without a schema", choices=("json", "raw")
    )
    schema: str = option("", "columns and their types, in Spark's DDL (NOT NULL: required)")
    schema_file: str = option(
        "", "file with the schema, in place of schema; its path is relative to that of the TOML file"
    )
    columns: Mapping[str, str] = option(
        None, "columns of the schema that come from elsewhere than the key of their name, and the JSONPath of each"
    )
    parse: str = option(
        "",
        "in place of schema, an SQL expression over body, topic, nsqd, message_id, attempts and published_at that "
        "gives a struct",
    )
    time: str = option("", "time of an event: a column or an SQL expression; default: the time of publishing")
    max_ahead: float = option(
        600.0, "events whose time is further ahead of their publishing are malformed", unit="s", minimum=0, maximum=YEAR
    )
    where: str = option("", "SQL condition: other events are left out; default: none is")
    select: tuple[str, ...] = option((), "columns of the table, in SQL; default: all columns of the event")
    partition_by: tuple[str, ...] = option(
        ("_day",), "how the table is divided: _day, _hour or _month of the event's time, or columns; []: not at all"
    )
    mismatch: str = option(
        "dead",
        "what becomes of an event with a value that does not fit the schema: dead: it is a dead letter; rescue: the "
        "field is null, and the column _rescued has what came",
        choices=("dead", "rescue"),
    )
    keep: str = option(
        "",
        "what is kept besides the columns: body: the whole body, in the column _body; none; default: body, with select "
        "none",
        choices=("body", "none"),
    )
    sink: str = option(
        "", "in place of a table, a Python function that is called with the rows and the batch's number, as module:name"
    )

    def __post_init__(self) -> None:
        if not self.keep:
            self._set(keep="none" if self.select and self.format != "raw" else "body")
        super().__post_init__()
        if self.topics and self.topic_pattern:
            raise self._wrong("topics and topic_pattern are both given: leave one out")
        if self.topic_pattern:
            self._checked("topic_pattern", _check_pattern, self.topic_pattern)
        else:
            topics = tuple(dict.fromkeys(self.topics)) or (self.name,)
            for topic in topics:
                self._checked("topics", assert_valid_topic_name, topic)
            self._set(topics=topics)
        self._check_schema()
        columns = [name.lower() for name in self.partition_by]
        if len(set(columns)) < len(columns):
            raise self._wrong("partition_by: a column is there twice")
        if self.sink:
            self._checked("sink", check_function, self.sink)
            if self.partition_by != ("_day",):
                raise self._wrong("partition_by is for tables, and sink takes the rows in place of one: leave one out")

    def _check_schema(self) -> None:
        if self.schema and self.schema_file:
            raise self._wrong("schema and schema_file are both given: leave one out")
        given = [name for name in ("schema", "schema_file", "columns") if getattr(self, name)]
        given += ["mismatch"] if self.mismatch != "dead" else []
        if self.format == "raw":
            given += ["parse"] if self.parse else []
            given += ["keep"] if self.keep != "body" else []
            if given:
                raise self._wrong(f"format raw: bodies are not parsed, so leave out {', '.join(given)}")
        elif self.parse:
            if given:
                raise self._wrong(
                    f"parse gives the columns, and bodies need not be JSON, so leave out {', '.join(given)}"
                )
        elif not self.schema and not self.schema_file:
            raise self._wrong(
                'schema is missing: give the columns and their types, such as schema = "user STRING, ms INT"; or '
                'schema_file, parse, or format = "raw"'
            )
        if self.schema_file:
            try:
                text = Path(self.schema_file).read_text(encoding="utf-8-sig")
            except (OSError, ValueError) as error:
                raise self._wrong(f"schema_file {self.schema_file} can't be read: {error}") from error
            if not text.strip():
                raise self._wrong(f"schema_file {self.schema_file} is empty")
            # So that replace() reads no file.
            self._set(schema=text, schema_file="")

    @property
    def _section(self) -> str:
        return f"tables.{self.name}"


def named_expression(text: str) -> tuple[str, str]:
    """Return the name of the column that an SQL expression makes in a metric's table, and the expression.

    Of a column it is the column's name, of a function of one column FUNCTION_COLUMN, of others what follows AS.

    Raises:
        ValueError: If a name is needed, and there is none.
    """
    text = text.strip()
    if match := _AS.fullmatch(text):
        return _unquoted(match[2]), match[1]
    if _COLUMN.fullmatch(text):
        return _unquoted(text), text
    if match := _CALL.fullmatch(text):
        of = "" if match[2] == "*" else "_" + _unquoted(match[2])
        return match[1].lower() + of, text
    column = f"; or, if it is a column, `{text}`" if "`" not in text else ""
    raise ValueError(f"{text!r} needs a name for its column: write {text} AS name{column}")


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


@dataclass(frozen=True, kw_only=True)
class MetricSettings(Settings):
    """One [metrics.NAME]: what is counted of a table's events."""

    name: str
    table: str = option("", "table whose events are counted, after its where and select; required")
    window: float = option(60.0, "length of a window; windows begin at whole multiples of it since 1970", unit="s")
    keys: tuple[str, ...] = option(
        (), 'events are counted for each value of these: columns of the event, _topic, or "SQL AS name"; default: none'
    )
    aggregates: tuple[str, ...] = option(
        ("count(*)",),
        "what is computed, in SQL: function(column), in the column function_column; or expression AS name",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.table:
            raise self._wrong("table is missing: give the name of the table whose events are counted")
        if not (1 <= self.window <= 31 * DAY and self.window == int(self.window)):
            limit = f"a whole number of seconds, and at most {duration_text(31 * DAY)}"
            raise self._wrong(f"window {duration_text(self.window)} must be {limit}")
        if not self.aggregates:
            raise self._wrong('aggregates is empty: give at least "count(*)"')
        taken = {name.lower(): "is the job's own" for name in _METRIC_COLUMNS}
        for setting in ("keys", "aggregates"):
            for text in getattr(self, setting):
                try:
                    name, expression = named_expression(text)
                except ValueError as error:
                    raise self._wrong(f"{setting}: {error}") from error
                if reason := taken.get(name.lower()):
                    raise self._wrong(f"{setting}: column {name} {reason}: write {expression} AS another name")
                taken[name.lower()] = "is there twice"

    @property
    def _section(self) -> str:
        return f"metrics.{self.name}"


# --- values


def is_mapping(field: Field) -> bool:
    return str(field.type).startswith("Mapping")


def _pairs(field: Field, value: Any) -> dict[str, str]:  # Any: checked here
    """Return a table of TOML with each value as the string that a Spark option needs."""
    if not isinstance(value, Mapping | None):
        raise TypeError(f"{field.name} must be a table of names and values, not a {type(value).__name__}")
    pairs = {}
    for key, item in (value or {}).items():
        if not isinstance(item, (str, int, float)):
            raise TypeError(f"{field.name}: {key} is a {type(item).__name__}; a string or a number was due")
        pairs[str(key)] = str(item).lower() if isinstance(item, bool) else str(item)
    return pairs


def _check_pattern(pattern: str) -> None:
    if pattern.split() != [pattern]:
        raise ValueError(f"{pattern!r} has a blank, and no topic has one")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def check_function(name: str) -> None:
    if _FUNCTION.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a function as module:name, such as clicks.sinks:upsert")
