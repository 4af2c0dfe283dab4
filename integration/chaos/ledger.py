"""Reads what the workers of a run have written, and says which invariants do not hold. Starts nothing."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.chaos.faults import Fault
from integration.chaos.world import ALL, CHANNELS, LOST_RECORDS, MSG_TIMEOUT, TOPIC

# Seconds. What a fault has done to connections is over so long after it.
AFTERMATH = 1.0
# A message that is answered so long before its timeout, or a publish that ends so long after its deadline, is in time.
SLACK = 0.7
DEADLINE_SLACK = 1.5
# A FIN is at nsqd so long after the answer, unless a fault that began before delays it.
FIN_TIME = 1.5
# The longest delay of a REQ.
DEFERRED = 1.0
# After this time no message may be in flight any more that came before max_in_flight was lowered.
LOWERED = 5.0
# So long after a full disk nsqd may still lose what it writes. Of a record without room it writes a part, and the next
# record in the same place: it may read bytes that nobody has published. Source: go-diskqueue, writeOne().
TORN = 10.0
# nsqd writes where its disk queues end every two seconds (--sync-timeout), also while it does not answer. What it wrote
# after that before a kill may be written over.
SYNCED = 2.5
# A lost connection is noticed so long after its fault: by heartbeats, or by a response that is missing.
NOTICED = 6.0
# Faults after which nsqd does not know yet that a message was finished, or that a connection is no longer used.
DELAYING = ("stopped", "did not run", "late links", "slow links", "sliced links", "stalled links", "ends links")
# What the smallest value of the last third of a worker's life may have more than that of the middle: at first memory
# grows with each way that is gone for the first time. A consumer keeps a greenlet for each handler that has run at the
# same time as others, up to max_in_flight.
GROWTH = {"KiB": 6_000, "objects": 10_000, "descriptors": 4, "threads": 6, "greenlets": 50}
SAMPLES = 12
# Violations of a kind that are shown.
SHOWN = 5


@dataclass
class Delivery:
    """One message that a handler got, and the answer that the handler gave."""

    time: float
    worker: Life
    key: str
    nsqd: str
    id: str
    attempts: int
    received: float
    day_time: float
    answer: str = ""
    answered: float = math.inf

    def __str__(self) -> str:
        where = f"{self.worker.name} of {self.worker.settings['channel']}"
        when = f"{self.received:.2f} to {where}, attempt {self.attempts}"
        return f"{when}, {self.answer or 'no answer'} at {self.answered:.2f}"


@dataclass(eq=False)
class Life:
    """The ledger of one process."""

    settings: Mapping[str, Any]
    publishes: list[tuple[float, str, float, float, list[str]]] = field(default_factory=list)
    outcomes: dict[str, tuple[float, str, list[str], str]] = field(default_factory=dict)  # by the key of a body
    deliveries: list[Delivery] = field(default_factory=list)
    letters: list[tuple[str, str, str]] = field(default_factory=list)  # channel, key, nsqd
    limits: list[tuple[float, int]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    lost: list[tuple[float, str, str]] = field(default_factory=list)
    usages: list[dict[str, int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    has_ended: bool = False
    bugs: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.settings["name"])


def read(folder: Path) -> list[Life]:
    """Read all ledgers of a folder. The last line of a killed worker may be incomplete."""
    lives = []
    for path in sorted(folder.glob("*.jsonl")):
        life = Life(json.loads(path.with_suffix(".json").read_text()))
        open_ones: dict[tuple[str, str, int], Delivery] = {}
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                _read_line(life, open_ones, *json.loads(line))
        lives.append(life)
    return lives


def _read_line(life: Life, deliveries: dict[Any, Delivery], kind: str, time: float, *values: Any) -> None:
    if kind == "P":
        call, _, timeout, due, keys = values
        life.publishes.append((time, call, timeout, due, keys))
    elif kind == "O":
        _, outcome, addresses, keys, text = values
        life.outcomes |= dict.fromkeys(keys, (time, outcome, addresses, text))
    elif kind == "D":
        delivery = Delivery(time, life, *values)
        deliveries[delivery.nsqd, delivery.id, delivery.attempts] = delivery
        life.deliveries.append(delivery)
    elif kind == "A":
        _, nsqd, message_id, attempts, answer = values
        delivery = deliveries[nsqd, message_id, attempts]
        delivery.answer, delivery.answered = answer, time
    elif kind == "L":
        key, channel, nsqd = values
        life.letters.append((channel, key, nsqd))
    elif kind == "M":
        life.limits.append((time, values[0]))
    elif kind == "S":
        life.gaps.append((time - values[0], time))
    elif kind == "C":
        life.lost.append((time, *values))
    elif kind == "T":
        life.usages.append(values[0])
        life.counts |= values[1]
    elif kind == "Q":
        life.counts |= values[0]
        life.has_ended = True
    else:
        life.bugs.append(f"at {time:.2f}: {values[0]}")


class Judge:
    """Compares the ledgers with each other, and with the faults.

    Args:
        nodes: Names of the nsqds by the addresses that clients use.
        in_flight: What /stats of all nsqds has shown, with the monotonic time.
        memory: How many messages of a channel each nsqd holds in memory, by its name; others are on its disk.
        refused: Ids of messages of which each nsqd has refused an answer, by its name.
    """

    def __init__(
        self,
        lives: Sequence[Life],
        faults: Sequence[Fault],
        nodes: Mapping[str, str],
        in_flight: Sequence[tuple[float, Mapping[str, int]]],
        memory: Mapping[str, int],
        refused: Mapping[str, Set[str]],
    ) -> None:
        self.lives, self.faults, self.nodes, self.in_flight = lives, faults, nodes, in_flight
        self._memory, self._refused = memory, refused
        self._excused = 0  # losses that a fault explains
        self._outcomes = {key: (life, *found) for life in lives for key, found in life.outcomes.items()}
        self._published = {
            key: (life, time, due) for life in lives for time, _, _, due, keys in life.publishes for key in keys
        }
        self._deliveries = [each for life in lives for each in life.deliveries]
        self._by_key: dict[str, list[Delivery]] = defaultdict(list)
        for each in self._deliveries:
            self._by_key[each.key].append(each)

    def violations(self) -> list[str]:
        """Return what does not hold, as lines."""
        checks = {
            "confirmed and lost": self._lost(),
            "refused or not sent, and handled": self._ghosts(),
            "published twice": self._doubles(),
            "came again without a reason": self._unexplained(),
            "handled early": self._early(),
            "publish without an end in time": self._late_publishes(),
            "counted in another way": self._counts(),
            "more in flight than max_in_flight": self._excess(),
            "connection lost without a fault": self._cuts(),
            "grows": self._growth(),
            "bug": (f"{life.name}: {bug}" for life in self.lives for bug in life.bugs),
        }
        lines = []
        for title, found in checks.items():
            all_of_them = list(found)
            lines += [f"{title}: {text}" for text in all_of_them[:SHOWN]]
            if len(all_of_them) > SHOWN:
                lines.append(f"{title}: {len(all_of_them)} in all")
        return lines

    def summary(self) -> str:
        outcomes = Counter(found[2] for found in self._outcomes.values())
        again = sum(each.attempts > 1 for each in self._deliveries)
        parts = [f"{len(self._published):,} bodies", *(f"{count:,} {name}" for name, count in outcomes.items())]
        parts.append(f"{len(self._deliveries):,} deliveries, {again:,} of them again")
        return "; ".join([*parts, f"{self._excused:,} lost with a killed nsqd or a full disk"])

    def _is_disturbed(
        self,
        names: Iterable[str],
        since: float,
        until: float,
        kinds: Sequence[str] = ("",),
        faults: Iterable[Fault] | None = None,
    ) -> bool:
        """Return True if a fault, or a gap, concerned one of these in this time. A restart of a worker drains it.

        Args:
            kinds: Ends of the kinds that count.
            faults: Those that count; None: all.
        """
        wanted = set(names)
        chosen = (f for f in (self.faults if faults is None else faults) if f.target in wanted)
        chosen = (f for f in chosen if f.kind != "worker restarted" and f.kind.endswith(tuple(kinds)))
        gaps = (gap for life in self.lives if life.name in wanted for gap in life.gaps)
        times = [*((fault.began, fault.ended) for fault in chosen), *gaps]
        return any(began <= until and ended + AFTERMATH >= since for began, ended in times)

    def _lost(self) -> Iterator[str]:
        finished = {(channel, key) for life in self.lives for channel, key, _ in life.letters}
        given_up = set()
        for each in self._deliveries:
            channel = each.worker.settings["channel"]
            if each.answer == "finish":
                finished.add((channel, each.key))
            elif each.answer == "give up":
                given_up.add((channel, each.key))
        for key, (_, ended, outcome, addresses, _) in self._outcomes.items():
            for channel in CHANNELS:
                if outcome != "confirmed" or (channel, key) in finished:
                    continue
                names = set(self.nodes.values())  # a dead letter may be at each of them
                if (channel, key) not in given_up:
                    names = {self.nodes[address] for address in addresses}
                if any(self._loses(fault, channel, key) for fault in self.faults if fault.target in names):
                    self._excused += 1
                else:
                    yield f"{key} in {channel}, confirmed at {ended:.2f} by {sorted(names)}{self._history(key)}"

    def _loses(self, fault: Fault, channel: str, key: str) -> bool:
        """Return True if a fault explains that its nsqd has lost a message.

        An nsqd whose queues hold nothing in memory reads a message from its disk when it sends it, so that a kill loses
        only what is in flight, at a handler or on its way, and what was deferred. Source: nsqd topic.go, put().
        """
        _, began, due = self._published[key]
        confirmed = self._outcomes[key][1]
        if fault.kind.startswith(LOST_RECORDS):
            return fault.ended >= began and fault.kind.removeprefix(LOST_RECORDS) in (TOPIC, f"{TOPIC}:{channel}")
        if fault.kind == "has a full disk":
            return fault.ended + TORN >= began
        if not fault.loses or fault.ended < began:
            return False
        if self._memory[fault.target] or due or confirmed >= fault.began - SYNCED:
            return True
        consumers = {life.name for life in self.lives if life.settings.get("channel") == channel}
        was_delivered = any(each.worker.settings["channel"] == channel for each in self._by_key[key])
        others = [each for each in self.faults if each is not fault]
        return was_delivered or self._is_disturbed({fault.target, *consumers}, began, fault.began, faults=others)

    def _history(self, key: str) -> str:
        return "".join(f"; {each}" for each in self._by_key[key]) or "; never delivered"

    def _ghosts(self) -> Iterator[str]:
        for each in self._deliveries:
            _, _, outcome, _, text = self._outcomes.get(each.key, (None, 0.0, "", [], ""))
            if each.key not in self._published:
                if not self._full_disks(each.nsqd, each.received):
                    yield f"{each.key[:80]!r} was not published: {each}"
            elif outcome in ("refused", "not sent", "other"):
                yield f"{each.key}, {outcome} ({text}): {each}"
        for life in self.lives:
            for channel, key, nsqd in life.letters:
                # The body of a letter was delivered, and is judged above.
                is_known = key in self._by_key if channel else bool(self._full_disks(nsqd, math.inf))
                if not is_known:
                    yield f"dead letter of {key[:80]!r}, which was not published, by {self.nodes[nsqd]}"

    def _full_disks(self, nsqd: str, until: float) -> list[Fault]:
        name, kind = self.nodes[nsqd], "has a full disk"
        return [each for each in self.faults if (each.target, each.kind) == (name, kind) and each.began <= until]

    def _doubles(self) -> Iterator[str]:
        ids = defaultdict(set)
        for each in self._deliveries:
            ids[each.key].add((each.nsqd, each.id))
        extra: Counter[str] = Counter()
        for key, found in ids.items():
            if len(found) > 1 and key in self._published:
                life = self._published[key][0]
                extra[life.name] += len(found) - 1
                if not life.settings["options"]["allow_duplicates"]:
                    yield f"{key} as {sorted(found)}{self._history(key)}"
        for life in self.lives:
            if life.has_ended and extra[life.name] > life.counts.get("possibly_duplicated", 0):
                yield f"{life.name}: {extra[life.name]}, counted as possibly duplicated: {life.counts}"

    def _unexplained(self) -> Iterator[str]:
        by_message = defaultdict(list)
        for each in self._deliveries:
            by_message[each.worker.settings["channel"], each.nsqd, each.id].append(each)
        for (channel, nsqd, _), deliveries in by_message.items():
            deliveries.sort(key=lambda each: (each.attempts, each.time))
            for index, (first, again) in enumerate(itertools.pairwise(deliveries)):
                touches = first.worker.settings["way"] == "touching"
                is_late = not touches and first.answered - first.received > MSG_TIMEOUT - SLACK
                if first.answer == "finish" and again.time > first.answered:
                    # It may have been on its way for nearly as long as its timeout, and its FIN for a moment.
                    names, since = {self.nodes[nsqd], first.worker.name}, first.received - MSG_TIMEOUT
                    is_disturbed = self._is_disturbed(names, since, min(again.time, first.answered + FIN_TIME))
                    # nsqd takes the late REQ of a delivery before for this one, if it is at the same client.
                    is_requeued = any(
                        each.worker is first.worker
                        and each.answer in ("fail", "requeue")
                        and first.received <= each.answered <= again.time
                        for each in deliveries[:index]
                    )
                    if not is_late and not is_requeued and not is_disturbed and not self._is_reread(again):
                        yield f"{first.key} of {self.nodes[nsqd]} in {channel}{self._history(first.key)}"

    def _is_reread(self, again: Delivery) -> bool:
        """Return True if its nsqd was killed since the publish: it may read files of its disk again, more than once.

        Of those that hold all in memory, an orderly stop writes it to the disk.
        """
        name = self.nodes[again.nsqd]
        began = self._published[again.key][1] if again.key in self._published else 0.0
        since = [f for f in self.faults if f.target == name and f.ended >= began and f.began <= again.time]
        is_on_disk = self._memory[name] < ALL or any(fault.kind == "restarted" for fault in since)
        return is_on_disk and any(fault.loses for fault in since)

    def _early(self) -> Iterator[str]:
        for each in self._deliveries:
            _, began, due = self._published.get(each.key, (None, 0.0, 0.0))
            node = self.nodes[each.nsqd]
            is_timed = self._memory[node] >= ALL and not self._is_disturbed({node}, began, each.time)
            if is_timed and each.day_time < due - 0.005:
                yield f"{each.key}, {due - each.day_time:.3f} s: {each}"

    def _late_publishes(self) -> Iterator[str]:
        for life in self.lives:
            for began, _, timeout, _, keys in life.publishes:
                for key in keys:
                    ended, outcome, _, text = life.outcomes.get(key, (math.inf, "no outcome", [], ""))
                    stood = sum(max(0.0, min(to, ended) - max(since, began)) for since, to in life.gaps)
                    if (life.has_ended or ended < math.inf) and ended - began > timeout + DEADLINE_SLACK + stood:
                        yield f"{key}: {outcome} after {ended - began:.1f} s, its timeout is {timeout} s; {text}"

    def _counts(self) -> Iterator[str]:
        for life in self.lives:
            ended = Counter(outcome.replace(" ", "_") for _, outcome, _, _ in life.outcomes.values())
            for name in ("confirmed", "refused", "not_sent", "unknown"):
                if life.has_ended and ended[name] != life.counts.get(name, ended[name]):
                    yield f"{life.name}: {ended[name]} {name}, in its statistics {life.counts[name]}"

    def _miscounts(self) -> Mapping[str, list[tuple[float, str]]]:
        """Return, by consumer, the times from which an nsqd counts a message too many in flight, and its address.

        It has read the message twice from its disk after a kill, and has sent it again while it was in flight, so that
        it refuses one of the two answers; or while REQ defers it ("ID already deferred"). It counts so until the
        connection ends. A message that comes again after a timeout has more attempts.
        """
        by_message = defaultdict(list)
        for each in self._deliveries:
            if each.id in self._refused[self.nodes[each.nsqd]]:
                by_message[each.worker.settings["channel"], each.nsqd, each.id].append(each)
        found = defaultdict(list)
        for deliveries in by_message.values():
            deliveries.sort(key=lambda each: each.received)
            for first, again in itertools.pairwise(deliveries):
                if again.attempts <= first.attempts and again.received < first.answered + DEFERRED:
                    found[again.worker.name].append((again.received, again.nsqd))
        return found

    def _excess(self) -> Iterator[str]:
        lives = {life.name: life for life in self.lives}
        miscounts = self._miscounts()
        for time, counts in self.in_flight:
            for name, count in counts.items():
                nodes = self.nodes.values()
                if name not in lives or self._is_disturbed({*nodes, name}, time - LOWERED, time, DELAYING):
                    continue
                limits = lives[name].limits
                later = [limit for at, limit in limits if time - LOWERED <= at <= time]
                before = [limit for at, limit in limits if at < time - LOWERED][-1:]
                lost = lives[name].lost
                too_many = [
                    began
                    for began, nsqd in miscounts.get(name, ())
                    if began <= time and not any(each == nsqd and began < at <= time for at, each, _ in lost)
                ]
                if later + before and count - len(too_many) > max(later + before):
                    yield f"{name} at {time:.2f}: {count}, limits {before + later}"

    def _cuts(self) -> Iterator[str]:
        for life in self.lives:
            for time, nsqd, text in life.lost:
                names = {self.nodes[nsqd], life.name, "auth"}
                # gnsq itself ends a connection that is silent after its nsqd has refused answers: they were late, or a
                # killed nsqd has read their messages twice, and counts one of the two as in flight.
                is_own = "after nsqd has refused" in text and (
                    any(
                        each.nsqd == nsqd and each.answered - each.received > MSG_TIMEOUT - SLACK
                        for each in life.deliveries
                    )
                    or any(each.loses and each.target == self.nodes[nsqd] and each.began < time for each in self.faults)
                )
                if "connection lost:" in text and not is_own and not self._is_disturbed(names, time - NOTICED, time):
                    yield f"{life.name} at {time:.2f}: {self.nodes[nsqd]}, {text}"

    def _growth(self) -> Iterator[str]:
        for life in self.lives:
            third = len(life.usages) // 3
            if len(life.usages) < SAMPLES:
                continue
            for what, growth in GROWTH.items():
                values = [usage[what] for usage in life.usages]
                middle, last = min(values[third:-third]), min(values[-third:])
                if last > middle + growth:
                    yield f"{life.name}: {what} from {middle:,} to {last:,}, at first {values[0]:,}"
