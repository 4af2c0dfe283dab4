"""Installed as the top-level module pyspark_nsq: Spark seeks a ``DefaultSource`` in each module pyspark_*.

The import never raises: if it did, Spark would not find the formats of other packages either.
"""

from __future__ import annotations

try:
    from gnsq.spark.datasource import NsqDataSource as DefaultSource
except Exception as error:  # noqa: BLE001  # pyspark or pyarrow too old, missing or broken: the format is not offered
    import logging

    logging.getLogger(__name__).warning("format nsq is not available: %s", error)
else:
    __all__ = ["DefaultSource"]
