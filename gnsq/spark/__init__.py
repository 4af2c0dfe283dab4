"""NSQ for Spark: ``spark.readStream.format("nsq")`` and ``df.writeStream.format("nsq")``.

Importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gnsq.spark.receiver.executors import ExecutorReceivers

__all__ = ["ExecutorReceivers", "register"]


def register(spark: SparkSession) -> None:
    """Register the format ``nsq`` in a Spark session. If the module pyspark_nsq is installed, Spark finds it by itself.

    Raises:
        ImportError: If pyspark or pyarrow is missing; the text names the extra.
    """
    try:
        from gnsq.spark.datasource import NsqDataSource  # loads pyspark and pyarrow
    except ImportError as error:
        raise _incomplete(error) from error
    spark.dataSource.register(NsqDataSource)


def run_pipeline() -> None:
    """Run the program ``gnsq-pipeline``. If its packages are missing, exit with one line that names the extra."""
    try:
        from gnsq.spark.pipeline.__main__ import main  # loads click
    except ImportError as error:
        sys.exit(str(error))
    main()


def __getattr__(name: str) -> object:
    if name == "ExecutorReceivers":
        try:
            from gnsq.spark.receiver.executors import ExecutorReceivers  # as above
        except ImportError as error:
            raise _incomplete(error) from error
        return ExecutorReceivers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _incomplete(error: ImportError) -> ImportError:
    return ImportError(f"gnsq.spark needs pyspark and pyarrow: pip install 'gnsq[spark]' ({error})")
