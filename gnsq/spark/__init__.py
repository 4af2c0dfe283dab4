"""NSQ for Spark: ``spark.readStream.format("nsq")`` and ``df.writeStream.format("nsq")``.

Importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gnsq.spark.executors import ExecutorReceivers

__all__ = ["ExecutorReceivers", "register"]


def register(spark: SparkSession) -> None:
    """Make the format ``nsq`` known to a Spark session. Where the module pyspark_nsq is installed Spark finds it alone.

    Raises:
        ImportError: If pyspark or pyarrow is missing; the text names the extra.
    """
    try:
        from gnsq.spark.datasource import NsqDataSource  # loads pyspark and pyarrow
    except ImportError as error:
        raise ImportError(f"gnsq.spark needs pyspark and pyarrow: pip install 'gnsq[spark]' ({error})") from error
    spark.dataSource.register(NsqDataSource)


def __getattr__(name: str) -> object:
    if name == "ExecutorReceivers":
        from gnsq.spark.executors import ExecutorReceivers  # loads pyspark and pyarrow

        return ExecutorReceivers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
