"""The format ``nsq``, as Spark finds it: name, schema, readers and writers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from gnsq.spark.clients import check_addresses
from gnsq.spark.options import ReadOptions, WriteOptions
from gnsq.spark.sink import NsqBatchWriter, NsqStreamWriter, check_columns
from gnsq.spark.source.pyspark41 import SupportsTriggerAvailableNow
from gnsq.spark.source.reader import NsqBatchReader, NsqStreamReader, stream_reader

__all__ = ["COLUMNS", "NsqDataSource", "data_source_for"]

# The same columns as SCHEMA in spool/segments.py, since record batches of segments are passed to Spark unchanged. They
# are no DDL, since a setting of the session says what a timestamp is there.
COLUMNS = {
    "body": BinaryType(),
    "message_id": StringType(),
    "attempts": IntegerType(),
    "published_at": TimestampType(),
    "received_at": TimestampType(),
    "nsqd": StringType(),
    "topic": StringType(),
}


class NsqDataSource(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """``spark.read``, ``readStream``, ``df.write`` and ``writeStream`` with ``.format("nsq")``.

    Attributes:
        parallelism: Default of the option numPartitions; None: the number of this machine's CPUs.
    """

    parallelism: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nsq"

    def schema(self) -> StructType:
        """Check the options, and return the columns of a row that is read, with their types.

        Spark calls this in load(). Whether a stream or a batch is to be read, it tells only when the query starts.
        """
        with _errors_in_one_line():
            self._read_options()
        return StructType([StructField(name, kind) for name, kind in COLUMNS.items()])

    def reader(self, schema: StructType) -> NsqBatchReader:
        """Make the reader of a batch."""
        with _errors_in_one_line():
            return NsqBatchReader(self._read_options(), _columns(schema))

    def streamReader(self, schema: StructType) -> NsqStreamReader | RefusedStream:
        """Make the reader of a stream; if an option is wrong, one whose methods raise the error.

        If this raised it, the user would see an UnboundLocalError of PySpark in its place.
        """
        try:
            options = self._read_options()
            if not options.spool:
                raise ValueError("option spool is required: a directory for this query alone, as a path or a URI")
            if options.max_rows is not None:
                raise ValueError("option maxRows is for spark.read only; a stream has maxRowsPerBatch")
            return stream_reader(options, _columns(schema))
        except ValueError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> NsqBatchWriter:
        """Make the writer of a batch."""
        with _errors_in_one_line():
            if overwrite:
                raise ValueError("a topic can't be overwritten: use mode('append')")
            return NsqBatchWriter(self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        """Make the writer of a stream."""
        with _errors_in_one_line():
            return NsqStreamWriter(self._write_options(schema))

    def _read_options(self) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        check_addresses(options)
        return dataclasses.replace(options, num_partitions=options.num_partitions or self.parallelism)

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = WriteOptions.parse(self.options)
        check_addresses(options)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        return options


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # no types
    """A reader of a stream with wrong options: what Spark calls first raises the error."""

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def _refuse(self, *arguments: object) -> NoReturn:
        with _errors_in_one_line():
            raise self._error

    initialOffset = latestOffset = partitions = read = prepareForTriggerAvailableNow = _refuse


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Let Spark show an error as its text alone, without the traceback of this process, which ends by it."""
    try:
        yield
    except ValueError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def data_source_for(parallelism: int | None) -> type[NsqDataSource]:
    """Return the data source for a cluster that runs so many tasks at the same time; None if that is not known."""
    if parallelism is None:
        return NsqDataSource
    # Spark asks for readers in a process without a session, so the number is in the class. This class is no attribute
    # of its module, so Spark's pickle passes the whole class, with the number.
    return type("NsqDataSource", (NsqDataSource,), {"parallelism": parallelism})


def _columns(schema: StructType) -> tuple[str, ...]:
    """Return the names of a schema's columns; ValueError if a name is not in COLUMNS, or its type differs."""
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType:
            known = ", ".join(f"{name}:{kind.simpleString()}" for name, kind in COLUMNS.items())
            raise ValueError(f"column {field.simpleString()} is none of {known}: give no schema, use from_json on body")
    return tuple(field.name for field in schema.fields)
