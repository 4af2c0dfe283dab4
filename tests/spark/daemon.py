"""Spark's Python daemon for tests: it loads what its workers would load, for a second of CPU each, and forks them."""

import gc
import os

# A thread of NumPy's would be lacking in the workers.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pandas  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import gnsq.spark.datasource
import gnsq.spark.pipeline.replay
import gnsq.spark.sink  # noqa: F401

if __name__ == "__main__":
    # After each task, a worker searches all that it has for cycles: not what is here.
    gc.freeze()
    manager()
