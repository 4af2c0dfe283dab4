"""From a message's body to columns, or to the reason why it is malformed.

One function for all queries, so that they agree. Spark expressions only: nothing is computed in Python, nothing
depends on a time zone or on the clock, so that a batch that runs again gives the same.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnsq.spark.pipeline.schema import EventSchema, plain_type

__all__ = ["deduplicated", "malformed", "parse", "well_formed"]

_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_malformed"}
# Spark also takes "2026" and "10:00", which is today's.
_ISO = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}"
# A count is published with its keys, and has to fit into what nsqd takes.
KEY_BYTES = 4096


def deduplicated(messages: DataFrame, within: float) -> DataFrame:
    """Leave out messages that an nsqd delivered before, within so many seconds; for a query without aggregation.

    What counts is the time of the batch, which Spark keeps in its offset log: no row can be behind a watermark on it,
    as long as the driver's clock is not set back by more than that, and a batch that runs again gives the same.
    """
    delay = f"{round(within * 1e6)} microseconds"
    timed = messages.withColumn("_seen_at", F.current_timestamp()).withWatermark("_seen_at", delay)
    return timed.dropDuplicatesWithinWatermark(["nsqd", "message_id"]).drop("_seen_at")


def parse(messages: DataFrame, schema: EventSchema, max_ahead: float) -> DataFrame:
    """Take messages apart.

    Args:
        messages: Rows of the nsq source.
        schema: What an event has to be.
        max_ahead: Seconds; a time that is further ahead of the message's publishing would close the windows of all
            others.

    Returns:
        message_id, nsqd, published_at, body (as it came), the schema's fields, event_time, and reason: why it is
        malformed, or null.
    """
    text = F.col("body").cast("string")
    event = messages.withColumn("event", F.from_json(text, schema.ddl(), _PERMISSIVE))
    time = F.col(f"event.{schema.time_field}")
    timed = event.withColumn("event_time", _time(time))
    fields = [F.col(f"event.{name}").alias(name) for name in schema.fields]
    return timed.select(
        "message_id", "nsqd", "published_at", "body", *fields, "event_time", _reason(schema, max_ahead).alias("reason")
    )


def _time(text: Column) -> Column:
    # Spark wants seconds where there is a zone (Java writes none that are 0), large letters and a point.
    usual = F.regexp_replace(F.translate(text, "tz,", "TZ."), r"^(.{16})(?=[Z+-])", "$1:00")
    return F.when(text.rlike(_ISO), F.coalesce(F.try_to_timestamp(text), F.try_to_timestamp(usual)))


def _is_one_value(text: Column) -> Column:
    """Whether nothing is behind the first JSON value, where Spark's parser ends. For a text that begins with one."""
    # In most events the first brace is the last character. That costs a tenth of parsing one, and the rest a half.
    ends = text.rlike(r"^[^}]*\}\s*$")
    array = F.from_json(F.concat(F.lit("["), text, F.lit("\n,null]")), "array<struct<_: string>>")
    return F.when(ends, True).otherwise(F.coalesce(F.size(array), F.lit(-1)) == 2)


def _reason(schema: EventSchema, max_ahead: float) -> Column:
    text, time = F.col("body").cast("string"), f"event.{schema.time_field}"
    broken = F.col("event._malformed").isNotNull()
    # Only read again what can't be read as it should: is it no JSON, or has a field another type?
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
            # To Spark a time without a date is today's.
            differs |= F.coalesce(F.get_json_object(text, f"$.{name}").rlike(r"^\s*T?\d{1,2}:"), F.lit(False))
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
    """Keep the events."""
    return parsed.where(F.col("reason").isNull()).drop("reason")


def malformed(parsed: DataFrame) -> DataFrame:
    """Keep the rest."""
    return parsed.where(F.col("reason").isNotNull())
