"""The table of docs/pages/comparison.md about Spark's Kafka source names options and columns that exist."""

import dataclasses
import re

from gnsq.spark.datasource import COLUMNS
from gnsq.spark.options import ReadOptions, WriteOptions, spark_name
from gnsq.spark.sink import COLUMNS as SINK_COLUMNS
from tests.docs.pages import table

ROWS = [row[:2] for row in table("comparison.md", "Spark's Kafka source", "Kafka")]
# What query.lastProgress has as latestOffset of the source.
BACKLOG = {"spool_rows", "spool_bytes", "waiting", "in_flight"}
# Every option of the source in Spark's guide, except those with the prefix kafka.
KAFKA_OPTIONS = re.findall(
    r"\S+",
    """
    assign subscribe subscribePattern startingTimestamp startingOffsetsByTimestamp startingOffsets endingTimestamp
    endingOffsetsByTimestamp endingOffsets failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries
    fetchOffset.retryIntervalMs maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions
    maxRecordsPerPartition groupIdPrefix includeHeaders
    """,
)


def test_names_of_the_format_nsq_exist():
    fields = [*dataclasses.fields(ReadOptions), *dataclasses.fields(WriteOptions)]
    known = {*map(spark_name, fields), *COLUMNS, *SINK_COLUMNS, *BACKLOG}

    named = {name for _, ours in ROWS for name in re.findall(r"`(\w+)`", ours)}

    assert len(named) > 20
    assert named <= known


def test_every_option_of_kafka_has_a_row():
    named = {name for theirs, _ in ROWS for name in re.findall(r"`([\w.]+)`", theirs)}

    assert [name for name in KAFKA_OPTIONS if name not in named] == []
