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


def test_names_of_the_format_nsq_exist():
    fields = [*dataclasses.fields(ReadOptions), *dataclasses.fields(WriteOptions)]
    known = {*map(spark_name, fields), *COLUMNS, *SINK_COLUMNS, *BACKLOG}

    named = {name for _, ours in ROWS for name in re.findall(r"`(\w+)`", ours)}

    assert len(named) > 20
    assert named <= known
