"""Python functions that setup registers: one that raises makes an error of Spark's expression, not of its whole task.

Spark has an error of Python end the task, in whatever branch of an expression, so the batch would fail again and again.
Here a function is registered so that it gives a struct of its value and its error, and calls of it in the SQL of users
raise the error in Java, where it can be caught for each event.
"""

from __future__ import annotations

import gzip
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.types import _parse_datatype_string
from pyspark.sql.udf import UDFRegistration
from pyspark.util import PythonEvalType

__all__ = ["SetupSession", "guarded_names"]

_NAMES = "spark.gnsq.functions"
_OF_ROWS = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)


class SetupSession(SparkSession):  # type: ignore[misc]  # pyspark is not typed here
    """A session as the function of setup gets it: errors of what it registers are caught."""

    def __init__(self, spark: SparkSession) -> None:
        self.__dict__.update(spark.__dict__)

    @property
    def udf(self) -> UDFRegistration:
        """Registers functions, as that of any session."""
        return _Registration(self)


class _Registration(UDFRegistration):  # type: ignore[misc]  # pyspark is not typed here
    def register(self, name: str, f: Any, returnType: Any = None) -> Any:  # Any: as PySpark has them
        # Of a function with annotations Spark may make one of pandas, which gets many rows at a time.
        of_rows = getattr(f, "evalType", None) in _OF_ROWS if hasattr(f, "evalType") else not _annotations(f)
        if not of_rows or not getattr(f, "deterministic", True):
            return super().register(name, f, returnType)
        f, kind = getattr(f, "func", f), getattr(f, "returnType", returnType or T.StringType())
        kind = _parse_datatype_string(kind) if isinstance(kind, str) else kind
        struct = T.StructType([T.StructField("value", kind), T.StructField("error", T.StringType())])
        conf = self.sparkSession.conf
        conf.set(_NAMES, " ".join([*guarded_names(self.sparkSession), name.lower()]))
        return super().register(name, _guarded(f), struct)


def _annotations(function: Any) -> dict[str, Any]:  # Any: the user's
    return getattr(function, "__annotations__", None) or {}


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> tuple[Any, str | None]:
        try:
            return function(*arguments), None
        except MemoryError:
            raise
        except Exception as error:  # the user's
            if isinstance(error, OSError) and not _is_of_data(error):
                raise  # not the event's: the batch fails, and runs again
            return None, f"{type(error).__name__}: {error}"

    del call.__annotations__
    return call


def _is_of_data(error: OSError) -> bool:
    """Return whether a library has given this error for what it could not decode, as gzip, bz2 and requests do."""
    if isinstance(error, ssl.SSLError):  # of which one is a ValueError, too
        return False
    is_plain = type(error) is OSError and error.errno is None
    return is_plain or isinstance(error, (gzip.BadGzipFile, ValueError))


def guarded_names(spark: SparkSession) -> Iterator[str]:
    """Yield the names, in lower case, of functions that give a struct of value and error."""
    yield from spark.conf.get(_NAMES, "").split()
