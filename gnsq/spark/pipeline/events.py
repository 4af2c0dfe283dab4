"""Converts the body of a message to columns, or to the reason why the body is malformed.

All queries use the same expressions, so that they agree on what is malformed. They are Spark's expressions only:
nothing is computed in Python, or depends on a time zone or the clock, so a batch that runs again gives the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnsq.spark.pipeline.schema import EventSchema, plain_type
from gnsq.spark.pipeline.topics import TopicEntry

__all__ = [
    "NO_ENTRY",
    "by_topic",
    "deduplicated",
    "field_column",
    "malformed",
    "parse",
    "parse_topics",
    "well_formed",
]

# Reason of messages whose topic fits no entry of the settings: they came before the entry was removed.
NO_ENTRY = "the topic fits no entry of the settings"
# In place of the number of a shape, for topics whose bodies are not parsed.
_RAW = "raw"

_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_malformed"}
# A time must have a date and a minute: Spark also accepts "2026", and "10:00" as a time of the current day.
_ISO = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}"
# Limit of the bytes of one key. A count is published with its keys, and nsqd limits the size of the message.
KEY_BYTES = 4096


def deduplicated(messages: DataFrame, within: float, flat: str) -> DataFrame:
    """Remove messages that the same nsqd delivered in the ``within`` seconds before. For a query without aggregation.

    The watermark is on the time of the batch, which Spark keeps in its offset log. So no row is too late unless the
    driver's clock is set back by more than ``within``, and a batch that runs again removes the same messages.

    Args:
        flat: Topic whose messages are told apart by nsqd and message_id alone, as in the state of an earlier release.
            An nsqd gives the same id to messages of several topics, so for other topics the key has the topic, too.
    """
    delay = f"{round(within * 1e6)} microseconds"
    key = F.when(F.col("topic") == flat, F.col("nsqd")).otherwise(F.concat("nsqd", F.lit("/"), "topic"))
    timed = messages.withColumn("_seen_at", F.current_timestamp()).withWatermark("_seen_at", delay)
    # The columns of the key have the same names and types as in the state of an earlier release.
    keyed = timed.withColumn("_nsqd", F.col("nsqd")).withColumn("nsqd", key)
    once = keyed.dropDuplicatesWithinWatermark(["nsqd", "message_id"])
    return once.withColumn("nsqd", F.col("_nsqd")).drop("_seen_at", "_nsqd")


def parse(messages: DataFrame, schema: EventSchema, max_ahead: float) -> DataFrame:
    """Convert the bodies of the messages of one topic to columns.

    Args:
        messages: Rows of the nsq source.
        schema: Fields of an event.
        max_ahead: Seconds. An event is malformed if its time is more than this after the message's publishing: such a
            time could close windows to which other events still belong.

    Returns:
        Columns message_id, nsqd, published_at, body (unchanged), the schema's fields, event_time, and reason: why the
        event is malformed, or null.
    """
    text = F.col("body").cast("string")
    event = messages.withColumn("event", F.from_json(text, schema.ddl(), _PERMISSIVE))
    timed = event.withColumn("event_time", _time(F.col(f"event.{schema.time_field}")))
    fields = [F.col(f"event.{name}").alias(name) for name in schema.fields]
    reason = _reason(schema, max_ahead, "event").alias("reason")
    return timed.select("message_id", "nsqd", "published_at", "body", *fields, "event_time", reason)


def parse_topics(messages: DataFrame, rules: Sequence[TopicEntry]) -> DataFrame:
    """Convert the bodies of the messages of several topics to columns, each as the first rule says that its topic fits.

    Topics that are parsed in the same way share an expression, and a body is parsed by one expression only. With raw
    the reason is null. If a topic fits no rule, the reason is NO_ENTRY.

    Returns:
        The columns of parse(), and topic. Columns of fields have the names of field_column(): several topics may have a
        field of the same name and another type. Fields that the topic does not have are null.
    """
    shapes: list[tuple[EventSchema, float]] = []
    for entry in rules:
        if entry.shape is not None and entry.shape not in shapes:
            shapes.append(entry.shape)
    numbers = [str(shapes.index(entry.shape)) if entry.shape else _RAW for entry in rules]
    numbered = messages.withColumn("_shape", by_topic(rules, numbers))
    text = F.col("body").cast("string")
    # With one shape, all bodies are parsed without conditions, which cost a quarter of the parsing.
    is_only = len(shapes) == 1 and _RAW not in numbers
    parsed = [F.from_json(text, schema.ddl(), _PERMISSIVE) for schema, _ in shapes]
    if not is_only:
        parsed = [F.when(F.col("_shape") == str(index), event) for index, event in enumerate(parsed)]
    events = numbered.select(
        *("topic", "message_id", "nsqd", "published_at", "body", "_shape"),
        *(event.alias(f"_event_{index}") for index, event in enumerate(parsed)),
    )
    times = [F.col(f"_event_{index}.{schema.time_field}") for index, (schema, _) in enumerate(shapes)]
    timed = events.withColumn("event_time", _time(F.coalesce(*times, F.lit(None).cast("string"))))
    fields: dict[str, list[Column]] = {}
    reasons: list[Column] = []
    for index, (schema, max_ahead) in enumerate(shapes):
        for name, kind in schema.fields.items():
            fields.setdefault(field_column(name, kind), []).append(F.col(f"_event_{index}.{name}"))
        reasons.append(_reason(schema, max_ahead, f"_event_{index}"))
    if is_only:
        # Spark computes both elements of an array in any case, and so the common parts of the reason only once.
        place = F.when(F.col("_shape").isNull(), 2).otherwise(1)
        reason = F.element_at(F.array(*reasons, F.lit(NO_ENTRY)), place)
    else:
        reason = F.when(F.col("_shape") == _RAW, F.lit(None).cast("string"))
        for index, each in enumerate(reasons):
            reason = reason.when(F.col("_shape") == str(index), each)
        reason = reason.otherwise(F.lit(NO_ENTRY))
    return timed.select(
        *("topic", "message_id", "nsqd", "published_at", "body"),
        *(F.coalesce(*columns).alias(name) for name, columns in fields.items()),
        "event_time",
        reason.alias("reason"),
    )


def field_column(name: str, kind: str) -> str:
    """Return the column of parse_topics() for a field. The name has a blank, so it is not one of the other columns."""
    # Spark does not tell names apart that differ in case only.
    return f"{name.lower()} {plain_type(kind)}"


def by_topic(rules: Sequence[TopicEntry], values: Sequence[str]) -> Column:
    """Build, as a text, the value of the first rule that a row's topic fits; null if it fits none."""
    found: Column = F.when(F.lit(False), F.lit(""))
    # One condition for all neighbours of the same value: a job may have many topics.
    for value, neighbours in itertools.groupby(zip(values, rules, strict=True), key=lambda pair: pair[0]):
        entries = [entry for _, entry in neighbours]
        expressions = [entry.name for entry in entries if entry.is_expression]
        fits = F.col("topic").isin([entry.name for entry in entries if not entry.is_expression])
        if expressions:
            fits |= F.col("topic").rlike(f"^(?:{'|'.join(expressions)})$")
        found = found.when(fits, F.lit(value))
    return found


def _time(text: Column) -> Column:
    # Spark needs seconds before a zone (Java leaves out :00), the letters T and Z in upper case, and a decimal point.
    usual = F.regexp_replace(F.translate(text, "tz,", "TZ."), r"^(.{16})(?=[Z+-])", "$1:00")
    return F.when(text.rlike(_ISO), F.coalesce(F.try_to_timestamp(text), F.try_to_timestamp(usual)))


def _is_one_value(text: Column) -> Column:
    """True if nothing follows the JSON value that a text begins with. Spark's parser stops after that value."""
    # In most events the first } is the last character. This test takes a tenth of the parser's time, the array half.
    ends = text.rlike(r"^[^}]*\}\s*$")
    array = F.from_json(F.concat(F.lit("["), text, F.lit("\n,null]")), "array<struct<_: string>>")
    return F.when(ends, True).otherwise(F.coalesce(F.size(array), F.lit(-1)) == 2)


def _reason(schema: EventSchema, max_ahead: float, event: str) -> Column:
    """Build the reason why a body is malformed, or null; event is the column with the parsed body."""
    text, time = F.col("body").cast("string"), f"{event}.{schema.time_field}"
    broken = F.col(f"{event}._malformed").isNotNull()
    # Parse a body a second time, with all fields as strings, only if it is broken: is it not JSON, or is a type wrong?
    plain = F.when(broken, F.from_json(text, schema.ddl(as_strings=True), _PERMISSIVE))
    reason = (
        F.when(~F.is_valid_utf8(text), "body is not UTF-8")
        .when(F.col(event).isNull(), "body is not a JSON object")
        .when(broken & (plain.isNull() | plain.getField("_malformed").isNotNull()), "body is not a JSON object")
    )
    reason = reason.when(~_is_one_value(text), "body is more than a JSON object")
    for name, kind in schema.fields.items():
        differs = broken & F.col(f"{event}.{name}").isNull() & plain.getField(name).isNotNull()
        if plain_type(kind).startswith("timestamp"):
            # Refuse a time without a date: Spark would take it as a time of the current day.
            differs |= F.coalesce(F.get_json_object(text, f"$.{name}").rlike(r"^\s*T?\d{1,2}:"), F.lit(False))
        elif plain_type(kind) == "date":
            # Python can't name other years, and so no partition of them.
            differs |= ~F.coalesce(F.year(F.col(f"{event}.{name}")).between(1, 9999), F.lit(True))
        reason = reason.when(differs, f"{name} is not of type {kind}")
    reason = reason.when(broken, "a field is not of its type")
    for name in schema.required:
        missing = F.coalesce(F.length(F.col(f"{event}.{name}").cast("string")), F.lit(0)) == 0
        reason = reason.when(missing, f"{name} is missing")
    for name in schema.keys:
        size = F.octet_length(F.col(f"{event}.{name}").cast("string"))
        reason = reason.when(size > KEY_BYTES, f"{name} is longer than {KEY_BYTES} bytes")
    ahead = F.col("event_time").cast("double") - F.col("published_at").cast("double")
    return (
        reason.when(F.col(time).isNull(), f"{schema.time_field} is missing")
        .when(F.col("event_time").isNull(), f"{schema.time_field} can't be read as ISO 8601")
        .when(F.col("event_time").cast("double") < 0, f"{schema.time_field} is before 1970")
        .when(ahead > max_ahead, f"{schema.time_field} is in the future")
    )


def well_formed(parsed: DataFrame) -> DataFrame:
    """Keep the rows that are events: those without a reason."""
    return parsed.where(F.col("reason").isNull()).drop("reason")


def malformed(parsed: DataFrame) -> DataFrame:
    """Keep the malformed rows: those with a reason."""
    return parsed.where(F.col("reason").isNotNull())
