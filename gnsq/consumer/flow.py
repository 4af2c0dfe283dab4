"""Flow: how many messages each nsqd may send, kept up to date.

The shell of RdyPolicy and Backoff: asks them when something has happened or their time has come, and sends the RDY
they decide on. Knows connections, but neither messages nor handlers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import gevent
from gevent.event import Event

from gnsq.backofftimer import Phase
from gnsq.clock import Clock
from gnsq.consumer.options import ConsumerOptions
from gnsq.nsqd.connection import Connection
from gnsq.rdy import RdyPolicy

__all__ = ["Flow"]

# A moment that is nearer than this, in seconds, has come: what is left may be rounding.
TICK = 1e-6


class Flow:
    """RDY of one consumer's connections.

    Args:
        options: The timeouts; max_in_flight to begin with.
        connections: Those that are open, by address; kept up to date by others.
        clock: Replaceable time.
        on_phase: Called with (phase, failures, seconds) when a pause begins ("start"), another follows ("continue")
            or there is none any more ("end").
    """

    def __init__(
        self,
        options: ConsumerOptions,
        connections: Mapping[str, Connection],
        clock: Clock,
        on_phase: Callable[[str, int, float], None],
    ) -> None:
        rng = random.Random()
        self.backoff = options.backoff(rng)
        self._policy: RdyPolicy[Connection] = RdyPolicy(options.max_in_flight, options.low_ready_idle_timeout, rng)
        self._connections = connections
        self._clock = clock
        self._on_phase = on_phase
        # How long a message that is tried may take to come, seconds.
        self._patience = options.low_ready_idle_timeout
        # Whose message came for a probe, and is not answered yet.
        self._tried: Connection | None = None
        # When another is to be tried in place of the one that is.
        self._probe_due = 0.0
        # When to share out though nothing happens, and until when run() sleeps.
        self._due: float | None = None
        self._asleep_until: float | None = None
        self._asked = False
        self._stopped = False
        self._wake = Event()

    # --- what users say

    @property
    def paused(self) -> bool:
        """Whether no messages are wanted; may be set."""
        return self._policy.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._policy.paused = value
        self._share_out()

    @property
    def max_in_flight(self) -> int:
        """Over all connections; may be set."""
        return self._policy.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        self._policy.max_in_flight = value
        self._share_out()

    @property
    def backoff_remaining(self) -> float:
        """Seconds of a pause that are left; 0 outside of one."""
        if self.backoff.phase is not Phase.WAITING:
            return 0.0
        return max(0.0, self.backoff.until - self._clock.monotonic())

    # --- what happens to connections

    def join(self, connection: Connection) -> None:
        """Take in a connection that has subscribed."""
        identity = connection.identity
        self._policy.add(
            connection, identity.max_rdy_count, self._clock.monotonic(), counts_down=identity.counts_rdy_down
        )
        self.ask()

    def leave(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self._policy.remove(connection)
        self.neither(connection)
        self.ask()

    def received(self, connection: Connection, count: int) -> None:
        """Take note of a chunk's messages."""
        news = self._policy.heard(connection, count, connection.in_flight, connection.last_message)
        if self.backoff.phase is Phase.PROBING and connection is self._policy.probe:
            # One is enough: RDY 0 before it is answered, or another would come.
            self._tried, self._policy.probe = connection, None
            self._probe_due = connection.last_message + max(self._patience, connection.answers.msg_timeout or 0.0)
            self._share_out()
        elif news:
            self.ask()

    # --- what becomes of messages

    def failed(self) -> None:
        """Take note of a failure."""
        started = self.backoff.phase is Phase.OFF
        if not self._stopped and self.backoff.failed(self._clock.monotonic()):
            self._paused_for_failures("start" if started else "continue")

    def succeeded(self) -> None:
        """Take note of a success; while backoff.phase is OFF there is no need to."""
        if self._stopped or not self.backoff.succeeded(self._clock.monotonic()):
            return
        if self.backoff.phase is Phase.WAITING:
            self._paused_for_failures("continue")
            return
        self._policy.backing_off = False
        self._policy.probe = self._tried = None
        self._share_out()
        self._on_phase("end", 0, 0.0)

    def neither(self, connection: Connection) -> None:
        """Take note of a message given back for a reason that says nothing about handlers."""
        if connection is self._tried:
            self._tried = None
            self.ask()

    def _paused_for_failures(self, phase: str) -> None:
        self._policy.backing_off = True
        self._policy.probe = self._tried = None
        self._share_out()
        self._on_phase(phase, self.backoff.failures, self.backoff.duration)

    # --- RDY

    def run(self) -> None:
        """Do what is due, until killed; a greenlet's."""
        while True:
            self._wake.clear()
            self._asleep_until = self._due
            if self._due is None:
                self._wake.wait()
            else:
                self._clock.wait(self._wake, self._due - self._clock.monotonic())
            if self._due is not None and self._due - self._clock.monotonic() < TICK:
                self._share_out(self._due)

    def stop(self) -> None:
        """Ask for no further messages, for good."""
        self._policy.paused = True
        self._share_out()
        self._stopped = True

    def ask(self) -> None:
        """Share out soon: once for all that asks in this round of the loop, and never inside of what asks."""
        if not self._asked:
            self._asked = True
            gevent.get_hub().loop.run_callback(self._share_out)

    def _share_out(self, at: float = 0.0) -> None:
        """Send each connection the RDY that it is to have now, or at a moment that has all but come."""
        self._asked = False
        if self._stopped:
            return
        now = max(self._clock.monotonic(), at)
        connections = self._connections.values()
        in_flight = {connection: connection.in_flight for connection in connections}
        self._probe(in_flight, now)
        for connection, count in self._policy.decide(in_flight, now).items():
            if connection.is_open:
                connection.ready(count)
        # Answers are looked at only while somebody waits for what they free: it costs a call for each.
        watch = self.ask if self._policy.owed else None
        for connection in connections:
            connection.answers.on_answered = watch
        self._plan(now)

    def _probe(self, in_flight: Mapping[Connection, int], now: float) -> None:
        """Begin to try a message when the pause is over; try elsewhere when none comes, or none is answered."""
        self.backoff.elapsed(now)
        if self.backoff.phase is not Phase.PROBING:
            return
        if (self._policy.probe is None and self._tried is None) or now >= self._probe_due:
            self._policy.probe = self._policy.pick_probe(in_flight)
            self._tried = None
            self._probe_due = now + self._patience

    def _plan(self, now: float) -> None:
        times = [self._policy.due(now)]
        if self.backoff.phase is Phase.WAITING:
            times.append(self.backoff.until)
        elif self.backoff.phase is Phase.PROBING and len(self._connections):
            times.append(self._probe_due)
        self._due = min((time for time in times if time is not None), default=None)
        if self._due is not None and (self._asleep_until is None or self._due < self._asleep_until):
            self._wake.set()
