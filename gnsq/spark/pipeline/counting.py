"""When metrics are counted: in a thread beside the queries, once in an interval; with once, at the end of the run.

The thread counts one metric after the other. One that fails is counted again in the next round, and harms no other. A
stop gives a count up that runs: it commits no more, and the next start counts the same.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gnsq.errors import NSQException
from gnsq.spark.errors import root_cause
from gnsq.spark.pipeline.metrics import Metric
from gnsq.spark.pipeline.status import CountStatus, MetricStatus
from gnsq.spark.pipeline.tables import SettingError

__all__ = ["Counting", "pause_after"]

logger = logging.getLogger(__name__)

# A round that takes long is followed by a pause of so many times its length: windows of a day have many events.
PAUSES = 3.0
# With once: how often a metric is counted that fails, at most, and the seconds between.
TRIES, TRY_PAUSE = 3, 2.0
# Seconds to wait for the end of a count that was given up.
PATIENCE = 30.0
# Spark's pool of the jobs of counts, and their group, by which they are cancelled.
_NAME = "gnsq-metrics"


def pause_after(took: float, every: float) -> float:
    """Return the seconds from the end of a round, which took so many seconds, to the next one."""
    return max(every, PAUSES * took)


class Counting:
    """Counts the metrics of a job.

    Args:
        report: Called by the thread with the record of a metric after each count that has found events.
        every: Seconds from the end of a round to the next one, at least. None: count only after finish().
    """

    def __init__(
        self,
        spark: SparkSession,
        metrics: Sequence[tuple[Metric, CountStatus]],
        report: Callable[[MetricStatus], object],
        *,
        every: float | None,
    ) -> None:
        self._spark = spark
        self._metrics = metrics
        self._report = report
        self._every = every
        self._group = f"{_NAME}-{id(self)}"
        self._wake = threading.Event()
        self._is_last = self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    @property
    def records(self) -> list[MetricStatus]:
        """The present records."""
        return [status.record for _, status in self._metrics]

    @property
    def is_done(self) -> bool:
        """True after the last round."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Begin with the first round, if rounds come by time."""
        if self._metrics and self._every is not None:
            self._thread.start()

    def finish(self) -> None:
        """Count a last time, then end."""
        self._is_last = True
        self._wake.set()
        if self._metrics and self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Give up what runs, and end. Does not wait for that."""
        self._is_stopped = True
        self._wake.set()
        if self._thread.is_alive():
            # AttributeError: after its stop PySpark has no context any more.
            with contextlib.suppress(Py4JError, ConnectionError, AttributeError):
                self._spark.sparkContext.cancelJobGroup(self._group)

    def join(self) -> None:
        """After stop(), wait for the end, but not for a store that hangs."""
        deadline = time.monotonic() + PATIENCE
        while self._thread.is_alive() and time.monotonic() < deadline:
            # Spark cancels only jobs that run, and the count may just have been about to start one.
            self.stop()
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            # Counts take turns with the batches of queries.
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _NAME)
            self._spark.sparkContext.setJobGroup(self._group, "metrics", interruptOnCancel=True)
        except (Py4JError, ConnectionError, AttributeError) as error:  # Java has ended
            for _, status in self._metrics:
                status.failed(f"Spark can't be asked: {error!r}")
            return
        pause = 0.0
        while not self._is_stopped:
            self._wake.wait(pause)
            is_last, began = self._is_last, time.monotonic()
            for metric, status in self._metrics:
                self._count(metric, status, TRIES if is_last else 1)
            if is_last:
                return
            pause = pause_after(time.monotonic() - began, self._every or 0.0)

    def _count(self, metric: Metric, status: CountStatus, tries: int) -> None:
        for left in reversed(range(tries)):
            if self._is_stopped:
                return
            looked_at = time.time()
            try:
                count = metric.count(is_stopped=lambda: self._is_stopped)
            except Exception as error:  # it must neither end the thread nor keep other metrics from being counted
                if not self._is_stopped:
                    is_known = isinstance(error, (NSQException, OSError, SettingError, PySparkException, Py4JError))
                    status.failed(root_cause(str(error)) if is_known else repr(error))
                    told = "metric %s is not counted: %s", metric.name, status.record.failure
                    logger.warning(*told, exc_info=not is_known)
                if left:
                    time.sleep(TRY_PAUSE)
                continue
            status.counted(count, looked_at)
            if count is not None:
                self._report(status.record)
            return
