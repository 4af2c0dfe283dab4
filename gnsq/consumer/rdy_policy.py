"""Who gets which RDY. Decides only: sends nothing, reads no clock.

nsqd treats RDY as a ceiling on what is in flight, so lowering it takes nothing back: what one connection gives up may
be granted to another only as its messages are answered. Before 0.3.0 each message that nsqd sent also took 1 off RDY,
so these are sent the same RDY again. Source: the client guide, "RDY State"; nsqd 0.2.31 client_v2.go,
IsReadyForMessages; nsqd, "don't decrement RDY count".
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

__all__ = ["RdyPolicy"]

# Share of its RDY that a connection has in flight when it could do with more. Source: the guide, "is_starved".
STARVED_SHARE = 0.85
# Share of a RDY that is counted down, below which it is sent again. Source: the guide, "RDY State".
RENEW_BELOW = 0.25
# A message that a silent nsqd has sent before it read a lower RDY arrives within so many of the delays measured.
SILENT_GRACE_FACTOR = 4

Key = TypeVar("Key", bound=Hashable)


class _Share:
    """What one connection was granted, and what is known of it."""

    __slots__ = (
        "arriving",
        "arriving_until",
        "counts_down",
        "had_turn",
        "has_backlog",
        "idle_since",
        "last",
        "limit",
        "new",
        "raised_at",
        "rdy",
        "remaining",
        "starved",
        "turn",
        "turn_renewed",
    )

    def __init__(self, limit: int, counts_down: bool, now: float) -> None:
        self.limit = limit
        self.counts_down = counts_down
        # The RDY that it was sent last; for an nsqd that counts down, left is what remains of it at least.
        self.rdy = 0
        self.remaining = 0
        self.last = now
        self.new = True
        # When it last had nearly all it may have.
        self.starved = -math.inf
        # Messages that nsqd may have sent before it reads a lower RDY, and until when they may arrive.
        self.arriving = 0
        self.arriving_until = -math.inf
        # When its RDY was raised from 0; None once a message came.
        self.raised_at: float | None = None
        # With fewer in flight than connections: since when it has its turn, None while it waits for one.
        self.turn: float | None = None
        # When it was last allowed to keep its turn.
        self.turn_renewed = -math.inf
        # Since when nothing is known to be in flight; None: something is, or was when decide() looked last.
        self.idle_since: float | None = now
        # Whether its last turn, or this one, brought messages and did not end in silence; whether it had one in this
        # round.
        self.has_backlog = False
        self.had_turn = False

    def lower(self, target: int, in_flight: int, now: float, grace: float) -> None:
        """Set a lower RDY; what nsqd has sent before it reads that may arrive for so many seconds."""
        self.arriving = max(self.rdy - in_flight, self.arriving if now < self.arriving_until else 0)
        self.arriving_until = now + grace
        self.rdy = target
        self.raised_at = None

    def begin_turn(self, now: float) -> None:
        """Begin a turn, or its time where it was granted only now."""
        self.turn = self.turn_renewed = now
        self.had_turn = True

    def held(self, in_flight: int, now: float) -> int:
        """Messages that are in flight, or may be without another command."""
        arriving = self.arriving if now < self.arriving_until else 0
        return max(self.rdy, in_flight + arriving)


class RdyPolicy(Generic[Key]):
    """Spread max_in_flight over connections so that the sum of max(RDY, in flight) never exceeds it.

    A connection begins with RDY 1 and gets its share with its first message. Shares are even; a connection without a
    message for idle_timeout is cut down to RDY 1 as long as others have nearly all they may have.

    With fewer in flight than connections some have RDY 1 and the rest 0, in turns of random order. One without messages
    loses its turn after idle_timeout; after grace, if another waits that is known to have some. One with messages is
    interrupted after turn_timeout, shorter where many wait, and comes again at once if the next has none.

    What a connection gives up is granted to another when it is answered, or after grace, since nsqd does not
    acknowledge RDY. A connection that loses its turn because it was silent most likely has nothing on its way: then a
    few times the delay that was measured is enough, without one nothing.

    Args:
        max_in_flight: Messages, 1 or more; may be changed at any time, decide() then says what follows.
        idle_timeout: Seconds; may be changed, too.
        turn_timeout: Seconds, likewise.
        grace: Seconds in which nsqd has read a lower RDY, and what it had sent before has arrived. It sends what it has
            buffered as soon as a RDY says that no more may come.
        rng: Source of randomness for who gets the remainder, and whose turn comes next.

    Attributes:
        paused: Nobody gets any.
        backing_off: Nobody gets any but the probe.
        expected: Connections that may join any moment; their shares are kept for them.
        probe: Has RDY 1 while the others back off; None for nobody.
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
        self._shares: dict[Key, _Share] = {}
        # Who comes first where there is not enough for all.
        self._order: list[Key] = []
        # Whose turn ends in this decide(), and whether because nothing came.
        self._ended: dict[Key, bool] = {}
        # How many of those that wait are known to have messages, and when one with messages is interrupted, seconds.
        self._waiting_with_backlog = 0
        self._turn_seconds = turn_timeout
        self._has_unassigned = False
        # Seconds from a RDY to its first message, measured where that came within grace.
        self._delay = 0.0

    @property
    def has_unassigned(self) -> bool:
        """Whether some connection waits for RDY that others must free first: ask decide() again as answers go out."""
        return self._has_unassigned

    def add(self, key: Key, max_rdy_count: int, now: float, *, counts_down: bool = False) -> None:
        """Take in a connection that has RDY 0.

        Args:
            max_rdy_count: What its nsqd allows at most.
            counts_down: Its nsqd takes 1 off RDY with each message, and must be sent the same RDY again.
        """
        self._shares[key] = _Share(max_rdy_count, counts_down, now)
        # Not before those that have their turn: all would wait until what they give up is free.
        first = min(len(self._order), self.max_in_flight) if len(self._order) >= self.max_in_flight else 0
        self._order.insert(self._rng.randint(first, len(self._order)), key)

    def remove(self, key: Key) -> None:
        """Forget a connection."""
        if self._shares.pop(key, None) is not None:
            self._order.remove(key)
        if self.probe == key:
            self.probe = None

    def on_messages(self, key: Key, count: int, in_flight: int, now: float) -> bool:
        """Note that messages came; say whether decide() may now have something to say.

        Args:
            count: How many came.
            in_flight: How many the connection has now, these included.
        """
        share = self._shares.get(key)
        if share is None:
            return False
        changed = share.new or self._is_idle(share, now)
        share.new = False
        share.last = now
        share.idle_since = None
        share.has_backlog = True
        if share.raised_at is not None and now - share.raised_at < self.grace:
            self._delay = max(now - share.raised_at, (self._delay + now - share.raised_at) / 2)
        share.raised_at = None
        share.arriving = max(share.arriving - count, 0)
        if in_flight >= share.rdy * STARVED_SHARE:
            changed = changed or not self._is_starved(share, now)
            share.starved = now
        if share.counts_down:
            share.remaining = max(share.remaining - count, 0)
            changed = changed or self._must_renew(share)
        return changed or (share.turn is not None and now >= share.turn_renewed + self._turn_seconds)

    def pick_probe(self, in_flight: Mapping[Key, int]) -> Key | None:
        """Choose whom to ask for one message; None without connections.

        At first the one that had messages last: it most likely has more. Then, since that gave none, another at random.
        One that has messages in flight would give none before these are answered, so others come first.
        """
        others = [key for key in self._order if key != self.probe] or self._order
        best = [key for key in others if not in_flight.get(key)] or others
        if not best:
            return None
        if self.probe is None:
            return max(best, key=lambda key: (not self._shares[key].new, self._shares[key].last))
        return self._rng.choice(best)

    def decide(self, in_flight: Mapping[Key, int], now: float) -> dict[Key, int]:
        """Say which connections are to be sent which RDY now; those not named keep theirs.

        Args:
            in_flight: Messages in flight on each connection.
        """
        self._ended.clear()
        targets = self._targets(in_flight, now)
        changed = self._reclaim(self._cap(targets, in_flight), in_flight, now)
        changed |= self._grant(targets, in_flight, now)
        changed.update(key for key, share in self._shares.items() if self._must_renew(share))
        for key in changed:
            self._shares[key].remaining = self._shares[key].rdy
        return {key: self._shares[key].rdy for key in changed}

    def lower_probe(self, in_flight: int, now: float) -> int | None:
        """Say which RDY the probe must be sent before an answer is, so that one message comes and not one for each
        answer; None for none.

        Args:
            in_flight: Messages in flight there after the answer.
        """
        share = self._shares.get(self.probe) if self.probe is not None else None
        if share is None or share.rdy <= in_flight + 1:
            return None
        share.lower(in_flight + 1, in_flight + 1, now, self.grace)
        share.remaining = share.rdy
        return share.rdy

    def due(self, now: float) -> float | None:
        """Say when decide() may have something to say though nothing has happened; None for never."""
        shares = self._shares.values()
        times = [share.arriving_until for share in shares if self._has_unassigned and share.arriving]
        if self._is_oversubscribed:
            for share in shares:
                if share.turn is not None and share.rdy:
                    times += [self._silent_at(share, now), share.turn_renewed + self._turn_seconds]
        times += [share.last + self.grace for share in shares if share.new]
        if (
            not self._is_oversubscribed
            and len(self._shares) > 1
            and any(self._is_starved(share, now) for share in shares)
        ):
            times += [share.last + self.idle_timeout for share in shares]
            times += [share.starved + self.idle_timeout for share in shares]
        return min((time for time in times if time > now), default=None)

    # --- steps of decide()

    def _cap(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int]) -> dict[Key, int]:
        """Cut targets where others hold more than theirs, as when max_in_flight was lowered: to 1 at least, so that
        who waits for their answers does not wait for ever."""
        rdy = {key: min(target, self._shares[key].rdy) for key, target in targets.items()}
        excess = sum(max(count, in_flight.get(key, 0)) for key, count in rdy.items()) - self.max_in_flight
        for key in reversed(self._order):
            spare = rdy[key] - max(in_flight.get(key, 0), 1)
            if excess > 0 and spare > 0:
                rdy[key] -= min(spare, excess)
                excess -= min(spare, excess)
        return rdy

    def _reclaim(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int], now: float) -> set[Key]:
        lowered = {key for key, target in targets.items() if target < self._shares[key].rdy}
        for key in lowered:
            grace = min(self.grace, SILENT_GRACE_FACTOR * self._delay) if self._ended.get(key) else self.grace
            self._shares[key].lower(targets[key], in_flight.get(key, 0), now, grace)
        return lowered

    def _free(self, in_flight: Mapping[Key, int], now: float) -> int:
        """Say what nobody holds of max_in_flight; below 0 where it was lowered, and not enough was answered since."""
        return self.max_in_flight - sum(share.held(in_flight.get(key, 0), now) for key, share in self._shares.items())

    def _grant(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int], now: float) -> set[Key]:
        free = self._free(in_flight, now)
        raised = set()
        self._has_unassigned = False
        for key, target in targets.items():
            share = self._shares[key]
            if target <= share.rdy:
                continue
            if free < 0:
                self._has_unassigned = True
                continue
            # What it holds beyond its RDY is counted already; it needs no free place to be allowed again.
            held = share.held(in_flight.get(key, 0), now)
            granted = min(target, held + free)
            free -= max(granted - held, 0)
            if granted > share.rdy:
                if share.turn is not None and not share.rdy:
                    # Only now: others may have held what it waited for.
                    share.begin_turn(now)
                    share.idle_since = now
                if not share.rdy:
                    share.raised_at = now
                share.rdy = granted
                raised.add(key)
            if granted < target:
                self._has_unassigned = True
        return raised

    def _must_renew(self, share: _Share) -> bool:
        """Whether an nsqd that counts down has so little left that it must be sent the same RDY again.

        It is never too much: nsqd sends nothing while as many as its last RDY are in flight. It is never less, either:
        with two slow messages in flight an nsqd that was sent RDY 2 sends nothing.
        """
        return share.counts_down and share.remaining < share.rdy * RENEW_BELOW

    # --- who should have how many

    @property
    def _is_oversubscribed(self) -> bool:
        return len(self._order) > self.max_in_flight

    def _targets(self, in_flight: Mapping[Key, int], now: float) -> dict[Key, int]:
        if self.paused or self.backing_off:
            targets = dict.fromkeys(self._order, 0)
            if self.probe is not None and not self.paused:
                # One more than it has: RDY is a ceiling, and what it has may take long. See lower_probe().
                targets[self.probe] = min(in_flight.get(self.probe, 0) + 1, self._shares[self.probe].limit)
            return targets
        if self._is_oversubscribed:
            self._rotate(in_flight, now)
            return {
                key: min(int(index < self.max_in_flight), self._shares[key].limit)
                for index, key in enumerate(self._order)
            }
        for share in self._shares.values():
            share.turn = None
        starved = any(self._is_starved(share, now) for share in self._shares.values())
        eligible = [
            key
            for key, share in self._shares.items()
            # One that works on messages is not idle: cut down, it would get no more before they are answered.
            if not share.new and not (starved and self._is_idle(share, now) and not in_flight.get(key))
        ]
        targets = {key: min(1, self._shares[key].limit) for key in self._order}
        # The first to have a message must not take what others will have to be given a moment later.
        recently_added = sum(share.new and now < share.last + self.grace for share in self._shares.values())
        count = self.max_in_flight - len(self._order) + len(eligible) + recently_added
        targets.update(self._distribute(count, set(eligible), recently_added + self.expected))
        return targets

    def _distribute(self, count: int, eligible: set[Key], reserved: int) -> dict[Key, int]:
        """Divide evenly, with shares for others kept back; the remainder goes to the first in order, what one's nsqd
        does not allow to the others."""
        targets = {}
        # Those with the lowest limits first: what they leave is then shared by the rest.
        waiting = sorted((key for key in self._order if key in eligible), key=lambda key: self._shares[key].limit)
        while waiting:
            share, remainder = divmod(count, len(waiting) + reserved)
            if reserved:
                share, remainder = max(share, 1), 0
            if self._shares[waiting[0]].limit > share:
                targets.update(self._split_evenly(waiting, share, remainder))
                break
            key = waiting.pop(0)
            targets[key] = self._shares[key].limit
            count -= targets[key]
        return targets

    def _split_evenly(self, keys: Iterable[Key], share: int, remainder: int) -> dict[Key, int]:
        chosen = set(keys)
        order = [key for key in self._order if key in chosen]
        return {key: share + (1 if index < remainder else 0) for index, key in enumerate(order)}

    def _is_starved(self, share: _Share, now: float) -> bool:
        return now < share.starved + self.idle_timeout

    def _is_idle(self, share: _Share, now: float) -> bool:
        return now >= share.last + self.idle_timeout

    # --- turns: fewer in flight than connections

    @property
    def _silence_timeout(self) -> float:
        """Seconds without a message after which a turn ends."""
        return self.grace if self._waiting_with_backlog else self.idle_timeout

    def _silent_at(self, share: _Share, now: float) -> float:
        """Say when to look whether a connection with a turn is silent."""
        silent = max(share.last, share.turn or 0.0) + self._silence_timeout
        if share.idle_since is not None:
            return max(silent, share.idle_since + self.grace)
        return silent - self.grace if silent - self.grace > now else now + self.grace

    def _rotate(self, in_flight: Mapping[Key, int], now: float) -> None:
        """Let those whose turn is over change places with those that wait."""
        active, waiting = self._order[: self.max_in_flight], self._order[self.max_in_flight :]
        self._waiting_with_backlog = sum(self._shares[key].has_backlog for key in waiting)
        for key in waiting:
            self._shares[key].turn = None
        for key in active:
            share = self._shares[key]
            if share.turn is None:
                share.begin_turn(now)
            if in_flight.get(key):
                share.idle_since = None
            elif share.idle_since is None:
                share.idle_since = now
        # In random order: there may be fewer that wait.
        for key in self._rng.sample(active, len(active)):
            share = self._shares[key]
            if not share.rdy or share.turn is None:
                continue
            if share.idle_since is not None and now >= self._silent_at(share, now):
                self._end_turn(key, now, is_silent=True)
            elif now >= share.turn_renewed + self._turn_seconds:
                if not self._is_wanted():
                    share.turn_renewed = now
                elif in_flight.get(key, 0) >= share.rdy:
                    # Not before: nothing else can be on its way now, so the next turn begins with the answer.
                    self._end_turn(key, now, is_silent=False)
        waiting = self._order[self.max_in_flight :]
        # All that wait are asked within turn_timeout, but half of the time is for those with messages.
        self._turn_seconds = max(self.turn_timeout / max(len(waiting) - self._waiting_with_backlog, 1), self.grace)

    def _is_wanted(self) -> bool:
        """Whether one with messages must let others have a turn: not while one without messages will do so."""
        active = [self._shares[key] for key in self._order[: self.max_in_flight]]
        searching = sum(not share.has_backlog for share in active)
        return not searching or self._waiting_with_backlog > searching

    def _end_turn(self, key: Key, now: float, *, is_silent: bool) -> None:
        """Give the turn of a connection to one that waits: to each once in a round, in random order; but after a turn
        that was of no use to one that is known to have messages."""
        share = self._shares[key]
        waiting = [other for other in self._order[self.max_in_flight :] if other not in self._ended]
        if not waiting:
            share.begin_turn(now)
            return
        backlog = [other for other in waiting if self._shares[other].has_backlog and not share.has_backlog]
        new = [other for other in backlog or waiting if not self._shares[other].had_turn]
        if not new and not backlog:
            for other in waiting:
                self._shares[other].had_turn = False
        chosen = self._rng.choice(new or backlog or waiting)
        here, there = self._order.index(key), self._order.index(chosen)
        self._order[here], self._order[there] = chosen, key
        share.turn = None
        share.has_backlog = share.has_backlog and not is_silent
        self._waiting_with_backlog += int(share.has_backlog) - int(self._shares[chosen].has_backlog)
        self._ended[key] = is_silent
        self._shares[chosen].begin_turn(now)
