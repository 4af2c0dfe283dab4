"""Receivers on executors (``receivers=executors:N``): long-running tasks of the query's own Spark application.

This is the driver's side: how many receivers run, when they start, and when they end. The tasks are executor_task.py.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from functools import partial

from pyspark.sql import SparkSession

from gnsq.spark.errors import SpoolError, root_cause
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.executor_task import ReceiverLease, receive
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = ["ExecutorReceivers", "TooFewSlots"]

logger = logging.getLogger(__name__)

# Seconds for executors to register, and for receivers to end before they are killed.
SLOTS_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
# Seconds between counts of slots, and after which a changed count is final: a dead executor is replaced by then.
POLL_INTERVAL = 1.0
STABLE_AFTER = 10.0
# Seconds between tries to run receivers: the first pause, and the longest. A run of SUCCESSFUL_RUN resets the pause.
RETRY_INITIAL, RETRY_MAXIMUM = 1.0, 60.0
SUCCESSFUL_RUN = 60.0

# Started ones, in order: later ones get the slots that are left.
_started: list[ExecutorReceivers] = []

_SPECULATION = "spark.speculation.task.duration.threshold"


class TooFewSlots(SpoolError):
    """The receivers would leave no slot for the query. The text says how many there are, and what to do."""


class ExecutorReceivers:
    """Runs receivers in tasks of a Spark application, beside the query that reads their spool.

    The executors must share the file system of the spool, reach nsqd, and have gnsq installed. Each receiver holds one
    slot (spark.task.cpus cores) until stop(), so more slots than receivers are needed. Each query has its own
    receivers: two queries with N each hold 2N slots.

    Spark restarts a task that dies, on any executor with a free slot. After Spark gives up (spark.task.maxFailures,
    spark.excludeOnFailure), all receivers are started again, with growing pauses, while the application lives. If
    executors are lost, fewer receivers run, so that one slot is left for the query. With dynamic allocation slots are
    not counted: Spark requests executors when tasks wait, up to spark.dynamicAllocation.maxExecutors. check() and the
    log (as WARNING) describe problems.

    Raises:
        ValueError: If the option receivers is not executors:N.
    """

    def __init__(self, spark: SparkSession, options: ReadOptions) -> None:
        self._context = spark.sparkContext
        self._options = options
        self._count = options.receiver_count
        if not self._count:
            raise ValueError(f"option receivers {options.receivers!r} is none for executors: give executors:N")
        self._lease = ReceiverLease(options.spool, options.spool_permissions)
        self._group = f"gnsq-receivers-{uuid.uuid4().hex}"
        self._location = redact_uri(options.spool)
        # The run that has the lease, and the number of its receivers.
        self._run = ""
        self._running = 0
        self._failure = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # --- life

    def start(self) -> None:
        """Begin to receive; return before the tasks run. A second call does nothing.

        Raises:
            TooFewSlots: If there are not more slots than receivers after SLOTS_TIMEOUT.
            SpoolError: If the spool can't be written.
            ValueError: If Spark would run receivers twice.
        """
        if self._thread is not None:
            return
        settings = self._context.getConf()
        if settings.get("spark.speculation") == "true" and settings.get(_SPECULATION):
            raise ValueError(f"{_SPECULATION} would run every receiver twice: unset it, or spark.speculation")
        self._wait_for_slots()
        try:
            self._allow_new_run()
        except OSError as error:
            raise SpoolError(
                f"spool {self._location} can't be used: {error}: give a directory that driver and executors share"
            ) from error
        self._running = self._count
        _started.append(self)
        self._thread = threading.Thread(target=self._keep_running, name="gnsq-executor-receivers", daemon=True)
        self._thread.start()

    def check(self) -> str:
        """Describe what is wrong, such as receivers that do not run yet; "" if all is well."""
        if self._thread is None:
            return f"receivers of {self._options.source}: not started, or stopped"
        if self._failure:
            return self._failure
        active = self._active_tasks()
        if active < self._running:
            return self._reported(f"{active} run, others wait for a slot")
        if self._running < self._count:
            return self._reported(f"{active} run: Spark has too few slots, and one is left for the query")
        return ""

    def stop(self) -> None:
        """Shut down the receivers, and wait: durable messages are finished, others are requeued."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        try:
            self._lease.revoke(self._run)
        except OSError as error:
            logger.warning("spool %s: %s: the receivers can't be stopped by their file", self._location, error)
        thread.join(STOP_TIMEOUT)
        if thread.is_alive():
            logger.warning(
                "%s; nsqd delivers their messages again when its timeout ends",
                self._reported(f"not ended within {STOP_TIMEOUT:.0f} s, killed"),
            )
            self._context.cancelJobGroup(self._group)
            thread.join(STOP_TIMEOUT)
        _started.remove(self)

    def _reported(self, text: str) -> str:
        return f"{counted(self._count, 'receiver')} of {self._options.source}: {text}"

    # --- slots

    def _wait_for_slots(self) -> None:
        # A local master has all slots from the start.
        deadline = time.monotonic() + (0 if self._context._jsc.isLocal() else SLOTS_TIMEOUT)
        while (slots := self._slots()) <= self._count:
            if time.monotonic() >= deadline:
                raise TooFewSlots(
                    f"receivers={self._options.receivers} holds {counted(self._count, 'slot')} until stop(), and Spark "
                    f"has {slots} (cores of its executors / spark.task.cpus, without those of other queries' "
                    f"receivers): at least {self._count + 1} are needed. Give Spark more cores, ask for fewer "
                    "receivers, or run python -m gnsq.spark.receiver outside of Spark with receivers=external"
                )
            time.sleep(0.2)

    def _slots(self) -> int:
        """Count the tasks that can run at once on the present executors, without receivers of other queries."""
        if self._context.getConf().get("spark.dynamicAllocation.enabled") == "true":
            return self._count + 1
        # defaultParallelism is a setting, and 2 for a cluster without executors.
        context = self._context._jsc.sc()
        slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        before = _started[: _started.index(self)] if self in _started else _started
        return slots - sum(other._running for other in before if other._context is self._context)

    def _free_slots(self) -> int:
        """Compute the number of receivers that leave one slot for the query."""
        return max(min(self._count, self._slots() - 1), 0)

    def _active_tasks(self) -> int:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [stage for job in jobs if job and job.status == "RUNNING" for stage in job.stageIds]
        return sum(stage.numActiveTasks for stage in map(tracker.getStageInfo, stages) if stage)

    # --- one run after the other

    def _keep_running(self) -> None:
        retry = RETRY_INITIAL
        while not self._stopping.is_set():
            started = time.monotonic()
            reason = self._run_once()
            if self._stopping.is_set():
                return
            if self._context._jsc is None or self._context._jsc.sc().isStopped():
                self._failure = self._reported("ended with the Spark application")
                logger.error("%s", self._failure)
                return
            if time.monotonic() - started > SUCCESSFUL_RUN:
                retry = RETRY_INITIAL
            self._failure = self._reported(f"do not run: {reason}")
            logger.warning("%s; started again in %.0f s", self._failure, retry)
            self._stopping.wait(retry)
            retry = min(retry * 2, RETRY_MAXIMUM)

    def _run_once(self) -> str:
        """Run as many receivers as possible until they have ended; return why they have."""
        try:
            if self._lease.current() not in (None, "", self._run):
                return f"another application has receivers on {self._location}"
            free = self._free_slots()
            if not free:
                return "Spark has too few slots, and one is left for the query"
            self._allow_new_run()
            if self._stopping.is_set():
                # stop() has revoked the run before this one.
                self._lease.revoke(self._run)
                return ""
            reason = self._run_tasks(free)
            # Spark kills the other tasks of a failed job after 2 s or more. Until then they can shut down.
            self._lease.revoke(self._run)
        except Exception as error:  # noqa: BLE001  # a file system's, py4j's or Spark's: there is always a next run
            return root_cause(str(error))
        return reason

    def _allow_new_run(self) -> None:
        """Grant the lease to a new run, so that receivers of earlier ones end."""
        run = uuid.uuid4().hex
        self._lease.grant(run)
        self._run = run

    def _run_tasks(self, count: int) -> str:
        """Run so many tasks until they have ended, or the number of slots has changed."""
        reason = ["another application has ended them, or receivers.json was deleted from the spool"]

        def run() -> None:
            try:
                self._context.setJobGroup(self._group, self._reported(counted(count, "task")))
                task = partial(receive, self._options, self._run)
                # One job: Spark spreads its tasks over executors.
                self._context.parallelize(range(count), count).foreachPartition(task)
            except Exception as error:  # noqa: BLE001  # py4j's, Spark's or a socket's
                reason.append(root_cause(str(error)))

        # A thread of its own does not inherit the scheduler pool of the caller.
        job = threading.Thread(target=run, name="gnsq-receivers-job", daemon=True)
        job.start()
        self._running, self._failure = count, ""
        stable_at = time.monotonic() + STABLE_AFTER
        while job.is_alive():
            job.join(POLL_INTERVAL)
            free = self._free_slots()
            if free == count:
                stable_at = time.monotonic() + STABLE_AFTER
            elif time.monotonic() > stable_at:
                reason.append(f"{count} ran, and Spark has slots for {free} beside the query")
                self._lease.revoke(self._run)
                job.join(STOP_TIMEOUT)
        return reason[-1]
