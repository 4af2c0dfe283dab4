"""Query archive: every event into Parquet by hour of event time, every malformed body to the dead-letter topic."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.events import malformed, well_formed
from gnsq.spark.pipeline.files import BatchFiles

__all__ = ["ArchiveBatches"]


class ArchiveBatches:
    """What foreachBatch calls.

    A batch that runs again writes the same files again; its dead letters are published again, so that readers of
    that topic see duplicates (message_id tells).
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.files = BatchFiles(f"{config.output}/archive", "hour")
        self._columns = tuple(config.fields)
        self._sink = config.sink_options(config.dead_letters_to)

    def __call__(self, parsed: DataFrame, batch_id: int) -> None:
        """Write one batch of what events.parse() returns."""
        parsed.persist()
        try:
            self.files.write(self._archived(parsed), batch_id)
            _dead_letters(parsed).write.format("nsq").mode("append").options(**self._sink).save()
        finally:
            parsed.unpersist()

    def _archived(self, parsed: DataFrame) -> DataFrame:
        hour = F.date_format("event_time", "yyyy-MM-dd'T'HH").alias("hour")
        body = F.col("body").cast("string").alias("body")
        return well_formed(parsed).select(
            "event_time", *self._columns, body, "message_id", "nsqd", "published_at", hour
        )


def _dead_letters(parsed: DataFrame) -> DataFrame:
    letter = F.to_json(F.struct("reason", F.base64("body").alias("body_base64"), "message_id", "nsqd", "published_at"))
    return malformed(parsed).select(letter.alias("body"))
