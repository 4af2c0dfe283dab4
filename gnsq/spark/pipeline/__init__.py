"""The job: click events from NSQ to Parquet and to one-minute counts. ``python -m gnsq.spark.pipeline --help``.

Raises ImportError, naming the extra, where a package it needs is missing.
"""

from importlib.util import find_spec

_missing = [name for name in ("click", "pyarrow", "pyspark", "rich") if find_spec(name) is None]
if _missing:
    # With its name ``python -m`` shows this text alone, without a traceback.
    raise ImportError(f"{__name__} needs {', '.join(_missing)}: pip install 'gnsq[spark]'", name=__name__)
