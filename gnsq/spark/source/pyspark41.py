"""Reader for PySpark 4.1, which has neither read limits nor Trigger.AvailableNow, nor tells the start of a batch.

latestOffset() of PySpark 4.1 has no arguments. Without the end of the last batch, a reader could neither limit the next
batch nor know which segments were read. After a restart, Spark tells that end only if the last batch must run again, by
partitions(). So the reader keeps the end of each batch in the spool, in the file planned.json, before the tasks of the
batch begin. A batch whose end is not in the file yet has not run, so Spark passes it to partitions() first.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.spool.ownership import read_owner
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import redact_uri

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]  # takes the place of Spark's
        """Limit of a batch; PySpark 4.1 passes none."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef, misc]
        """No limit."""

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef, misc]
        """A number of bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A reader that PySpark asks to drain."""


__all__ = [
    "HAS_READ_LIMITS",
    "PlannedEnd",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]

_NAME = "planned.json"


def arrow_schema(schema: StructType) -> Any:  # Any: pyarrow has no types
    """Return the Arrow schema of rows of these types, with timestamps in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # loads much, which the process of a source does not need

    parameters = inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, **({"timezone": "UTC"} if "timezone" in parameters else {}))


class PlannedEnd:
    """The end of the last batch that was planned, as an offset, in a spool. All methods raise OSError if it fails."""

    def __init__(self, options: ReadOptions) -> None:
        self._store = open_store(options.spool, mode=options.spool_permissions)
        self._shown = redact_uri(options.spool)

    def prepare(self, initial: dict[str, Any]) -> None:
        """Write the file, with the end ``initial``, if no query has used the spool. Call this before it is locked.

        Raises:
            SpoolError: If a later PySpark has used the spool, which keeps no end there; or if it can't be used.
        """
        try:
            self._prepare(initial)
        except OSError as error:
            raise SpoolError(
                f"spool {self._shown} can't be used: {error}: give a directory that can be written"
            ) from error

    def _prepare(self, initial: dict[str, Any]) -> None:
        if self._store.size(_NAME) is not None:
            return
        if read_owner(self._store):
            raise SpoolError(
                f"spool {self._shown} was read with PySpark 4.2 or later, and PySpark 4.1 can't go on there: use that "
                "PySpark again, or let it read everything and start with a new checkpoint and a new spool"
            )
        # Before the spool has an owner: otherwise a query that is killed now would be refused when it starts again.
        self._store.make_directory("")
        self.write(initial)

    def read(self) -> dict[str, Any]:
        """Return the end. Call this after the spool is locked, since another run may have planned a batch before."""
        with self._store.open(_NAME) as file:
            found: dict[str, Any] = json.loads(file.read())
        return found

    def write(self, end: dict[str, Any]) -> None:
        """Keep the end, durably."""
        self._store.put(_NAME, json.dumps(end).encode())

    def remove(self) -> None:
        """Delete the file, which would be out of date after a batch with a later PySpark."""
        self._store.remove(_NAME)
