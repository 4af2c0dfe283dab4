"""Computes the RDY count of each connection. Pure: sends nothing, reads no clock.

nsqd treats RDY as a limit of the messages in flight. A lower RDY does not change which messages are in flight. So RDY
that is taken from a connection can be given to another one only when messages are answered. nsqd before 0.3.0 also
subtracts 1 from RDY for each message that it sends, so the same RDY must be sent again. Source: the client guide, "RDY
State"; nsqd 0.2.31 client_v2.go, IsReadyForMessages; nsqd, "don't decrement RDY count".

A consumer may have 1,000 connections. So sums, sets and deadlines are kept up to date by each event, and a call goes
over all connections only if the RDY counts of all may change. With 500 connections, an update after one event takes
0.01 ms in place of 0.75 ms for a pass over all.
"""

from __future__ import annotations

import enum
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnsq.consumer.rdy_collections import Deadlines
from gnsq.consumer.rdy_shares import Shares
from gnsq.consumer.rdy_turns import Turns
from gnsq.protocol.commands import STARVED_AT, is_starved

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

# A change of the shares may send RDY to all connections. If it did so to more than FREE_MOVES of them, the next change
# does not come with the next event, but MOVE_SECONDS later for each further one: 0.18 s later for 1,000 connections.
FREE_MOVES = 100
MOVE_SECONDS = 0.0002

Key = TypeVar("Key", bound=Hashable)


class _Mode(enum.Enum):
    """Distribution of max_in_flight over the connections."""

    STOPPED = "RDY 0, except that of the probe"
    TURNS = "RDY 1 by turns"
    SHARES = "equal RDY counts"


@dataclass(slots=True, eq=False)
class _State(Generic[Key]):
    """State of one connection.

    Attributes:
        limit: max_rdy_count of its nsqd.
        counts_down: True if its nsqd subtracts 1 from RDY for each message.
        last: When the last message came; before the first message: when the connection was added.
        idle_since: If there are turns: time since which no message is in flight; None if one is, or was when last seen.
        rdy: RDY that was sent last.
        target: RDY that the connection is to have. It is sent when other connections have freed enough RDY.
        used: The part of max_in_flight that the connection may use until another RDY is sent.
        plain_below: A message needs no more than a new value of last if fewer messages than this are in flight.
        is_watched: True if the caller must report answers.
        remaining: If its nsqd counts RDY down: the RDY that was sent last, minus the messages that came since then.
        is_new: True until the first message.
        is_sharing: True if the connection gets an equal share, and not RDY 1: it has had messages, and is not idle.
        starved_at: When the connection was starved last.
        arriving: Number of messages that may still arrive because nsqd sent them before it read a lower RDY.
        arriving_until: Time until which these messages may arrive.
        raised_at: When RDY was raised from 0; None after the next message or a lower RDY.
        turn: When the connection's turn began; None while it waits for a turn, or if there are no turns.
        turn_renewed: When the turn began or was last extended.
        has_backlog: True after a message, until a turn of the connection ends because no messages came.
    """

    key: Key
    limit: int
    counts_down: bool
    last: float
    idle_since: float | None
    rdy: int = 0
    target: int = 0
    used: int = 0
    plain_below: float = 0.0
    is_watched: bool = False
    remaining: int = 0
    is_new: bool = True
    is_sharing: bool = False
    starved_at: float = -math.inf
    arriving: int = 0
    arriving_until: float = -math.inf
    raised_at: float | None = None
    turn: float | None = None
    turn_renewed: float = -math.inf
    has_backlog: bool = False

    @property
    def must_renew(self) -> bool:
        """True if the same RDY must be sent again, to an nsqd that counts RDY down.

        Sending RDY again never allows too many messages: nsqd also limits the messages in flight by RDY.
        """
        return self.counts_down and self.remaining < self.rdy * RENEW_BELOW


class RdyPolicy(Generic[Key]):
    """Distributes max_in_flight to connections. RDY is raised only while the sum of max(RDY, messages in flight plus
    those that may still arrive) over all connections stays within max_in_flight.

    A connection begins with RDY 1. After its first message, its RDY is raised: all connections with messages get equal
    RDY counts. One that had no message for idle_timeout, and has none in flight, has RDY 1 while others are starved.

    If max_in_flight is lower than the number of connections, some have RDY 1 (a turn) and the others wait with RDY 0.
    Turns come in random order. A connection without messages loses its turn after idle_timeout, or after GRACE if a
    waiting one is known to have messages. A connection with messages loses its turn after TURN_TIMEOUT, or earlier if
    many wait. After a turn without messages, connections that are known to have messages come first.

    nsqd does not acknowledge RDY. So RDY that was taken from a connection is given to another one when messages are
    answered, or after GRACE. If a connection loses its turn because no messages came, its RDY is given away earlier
    (see SILENT_GRACE_FACTOR), or immediately if no delay was measured: probably no message is on its way.

    The caller reports each message by on_messages(), and the answers on some connections by on_answer(): see
    take_watched(). The methods get the numbers of messages in flight as a function, and call it for few connections.

    Args:
        max_in_flight: Messages, 1 or more. This and idle_timeout are attributes that may be changed.
        idle_timeout: Seconds after which a connection without a message counts as idle.
        rng: Randomness for the order of connections, for turns and for probes.

    Attributes:
        paused: True: all RDY counts are 0.
        backing_off: True: all RDY counts are 0, except that of the probe.
        expected: Number of connections that may be added soon; their RDY counts are reserved.
        probe: Connection from which one more message is requested during backoff; None: no connection.
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
        self._rng = rng if rng is not None else random.Random()
        self._states: dict[Key, _State[Key]] = {}
        self._mode = _Mode.STOPPED
        # Seconds between raising RDY above 0 and the next message: last value, or a moving average if that is longer.
        self._delay = 0.0
        # Sum of ``used`` of all connections, and when one of them was starved last.
        self._used = 0
        self._starved_at = -math.inf
        # The connection on which the last message came.
        self._latest: _State[Key] | None = None
        # Connections whose RDY is below their target, the one that waits longest first.
        self._unassigned: OrderedDict[_State[Key], None] = OrderedDict()
        # Since the last decide(): connections of which a message needs attention, and those to be watched.
        self._touched: dict[_State[Key], None] = {}
        self._watched: list[Key] = []
        # Of this decide(): its arguments, connections to which RDY is sent, and those whose target was raised.
        self._in_flight: Callable[[Key], int] = lambda key: 0
        self._now = -math.inf
        self._changed: dict[_State[Key], None] = {}
        self._raised: list[_State[Key]] = []
        # Ends of ``arriving``. New connections for which RDY is reserved, by the time when they were added.
        self._arrivals: Deadlines[_State[Key]] = Deadlines()
        self._recent: Deadlines[_State[Key]] = Deadlines()
        # Connections of which silence ends the turn or the share, by _silent_from() when it was looked at last. The
        # others are checked at the time in _rechecks, since messages are in flight or were answered a short time ago.
        self._silence: Deadlines[_State[Key]] = Deadlines()
        self._rechecks: Deadlines[_State[Key]] = Deadlines()
        # Mode SHARES: connections with a share, and the idle ones that have lost it.
        self._shares: Shares[_State[Key]] = Shares()
        self._idle: dict[_State[Key], None] = {}
        # The next change of shares comes at this time at the earliest; True if it is to come then.
        self._shares_due = -math.inf
        self._is_change_deferred = False
        # Mode TURNS, also kept while the mode is STOPPED; and when each turn was renewed.
        self._turns: Turns[_State[Key]] = Turns(self._rng)
        self._has_turns = False
        self._turn_ends: Deadlines[_State[Key]] = Deadlines()
        # Mode STOPPED: the connection that has another target than 0.
        self._probed: _State[Key] | None = None

    # --- events

    def add(self, key: Key, max_rdy_count: int, now: float, *, counts_down: bool = False) -> None:
        """Add a connection that has RDY 0.

        Args:
            max_rdy_count: Largest RDY that its nsqd allows.
            counts_down: True if its nsqd subtracts 1 from RDY with each message.
        """
        state = self._states[key] = _State(key, max_rdy_count, counts_down, now, now)
        self._recent.set(state, now)
        if self._has_turns:
            self._turns.wait(state)
        elif self._mode is _Mode.SHARES:
            self._touched[state] = None

    def remove(self, key: Key) -> None:
        """Remove a connection. An unknown connection is ignored."""
        if self.probe == key:
            self.probe = None
        state = self._states.pop(key, None)
        if state is None:
            return
        self._used -= state.used
        if state.starved_at == self._starved_at > -math.inf:
            self._starved_at = max((other.starved_at for other in self._states.values()), default=-math.inf)
        for deadlines in (self._arrivals, self._recent, self._silence, self._rechecks, self._turn_ends):
            deadlines.discard(state)
        for states in (self._unassigned, self._touched, self._idle):
            states.pop(state, None)
        if state.is_sharing:
            self._end_share(state)
        self._turns.remove(state)
        self._probed = None if state is self._probed else self._probed
        self._latest = None if state is self._latest else self._latest

    def on_messages(self, key: Key, count: int, in_flight: int, now: float) -> bool:
        """Record that messages came. Return True if decide() should be called.

        Args:
            count: Number of these messages.
            in_flight: Messages in flight on the connection, including these.
        """
        state = self._states.get(key)
        if state is None:
            return False
        state.last = now
        self._latest = state
        if in_flight < state.plain_below:
            return False
        was_starved = now < self._starved_at + self.idle_timeout
        if state.plain_below and in_flight <= state.rdy:
            state.idle_since = None
            state.starved_at = self._starved_at = now
            return not was_starved
        is_due = not state.has_backlog or state.is_new or key == self.probe
        is_due = is_due or (self._mode is _Mode.SHARES and not state.is_sharing)
        if state.is_new:
            state.is_new = False
            self._recent.discard(state)
        if not state.has_backlog and self._has_turns:
            self._turns.note_backlog(state)
        state.has_backlog = True
        state.idle_since = None
        if state.raised_at is not None and now - state.raised_at < GRACE:
            self._delay = max(now - state.raised_at, (self._delay + now - state.raised_at) / 2)
        state.raised_at = None
        if state.arriving:
            state.arriving = max(state.arriving - count, 0)
            if not state.arriving:
                self._arrivals.discard(state)
        if is_starved(in_flight, state.rdy):
            is_due = is_due or not was_starved
            state.starved_at = self._starved_at = now
        is_due = self._set_used(state, in_flight) or is_due
        if state.counts_down:
            state.remaining = max(state.remaining - count, 0)
            is_due = is_due or state.must_renew
        if state.turn is not None and now < state.turn_renewed + self._turn_seconds:
            self._turn_ends.set(state, state.turn_renewed)
        elif state.turn is not None:
            is_due = True
        if is_due:
            self._touched[state] = None
        self._set_plain(state)
        return is_due

    def on_answer(self, key: Key, in_flight: int, now: float) -> bool:
        """Record that messages of a watched connection were answered. Return True if decide() should be called."""
        state = self._states.get(key)
        if state is None:
            return False
        if in_flight:
            state.idle_since = None
        elif state.idle_since is None:
            state.idle_since = now
        before = self._used
        self._set_used(state, in_flight)
        return self.has_unassigned and self._used < before and self._used <= self.max_in_flight

    def take_watched(self) -> list[Key]:
        """Return the connections that must be watched from now on: the caller must report each answer by on_answer(),
        until must_watch() is False."""
        watched, self._watched = self._watched, []
        return watched

    def must_watch(self, key: Key) -> bool:
        """Return True if answers on a watched connection must still be reported: it has a turn, or more messages in
        flight, or on their way, than its RDY."""
        state = self._states.get(key)
        if state is None:
            return False
        state.is_watched = state.turn is not None or state.used > state.rdy
        return state.is_watched

    # --- decisions

    @property
    def has_unassigned(self) -> bool:
        """True if a connection waits for RDY that others must free."""
        return bool(self._unassigned)

    def decide(self, in_flight: Callable[[Key], int], now: float) -> dict[Key, int]:
        """Return the RDY counts to send now. Connections that are not in the result keep their RDY.

        The cost depends on the number of connections that had an event or get another RDY, and not on that of all. But
        it depends on that of all after the mode has changed, and while more messages may be in flight than
        max_in_flight allows, for example after it was lowered.

        Args:
            in_flight: Function that returns the number of messages in flight on a connection.
        """
        self._in_flight, self._now = in_flight, now
        for key in self._watched:
            # The caller does not watch these yet, and messages of them may have been answered meanwhile.
            if key in self._states:
                self._set_used(self._states[key], in_flight(key))
        for state in self._arrivals.pop(now):
            state.arriving = 0
            self._set_used(state, in_flight(state.key))
            self._set_plain(state)
        self._recent.pop(now, GRACE)
        if self.paused or self.backing_off:
            mode = _Mode.STOPPED
        else:
            mode = _Mode.TURNS if len(self._states) > self.max_in_flight else _Mode.SHARES
        if mode is not self._mode:
            self._enter(mode)
        if mode is _Mode.STOPPED:
            self._target_probe()
        elif mode is _Mode.TURNS:
            self._rotate()
        else:
            self._share_out()
        if self._used > self.max_in_flight:
            self._cap()
        self._grant()
        changed, self._changed = self._changed, {}
        changed.update((state, None) for state in self._touched if state.must_renew)
        self._touched.clear()
        for state in changed:
            state.remaining = state.rdy
            self._set_plain(state)
        return {state.key: state.rdy for state in changed}

    def due(self, now: float) -> float | None:
        """Return the time at which decide() must be called even without an event; None: no such time."""
        times = [self._recent.first(GRACE)]
        if self.has_unassigned:
            times.append(self._arrivals.first())
        # Without this, each busy connection would cause a call of decide() in each period.
        self._silence.refresh(_silent_from)
        if self._mode is _Mode.TURNS:
            times += [self._silence.first(self._silence_timeout), self._rechecks.first()]
            if self._turns.is_wanted:
                times.append(self._turn_ends.first(self._turn_seconds))
        elif self._mode is _Mode.SHARES and len(self._states) > 1 and now < self._starved_at + self.idle_timeout:
            times += [self._silence.first(self.idle_timeout), self._rechecks.first()]
            times.append(self._starved_at + self.idle_timeout)
        if self._mode is _Mode.SHARES and self._is_change_deferred:
            times.append(self._shares_due)
        time = min(times)
        return None if time == math.inf else time

    def pick_probe(self, in_flight: Callable[[Key], int]) -> Key | None:
        """Choose the connection to probe; None if there is no connection.

        Choose the connection on which the last message came: its nsqd probably has more. If there is a probe already,
        choose another one at random. Connections with messages in flight come last: these need lower_probe().
        """
        latest = self._latest
        if self.probe is None and latest is not None and not in_flight(latest.key):
            return latest.key
        others = [key for key in self._states if key != self.probe] or list(self._states)
        best = [key for key in others if not in_flight(key)] or others
        if not best:
            return None
        if self.probe is None:
            return max(best, key=lambda key: (not self._states[key].is_new, self._states[key].last))
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
        self._lower(state, in_flight + 1, in_flight + 1, now, GRACE)
        self._changed.clear()  # the caller sends this RDY
        state.remaining = state.rdy
        return state.rdy

    # --- RDY and targets of one connection

    def _set_used(self, state: _State[Key], in_flight: int) -> bool:
        """Set the largest number of messages that can be in flight until another RDY is sent. Return True if the
        connection must be watched from now on, since answers reduce this number."""
        used = max(state.rdy, in_flight + state.arriving)
        self._used += used - state.used
        state.used = used
        return used > state.rdy and self._watch(state)

    def _watch(self, state: _State[Key]) -> bool:
        if state.is_watched:
            return False
        state.is_watched = True
        self._watched.append(state.key)
        return True

    def _set_plain(self, state: _State[Key]) -> None:
        is_plain = (
            (state.is_sharing or (self._mode is _Mode.TURNS and state in self._turn_ends))
            and state.has_backlog
            and not (state.arriving or state.counts_down)
            and state.raised_at is None
        )
        state.plain_below = max(state.rdy * STARVED_AT, 1) if is_plain else 0.0

    def _set_target(self, state: _State[Key], target: int, grace: float = GRACE) -> None:
        """Set the target of a connection. A lower RDY is sent at once, a higher one when enough is free."""
        state.target = target
        if target < state.rdy:
            self._lower(state, target, self._in_flight(state.key), self._now, grace)
        if target > state.rdy:
            self._unassigned.setdefault(state)
            self._raised.append(state)
        else:
            self._unassigned.pop(state, None)

    def _lower(self, state: _State[Key], rdy: int, in_flight: int, now: float, grace: float) -> None:
        """Set a lower RDY. For grace seconds, messages may still arrive that nsqd sent before it read the lower RDY."""
        state.arriving = max(state.rdy - in_flight, state.arriving if now < state.arriving_until else 0)
        state.arriving_until = now + grace
        if state.arriving and grace > 0:
            self._arrivals.set(state, state.arriving_until)
        else:
            state.arriving = 0
        state.rdy = rdy
        state.raised_at = None
        self._set_used(state, in_flight)
        self._changed[state] = None

    def _raise(self, state: _State[Key]) -> None:
        """Raise RDY to the target if enough of max_in_flight is free; otherwise as far as possible."""
        self._set_used(state, self._in_flight(state.key))
        # The messages that this connection may have in flight now, even above its RDY, are in _used already.
        granted = min(state.target, state.used + self.max_in_flight - self._used)
        if granted > state.rdy:
            is_first = not state.rdy
            if is_first:
                state.raised_at = self._now
            state.rdy = granted
            self._set_used(state, self._in_flight(state.key))
            self._changed[state] = None
            if is_first and state.turn is not None:
                # The turn begins now: until now the connection may have waited for answers on other connections.
                self._start_turn(state)
        if state.rdy == state.target:
            del self._unassigned[state]

    # --- steps of decide()

    def _enter(self, mode: _Mode) -> None:
        """Change the mode. Goes over all connections, since most of them get another target."""
        for deadlines in (self._silence, self._rechecks, self._turn_ends):
            deadlines.clear()
        for sharing in [state for state in self._states.values() if state.is_sharing]:
            self._end_share(sharing)
        self._idle.clear()
        self._shares_due = -math.inf
        self._mode = mode
        self._probed = None
        if mode is _Mode.TURNS:
            self._begin_turns()
        elif mode is _Mode.SHARES:
            self._turns, self._has_turns = Turns(self._rng), False
            for state in self._states.values():
                state.turn = None
                self._touched[state] = None
        else:
            for state in self._states.values():
                self._set_target(state, 0)
        for state in self._states.values():
            self._set_plain(state)

    def _target_probe(self) -> None:
        probe = self._states.get(self.probe) if self.probe is not None and not self.paused else None
        if self._probed is not None and self._probed is not probe:
            self._set_target(self._probed, 0)
        if probe is not None:
            # One more than its messages in flight: nsqd sends one now, before they are answered. See lower_probe().
            self._set_target(probe, min(self._in_flight(probe.key) + 1, probe.limit))
        self._probed = probe

    def _cap(self) -> None:
        """If connections have more messages in flight than their targets, reduce RDY of others, but not below 1."""
        counts = {state: self._in_flight(state.key) for state in self._states.values()}
        excess = sum(max(state.rdy, count) for state, count in counts.items()) - self.max_in_flight
        for state, count in counts.items():
            spare = min(state.rdy - max(count, 1), excess)
            if spare > 0:
                self._lower(state, state.rdy - spare, count, self._now, GRACE)
                self._unassigned.setdefault(state)
                excess -= spare

    def _grant(self) -> None:
        """Raise RDY counts below their targets."""
        while self._unassigned and self._used < self.max_in_flight:
            self._raise(next(iter(self._unassigned)))
        raised, self._raised = self._raised, []
        for state in raised:
            # Even if nothing is free, RDY may be raised to the number of messages that the connection has in flight.
            if state in self._unassigned and self._used <= self.max_in_flight:
                self._raise(state)

    # --- shares: if max_in_flight is enough for all connections

    def _begin_share(self, state: _State[Key]) -> None:
        state.is_sharing = True
        self._shares.add(state)
        self._silence.set(state, state.last)
        self._set_plain(state)

    def _end_share(self, state: _State[Key]) -> None:
        state.is_sharing = False
        self._shares.remove(state)
        self._silence.discard(state)
        self._rechecks.discard(state)
        self._set_plain(state)

    def _share_out(self) -> None:
        for state in self._touched:
            if state.is_new:
                self._set_target(state, min(1, state.limit))
            elif not state.is_sharing:
                self._idle.pop(state, None)
                self._begin_share(state)
        self._find_idle()
        # Not if max_in_flight was lowered: then RDY counts are lowered now.
        self._is_change_deferred = self._now < self._shares_due and self._used <= self.max_in_flight
        if self._is_change_deferred:
            return
        # Reserve RDY for new connections, so that the first connection with a message does not get all RDY.
        recent = len(self._recent)
        count = self.max_in_flight - len(self._states) + len(self._shares) + recent
        changes = self._shares.divide(count, recent + self.expected)
        for state, target in changes:
            self._set_target(state, target)
        self._shares_due = self._now + max(len(changes) - FREE_MOVES, 0) * MOVE_SECONDS

    def _find_idle(self) -> None:
        """Take the shares of idle connections while others are starved, and give them back afterwards."""
        if self._now >= self._starved_at + self.idle_timeout:
            for state in self._idle:
                self._begin_share(state)
            self._idle.clear()
            return
        for state in [*self._silence.pop(self._now, self.idle_timeout), *self._rechecks.pop(self._now)]:
            if self._now < state.last + self.idle_timeout:
                self._silence.set(state, state.last)  # a message came since due() was called
            elif self._in_flight(state.key):
                # It is not idle: it may get no message before these are answered.
                self._rechecks.set(state, self._now + GRACE)
            else:
                self._end_share(state)
                self._idle[state] = None
                self._set_target(state, min(1, state.limit))

    # --- turns: if max_in_flight is lower than the number of connections

    @property
    def _silence_timeout(self) -> float:
        """Seconds without a message after which a turn ends."""
        return GRACE if self._turns.waiting_with_backlog else self.idle_timeout

    @property
    def _turn_seconds(self) -> float:
        """Seconds after which a turn with messages ends: at least grace, and so that each waiting connection without
        backlog gets a turn in TURN_TIMEOUT."""
        waiting = len(self._states) - len(self._turns.active)
        return max(TURN_TIMEOUT / max(waiting - self._turns.waiting_with_backlog, 1), GRACE)

    def _begin_turns(self) -> None:
        if not self._has_turns:
            self._has_turns = True
            states = list(self._states.values())
            self._rng.shuffle(states)
            # Connections that have RDY already keep it.
            states.sort(key=lambda state: not state.rdy)
            for state in states[self.max_in_flight :]:
                self._turns.wait(state)
            for state in states[: self.max_in_flight]:
                self._turns.begin(state)
                state.turn = self._now
        for state in self._states.values():
            if state.turn is not None and state.rdy:
                self._start_turn(state)
            self._set_target(state, 0 if state.turn is None else min(1, state.limit))

    def _rotate(self) -> None:
        """End the turns that are over, and begin turns of waiting connections in their place."""
        while len(self._turns.active) > self.max_in_flight:
            self._end_turn(self._turns.active.choose(self._rng))
        while len(self._turns.active) < self.max_in_flight:
            self._begin_turn(self._turns.take_waiting(prefer_backlog=False))
        due = list(self._touched)
        while due := [
            *due,
            *self._silence.pop(self._now, self._silence_timeout),
            *self._turn_ends.pop(self._now, self._turn_seconds),
            *self._rechecks.pop(self._now),
        ]:
            # In random order, since there may be fewer waiting connections than turns that are over.
            self._rng.shuffle(due)
            for state in due:
                self._check_turn(state)
            due = []
        self._turns.let_ended_wait()

    def _check_turn(self, state: _State[Key]) -> None:
        """End a turn if it is over, and give it to a waiting connection; otherwise set the time of the next check."""
        if state.turn is None or not state.rdy:
            return
        count = self._in_flight(state.key)
        if count:
            state.idle_since = None
        elif state.idle_since is None:
            state.idle_since = self._now
        is_silent = self._now >= _silent_from(state) + self._silence_timeout
        is_silent = is_silent and state.idle_since is not None and self._now >= state.idle_since + GRACE
        is_over = self._now >= state.turn_renewed + self._turn_seconds
        if is_over and not self._turns.is_wanted:
            state.turn_renewed = self._now
            is_over = False
        # If as many messages are in flight as RDY allows, no other is on its way, so an answer frees the RDY.
        is_over = is_over and count >= state.rdy
        if not (is_silent or is_over):
            self._set_checks(state)
        elif not self._turns.has_waiting:
            self._start_turn(state)
        else:
            chosen = self._turns.take_waiting(prefer_backlog=not state.has_backlog)
            self._end_turn(state, is_silent=is_silent)
            self._begin_turn(chosen)

    def _set_checks(self, state: _State[Key]) -> None:
        silent_from = _silent_from(state)
        if self._now < silent_from + self._silence_timeout:
            self._silence.set(state, silent_from)
        else:
            self._rechecks.set(state, (self._now if state.idle_since is None else state.idle_since) + GRACE)
        if self._now < state.turn_renewed + self._turn_seconds:
            # Otherwise it is checked when as many messages are in flight as RDY allows: after the next message.
            self._turn_ends.set(state, state.turn_renewed)
        self._set_plain(state)

    def _end_turn(self, state: _State[Key], *, is_silent: bool = False) -> None:
        self._turns.end(state, is_silent=is_silent)
        state.turn = None
        for deadlines in (self._silence, self._rechecks, self._turn_ends):
            deadlines.discard(state)
        # If no messages came, probably none is on its way.
        grace = min(GRACE, SILENT_GRACE_FACTOR * self._delay) if is_silent else GRACE
        self._set_target(state, 0, grace)

    def _begin_turn(self, state: _State[Key]) -> None:
        """Begin a turn. If RDY is granted only later, _start_turn() is called then: the turn begins at that time."""
        self._turns.begin(state)
        state.turn = state.turn_renewed = self._now
        self._set_target(state, min(1, state.limit))

    def _start_turn(self, state: _State[Key]) -> None:
        state.turn = state.turn_renewed = self._now
        state.idle_since = None if self._in_flight(state.key) else self._now
        self._watch(state)
        self._set_checks(state)


def _silent_from(state: _State[Key]) -> float:
    """Return the time of the last message, or of the begin of the turn if that is later."""
    return state.last if state.turn is None else max(state.last, state.turn)
