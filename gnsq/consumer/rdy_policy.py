"""Computes the RDY count of each connection. Pure: sends nothing, reads no clock.

nsqd treats RDY as a limit of the messages in flight. A lower RDY does not change which messages are in flight. So RDY
that is taken from a connection can be given to another one only when messages are answered. nsqd before 0.3.0 also
subtracts 1 from RDY for each message that it sends, so the same RDY must be sent again. Source: the client guide, "RDY
State"; nsqd 0.2.31 client_v2.go, IsReadyForMessages; nsqd, "don't decrement RDY count".

A decision goes over all connections, and is made only after an event that may change an RDY count. Most messages and
answers change none: on_messages() and on_answer() tell it. How often decisions are made is up to the caller, because a
late decision sends RDY late, but never too much.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnsq.protocol.commands import is_starved

__all__ = ["GRACE", "RdyPolicy"]

# Seconds until nsqd has read a lower RDY and the messages that it sent before have arrived, since nsqd does not confirm
# RDY. Much longer than a round trip between data centres. The output buffer delays no message longer: nsqd flushes it
# when RDY allows no more messages.
GRACE = 1.0
# Seconds after which a connection with messages loses its turn; less if many connections wait. Long beside GRACE, in
# which neither of two connections has RDY.
TURN_TIMEOUT = 30.0

# If nsqd counts RDY down, RDY is sent again when less than this part is left. Source: the client guide, "RDY State".
RENEW_BELOW = 0.25
# The delay from sending RDY to the first message is measured. After a lower RDY is sent because no messages come, a
# message that was on its way arrives within this number of measured delays.
SILENT_GRACE_FACTOR = 4

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True, eq=False)
class _State:
    """State of one connection.

    Attributes:
        limit: max_rdy_count of its nsqd.
        active_at: When it was added, got a turn, or a message came or was answered, whichever was last. Answers are
            known only while wants_answers is True.
        left: If its nsqd counts RDY down: how many messages it still sends before it needs RDY again. Otherwise None.
        rdy: RDY that was sent last.
        target: RDY that it is to have. It may have less until other connections have freed enough.
        in_flight: Messages in flight, as the policy was told last.
        has_messages: True after a message, until a turn ends because no messages came.
        arriving: Messages that may still arrive because nsqd sent them before it read a lower RDY.
        arriving_until: Time until which these messages may arrive.
        raised_at: When RDY was raised from 0; None after the next message or a lower RDY.
        turn_since: When its turn began or was extended; None without a turn.
        had_turn: True if it had a turn, and others of this rotation still wait for theirs.
    """

    limit: int
    active_at: float
    left: int | None
    rdy: int = 0
    target: int = 0
    in_flight: int = 0
    has_messages: bool = False
    arriving: int = 0
    arriving_until: float = -math.inf
    raised_at: float | None = None
    turn_since: float | None = None
    had_turn: bool = False

    @property
    def must_renew(self) -> bool:
        """True if the same RDY must be sent again, to an nsqd that counts RDY down.

        Sending RDY again never allows too many messages: nsqd also limits the messages in flight by RDY.
        """
        return self.left is not None and self.left < self.rdy * RENEW_BELOW

    @property
    def reserved(self) -> int:
        """The largest number of messages that can be in flight until another RDY is sent."""
        return max(self.rdy, self.in_flight + self.arriving)

    def lower(self, rdy: int, now: float, grace: float) -> None:
        """Set a lower RDY. For grace seconds, messages may still arrive that nsqd sent before it read the lower RDY."""
        self.arriving = max(self.rdy - self.in_flight, self.arriving if now < self.arriving_until else 0)
        self.arriving_until = now + grace
        if grace <= 0:
            self.arriving = 0
        self.rdy = rdy
        self.raised_at = None


class RdyPolicy(Generic[Key]):
    """Distributes max_in_flight to connections. RDY is raised only while the sum of max(RDY, messages in flight plus
    those that may still arrive) over all connections stays within max_in_flight.

    A connection begins with RDY 1. After its first message, its RDY is raised: all connections with messages get equal
    RDY counts. One that had no message for idle_timeout, and has none in flight, has RDY 1 while others are starved.

    If max_in_flight is lower than the number of connections, some have RDY 1 (a turn) and the others wait with RDY 0.
    Turns come in random order. A connection without messages loses its turn after idle_timeout, or after GRACE if a
    waiting one is known to have messages. A connection with messages loses its turn after TURN_TIMEOUT, or earlier if
    many wait. After a turn without messages, connections that are known to have messages come first. In a rotation,
    each connection gets one turn.

    nsqd does not acknowledge RDY. So RDY that was taken from a connection is given to another one when messages are
    answered, or after GRACE. If a connection loses its turn because no messages came, its RDY is given away earlier
    (see SILENT_GRACE_FACTOR), or immediately if no delay was measured: probably no message is on its way.

    Args:
        max_in_flight: Messages, 1 or more. This and idle_timeout are attributes that may be changed.
        idle_timeout: Seconds after which a connection without a message counts as idle.
        rng: Randomness for the order of turns, and for probes.

    Attributes:
        paused: True: all RDY counts are 0.
        backing_off: True: all RDY counts are 0, except that of the probe.
        expected: Number of connections that may be added soon; their RDY counts are reserved.
        probe: Connection from which one more message is requested during backoff; None: no connection.
        has_unassigned: True if a connection waits for RDY that others must free.
        wants_answers: True if the caller must report each answer by on_answer(). Changed only by decide().
    """

    def __init__(
        self,
        max_in_flight: int,
        idle_timeout: float = 10.0,
        rng: random.Random | None = None,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.paused = False
        self.backing_off = False
        self.expected = 0
        self.probe: Key | None = None
        self.idle_timeout = idle_timeout
        self.has_unassigned = self.wants_answers = False
        self._rng = rng if rng is not None else random.Random()
        self._states: dict[Key, _State] = {}
        # When a connection was starved last.
        self._starved_at = -math.inf
        # Seconds between raising RDY above 0 and the next message: last value, or a moving average if that is longer.
        self._delay = 0.0
        # Seconds without a message after which a turn ends, and seconds after which one with messages ends: infinity
        # while turns without messages suffice.
        self._silence_timeout = self._turn_seconds = math.inf

    # --- events

    def add(self, key: Key, max_rdy_count: int, now: float, *, counts_down: bool = False) -> None:
        """Add a connection that has RDY 0.

        Args:
            max_rdy_count: Largest RDY that its nsqd allows.
            counts_down: True if its nsqd subtracts 1 from RDY with each message.
        """
        self._states[key] = _State(max_rdy_count, now, 0 if counts_down else None)

    def remove(self, key: Key) -> None:
        """Remove a connection. An unknown connection is ignored."""
        self._states.pop(key, None)
        if self.probe == key:
            self.probe = None

    def on_messages(self, key: Key, count: int, in_flight: int, now: float) -> bool:
        """Record that messages came. Return True if decide() should be called.

        Args:
            count: Number of these messages.
            in_flight: Messages in flight on the connection, including these.
        """
        state = self._states.get(key)
        if state is None:
            return False
        was_starved = now < self._starved_at + self.idle_timeout
        # An idle connection may have lost its share to a starved one.
        is_due = not state.has_messages or (was_starved and now >= state.active_at + self.idle_timeout)
        state.active_at = now
        state.in_flight = in_flight
        state.has_messages = True
        if state.raised_at is not None:
            if now - state.raised_at < GRACE:
                self._delay = max(now - state.raised_at, (self._delay + now - state.raised_at) / 2)
            state.raised_at = None
        if state.arriving:
            state.arriving = max(state.arriving - count, 0)
        if is_starved(in_flight, state.rdy):
            self._starved_at = now
            is_due = is_due or not was_starved
        if state.left is not None:
            state.left = max(state.left - count, 0)
            is_due = is_due or state.must_renew
        return is_due or key == self.probe or self._is_over(state, now)

    def on_answer(self, key: Key, in_flight: int, now: float, count: int = 1) -> bool:
        """Record that messages were answered. Return True if decide() should be called.

        Args:
            in_flight: Messages in flight on the connection, without these.
            count: Number of these messages.
        """
        state = self._states.get(key)
        if state is None:
            return False
        state.in_flight = in_flight
        state.active_at = now
        # Otherwise its nsqd may send other messages in place of these.
        return self.has_unassigned and in_flight + count + state.arriving > state.rdy

    def renew(self, key: Key) -> int | None:
        """Return the RDY to send again to an nsqd that counts RDY down; None: send nothing. decide() does it, too."""
        state = self._states.get(key)
        if state is None or not state.must_renew:
            return None
        state.left = state.rdy
        return state.rdy

    # --- decisions

    def decide(self, in_flight: Callable[[Key], int], now: float) -> dict[Key, int]:
        """Return the RDY counts to send now. Connections that are not in the result keep their RDY.

        Args:
            in_flight: Function that returns the number of messages in flight on a connection.
        """
        before = []
        for key, state in self._states.items():
            before.append(state.rdy)
            state.in_flight = in_flight(key)
            if state.arriving and now >= state.arriving_until:
                state.arriving = 0
        states = self._states.values()
        is_stopped = self.paused or self.backing_off
        has_turns = not is_stopped and len(states) > self.max_in_flight
        if is_stopped:
            self._stop()
        elif has_turns:
            self._take_turns(now)
        else:
            self._share_out(now)
        self._grant(self._lower(now), now)
        self.has_unassigned = any(state.rdy < state.target for state in states)
        self.wants_answers = has_turns or self.has_unassigned
        changes = {}
        for (key, state), rdy in zip(self._states.items(), before, strict=True):
            if state.rdy != rdy or state.must_renew:
                changes[key] = state.rdy
                if state.left is not None:
                    state.left = state.rdy
        return changes

    def due(self, now: float) -> float | None:
        """Return the time at which decide() must be called even without an event; None: no such time."""
        states = self._states.values()
        times: list[float] = []
        if self.has_unassigned:
            times += [state.arriving_until for state in states if state.arriving]
        if self.paused or self.backing_off:
            pass
        elif len(states) > self.max_in_flight:
            for state in states:
                if state.turn_since is not None and state.rdy:
                    times.append((now if state.in_flight else state.active_at) + self._silence_timeout)
                    end = state.turn_since + self._turn_seconds
                    times += [end, end + GRACE]
        else:
            # RDY is reserved for new connections. One decision for all of them is enough.
            times.append(max((state.active_at + GRACE for state in states if not state.has_messages), default=now))
            if len(states) > 1 and now < self._starved_at + self.idle_timeout:
                times += [state.active_at + self.idle_timeout for state in states]
                times.append(self._starved_at + self.idle_timeout)
        time = min((time for time in times if time > now), default=math.inf)
        return None if time == math.inf else time

    def pick_probe(self, in_flight: Callable[[Key], int]) -> Key | None:
        """Choose the connection to probe; None if there is no connection.

        Choose the connection on which the last message came: its nsqd probably has more. If there is a probe already,
        choose another one at random. Connections with messages in flight come last: these need lower_probe().
        """
        others = [key for key in self._states if key != self.probe] or list(self._states)
        best = [key for key in others if not in_flight(key)] or others
        if not best:
            return None
        if self.probe is None:
            return max(best, key=lambda key: (self._states[key].has_messages, self._states[key].active_at))
        return self._rng.choice(best)

    def lower_probe(self, in_flight: int, now: float) -> int | None:
        """Return the RDY to send to the probe before a message is answered; None: send nothing. Without this RDY, the
        probe would deliver one message for each answer, and not one in total.

        Args:
            in_flight: Messages in flight on the probe after the answer.
        """
        state = self._states.get(self.probe) if self.probe is not None else None
        if state is None or state.rdy <= in_flight + 1:
            return None
        state.in_flight = in_flight + 1
        state.lower(in_flight + 1, now, GRACE)
        if state.left is not None:
            state.left = state.rdy
        return state.rdy

    # --- steps of decide(): lower, then raise

    def _lower(self, now: float) -> int:
        """Lower RDY counts above their targets. Return the free part of max_in_flight, negative if there is too much.

        If connections have more messages in flight than their RDY, reduce RDY of others, but not below 1.
        """
        free, excess = self.max_in_flight, -self.max_in_flight
        for state in self._states.values():
            if state.target < state.rdy:
                state.lower(state.target, now, GRACE)
            free -= state.reserved
            excess += max(state.rdy, state.in_flight)
        for state in self._states.values() if excess > 0 else ():
            spare = min(excess, state.rdy - max(state.in_flight, 1))
            if spare > 0:
                state.lower(state.rdy - spare, now, GRACE)
                excess -= spare
        return free

    def _grant(self, free: int, now: float) -> None:
        """Raise RDY counts below their targets, as far as max_in_flight allows."""
        if free < 0:
            return
        for state in self._states.values():
            if state.target <= state.rdy:
                continue
            # The messages that this connection may have in flight now, even above its RDY, are not part of ``free``.
            granted = min(state.target, state.reserved + free)
            free -= max(granted - state.reserved, 0)
            if granted <= state.rdy:
                continue
            if not state.rdy:
                state.raised_at = now
                if state.turn_since is not None:
                    # The turn begins now: until now the connection may have waited for answers on other connections.
                    state.turn_since = state.active_at = now
            state.rdy = granted

    # --- targets

    def _stop(self) -> None:
        for state in self._states.values():
            state.target = 0
        probe = self._states.get(self.probe) if self.probe is not None and not self.paused else None
        if probe is not None:
            # One more than its messages in flight: nsqd sends one now, before they are answered. See lower_probe().
            probe.target = min(probe.in_flight + 1, probe.limit)

    def _share_out(self, now: float) -> None:
        """Divide max_in_flight equally, if it is enough for all connections."""
        is_starved = now < self._starved_at + self.idle_timeout
        # Reserve RDY for new connections, so that the first connection with a message does not get all RDY.
        sharing, new = [], 0
        for state in self._states.values():
            state.turn_since = None
            state.target = min(1, state.limit)
            if not state.has_messages:
                new += now < state.active_at + GRACE
            # A connection with messages in flight is not idle: it may get no message before these are answered.
            elif state.in_flight or not is_starved or now < state.active_at + self.idle_timeout:
                sharing.append(state)
        count = self.max_in_flight - len(self._states) + len(sharing) + new
        waiting = len(sharing) + new + self.expected
        # Start with the lowest limits, so that connections with higher limits divide the rest.
        sharing.sort(key=operator.attrgetter("limit"))
        for state in sharing:
            state.target = min(max(count // waiting, 1), state.limit)
            count -= state.target
            waiting -= 1

    # --- turns: if max_in_flight is lower than the number of connections

    def _take_turns(self, now: float) -> None:
        """Let as many connections have a turn as max_in_flight allows. Turns that are over go to others."""
        turns: list[_State] = []
        waiting: list[_State] = []
        for state in self._states.values():
            (waiting if state.turn_since is None else turns).append(state)
        for state in self._rng.sample(turns, max(len(turns) - self.max_in_flight, 0)):
            state.turn_since = None
            turns.remove(state)
        if len(turns) < self.max_in_flight:
            self._arrange(waiting)
        while len(turns) < self.max_in_flight:
            turns.append(_begin_turn(waiting, now))
        self._end_turns(turns, waiting, now)
        for state in self._states.values():
            state.target = 0 if state.turn_since is None else min(1, state.limit)

    def _end_turns(self, turns: list[_State], waiting: list[_State], now: float) -> None:
        """Give turns that are over to waiting connections. A turn is extended if no connection waits, or if enough
        turns without messages will end in place of one with messages."""
        searching = sum(not state.has_messages for state in turns)
        known = sum(state.has_messages for state in waiting)
        self._silence_timeout = GRACE if known else max(self.idle_timeout, GRACE)
        # Each waiting connection that is not known to have messages gets a turn in TURN_TIMEOUT.
        self._turn_seconds = max(TURN_TIMEOUT / max(len(waiting) - known, 1), GRACE)
        over = [state for state in turns if state.rdy and (self._is_silent(state, now) or self._is_over(state, now))]
        if over:
            self._arrange(waiting)
            # There may be fewer waiting connections than turns that are over.
            self._rng.shuffle(over)
        for state in over:
            is_silent = self._is_silent(state, now)
            if not waiting or not (is_silent or _must_end(searching, known)):
                state.turn_since = now
                if is_silent:
                    state.active_at = now
                continue
            chosen = _begin_turn(waiting, now, prefer_known=not state.has_messages)
            searching += state.has_messages - chosen.has_messages
            state.turn_since = None
            if is_silent:
                state.has_messages = False
                # Probably no message is on its way.
                state.lower(0, now, min(GRACE, SILENT_GRACE_FACTOR * self._delay))
            known += state.has_messages - chosen.has_messages
        self._silence_timeout = GRACE if known else max(self.idle_timeout, GRACE)
        if not _must_end(searching, known):
            self._turn_seconds = math.inf

    def _arrange(self, waiting: list[_State]) -> None:
        """Put waiting connections into random order, those that had a turn in this rotation first: the last ones get
        the next turns. When turns begin, those that have RDY keep it."""
        random_part = self._rng.random
        waiting.sort(key=lambda state: 2 * state.rdy + (not state.had_turn) + random_part())

    def _is_silent(self, state: _State, now: float) -> bool:
        """Return True if a turn ends because no messages come."""
        return not state.in_flight and now >= state.active_at + self._silence_timeout

    def _is_over(self, state: _State, now: float) -> bool:
        """Return True if a turn is to end although messages come."""
        if state.turn_since is None:
            return False
        # If as many messages are in flight as RDY allows, no other is on its way, so an answer frees the RDY. But late
        # decisions may always miss this moment.
        grace = 0.0 if state.in_flight >= state.rdy else GRACE
        return now >= state.turn_since + self._turn_seconds + grace


def _must_end(searching: int, known: int) -> bool:
    """Return True if a turn with messages must end; False if enough turns without messages will end instead.

    Args:
        searching: Connections that have a turn, but are not known to have messages.
        known: Waiting connections that are known to have messages.
    """
    return not searching or known > searching


def _begin_turn(waiting: list[_State], now: float, *, prefer_known: bool = False) -> _State:
    """Begin the turn of the last of some waiting connections, or of the last that is known to have messages. If RDY is
    granted later, the turn begins at that time."""
    known = next((state for state in reversed(waiting) if state.has_messages), None) if prefer_known else None
    state = waiting[-1] if known is None else known
    waiting.remove(state)
    if state.had_turn and known is None:
        # All had a turn: another rotation begins.
        for other in waiting:
            other.had_turn = False
    state.had_turn = True
    state.turn_since = state.active_at = now
    return state
