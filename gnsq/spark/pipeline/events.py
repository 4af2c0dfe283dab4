"""What a click event is: from a message's body to columns, or the reason why it is malformed.

One function for all queries, so that they agree. Spark expressions only: nothing is computed in Python.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = ["malformed", "parse", "well_formed"]

_SCHEMA = "user string, page string, time string, _malformed string"
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_malformed"}


def parse(messages: DataFrame, max_ahead: float) -> DataFrame:
    """Take messages apart.

    Args:
        messages: Rows of the nsq source.
        max_ahead: Seconds; a time that is further ahead of the message's publishing would make all others late.

    Returns:
        message_id, nsqd, published_at, body (as it came), user, page, event_time, and reason: why it is malformed,
        or null.
    """
    text = F.col("body").cast("string")
    event = messages.withColumn("event", F.from_json(text, _SCHEMA, _PERMISSIVE))
    timed = event.withColumn("event_time", F.try_to_timestamp(F.col("event.time")))
    return timed.select(
        "message_id",
        "nsqd",
        "published_at",
        "body",
        F.col("event.user").alias("user"),
        F.col("event.page").alias("page"),
        "event_time",
        _reason(max_ahead).alias("reason"),
    )


def _reason(max_ahead: float) -> Column:
    ahead = F.col("event_time").cast("double") - F.col("published_at").cast("double")
    return (
        F.when(~F.is_valid_utf8(F.col("body").cast("string")), "body is not UTF-8")
        .when(F.col("event").isNull() | F.col("event._malformed").isNotNull(), "body is not a JSON object")
        .when(F.coalesce(F.length("event.page"), F.lit(0)) == 0, "page is missing")
        .when(F.coalesce(F.length("event.user"), F.lit(0)) == 0, "user is missing")
        .when(F.col("event.time").isNull(), "time is missing")
        .when(F.col("event_time").isNull(), "time is not ISO 8601")
        .when(ahead > max_ahead, "time is in the future")
    )


def well_formed(parsed: DataFrame) -> DataFrame:
    """Keep the events."""
    return parsed.where(F.col("reason").isNull()).drop("reason")


def malformed(parsed: DataFrame) -> DataFrame:
    """Keep the rest."""
    return parsed.where(F.col("reason").isNotNull())
