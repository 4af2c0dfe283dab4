"""The job: archives events from NSQ in Delta tables, and counts them. ``python -m gnsq.spark.pipeline --help``.

run() runs it in a Spark that runs already. The import raises ImportError if a package that the job needs is missing;
the text names the extra to install.
"""

from importlib.util import find_spec

_missing = [name for name in ("click", "deltalake", "obstore", "pyarrow", "pyspark", "rich") if find_spec(name) is None]
if _missing:
    # name=__name__ lets ``python -m`` show only this text, without a traceback.
    raise ImportError(f"{__name__} needs {', '.join(_missing)}: pip install 'gnsq[spark]'", name=__name__)

from gnsq.spark.pipeline.config import PipelineConfig  # noqa: E402  # after the check
from gnsq.spark.pipeline.loading import load_config  # noqa: E402  # after the check
from gnsq.spark.pipeline.report import Summary  # noqa: E402  # after the check
from gnsq.spark.pipeline.runner import run  # noqa: E402  # after the check

__all__ = ["PipelineConfig", "Summary", "load_config", "run"]
