"""The job: click events from NSQ to Parquet and to one-minute counts. ``python -m gnsq.spark.pipeline --help``.

The import raises ImportError, which names the extra to install, if a package is missing that the job needs.
"""

from importlib.util import find_spec

_missing = [name for name in ("click", "pyarrow", "pyspark") if find_spec(name) is None]
if _missing:
    # name=__name__ lets ``python -m`` show only this text, without a traceback.
    raise ImportError(f"{__name__} needs {', '.join(_missing)}: pip install 'gnsq[spark]'", name=__name__)
