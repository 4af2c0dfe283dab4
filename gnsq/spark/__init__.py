"""NSQ for Spark: ``spark.readStream.format("nsq")`` and ``df.writeStream.format("nsq")``.

Importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

import sys

from gnsq.startup import EndingAtSignals

TYPE_CHECKING = False  # see gnsq/__init__.py
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the format ``nsq`` in a session. If gnsq's module pyspark_nsq is installed, this call is not needed.

    The default of the option numPartitions is then ``spark.sparkContext.defaultParallelism``: the number of cores of
    the executors that have started. Without this call, and on Spark Connect, it is the number of the driver's CPUs.

    The session becomes the active one of this thread: Spark looks for formats there, and not in the session that is
    used. It does not find pyspark_nsq if the path of Python has a blank.

    Raises:
        ImportError: If pyspark or pyarrow is missing; the text names the extra.
    """
    try:
        from gnsq.spark.datasource import data_source_for  # loads pyspark and pyarrow
    except ImportError as error:
        raise ImportError(f"gnsq.spark needs pyspark and pyarrow: pip install 'gnsq[spark]' ({error})") from error
    # A session of Spark Connect has no sparkContext: the attribute raises a subclass of AttributeError.
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        context._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    spark.dataSource.register(data_source_for(context and context.defaultParallelism))


def run_pipeline() -> None:
    """Run the program ``gnsq-pipeline``. If its packages are missing, exit with one line that names the extra."""
    try:
        with EndingAtSignals():
            from gnsq.spark.pipeline.__main__ import main  # loads click
    except ImportError as error:
        sys.exit(str(error))
    main()
