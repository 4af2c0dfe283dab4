"""Batches, and what the job leaves: files as the queries name them, checkpoints as Spark writes them."""

import datetime as dt
import json

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import Row

from gnsq.spark.pipeline.delta import delta_location

UTC = dt.UTC


def put_checkpoint(location):
    """Write what tells that a checkpoint is there, as Spark 4 does."""
    location.mkdir(parents=True, exist_ok=True)
    (location / "metadata").write_text('{"id":"a"}')


def put_batch(location, number, offsets):
    """Write what tells that a batch has begun and the one before is done, as Spark does."""
    for log, batch_id, text in (("offsets", number, offsets), ("commits", number - 1, "")):
        (location / log).mkdir(parents=True, exist_ok=True)
        (location / log / f"{batch_id}").write_text(text)
        (location / log / f".{batch_id}.crc").write_text(text)


MESSAGES = (
    "body binary, message_id string, attempts int, published_at timestamp, received_at timestamp, nsqd string, "
    "topic string"
)
PUBLISHED_AT = dt.datetime(2026, 12, 1, tzinfo=UTC)


def message(number, body, topic="clicks"):
    """A row as the source gives it."""
    return (bytearray(body), f"{number:016}", 1, PUBLISHED_AT, PUBLISHED_AT, "127.0.0.1:4150", topic)


def messages(spark, bodies, topic="clicks"):
    """Rows as the source gives them, for these bodies."""
    return spark.createDataFrame([message(number, body, topic) for number, body in enumerate(bodies)], MESSAGES)


class Rows:
    """Rows of Spark's that it has computed already: functions of them are called in this process."""

    def __init__(self, spark, table):
        self.sparkSession = spark
        self.columns = table.column_names
        self._table = table

    def toDF(self, *names):
        return Rows(self.sparkSession, self._table.rename_columns(names))

    def mapInArrow(self, function, schema):
        [batch] = self._table.combine_chunks().to_batches()
        self._found = [Row(**row) for made in function(iter([batch])) for row in made.to_pylist()]
        return self

    def collect(self):
        return self._found


def event(time, page="/", user="u", **more):
    return json.dumps({"time": time.isoformat(), "user": user, "page": page, **more}).encode()


def delta_table(location):
    """A reader of a table."""
    uri, options = delta_location(str(location))
    return DeltaTable(uri, storage_options=options)


def table_rows(location):
    """All rows of a table; none if there is no table."""
    try:
        return delta_table(location).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
