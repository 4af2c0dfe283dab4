"""Sends each nsqd its RDY count. RdyPolicy and ConsumerBackoff decide the counts.

RdyController asks both after each event that may change the RDY counts, and at the times that they return. It knows
connections, but no handlers.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Mapping

import gevent
from gevent.event import Event

from gnsq.backofftimer import JITTER, BackoffPhase, ConsumerBackoff
from gnsq.clock import Clock
from gnsq.consumer.options import ConsumerOptions
from gnsq.consumer.rdy_policy import GRACE, RdyPolicy
from gnsq.errors import NSQProtocolError
from gnsq.logs import LogOwner
from gnsq.message import Message
from gnsq.nsqd.connection import Connection

__all__ = ["RdyController"]


# Seconds between two searches for timed out messages; a tenth of the msg_timeout if that is longer.
TIMEOUT_CHECK_INTERVAL = 1.0
CHECKS_PER_TIMEOUT = 10
# If the messages in flight exceed the highest RDY count by more than this number, or if they are more than twice that
# count and have more than these bytes, nsqd ignores RDY. A lower excess is normal: after a timeout or an emptied
# channel, nsqd counts fewer messages in flight than the client does.
MAX_EXCESS, MAX_EXCESS_SIZE = 2500, 64 << 20
# Seconds. A time that is in the future by less than this counts as reached: the difference may be a rounding error.
CLOCK_ROUNDING = 1e-6

# An update of RDY takes 1 to 2 us for each connection, and 20 us for each RDY that it sends. After it, no event causes
# another one for so many seconds for each connection and each RDY. So updates take at most 2 % of a core, whatever
# comes, and 10 % while each of them sends RDY to all. Updates that the user or a backoff asks for come at once.
REST_PER_CONNECTION, REST_PER_RDY = 100e-6, 200e-6
# Rest of the last seconds that no event has used is saved for a burst, such as the first messages of many connections:
# these have RDY 1, so a BatchHandler finds the consumer starved until RDY is updated.
MAX_SAVED_REST = 1.0
# With so few connections there is no rest: its timer would cost as much as the update.
FEW_CONNECTIONS = 10

_in_flight: Callable[[Connection], int] = operator.attrgetter("in_flight_messages.in_flight")


class RdyController:
    """Sends RDY on a consumer's connections.

    Args:
        options: The initial options. configure() changes some of them, and set_max_in_flight() max_in_flight.
        connections: Open connections by address. The ConnectionPool changes this mapping.
        unanswered: Returns the messages whose handlers run, and the async messages.
        on_timed_out: Called with messages whose msg_timeout is over.
        not_attempted: Returns the number of addresses to which the first attempt to connect has not ended.
        on_phase: Called with (phase, failures, seconds of the pause, whether the last message has worked). The phase is
            "start" for the first pause of a backoff, "continue" for a further pause, and "end" when the backoff ends (0
            seconds).
        want_answers: Called with True if before_answer() must be called before each answer, with False if not.
        owner: The Consumer that log lines name.

    Attributes:
        is_update_scheduled: True if the event loop will soon update RDY.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        connections: Mapping[str, Connection],
        clock: Clock,
        *,
        unanswered: Callable[[], Iterable[Message]],
        on_timed_out: Callable[[list[Message]], None],
        not_attempted: Callable[[], int],
        on_phase: Callable[[str, int, float, bool], None],
        want_answers: Callable[[bool], None],
        owner: LogOwner,
    ) -> None:
        self._options = options
        rng = random.Random()
        self.backoff = ConsumerBackoff(
            lambda failures: self._options.pause_after(failures, owner),
            options.longest_pause,
            JITTER if options.backoff is None else 0.0,
            rng,
        )
        self._policy: RdyPolicy[Connection] = RdyPolicy(options.max_in_flight, options.low_ready_idle_timeout, rng)
        self._connections = connections
        self._clock = clock
        self._unanswered = unanswered
        self._on_timed_out = on_timed_out
        self._not_attempted = not_attempted
        self._on_phase = on_phase
        self._want_answers = want_answers
        # Seconds after which another connection is probed if the probed connection has delivered no message.
        self._idle_timeout = options.low_ready_idle_timeout
        # Connection that has delivered the message of a probe. The message is not answered yet.
        self._probed: Connection | None = None
        # Time at which another connection is probed if the probe has no result until then.
        self._probe_due = 0.0
        # Time of the next search for timed out messages; None if none is in flight, and none has come since the last.
        self._timeout_check_due: float | None = None
        self._check_wanted = False
        # Until this time, RDY is reserved for each address to which the first attempt to connect has not ended.
        self._expected_until: float | None = None
        # _due: time of the next update of RDY if no event comes before. _sleeping_until: time until which run() sleeps.
        self._due: float | None = None
        self._sleeping_until: float | None = None
        # Until this time, events do not update RDY: see REST_PER_CONNECTION.
        self._resting_until = 0.0
        self.is_update_scheduled = False
        self._stopped = False
        self._wake = Event()

    # --- settings

    @property
    def max_in_flight(self) -> int:
        """Limit of the messages in flight on all connections together."""
        return self._policy.max_in_flight

    def set_max_in_flight(self, value: int) -> None:
        """Change the limit of the messages in flight on all connections together."""
        self._policy.max_in_flight = value
        self._update_rdy()

    def pause(self, paused: bool) -> None:
        """Set all RDY counts to 0 if paused is True; otherwise allow RDY again."""
        self._policy.paused = paused
        self._update_rdy()

    def configure(self, options: ConsumerOptions) -> None:
        """Apply the options that may change while the consumer runs, except max_in_flight."""
        self._options = options
        self._idle_timeout = self._policy.idle_timeout = options.low_ready_idle_timeout
        self.backoff.maximum = options.longest_pause
        if not options.longest_pause and self.backoff.reset():
            self._change_phase("end")
        self.schedule_update()

    @property
    def backoff_remaining(self) -> float:
        """Seconds until the end of the backoff's pause; 0 if there is no pause."""
        if self.backoff.phase is not BackoffPhase.WAITING:
            return 0.0
        return max(0.0, self.backoff.until - self._clock.monotonic())

    # --- events of connections

    def add(self, connection: Connection) -> None:
        """Add a connection that has subscribed."""
        identity, now = connection.identity, self._clock.monotonic()
        if self._expected_until is None:
            self._expected_until = now + GRACE
        self._policy.add(connection, identity.max_rdy_count, now, counts_down=identity.counts_rdy_down)
        self.schedule_update()

    def remove(self, connection: Connection) -> None:
        """Remove a connection that was lost."""
        self._policy.remove(connection)
        self.record_neutral(connection)
        self.schedule_update()

    def on_messages(self, connection: Connection, count: int) -> None:
        """Record that a connection has delivered some messages."""
        # Called for each read. Usually nothing changes, and the call of the policy is all that is done.
        if (
            self._policy.on_messages(
                connection, count, connection.in_flight_messages.in_flight, connection.last_message
            )
            or self._timeout_check_due is None
        ):
            self._on_change(connection)

    def _on_change(self, connection: Connection) -> None:
        self._check_wanted = True
        if self.backoff.phase is BackoffPhase.PROBING and connection is self._policy.probe:
            # The message of the probe has come. Send RDY 0 before its answer, so that nsqd does not send another one.
            self._probed, self._policy.probe = connection, None
            self._probe_due = connection.last_message + max(
                self._idle_timeout, connection.in_flight_messages.msg_timeout or 0.0
            )
            self._update_rdy()
        else:
            if (count := self._policy.renew(connection)) is not None:
                # Its nsqd sends nothing before that: not after a rest.
                _send(connection, count)
            self.schedule_update()

    def check_in_flight(self, connection: Connection, held: Callable[[], Iterable[Message]]) -> None:
        """Raise NSQProtocolError if nsqd has sent so many messages that it can't keep to RDY.

        Args:
            held: Returns the unanswered messages of all connections.
        """
        self._drop_timed_out()
        if not connection.is_over_ready:
            return
        number, ready = connection.in_flight, connection.highest_ready_count
        size = sum(len(message.body) for message in held() if message.nsqd == connection.address)
        if number > ready + MAX_EXCESS or (number > 2 * ready and size > MAX_EXCESS_SIZE):
            raise NSQProtocolError(
                f"{number} messages of this nsqd are in flight, with {size} bytes, and the highest RDY it was sent is "
                f"{ready}: it does not keep to RDY"
            )

    # --- results of messages

    def record_failure(self) -> None:
        """Count a failure, which may begin a pause."""
        phase = "start" if self.backoff.phase is BackoffPhase.OFF else "continue"
        if not self._stopped and self.backoff.record_failure(self._clock.monotonic()):
            self._change_phase(phase, worked=False)
        elif self.backoff.phase is BackoffPhase.PROBING:
            self._end_probe()

    def record_success(self) -> None:
        """Count a success. A call has an effect only while backoff.needs_successes."""
        if not self._stopped and self.backoff.record_success(self._clock.monotonic()):
            self._change_phase("end" if self.backoff.phase is BackoffPhase.OFF else "continue")

    def record_neutral(self, connection: Connection) -> None:
        """Record an answer, or the loss of the connection, that counts neither as a success nor as a failure."""
        if connection is self._probed:
            self._end_probe()

    def _end_probe(self) -> None:
        self._probed = None
        self.schedule_update()

    def _change_phase(self, phase: str, *, worked: bool = True) -> None:
        is_over = phase == "end"
        self._policy.backing_off = not is_over
        self._policy.probe = self._probed = None
        self._update_rdy()
        self._on_phase(phase, self.backoff.failures, 0.0 if is_over else self.backoff.duration, worked)

    # --- RDY

    def run(self) -> None:
        """Update RDY at each time that is stored in _due, until the greenlet is killed."""
        while True:
            self._wake.clear()
            self._sleeping_until = self._due
            if self._due is None:
                self._wake.wait()
            else:
                self._clock.wait(self._wake, self._due - self._clock.monotonic())
            if self._due is not None and self._due - self._clock.monotonic() < CLOCK_ROUNDING:
                self._update_rdy(self._due)

    def stop(self) -> None:
        """Set all RDY counts to 0. They stay 0: RDY is not sent any more."""
        self._policy.paused = True
        self._update_rdy()
        self._stopped = True

    def schedule_update(self) -> None:
        """Let the event loop update RDY soon. Several calls before the update cause only one update."""
        # Any thread may call this before start() and after close(). Then there is no connection, and nothing to update.
        if self.is_update_scheduled or not self._connections:
            return
        if self._clock.monotonic() < self._resting_until:
            self._wake_at(self._resting_until)
        else:
            self.is_update_scheduled = True
            gevent.get_hub().loop.run_callback(self._update_rdy)

    def _update_rdy(self, at: float = 0.0) -> None:
        """Send each connection its RDY count.

        Args:
            at: Time for which the update was scheduled; by rounding it may be later than the clock. 0: an event.
        """
        self.is_update_scheduled = False
        if self._stopped:
            return
        now = max(self._clock.monotonic(), at)
        self._drop_timed_out_if_due(now)
        expecting = self._expected_until is not None and now < self._expected_until
        self._policy.expected = self._not_attempted() if expecting else 0
        self._probe(now)
        changes = self._policy.decide(_in_flight, now)
        for connection, count in changes.items():
            _send(connection, count)
        self._want_answers(self._policy.wants_answers or self._policy.probe is not None)
        if len(self._connections) > FEW_CONNECTIONS:
            rest = len(self._connections) * REST_PER_CONNECTION + len(changes) * REST_PER_RDY
            self._resting_until = max(self._resting_until, now - MAX_SAVED_REST) + rest
        self._schedule_next(now)

    def _probe(self, now: float) -> None:
        """Choose a connection to probe after a pause, and another one if no message comes, or is answered, in time."""
        self.backoff.update(now)
        if self.backoff.phase is not BackoffPhase.PROBING:
            return
        probe = self._policy.probe
        if probe is not None and not probe.ready_count:
            # The probed connection waits for RDY that other connections must free. Its time limit begins after that.
            self._probe_due = now + self._idle_timeout
        elif (probe is None and self._probed is None) or now >= self._probe_due:
            # The probe gets RDY in_flight + 1: if timed out messages counted, nsqd would send more than one message.
            self._drop_timed_out()
            if self._probed is not None:
                # The message of the probe was not answered in time: let pick_probe() choose another connection.
                self._policy.probe = self._probed
            self._policy.probe = self._policy.pick_probe(_in_flight)
            self._probed = None
            self._probe_due = now + self._idle_timeout

    def before_answer(self, connection: Connection, count: int) -> None:
        """Send a lower RDY, or free RDY for another connection, before FIN or REQ of some messages are sent."""
        policy, now = self._policy, self._clock.monotonic()
        is_probe = connection is policy.probe
        if is_probe and (ready := policy.lower_probe(connection.in_flight, now)) is not None:
            # Lower the RDY of the probe before the answer lets nsqd send another message.
            _send(connection, ready)
        if policy.on_answer(connection, connection.in_flight, now, count) or is_probe:
            # The answer may have freed RDY for a waiting connection.
            self.schedule_update()

    def _drop_timed_out_if_due(self, now: float) -> None:
        """Search for timed out messages at intervals: messages without an answer would be in flight for ever."""
        if self._timeout_check_due is not None and now >= self._timeout_check_due:
            self._drop_timed_out()
            self._timeout_check_due = None
            self._check_wanted = any(map(_in_flight, self._connections.values()))
        is_wanted, self._check_wanted = self._check_wanted, False
        if is_wanted and self._timeout_check_due is None:
            timeouts = [connection.in_flight_messages.msg_timeout for connection in self._connections.values()]
            self._timeout_check_due = now + max(
                TIMEOUT_CHECK_INTERVAL, min((timeout or 0.0 for timeout in timeouts), default=0.0) / CHECKS_PER_TIMEOUT
            )

    def _drop_timed_out(self) -> None:
        """Mark messages whose msg_timeout is over, so that they no longer count as in flight."""
        timed_out = []
        for message in self._unanswered():
            if message.time_left == 0 and not message.timed_out and not message.has_responded():
                message.mark_timed_out()
                timed_out.append(message)
        if timed_out:
            self._on_timed_out(timed_out)
        # Remove async messages that have timed out or were answered from another thread: nothing else removes them.
        for connection in self._connections.values():
            messages = connection.in_flight_messages.async_messages
            messages -= {message for message in list(messages) if message.timed_out or message.has_responded()}

    def _schedule_next(self, now: float) -> None:
        times = [self._policy.due(now), self._timeout_check_due]
        if self.backoff.phase is BackoffPhase.WAITING:
            times.append(self.backoff.until)
        if self._policy.expected:
            times.append(self._expected_until)
        if self.backoff.phase is BackoffPhase.PROBING and len(self._connections):
            times.append(self._probe_due)
        self._due = None
        time = min((time for time in times if time is not None), default=None)
        if time is not None:
            self._wake_at(max(time, self._resting_until))

    def _wake_at(self, time: float) -> None:
        """Let run() update RDY at a time, or earlier."""
        if self._due is None or time < self._due:
            self._due = time
            if self._sleeping_until is None or time < self._sleeping_until:
                self._wake.set()


def _send(connection: Connection, count: int) -> None:
    if connection.is_open:
        connection.ready(count)
