"""Messages, batches and tables."""

import datetime as dt
import json

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import Row

from gnsq.spark.pipeline.delta import delta_location
from gnsq.spark.pipeline.events import plan
from gnsq.spark.pipeline.parquet import write

MESSAGES = (
    "body binary, message_id string, attempts int, published_at timestamp, received_at timestamp, nsqd string, "
    "topic string"
)
PUBLISHED_AT = dt.datetime(2026, 11, 20, 10, tzinfo=dt.UTC)


def messages(bodies, first=0):
    """Rows as the source gives them, with ids from the first on."""
    more = 1, PUBLISHED_AT, PUBLISHED_AT, "127.0.0.1:4150", "clicks"
    return [(bytearray(body), f"{number:016}", *more) for number, body in enumerate(bodies, first)]


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


# By settings and messages: Spark parses the same ones once for all tests.
_PARSED = {}


def parsed_messages(spark, settings, rows):
    """The events of these messages, and what foreachBatch is called with."""
    key = repr((settings, rows))
    if key not in _PARSED:
        events = plan(spark.createDataFrame(rows, MESSAGES), settings)
        _PARSED[key] = events, events.frame.toArrow()
    events, table = _PARSED[key]
    return events, Rows(spark, table)


def event(time, page="/", user="u", **more):
    return json.dumps({"time": time.isoformat(), "user": user, "page": page, **more}).encode()


def written(table, batch_id, rows):
    """The files of a batch with these rows, as tasks write them."""
    target = table.target(batch_id)
    batch = pa.RecordBatch.from_pylist(list(rows), schema=target.schema)
    return list(write([batch], lambda rows: [(target, rows)]))


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
