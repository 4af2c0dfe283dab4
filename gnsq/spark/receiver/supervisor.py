"""Supervisor: runs several receivers as child processes, and starts each again that ends. Knows no NSQ and no spool.

A child gets the path of a unix socket for its health, and a pipe as standard input. If the supervisor is killed, the
pipe ends, and the child stops in order.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gevent
from gevent.event import Event

from gnsq.backofftimer import exponential_delay
from gnsq.concurrency.greenlets import spawn
from gnsq.spark.receiver.health import ask_health, get

__all__ = ["Supervisor", "SupervisorTimes", "ended_with"]

logger = logging.getLogger(__name__)

# Seconds between two looks whether a child has ended. gevent's own way of waiting for a process would take the exit
# statuses of all children of this process, and works in the main thread only.
POLL_INTERVAL = 0.1
# Seconds that a killed child may take to end. One that waits for a file system that hangs ends after that.
KILL_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorTimes:
    """Seconds that a supervisor waits.

    Attributes:
        restart_initial, restart_maximum: Before a child is started again: the first pause, and the longest.
        steady: A child that has run for so long is started again after the first pause.
        check_interval: Between two questions whether a child is live; also the longest wait for the answer.
        hung: A child that is not live for so long is killed. A start takes some seconds of it.
        stop: For the orderly end of the children; then they are killed. A receiver needs less than 20 s.
    """

    restart_initial: float = 0.5
    restart_maximum: float = 30.0
    steady: float = 60.0
    check_interval: float = 5.0
    hung: float = 60.0
    stop: float = 25.0


TIMES = SupervisorTimes()


def ended_with(status: int) -> str:
    """Write how a process has ended: ``status 1``, ``signal SIGKILL``."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"signal {-status}"


class Supervisor:
    """Runs children until stop is set. Must be made in the hub that runs it.

    Args:
        command: Returns the command of a child that serves its health on this unix socket.
        count: Number of children.

    Attributes:
        restarts: How often each child was started again, by its number from 1.
    """

    def __init__(self, command: Callable[[str], Sequence[str]], count: int, times: SupervisorTimes = TIMES) -> None:
        self._command = command
        self._count = count
        self._times = times
        self.restarts = dict.fromkeys(range(1, count + 1), 0)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._folder = ""

    def run(self, stop: Event) -> bool:
        """Run until stop is set; then stop the children. Return True if all have ended in order."""
        with tempfile.TemporaryDirectory(prefix="gnsq-receivers-") as self._folder:
            keepers = [
                spawn(f"gnsq-keep-{number}", self._keep, number, stop, on_failure=None)
                for number in range(1, self._count + 1)
            ]
            for keeper in keepers:
                keeper.link_exception(lambda _: stop.set())
            stop.wait()
            end = time.monotonic() + self._times.stop
            self._terminate()
            for keeper in keepers:
                keeper.get()
            # A keeper may have started a child meanwhile. For the others, a second SIGTERM changes nothing.
            self._terminate()
            return self._wait_for_children(end)

    def why_not_ready(self) -> str:
        """Return which children are not ready, and why; "" if all are."""
        numbers = range(1, self._count + 1)
        asked = {number: spawn("gnsq-ask", self._ask, number, "/ready", on_failure=None) for number in numbers}
        gevent.joinall(list(asked.values()))
        return "; ".join(f"receiver {number}: {why}" for number, each in asked.items() if (why := each.get()))

    def answers(self, page: str) -> dict[int, str]:
        """Ask all children for a page. Return the answers of those that answer with 200, by their numbers."""
        asked = {number: spawn("gnsq-ask", self._get, number, page, on_failure=None) for number in self._children}
        gevent.joinall(list(asked.values()))
        return {number: each.value for number, each in asked.items() if each.value is not None}

    def _get(self, number: int, page: str) -> str | None:
        try:
            is_ok, body = get(self._socket(number), page, self._times.check_interval)
        except OSError as error:
            logger.warning("receiver %d: %s does not answer: %s", number, page, error)
            return None
        return body if is_ok else None

    def _ask(self, number: int, check: str) -> str:
        if number not in self._children:
            return "not running"
        return ask_health(self._socket(number), check, self._times.check_interval)

    def _socket(self, number: int) -> str:
        return f"{self._folder}/{number}"

    def _keep(self, number: int, stop: Event) -> None:
        """Run one child, again and again."""
        times, failures = self._times, 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                child = subprocess.Popen(self._command(self._socket(number)), stdin=subprocess.PIPE)
            except OSError as error:
                reason = f"can't be started: {error}"
            else:
                self._children[number] = child
                logger.info("receiver %d started, process %d", number, child.pid)
                self._watch(number, child, stop)
                if stop.is_set():
                    return
                del self._children[number]
                _close_input(child)
                reason = f"(process {child.pid}) has ended with {ended_with(child.returncode)}"
            lived = time.monotonic() - began
            failures = 1 if lived >= times.steady else failures + 1
            pause = exponential_delay(failures, times.restart_initial, times.restart_maximum)
            logger.error("receiver %d %s after %.1f s; next start in %.1f s", number, reason, lived, pause)
            stop.wait(pause)
            self.restarts[number] += 1

    def _watch(self, number: int, child: subprocess.Popen[bytes], stop: Event) -> None:
        """Wait until a child has ended or stop is set. Kill the child if it is not live for long."""
        live_at = asked_at = time.monotonic()
        while child.poll() is None and not stop.wait(POLL_INTERVAL):
            if time.monotonic() - asked_at < self._times.check_interval:
                continue
            reason = self._ask(number, "/live")
            asked_at = time.monotonic()
            if not reason:
                live_at = asked_at
            elif asked_at - live_at >= self._times.hung:
                logger.error("receiver %d (process %d) is killed: %s", number, child.pid, reason)
                # It may still take long to end, if its file system hangs.
                child.kill()
                live_at = asked_at

    def _terminate(self) -> None:
        for child in self._children.values():
            child.terminate()

    def _wait_for_children(self, end: float) -> bool:
        """Wait until the children have ended; after the time ``end``, kill them. Return True if all ended in order."""
        is_orderly = True
        for number, child in self._children.items():
            if not _has_ended(child, end):
                child.kill()
                _has_ended(child, time.monotonic() + KILL_TIMEOUT)
                text = "receiver %d had not stopped within %g s and was killed; nsqd delivers its messages again"
                logger.error(text, number, self._times.stop)
                is_orderly = False
            # A child that was just started dies of SIGTERM, or of Ctrl-C: it has received nothing yet.
            elif child.returncode in (0, -signal.SIGTERM, -signal.SIGINT):
                logger.info("receiver %d has ended with %s", number, ended_with(child.returncode))
            else:
                logger.error("receiver %d has ended with %s", number, ended_with(child.returncode))
                is_orderly = False
            _close_input(child)
        return is_orderly


def _has_ended(child: subprocess.Popen[bytes], end: float) -> bool:
    """Wait until a child has ended, or until the time ``end``; return True if it has ended."""
    while child.poll() is None and time.monotonic() < end:
        gevent.sleep(POLL_INTERVAL)
    return child.returncode is not None


def _close_input(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None  # a pipe
    child.stdin.close()
