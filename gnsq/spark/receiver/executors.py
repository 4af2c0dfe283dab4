"""ExecutorReceivers: ``receivers=executors:N``: receivers as long-running tasks of the query's own Spark application.

The driver's side: how many, started when, and what ends them: the spool's lease file, since Spark can end a task only
by killing its process. What the tasks do is receivertask.py's.
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

# Seconds. How long executors may take to register, and receivers to end before they are killed; how often slots are
# counted, and for how long they must have changed to count: an executor that has died is replaced by then, or not soon.
SLOTS_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
POLL_INTERVAL = 1.0
STABLE_AFTER = 10.0
# Between tries to run receivers again; behind a run as long as SUCCESSFUL_RUN from the first on.
RETRY_INITIAL, RETRY_MAXIMUM = 1.0, 60.0
SUCCESSFUL_RUN = 60.0

# Those that are started, in order: who comes later gets what is left.
_started: list[ExecutorReceivers] = []

_SPECULATION = "spark.speculation.task.duration.threshold"


class TooFewSlots(SpoolError):
    """The receivers would leave no room for anything else; the text says how much there is, and what to do."""


class ExecutorReceivers:
    """Runs receivers in tasks of a Spark application, beside the query that reads their spool.

    For a cluster whose executors share the spool's file system and reach nsqd; gnsq must be installed there. Each
    receiver holds one slot (spark.task.cpus cores) until stop(), so more slots than receivers are needed; each query
    has receivers of its own, so that two queries with N each hold 2N slots.

    A task that dies is started again by Spark, on whatever executor has room. When Spark gives up, after
    spark.task.maxFailures or since no executor is allowed (spark.excludeOnFailure), all of them are started anew, after
    a pause that grows, for as long as the application lives. When executors are lost for good, fewer receivers run, so
    that one slot is left for the query; and more again when there are enough. With dynamic allocation slots are not
    counted: Spark asks for executors when tasks wait, if spark.dynamicAllocation.maxExecutors lets it. What is wrong is
    said by check(), and in the log as WARNING.

    Args:
        options: Of the query: its receivers option says how many.

    Raises:
        ValueError: If that option is not executors:N.
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
        # Named in the lease file; and how many receivers it has, or had.
        self._run = ""
        self._running = 0
        self._failure = ""
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None

    # --- life

    def start(self) -> None:
        """Begin to receive; returns before the tasks run. A second call does nothing.

        Raises:
            TooFewSlots: If there are not more slots than receivers, though executors had time to register.
            SpoolError: If the spool can't be written.
            ValueError: If Spark would run receivers twice.
        """
        if self._keeper is not None:
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
        self._keeper = threading.Thread(target=self._keep_running, name="gnsq-executor-receivers", daemon=True)
        self._keeper.start()

    def check(self) -> str:
        """Say what is wrong, such as receivers that do not run (which at first they do not); "" if all is well."""
        if self._keeper is None:
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
        """End the receivers in order: what is durable is finished, the rest is given back to nsqd. Waits for it."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        self._stopping.set()
        try:
            self._lease.revoke(self._run)
        except OSError as error:
            logger.warning("spool %s: %s: the receivers can't be told to end", self._location, error)
        keeper.join(STOP_TIMEOUT)
        if keeper.is_alive():
            logger.warning(
                "%s; nsqd delivers again what they had when its timeout ends",
                self._reported(f"not ended within {STOP_TIMEOUT:.0f} s, killed"),
            )
            self._context.cancelJobGroup(self._group)
            keeper.join(STOP_TIMEOUT)
        _started.remove(self)

    def _reported(self, what: str) -> str:
        return f"{counted(self._count, 'receiver')} of {self._options.source}: {what}"

    # --- slots

    def _wait_for_slots(self) -> None:
        # A local master's are all there from the start.
        deadline = time.monotonic() + (0 if self._context._jsc.isLocal() else SLOTS_TIMEOUT)
        while (slots := self._slots()) <= self._count:
            if time.monotonic() >= deadline:
                raise TooFewSlots(
                    f"receivers={self._options.receivers} holds {counted(self._count, 'slot')} for good, and Spark has "
                    f"{slots} (cores of its executors / spark.task.cpus, without those of other queries' receivers): "
                    f"at least {self._count + 1} are needed. Give Spark more cores, ask for fewer receivers, or run "
                    "python -m gnsq.spark.receiver outside of Spark with receivers=external"
                )
            time.sleep(0.2)

    def _slots(self) -> int:
        """Count the tasks that can run at once on the executors there are now, beside receivers of other queries."""
        if self._context.getConf().get("spark.dynamicAllocation.enabled") == "true":
            return self._count + 1
        # defaultParallelism is a setting, and 2 for a cluster without executors.
        context = self._context._jsc.sc()
        slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        before = _started[: _started.index(self)] if self in _started else _started
        return slots - sum(other._running for other in before if other._context is self._context)

    def _room(self) -> int:
        """Say how many receivers there may be, with one slot for the query."""
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
        """Run as many receivers as there is room for until they have ended; says why they have."""
        try:
            if self._lease.current() not in (None, "", self._run):
                return f"another application has receivers on {self._location}"
            room = self._room()
            if not room:
                return "Spark has too few slots, and one is left for the query"
            self._allow_new_run()
            if self._stopping.is_set():
                # stop() has cleared the run before.
                self._lease.revoke(self._run)
                return ""
            reason = self._run_tasks(room)
            # Spark kills what is left of a job that it has given up, in 2 s or more: time enough to end in order.
            self._lease.revoke(self._run)
        except Exception as error:  # noqa: BLE001  # a file system's, py4j's or Spark's: there is always a next run
            return root_cause(str(error))
        return reason

    def _allow_new_run(self) -> None:
        """Name a new run, so that whatever is left of others ends in order."""
        run = uuid.uuid4().hex
        self._lease.grant(run)
        self._run = run

    def _run_tasks(self, count: int) -> str:
        """Run so many tasks until they have ended, or until there is room for more or for fewer."""
        reason = ["they were told to end by another application, or receivers.json was deleted from the spool"]

        def run() -> None:
            try:
                self._context.setJobGroup(self._group, self._reported(counted(count, "task")))
                task = partial(receive, self._options, self._run)
                # Of one job, since Spark spreads the tasks of one over executors.
                self._context.parallelize(range(count), count).foreachPartition(task)
            except Exception as error:  # noqa: BLE001  # py4j's, Spark's or a socket's
                reason.append(root_cause(str(error)))

        # A thread of its own: it has no scheduler pool of the caller's.
        job = threading.Thread(target=run, name="gnsq-receivers-job", daemon=True)
        job.start()
        self._running, self._failure = count, ""
        settled_at = time.monotonic() + STABLE_AFTER
        while job.is_alive():
            job.join(POLL_INTERVAL)
            room = self._room()
            if room == count:
                settled_at = time.monotonic() + STABLE_AFTER
            elif time.monotonic() > settled_at:
                reason.append(f"{count} ran, and Spark has slots for {room} beside the query")
                self._lease.revoke(self._run)
                job.join(STOP_TIMEOUT)
        return reason[-1]
