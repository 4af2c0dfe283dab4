"""NSQ for Spark: ``spark.readStream.format("nsq")`` and ``df.writeStream.format("nsq")``.

Importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the format ``nsq`` in a session. If gnsq's module pyspark_nsq is installed, this call is not needed.

    Raises:
        ImportError: If pyspark or pyarrow is missing; the text names the extra.
    """
    try:
        from gnsq.spark.datasource import NsqDataSource  # loads pyspark and pyarrow
    except ImportError as error:
        raise ImportError(f"gnsq.spark needs pyspark and pyarrow: pip install 'gnsq[spark]' ({error})") from error
    spark.dataSource.register(NsqDataSource)


def run_pipeline() -> None:
    """Run the program ``gnsq-pipeline``. If its packages are missing, exit with one line that names the extra."""
    try:
        from gnsq.spark.pipeline.__main__ import main  # loads click
    except ImportError as error:
        sys.exit(str(error))
    main()
