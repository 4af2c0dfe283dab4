"""Computes the RDY count of each connection. Pure: sends nothing, reads no clock.

nsqd treats RDY as a limit of the messages in flight. A lower RDY does not change which messages are in flight. So RDY
that is taken from a connection can be given to another one only when messages are answered. nsqd before 0.3.0 also
subtracts 1 from RDY for each message that it sends, so the same RDY must be sent again. Source: the client guide, "RDY
State"; nsqd 0.2.31 client_v2.go, IsReadyForMessages; nsqd, "don't decrement RDY count".
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnsq.protocol.commands import is_starved

__all__ = ["RdyPolicy"]

# If nsqd counts RDY down, RDY is sent again when less than this part is left. Source: the client guide, "RDY State".
RENEW_BELOW = 0.25
# The delay from sending RDY to the first message is measured. After a lower RDY is sent because no messages come, a
# message that was on its way arrives within this number of measured delays.
SILENT_GRACE_FACTOR = 4

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True, eq=False)
class _ConnectionRdy:
    """State of one connection.

    Attributes:
        limit: max_rdy_count of its nsqd.
        counts_down: True if its nsqd subtracts 1 from RDY for each message.
        last: When the last message came; before the first message: when the connection was added.
        idle_since: If there are turns: time since which no message is in flight; None if one is, or was at decide().
        rdy: RDY that was sent last.
        remaining: If its nsqd counts RDY down: the RDY that was sent last, minus the messages that came since then.
        is_new: True until the first message.
        starved_at: When the connection was starved last.
        arriving: Number of messages that may still arrive because nsqd sent them before it read a lower RDY.
        arriving_until: Time until which these messages may arrive.
        raised_at: When RDY was raised from 0; None after the next message or a lower RDY.
        turn: When the connection's turn began; None while it waits for a turn, or if there are no turns.
        turn_renewed: When the turn began or was last extended.
        has_backlog: True after a message, until a turn of the connection ends because no messages came.
        had_turn: True if the connection had a turn in this rotation. In a rotation each connection gets one turn.
    """

    limit: int
    counts_down: bool
    last: float
    idle_since: float | None
    rdy: int = 0
    remaining: int = 0
    is_new: bool = True
    starved_at: float = -math.inf
    arriving: int = 0
    arriving_until: float = -math.inf
    raised_at: float | None = None
    turn: float | None = None
    turn_renewed: float = -math.inf
    has_backlog: bool = False
    had_turn: bool = False

    def lower(self, target: int, in_flight: int, now: float, grace: float) -> None:
        """Set a lower RDY. For grace seconds, messages may still arrive that nsqd sent before it read the lower RDY."""
        self.arriving = max(self.rdy - in_flight, self.arriving if now < self.arriving_until else 0)
        self.arriving_until = now + grace
        self.rdy = target
        self.raised_at = None

    def begin_turn(self, now: float) -> None:
        """Begin a turn. If RDY is granted only later, this is called again then, and the turn begins at that time."""
        self.turn = self.turn_renewed = now
        self.had_turn = True

    def max_in_flight(self, in_flight: int, now: float) -> int:
        """Return the largest number of messages that can be in flight until another RDY is sent."""
        arriving = self.arriving if now < self.arriving_until else 0
        return max(self.rdy, in_flight + arriving)


class RdyPolicy(Generic[Key]):
    """Distributes max_in_flight to connections. RDY is raised only while the sum of max(RDY, messages in flight plus
    those that may still arrive) over all connections stays within max_in_flight.

    A connection begins with RDY 1. After its first message, its RDY is raised: all connections with messages get equal
    RDY counts. One that had no message for idle_timeout, and has none in flight, has RDY 1 while others are starved.

    If max_in_flight is lower than the number of connections, some have RDY 1 (a turn) and the others wait with RDY 0.
    Turns come in random order. A connection without messages loses its turn after idle_timeout, or after grace if a
    waiting one is known to have messages. A connection with messages loses its turn after turn_timeout, or earlier if
    many wait. After a turn without messages, connections that are known to have messages come first.

    nsqd does not acknowledge RDY. So RDY that was taken from a connection is given to another one when messages are
    answered, or after grace. If a connection loses its turn because no messages came, its RDY is given away earlier
    (see SILENT_GRACE_FACTOR), or immediately if no delay was measured: probably no message is on its way.

    Args:
        max_in_flight: Messages, 1 or more. This and the next three arguments are attributes that may be changed.
        idle_timeout: Seconds after which a connection without a message counts as idle.
        turn_timeout: Seconds after which a connection with messages loses its turn; less if many connections wait.
        grace: Seconds until nsqd has read a lower RDY and the messages that it sent before have arrived. The output
            buffer delays no message longer: nsqd flushes it when RDY allows no more messages.
        rng: Randomness for the order of connections, for turns and for probes.

    Attributes:
        paused: True: all RDY counts are 0.
        backing_off: True: all RDY counts are 0, except that of the probe.
        expected: Number of connections that may be added soon; their RDY counts are reserved.
        probe: Connection from which one more message is requested during backoff; None: no connection.
        has_unassigned: True if a connection waits for RDY that others must free: then call decide() after each answer.
    """

    def __init__(
        self,
        max_in_flight: int,
        idle_timeout: float = 10.0,
        rng: random.Random | None = None,
        *,
        turn_timeout: float = 30.0,
        grace: float = 1.0,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.paused = False
        self.backing_off = False
        self.expected = 0
        self.probe: Key | None = None
        self.idle_timeout = idle_timeout
        self.turn_timeout = turn_timeout
        self.grace = grace
        self._rng = rng if rng is not None else random.Random()
        self._states: dict[Key, _ConnectionRdy] = {}
        # All connections. The first ones have the turns; without turns they get the remainder of max_in_flight.
        self._order: list[Key] = []
        # Connections whose turn ends in this decide(). True: the turn ends because no messages came.
        self._ended: dict[Key, bool] = {}
        # Number of waiting connections that are known to have messages, and seconds of a turn at present.
        self._waiting_with_backlog = 0
        self._turn_seconds = turn_timeout
        self.has_unassigned = False
        # Seconds between raising RDY above 0 and the next message: last value, or a moving average if that is longer.
        self._delay = 0.0

    def add(self, key: Key, max_rdy_count: int, now: float, *, counts_down: bool = False) -> None:
        """Add a connection that has RDY 0.

        Args:
            max_rdy_count: Largest RDY that its nsqd allows.
            counts_down: True if its nsqd subtracts 1 from RDY with each message.
        """
        self._states[key] = _ConnectionRdy(max_rdy_count, counts_down, now, now)
        # Insert the connection after those that have a turn: otherwise one of them would lose its turn.
        first = min(len(self._order), self.max_in_flight) if len(self._order) >= self.max_in_flight else 0
        self._order.insert(self._rng.randint(first, len(self._order)), key)

    def remove(self, key: Key) -> None:
        """Remove a connection. An unknown connection is ignored."""
        if self._states.pop(key, None) is not None:
            self._order.remove(key)
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
        changed = state.is_new or self._is_idle(state, now)
        state.is_new = False
        state.last = now
        state.idle_since = None
        state.has_backlog = True
        if state.raised_at is not None and now - state.raised_at < self.grace:
            self._delay = max(now - state.raised_at, (self._delay + now - state.raised_at) / 2)
        state.raised_at = None
        state.arriving = max(state.arriving - count, 0)
        if is_starved(in_flight, state.rdy):
            changed = changed or not self._is_starved(state, now)
            state.starved_at = now
        if state.counts_down:
            state.remaining = max(state.remaining - count, 0)
            changed = changed or self._must_renew(state)
        return changed or (state.turn is not None and now >= state.turn_renewed + self._turn_seconds)

    def pick_probe(self, in_flight: Mapping[Key, int]) -> Key | None:
        """Choose the connection to probe; None if there is no connection.

        Choose the connection on which the last message came: its nsqd probably has more. If there is a probe already,
        choose another one at random. Connections with messages in flight come last: these need lower_probe().
        """
        others = [key for key in self._order if key != self.probe] or self._order
        best = [key for key in others if not in_flight.get(key)] or others
        if not best:
            return None
        if self.probe is None:
            return max(best, key=lambda key: (not self._states[key].is_new, self._states[key].last))
        return self._rng.choice(best)

    def decide(self, in_flight: Mapping[Key, int], now: float) -> dict[Key, int]:
        """Return the RDY counts to send now. Connections that are not in the result keep their RDY.

        Args:
            in_flight: Messages in flight on each connection.
        """
        self._ended.clear()
        targets = self._targets(in_flight, now)
        changed = self._reclaim(self._cap(targets, in_flight), in_flight, now)
        changed |= self._grant(targets, in_flight, now)
        changed.update(key for key, state in self._states.items() if self._must_renew(state))
        for key in changed:
            self._states[key].remaining = self._states[key].rdy
        return {key: self._states[key].rdy for key in changed}

    def lower_probe(self, in_flight: int, now: float) -> int | None:
        """Return the RDY to send to the probe before a message is answered; None: send nothing. Without this RDY, the
        probe would deliver one message for each answer, and not one in total.

        Args:
            in_flight: Messages in flight on the probe after the answer.
        """
        state = self._states.get(self.probe) if self.probe is not None else None
        if state is None or state.rdy <= in_flight + 1:
            return None
        state.lower(in_flight + 1, in_flight + 1, now, self.grace)
        state.remaining = state.rdy
        return state.rdy

    def due(self, now: float) -> float | None:
        """Return the time at which decide() must be called even without an event; None: no such time."""
        states = self._states.values()
        times = [state.arriving_until for state in states if self.has_unassigned and state.arriving]
        if self._is_oversubscribed:
            for state in states:
                if state.turn is not None and state.rdy:
                    times += [self._silent_at(state, now), state.turn_renewed + self._turn_seconds]
        times += [state.last + self.grace for state in states if state.is_new]
        if (
            not self._is_oversubscribed
            and len(self._states) > 1
            and any(self._is_starved(state, now) for state in states)
        ):
            times += [state.last + self.idle_timeout for state in states]
            times += [state.starved_at + self.idle_timeout for state in states]
        return min((time for time in times if time > now), default=None)

    # --- steps of decide()

    def _cap(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int]) -> dict[Key, int]:
        """If connections have more messages in flight than their targets, reduce targets of others, but not below 1."""
        rdy = {key: min(target, self._states[key].rdy) for key, target in targets.items()}
        excess = sum(max(count, in_flight.get(key, 0)) for key, count in rdy.items()) - self.max_in_flight
        for key in reversed(self._order):
            spare = rdy[key] - max(in_flight.get(key, 0), 1)
            if excess > 0 and spare > 0:
                rdy[key] -= min(spare, excess)
                excess -= min(spare, excess)
        return rdy

    def _reclaim(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int], now: float) -> set[Key]:
        lowered = {key for key, target in targets.items() if target < self._states[key].rdy}
        for key in lowered:
            grace = min(self.grace, SILENT_GRACE_FACTOR * self._delay) if self._ended.get(key) else self.grace
            self._states[key].lower(targets[key], in_flight.get(key, 0), now, grace)
        return lowered

    def _free(self, in_flight: Mapping[Key, int], now: float) -> int:
        """Return the unused part of max_in_flight. It may be negative, for example after max_in_flight was lowered."""
        return self.max_in_flight - sum(
            state.max_in_flight(in_flight.get(key, 0), now) for key, state in self._states.items()
        )

    def _grant(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int], now: float) -> set[Key]:
        free = self._free(in_flight, now)
        raised = set()
        self.has_unassigned = False
        for key, target in targets.items():
            state = self._states[key]
            if target <= state.rdy:
                continue
            if free < 0:
                self.has_unassigned = True
                continue
            # The messages that this connection may have in flight now, even above its RDY, are not part of ``free``.
            reserved = state.max_in_flight(in_flight.get(key, 0), now)
            granted = min(target, reserved + free)
            free -= max(granted - reserved, 0)
            if granted > state.rdy:
                if state.turn is not None and not state.rdy:
                    # The turn begins now: until now the connection may have waited for answers on other connections.
                    state.begin_turn(now)
                    state.idle_since = now
                if not state.rdy:
                    state.raised_at = now
                state.rdy = granted
                raised.add(key)
            if granted < target:
                self.has_unassigned = True
        return raised

    def _must_renew(self, state: _ConnectionRdy) -> bool:
        """Return True if the same RDY must be sent again, to an nsqd that counts RDY down.

        Sending RDY again never allows too many messages: nsqd also limits the messages in flight by RDY.
        """
        return state.counts_down and state.remaining < state.rdy * RENEW_BELOW

    # --- targets

    @property
    def _is_oversubscribed(self) -> bool:
        return len(self._order) > self.max_in_flight

    def _targets(self, in_flight: Mapping[Key, int], now: float) -> dict[Key, int]:
        if self.paused or self.backing_off:
            targets = dict.fromkeys(self._order, 0)
            if self.probe is not None and not self.paused:
                # One more than its messages in flight: nsqd sends one now, before they are answered. See lower_probe().
                targets[self.probe] = min(in_flight.get(self.probe, 0) + 1, self._states[self.probe].limit)
            return targets
        if self._is_oversubscribed:
            self._rotate(in_flight, now)
            return {
                key: min(int(index < self.max_in_flight), self._states[key].limit)
                for index, key in enumerate(self._order)
            }
        for state in self._states.values():
            state.turn = None
        starved = any(self._is_starved(state, now) for state in self._states.values())
        eligible = [
            key
            for key, state in self._states.items()
            # A connection with messages in flight is not idle: it may get no message before these are answered.
            if not state.is_new and not (starved and self._is_idle(state, now) and not in_flight.get(key))
        ]
        targets = {key: min(1, self._states[key].limit) for key in self._order}
        # Reserve RDY for new connections, so that the first connection with a message does not get all RDY.
        recently_added = sum(state.is_new and now < state.last + self.grace for state in self._states.values())
        count = self.max_in_flight - len(self._order) + len(eligible) + recently_added
        targets.update(self._distribute(count, set(eligible), recently_added + self.expected))
        return targets

    def _distribute(self, count: int, eligible: set[Key], reserved: int) -> dict[Key, int]:
        """Divide count equally among the eligible connections and a reserved number of others. If none is reserved, the
        first connections get the remainder. The part above the limit of an nsqd goes to the other connections."""
        targets = {}
        # Start with the lowest limits, so that connections with higher limits divide the rest.
        waiting = sorted((key for key in self._order if key in eligible), key=lambda key: self._states[key].limit)
        while waiting:
            each, remainder = divmod(count, len(waiting) + reserved)
            if reserved:
                each, remainder = max(each, 1), 0
            if self._states[waiting[0]].limit > each:
                rest = set(waiting)
                first = set([key for key in self._order if key in rest][:remainder])
                targets.update({key: each + (key in first) for key in waiting})
                break
            key = waiting.pop(0)
            targets[key] = self._states[key].limit
            count -= targets[key]
        return targets

    def _is_starved(self, state: _ConnectionRdy, now: float) -> bool:
        return now < state.starved_at + self.idle_timeout

    def _is_idle(self, state: _ConnectionRdy, now: float) -> bool:
        return now >= state.last + self.idle_timeout

    # --- turns: if max_in_flight is lower than the number of connections

    @property
    def _silence_timeout(self) -> float:
        """Seconds without a message after which a turn ends."""
        return self.grace if self._waiting_with_backlog else self.idle_timeout

    def _silent_at(self, state: _ConnectionRdy, now: float) -> float:
        """Return when a turn ends if no message comes; while messages are in flight, return when to check again."""
        silent = max(state.last, state.turn or 0.0) + self._silence_timeout
        if state.idle_since is not None:
            return max(silent, state.idle_since + self.grace)
        return silent - self.grace if silent - self.grace > now else now + self.grace

    def _rotate(self, in_flight: Mapping[Key, int], now: float) -> None:
        """End the turns that are over, and begin turns of waiting connections in their place."""
        active, waiting = self._order[: self.max_in_flight], self._order[self.max_in_flight :]
        self._waiting_with_backlog = sum(self._states[key].has_backlog for key in waiting)
        for key in waiting:
            self._states[key].turn = None
        for key in active:
            state = self._states[key]
            if state.turn is None:
                state.begin_turn(now)
            if in_flight.get(key):
                state.idle_since = None
            elif state.idle_since is None:
                state.idle_since = now
        # In random order, since there may be fewer waiting connections than turns that are over.
        for key in self._rng.sample(active, len(active)):
            state = self._states[key]
            if not state.rdy or state.turn is None:
                continue
            if state.idle_since is not None and now >= self._silent_at(state, now):
                self._end_turn(key, now, is_silent=True)
            elif now >= state.turn_renewed + self._turn_seconds:
                if not self._is_wanted():
                    state.turn_renewed = now
                elif in_flight.get(key, 0) >= state.rdy:
                    # As many messages are in flight as RDY allows: no other is on its way, so an answer frees the RDY.
                    self._end_turn(key, now, is_silent=False)
        waiting = self._order[self.max_in_flight :]
        # Choose a length, at least grace, so that each waiting connection without backlog gets a turn in turn_timeout.
        self._turn_seconds = max(self.turn_timeout / max(len(waiting) - self._waiting_with_backlog, 1), self.grace)

    def _is_wanted(self) -> bool:
        """Return True if a turn with messages must end; False if enough turns without messages will end instead."""
        active = [self._states[key] for key in self._order[: self.max_in_flight]]
        searching = sum(not state.has_backlog for state in active)
        return not searching or self._waiting_with_backlog > searching

    def _end_turn(self, key: Key, now: float, *, is_silent: bool) -> None:
        """Give the turn of a connection to a random waiting one that had no turn in this rotation; if none waits, renew
        it. If the connection is not known to have messages, waiting ones that are known to have them are preferred."""
        state = self._states[key]
        waiting = [other for other in self._order[self.max_in_flight :] if other not in self._ended]
        if not waiting:
            state.begin_turn(now)
            return
        backlog = [other for other in waiting if self._states[other].has_backlog and not state.has_backlog]
        new = [other for other in backlog or waiting if not self._states[other].had_turn]
        if not new and not backlog:
            for other in waiting:
                self._states[other].had_turn = False
        chosen = self._rng.choice(new or backlog or waiting)
        first, second = self._order.index(key), self._order.index(chosen)
        self._order[first], self._order[second] = chosen, key
        state.turn = None
        state.has_backlog = state.has_backlog and not is_silent
        self._waiting_with_backlog += int(state.has_backlog) - int(self._states[chosen].has_backlog)
        self._ended[key] = is_silent
        self._states[chosen].begin_turn(now)
