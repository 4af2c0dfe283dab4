"""Topics of a job: names and expressions of the settings, how events are parsed, and where tables lie. Pure.

An expression is a regular expression for whole names of topics. Python evaluates it in the receivers, and Spark, by
Java, in the tasks. So only the syntax is accepted in which both mean the same for names of topics.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gnsq.options import check_bounds, option
from gnsq.protocol.names import MAX_NAME_LENGTH, valid_topic_name
from gnsq.spark.pipeline.schema import DIVIDING, EventSchema, plain_type
from gnsq.spark.pipeline.windows import Metric

__all__ = [
    "DEFAULT_FIELDS",
    "FLAT_TABLES",
    "Layout",
    "TopicEntry",
    "TopicSettings",
    "check_expression",
    "is_topic",
    "topic_pattern",
]

DEFAULT_FIELDS = {"user": "string", "page": "string"}
# Tables of the topic whose tables are directly in output. No other topic can have such a name: its directory would be
# in the place of one of them.
FLAT_TABLES = ("archive", "dead", "metrics")
_DEAD = "-dead"
# Settings that can't be given with raw.
_NOT_RAW = ("fields", "fields_file", "required_fields", "time_field", "max_ahead", "dead_letter_topic")
# One element of an expression, with its quantifier.
_ESCAPE = r"\\[dw.\-]"
_ELEMENT = re.compile(
    rf"(?:[A-Za-z0-9_.#-]|{_ESCAPE}|\[\^?(?:[A-Za-z0-9_.#-]|{_ESCAPE})+\]|\))"
    r"(?:(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{]))?"
    r"|\((?:\?[:=!])?(?![*+?{])|\|"
)


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """Settings of one ``[topics.NAME]``. None: as the job's setting of the same name says."""

    raw: bool | None = option(None, "archive the bodies as they came")
    fields: Mapping[str, str] | None = option(None, "columns of the archive and their types")
    fields_file: str | None = option(None, "file with the columns")
    time_field: str | None = option(None, "field with the event's time")
    required_fields: tuple[str, ...] | None = option(None, "fields that every event must have")
    partition_by: str | None = option(None, "how the archive is divided")
    max_ahead: float | None = option(None, "how far an event may be ahead of its publishing", unit="s", minimum=0)
    dead_letter_topic: str | None = option(None, "topic for malformed bodies")


@dataclass(frozen=True, kw_only=True)
class TopicEntry:
    """A topic, or all topics whose names fit an expression, and how their events are parsed.

    Attributes:
        name: The topic, or the expression.
        raw: Bodies are archived as they came. Then schema, max_ahead and dead_letter_topic are not used.
        schema: Fields of an event; its keys are those of the topic's metrics.
        dead_letter_topic: Where malformed bodies are published; "": TOPIC-dead.
    """

    name: str
    raw: bool
    schema: EventSchema
    partition_by: str
    max_ahead: float
    dead_letter_topic: str = ""

    @classmethod
    def make(cls, name: str, given: TopicSettings, inherited: TopicSettings) -> TopicEntry:
        """Make an entry of its settings, and of the job's, which have no None but in required_fields.

        Raises:
            ValueError: If a setting can't be used; the text names it.
        """
        if not name:
            raise ValueError('its name is empty: give the name of a topic, or an expression such as "clicks.*"')
        if not is_topic(name):
            check_expression(name)
        raw = bool(inherited.raw if given.raw is None else given.raw)
        if raw and (wrong := [each for each in _NOT_RAW if getattr(given, each) is not None]):
            raise ValueError(f"raw: bodies are not parsed, so leave out {', '.join(wrong)}, or give raw = false")
        own = {
            field.name: value
            for field in dataclasses.fields(given)
            if (value := getattr(given, field.name)) is not None
        }
        if "fields" in own:
            # The job's required fields are some of the job's fields.
            inherited = dataclasses.replace(inherited, required_fields=None)
        settings = dataclasses.replace(inherited, **own)
        max_ahead = settings.max_ahead or 0.0
        check_bounds("max_ahead", max_ahead, TopicSettings.__dataclass_fields__["max_ahead"])
        fields, required = ({}, None) if raw else (settings.fields or {}, settings.required_fields)
        schema = EventSchema(fields, settings.time_field or "", (), required)
        by = settings.partition_by or ""
        _check_partition(by, schema.fields)
        letters = "" if raw else settings.dead_letter_topic or ""
        return cls(name=name, raw=raw, schema=schema, partition_by=by, max_ahead=max_ahead, dead_letter_topic=letters)

    @property
    def is_expression(self) -> bool:
        """True if the name is an expression."""
        return not is_topic(self.name)

    def fits(self, topic: str) -> bool:
        """Return True if a topic is this one, or its name fits the expression."""
        return topic == self.name if is_topic(self.name) else re.fullmatch(self.name, topic) is not None

    def of_topic(self, topic: str, keys: tuple[str, ...]) -> TopicEntry:
        """Return the entry of one topic that fits, with the keys of the topic's metrics."""
        return dataclasses.replace(self, name=topic, schema=dataclasses.replace(self.schema, keys=keys))

    def dead_letters_to(self, topic: str) -> str:
        """Return the topic for malformed bodies of a topic; "" with raw. The name is cut if it would be too long."""
        if self.raw:
            return ""
        return self.dead_letter_topic or f"{topic[: MAX_NAME_LENGTH - len(_DEAD)]}{_DEAD}"

    @property
    def shape(self) -> tuple[EventSchema, float] | None:
        """Values that the parsing of bodies depends on; None with raw."""
        return None if self.raw else (self.schema, self.max_ahead)

    @property
    def division(self) -> int:
        """A hash of the settings that divide the rows of a batch between tables."""
        # Without parsing nothing is divided: such settings can't be given. A raw job of an earlier release has the hash
        # of the defaults.
        schema = EventSchema(DEFAULT_FIELDS, "time", ("page",)) if self.raw else self.schema
        fields = sorted((name, plain_type(kind)) for name, kind in schema.fields.items())
        max_ahead = 600.0 if self.raw else float(self.max_ahead)
        settings = [fields, sorted(schema.required), sorted(schema.keys), schema.time_field, max_ahead]
        # 48 bits: some readers of a table's log take numbers as floats.
        return int.from_bytes(hashlib.sha256(json.dumps(settings).encode()).digest()[:6])


def is_topic(name: str) -> bool:
    """Return True if a name of an entry is a topic; otherwise it is an expression."""
    return valid_topic_name(name)


def check_expression(expression: str) -> None:
    """Check that an expression means the same to Python and Java.

    Raises:
        ValueError: If it has other syntax.
    """
    position = 0
    while position < len(expression):
        match = _ELEMENT.match(expression, position)
        if match is None:
            raise ValueError(
                f"expression {expression!r} is not understood at {expression[position:]!r}: usable are letters, "
                r"digits, . _ - # \d \w \. \- [...] (...) (?:...) (?=...) (?!...) | * + ? {n} {n,m}, for the whole name"
            )
        position = match.end()
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"expression {expression!r} is not a regular expression: {error}") from error


def _check_partition(by: str, fields: Mapping[str, str]) -> None:
    if by in ("day", "hour", "none"):
        if by in {name.lower() for name in fields}:
            raise ValueError(
                f"setting partition_by {by!r} makes a column of that name, and so does the setting fields: give "
                "another one, or rename the field"
            )
    elif by not in fields:
        other = f", nor one of fields: {', '.join(fields)}" if fields else ", and raw has no fields"
        raise ValueError(f"setting partition_by {by!r} is neither day, hour nor none{other}")
    elif plain_type(fields[by]) not in DIVIDING:
        raise ValueError(
            f"setting partition_by {by!r} has the type {fields[by]}: a field to partition by is one of "
            f"{', '.join(sorted(DIVIDING))}"
        )


def topic_pattern(entries: Iterable[TopicEntry], outputs: Iterable[str], flat: str) -> str:
    """Build the expression for all topics of a job that has entries with expressions.

    Left out are the job's own output topics, ephemeral topics, and names that can't be a directory beside the tables.

    Args:
        outputs: Topics that the job publishes to, besides TOPIC-dead of the topics that fit an expression.
        flat: Topic with its tables directly in output; "": none.
    """
    entries = list(entries)
    parts = [entry.name if entry.is_expression else re.escape(entry.name) for entry in entries]
    dead = [entry.name for entry in entries if entry.is_expression and not entry.raw and not entry.dead_letter_topic]
    excluded = [r"\.\.?", ".*#ephemeral", *map(re.escape, sorted(outputs))]
    if dead:
        excluded += [f"(?:{'|'.join(dead)}){_DEAD}", f".{{{MAX_NAME_LENGTH - len(_DEAD)}}}{_DEAD}"]
    if flat:
        excluded += [name for name in FLAT_TABLES if name != flat]
    return f"(?!(?:{'|'.join(excluded)})$)(?:{'|'.join(parts)})"


@dataclass(frozen=True)
class Layout:
    """Decisions of the first start of a job, and what the job has had at its last start.

    A job that begins with one topic has the topic's tables directly in output; all other tables are in output/TOPIC. A
    job that begins with one metric has the query, the channel and the topic TOPIC-metrics of this metric without the
    metric's name. Both stay when further ones come, and the order in the settings makes no difference.

    Attributes:
        flat: Topic with its tables directly in output; "": none.
        plain: Metric whose query is called metrics, as TOPIC/NAME; "": none; None: not decided.
        topics: Names of the entries at the last start.
        metrics: Metrics at the last start, as TOPIC/NAME, and their channels.
        tables: The tables archive and dead that were made, by their paths in output.
        outputs: Topics that the job has published to, without TOPIC-dead of topics that fit an expression.
    """

    flat: str = ""
    plain: str | None = None
    topics: tuple[str, ...] = ()
    metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tables: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def first(cls, topics: Sequence[str], metrics: Sequence[Metric]) -> Layout:
        """Decide for a job that has never run."""
        flat = topics[0] if len(topics) == 1 and is_topic(topics[0]) else ""
        return cls(flat, None if not metrics else metrics[0].id if len(metrics) == 1 else "")

    def directory(self, topic: str) -> str:
        """Return the directory, relative to output, of a topic's tables."""
        return "" if topic == self.flat else topic

    def query(self, metric: Metric) -> str:
        """Return the name of the query of a metric."""
        return "metrics" if metric.id == self.plain else f"metrics.{metric.topic}.{metric.name}"

    def to_json(self) -> str:
        """Encode as JSON."""
        return json.dumps({"v": 1, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> Layout:
        """Decode the result of to_json().

        Raises:
            ValueError: If it is not.
        """
        try:
            values = json.loads(text)
            if values.pop("v") != 1:
                raise ValueError("it was written by another version of gnsq")
            return cls(**{**values, **{name: tuple(values[name]) for name in ("topics", "tables", "outputs")}})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a layout: {error!r}") from error
