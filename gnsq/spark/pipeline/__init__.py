"""The job: writes events from NSQ into Delta tables, and counts them. ``python -m gnsq.spark.pipeline --help``.

run() runs it in a Spark that runs already. The import raises ImportError if a package that the job needs is missing;
the text names the extra to install.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

_missing = [name for name in ("click", "deltalake", "obstore", "pyarrow", "pyspark") if find_spec(name) is None]
if _missing:
    # name=__name__ lets ``python -m`` show only this text, without a traceback.
    raise ImportError(f"{__name__} needs {', '.join(_missing)}: pip install 'gnsq[spark]'", name=__name__)

from gnsq.spark.pipeline.settings import JobSettings, load_settings  # noqa: E402  # after the check
from gnsq.spark.pipeline.tables import MetricSettings, SettingError, TableSettings  # noqa: E402

if TYPE_CHECKING:
    from gnsq.spark.pipeline.job import run
    from gnsq.spark.pipeline.status import Summary

__all__ = ["JobSettings", "MetricSettings", "SettingError", "Summary", "TableSettings", "load_settings", "run"]


def __getattr__(name: str) -> object:
    """Import what loads PySpark and PyArrow when it is used: ``--help`` and wrong settings do not need them."""
    if name in ("Summary", "run"):
        from gnsq.spark.pipeline import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
