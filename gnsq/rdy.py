"""Who gets which RDY. Decides only: sends nothing, reads no clock.

nsqd treats RDY as a ceiling on what is in flight, so lowering it takes nothing back: what one connection gives up may
be granted to another only as its messages are answered. Before 0.3.0 nsqd counted RDY down with each message it sent;
these are told again how many more may come. Source: the client guide, "RDY State"; nsqd, "don't decrement RDY count".
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

__all__ = ["RdyPolicy"]

# Seconds in which nsqd has read a lower RDY, and what it had sent before has arrived. It sends out what it has
# buffered as soon as a RDY says that no more may come.
GRACE = 1.0
# With fewer in flight than nsqds: one that is never idle keeps its turn for so many idle timeouts.
TURN = 3
# Share of its RDY that a connection has in flight when it could do with more. Source: the guide, "is_starved".
STARVED = 0.85

Key = TypeVar("Key", bound=Hashable)


class _Share:
    """What one connection was granted, and what is known of it."""

    __slots__ = (
        "asked",
        "counts_down",
        "fresh",
        "hungry",
        "last",
        "left",
        "limit",
        "past",
        "past_until",
        "rdy",
        "turn",
    )

    def __init__(self, limit: int, counts_down: bool, now: float) -> None:
        self.limit = limit
        self.counts_down = counts_down
        # Granted; for an nsqd that counts down, asked is what it was sent, and left what remains of that.
        self.rdy = 0
        self.asked = 0
        self.left = 0
        self.last = now
        self.fresh = True
        # When it last had nearly all it may have.
        self.hungry = -math.inf
        # A higher RDY by which nsqd may still be sending, and until when.
        self.past = 0
        self.past_until = -math.inf
        # Since when it has its turn; None while it waits for one.
        self.turn: float | None = None

    @property
    def command(self) -> int:
        """What RDY says."""
        return self.asked if self.counts_down else self.rdy

    def lower(self, target: int, now: float) -> None:
        self.past = max(self.rdy, self.past if now < self.past_until else 0)
        self.past_until = now + GRACE
        self.rdy = target

    def held(self, in_flight: int, now: float) -> int:
        """Messages that are in flight, or may be without another word."""
        return max(self.rdy, in_flight, self.past if now < self.past_until else 0)


class RdyPolicy(Generic[Key]):
    """Spread max_in_flight over connections so that the sum of max(RDY, in flight) never exceeds it.

    A connection begins with RDY 1 and gets its share with its first message. Shares are even; a connection without a
    message for idle_timeout is cut down to RDY 1 as long as others have nearly all they may have. With fewer in flight
    than connections some have RDY 1 and the rest 0, in turns.

    Args:
        max_in_flight: Messages, 1 or more; may be changed at any time, decide() then says what follows.
        idle_timeout: Seconds; may be changed, too.
        rng: Source of randomness for who gets the remainder, and whose turn comes first.

    Attributes:
        paused: Nobody gets any.
        backing_off: Nobody gets any but the probe.
        expected: Connections that may join any moment; their shares are kept for them.
        probe: Has RDY 1 while the others back off; None for nobody.
    """

    def __init__(self, max_in_flight: int, idle_timeout: float = 10.0, rng: random.Random | None = None) -> None:
        self.max_in_flight = max_in_flight
        self.paused = False
        self.backing_off = False
        self.expected = 0
        self.probe: Key | None = None
        self.idle_timeout = idle_timeout
        self._rng = rng if rng is not None else random.Random()
        self._shares: dict[Key, _Share] = {}
        # Who comes first where there is not enough for all.
        self._order: list[Key] = []
        self._owed = False

    @property
    def owed(self) -> bool:
        """Whether some connection waits for RDY that others must free first: ask decide() again as answers go out."""
        return self._owed

    def add(self, key: Key, max_rdy_count: int, now: float, *, counts_down: bool = False) -> None:
        """Take in a connection that has RDY 0.

        Args:
            max_rdy_count: What its nsqd allows at most.
            counts_down: Its nsqd takes RDY as the number of messages still to be sent.
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

    def heard(self, key: Key, count: int, in_flight: int, now: float) -> bool:
        """Note that messages came; say whether decide() may now have something to say.

        Args:
            count: How many came.
            in_flight: How many the connection has now, these included.
        """
        share = self._shares.get(key)
        if share is None:
            return False
        news = share.fresh or self._is_idle(share, now)
        share.fresh = False
        share.last = now
        if in_flight >= share.rdy * STARVED:
            news = news or not self._is_hungry(share, now)
            share.hungry = now
        if share.counts_down:
            share.left = max(share.left - count, 0)
            news = news or not share.left
        return news

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
            return max(best, key=lambda key: (not self._shares[key].fresh, self._shares[key].last))
        return self._rng.choice(best)

    def decide(self, in_flight: Mapping[Key, int], now: float) -> dict[Key, int]:
        """Say which connections are to be sent which RDY now; those not named keep theirs.

        Args:
            in_flight: Messages in flight on each connection.
        """
        targets = self._targets(in_flight, now)
        lowered = self._take_back(self._within(targets, in_flight), now)
        changed = lowered | self._grant(targets, in_flight, now)
        excess = max(-self._free(in_flight, now), 0)
        for key, share in self._shares.items():
            if share.counts_down:
                changed.discard(key)
                if self._tell(share, in_flight.get(key, 0), key in lowered, excess, now):
                    changed.add(key)
        return {key: self._shares[key].command for key in changed}

    def due(self, now: float) -> float | None:
        """Say when decide() may have something to say though nothing has happened; None for never."""
        shares = self._shares.values()
        times = [share.past_until for share in shares if self._owed and share.past_until > now]
        if self._crowded:
            for share in shares:
                if share.turn is not None and share.rdy:
                    idle = max(share.last, share.turn) + self.idle_timeout
                    times += [idle if idle > now else now + self.idle_timeout, share.turn + TURN * self.idle_timeout]
        times += [share.last + GRACE for share in shares if share.fresh]
        if not self._crowded and len(self._shares) > 1 and any(self._is_hungry(share, now) for share in shares):
            times += [share.last + self.idle_timeout for share in shares]
            times += [share.hungry + self.idle_timeout for share in shares]
        return min((time for time in times if time > now), default=None)

    # --- steps of decide()

    def _within(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int]) -> dict[Key, int]:
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

    def _take_back(self, targets: Mapping[Key, int], now: float) -> set[Key]:
        lowered = {key for key, target in targets.items() if target < self._shares[key].rdy}
        for key in lowered:
            self._shares[key].lower(targets[key], now)
        return lowered

    def _free(self, in_flight: Mapping[Key, int], now: float) -> int:
        """Say what nobody holds of max_in_flight; below 0 where it was lowered, and not enough was answered since."""
        return self.max_in_flight - sum(share.held(in_flight.get(key, 0), now) for key, share in self._shares.items())

    def _grant(self, targets: Mapping[Key, int], in_flight: Mapping[Key, int], now: float) -> set[Key]:
        free = self._free(in_flight, now)
        raised = set()
        self._owed = False
        for key, target in targets.items():
            share = self._shares[key]
            if target <= share.rdy:
                continue
            if free < 0:
                self._owed = True
                continue
            # What it holds beyond its RDY is counted already; it needs no free place to be allowed again.
            held = share.held(in_flight.get(key, 0), now)
            granted = min(target, held + free)
            free -= max(granted - held, 0)
            if granted > share.rdy:
                if share.turn is not None and not share.rdy:
                    # Only now: others may have held what it waited for.
                    share.turn = now
                share.rdy = granted
                raised.add(key)
            if granted < target:
                self._owed = True
        return raised

    def _tell(self, share: _Share, in_flight: int, lowered: bool, excess: int, now: float) -> bool:
        """Decide what an nsqd that counts down is to be sent; whether it is something.

        Only when nothing is left of what it was sent before, not already at the quarter that the guide speaks of: what
        is left may be on its way, and would come on top. For the same reason it is stopped before it gets less, and
        gets nothing anew of what others hold in excess: those that take RDY as a ceiling have never given theirs up.
        """
        if lowered:
            share.asked = share.left = 0
            return True
        if share.left or not share.rdy:
            return False
        share.asked = share.left = max(share.rdy - in_flight - excess, 0) if now >= share.past_until else 0
        # Or as soon as messages are answered, or the wait is over.
        self._owed = self._owed or not share.asked
        return share.asked > 0

    # --- who should have how many

    @property
    def _crowded(self) -> bool:
        return len(self._order) > self.max_in_flight

    def _targets(self, in_flight: Mapping[Key, int], now: float) -> dict[Key, int]:
        if self.paused or self.backing_off:
            targets = dict.fromkeys(self._order, 0)
            if self.probe is not None and not self.paused:
                # One more than it has: RDY is a ceiling, and what it has may take long.
                targets[self.probe] = min(in_flight.get(self.probe, 0) + 1, self._shares[self.probe].limit)
            return targets
        if self._crowded:
            self._take_turns(in_flight, now)
            return {
                key: min(int(index < self.max_in_flight), self._shares[key].limit)
                for index, key in enumerate(self._order)
            }
        for share in self._shares.values():
            share.turn = None
        hungry = any(self._is_hungry(share, now) for share in self._shares.values())
        takers = [
            key
            for key, share in self._shares.items()
            # One that works on messages is not idle: cut down, it would get no more before they are answered.
            if not share.fresh and not (hungry and self._is_idle(share, now) and not in_flight.get(key))
        ]
        targets = {key: min(1, self._shares[key].limit) for key in self._order}
        # The first to have a message must not take what others will have to be given a moment later.
        young = sum(share.fresh and now < share.last + GRACE for share in self._shares.values())
        count = self.max_in_flight - len(self._order) + len(takers) + young
        targets.update(self._spread(count, set(takers), young + self.expected))
        return targets

    def _spread(self, count: int, takers: set[Key], reserved: int) -> dict[Key, int]:
        """Divide evenly, with shares for others kept back; the remainder goes to the first in order, what one's nsqd
        does not allow to the others."""
        targets = {}
        # Those with the lowest limits first: what they leave is then shared by the rest.
        waiting = sorted((key for key in self._order if key in takers), key=lambda key: self._shares[key].limit)
        while waiting:
            share, remainder = divmod(count, len(waiting) + reserved)
            if reserved:
                share, remainder = max(share, 1), 0
            if self._shares[waiting[0]].limit > share:
                targets.update(self._even(waiting, share, remainder))
                break
            key = waiting.pop(0)
            targets[key] = self._shares[key].limit
            count -= targets[key]
        return targets

    def _even(self, keys: Iterable[Key], share: int, remainder: int) -> dict[Key, int]:
        chosen = set(keys)
        order = [key for key in self._order if key in chosen]
        return {key: share + (1 if index < remainder else 0) for index, key in enumerate(order)}

    def _is_hungry(self, share: _Share, now: float) -> bool:
        return now < share.hungry + self.idle_timeout

    def _is_idle(self, share: _Share, now: float) -> bool:
        return now >= share.last + self.idle_timeout

    def _take_turns(self, in_flight: Mapping[Key, int], now: float) -> None:
        """Let those whose turn is over go behind those that wait."""
        active, waiting = self._order[: self.max_in_flight], self._order[self.max_in_flight :]
        over = [key for key in active if self._turn_is_over(self._shares[key], in_flight.get(key, 0), now)]
        self._rng.shuffle(over)
        self._order = [key for key in active if key not in over] + waiting + over
        for index, key in enumerate(self._order):
            share = self._shares[key]
            if index >= self.max_in_flight:
                share.turn = None
            elif share.turn is None or key in over:
                share.turn = now

    def _turn_is_over(self, share: _Share, in_flight: int, now: float) -> bool:
        if share.turn is None or not share.rdy:
            return False
        # Written as in due(), so that rounding is the same.
        idle = not in_flight and now >= max(share.last, share.turn) + self.idle_timeout
        return idle or now >= share.turn + TURN * self.idle_timeout
