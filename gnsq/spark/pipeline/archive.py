"""Query archive: every event into Parquet by hour of event time, every malformed body to the dead-letter topic."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.events import malformed, well_formed
from gnsq.spark.pipeline.objects import open_files
from gnsq.spark.uris import join_uri

__all__ = ["ArchiveBatches"]

# Of a malformed body in its dead letter: nsqd takes 1 MiB, and base64 makes four bytes of three.
LETTER_BYTES = 512 * 1024


class ArchiveBatches:
    """What foreachBatch calls.

    A batch that runs again writes the same files again; its dead letters are published again, so that readers of
    that topic see duplicates (message_id tells). A body that is too long for a letter is whole in dead/.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.files = open_files(join_uri(config.output, "archive"), "hour")
        self._dead = open_files(join_uri(config.output, "dead"))
        self._columns = tuple(config.fields)
        self._sink = config.sink_options(config.dead_letters_to)

    def __call__(self, parsed: DataFrame, batch_id: int) -> None:
        """Write one batch of what events.parse() returns."""
        parsed.persist()
        try:
            self.files.write(self._archived(parsed), batch_id)
            self._bury(malformed(parsed), batch_id)
        finally:
            parsed.unpersist()

    def _bury(self, dead: DataFrame, batch_id: int) -> None:
        [row] = dead.agg(F.max(F.octet_length("body"))).collect()
        if row[0] is None:
            return
        if row[0] > LETTER_BYTES:
            long = dead.where(F.octet_length("body") > LETTER_BYTES)
            self._dead.write(long.select("reason", "body", "message_id", "nsqd", "published_at"), batch_id)
        _dead_letters(dead).write.format("nsq").mode("append").options(**self._sink).save()

    def _archived(self, parsed: DataFrame) -> DataFrame:
        hour = F.date_format("event_time", "yyyy-MM-dd'T'HH").alias("hour")
        body = F.col("body").cast("string").alias("body")
        return well_formed(parsed).select(
            "event_time", *self._columns, body, "message_id", "nsqd", "published_at", hour
        )


def _dead_letters(dead: DataFrame) -> DataFrame:
    length = F.octet_length("body")
    is_long = length > LETTER_BYTES
    letter = F.struct(
        "reason",
        F.base64(F.substring("body", 1, LETTER_BYTES)).alias("body_base64"),
        # Left out where they are null.
        F.when(is_long, F.lit(True)).alias("truncated"),
        F.when(is_long, length).alias("length"),
        *("message_id", "nsqd", "published_at"),
    )
    return dead.select(F.to_json(letter).alias("body"))
