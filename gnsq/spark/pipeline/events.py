"""Converts the body of a message to columns, or to the reason why the body is malformed.

Both queries use parse(), so that they agree on what is malformed. parse() makes Spark expressions only: nothing is
computed in Python, or depends on a time zone or the clock, so a batch that runs again gives the same rows.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnsq.spark.pipeline.schema import EventSchema, plain_type

__all__ = ["deduplicated", "malformed", "parse", "unparsed", "well_formed"]

_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_malformed"}
# A time must have a date and a minute: Spark also accepts "2026", and "10:00" as a time of the current day.
_ISO = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}"
# Limit of the bytes of one key. A count is published with its keys, and nsqd limits the size of the message.
KEY_BYTES = 4096


def deduplicated(messages: DataFrame, within: float) -> DataFrame:
    """Remove messages that the same nsqd delivered in the ``within`` seconds before. For a query without aggregation.

    The watermark is on the time of the batch, which Spark keeps in its offset log. So no row is too late unless the
    driver's clock is set back by more than ``within``, and a batch that runs again removes the same messages.
    """
    delay = f"{round(within * 1e6)} microseconds"
    timed = messages.withColumn("_seen_at", F.current_timestamp()).withWatermark("_seen_at", delay)
    return timed.dropDuplicatesWithinWatermark(["nsqd", "message_id"]).drop("_seen_at")


def parse(messages: DataFrame, schema: EventSchema, max_ahead: float) -> DataFrame:
    """Convert the bodies of messages to columns.

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
    time = F.col(f"event.{schema.time_field}")
    timed = event.withColumn("event_time", _time(time))
    fields = [F.col(f"event.{name}").alias(name) for name in schema.fields]
    return timed.select(
        "message_id", "nsqd", "published_at", "body", *fields, "event_time", _reason(schema, max_ahead).alias("reason")
    )


def unparsed(messages: DataFrame) -> DataFrame:
    """Keep the bodies of messages as they are.

    Returns:
        Columns message_id, nsqd, published_at, body, and reason, which is null: no body is malformed.
    """
    return messages.select("message_id", "nsqd", "published_at", "body", F.lit(None).cast("string").alias("reason"))


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


def _reason(schema: EventSchema, max_ahead: float) -> Column:
    text, time = F.col("body").cast("string"), f"event.{schema.time_field}"
    broken = F.col("event._malformed").isNotNull()
    # Parse a body a second time, with all fields as strings, only if it is broken: is it not JSON, or is a type wrong?
    plain = F.when(broken, F.from_json(text, schema.ddl(as_strings=True), _PERMISSIVE))
    reason = (
        F.when(~F.is_valid_utf8(text), "body is not UTF-8")
        .when(F.col("event").isNull(), "body is not a JSON object")
        .when(broken & (plain.isNull() | plain.getField("_malformed").isNotNull()), "body is not a JSON object")
    )
    reason = reason.when(~_is_one_value(text), "body is more than a JSON object")
    for name, kind in schema.fields.items():
        differs = broken & F.col(f"event.{name}").isNull() & plain.getField(name).isNotNull()
        if plain_type(kind).startswith("timestamp"):
            # Refuse a time without a date: Spark would take it as a time of the current day.
            differs |= F.coalesce(F.get_json_object(text, f"$.{name}").rlike(r"^\s*T?\d{1,2}:"), F.lit(False))
        elif plain_type(kind) == "date":
            # Python can't name other years, and so no partition of them.
            differs |= ~F.coalesce(F.year(F.col(f"event.{name}")).between(1, 9999), F.lit(True))
        reason = reason.when(differs, f"{name} is not of type {kind}")
    reason = reason.when(broken, "a field is not of its type")
    for name in schema.required:
        missing = F.coalesce(F.length(F.col(f"event.{name}").cast("string")), F.lit(0)) == 0
        reason = reason.when(missing, f"{name} is missing")
    for name in schema.keys:
        size = F.octet_length(F.col(f"event.{name}").cast("string"))
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
