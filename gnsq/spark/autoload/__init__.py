"""Installed as the top-level module pyspark_nsq: Spark looks for ``DefaultSource`` in every module of such a name.

Never raises: an error here would take other formats that Spark finds this way with it.
"""

from __future__ import annotations

try:
    from gnsq.spark.datasource import NsqDataSource as DefaultSource
except Exception as error:  # noqa: BLE001  # pyspark or pyarrow too old, missing or broken: the format is not offered
    import logging

    logging.getLogger(__name__).warning("format nsq is not available: %s", error)
else:
    __all__ = ["DefaultSource"]
