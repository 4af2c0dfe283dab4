"""Where the nsqds are: what nsqlookupds answer.

Asks, unites and remembers, and tells which addresses are no nsqlookupds. Takes no more nsqds than a limit, and no
addresses but hosts with ports: an answer may come from anybody. Consumers and producers decide about connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.pool import Group

from gnsq.addresses import Addresses, format_address, is_port, is_unix, parse_address
from gnsq.errors import NSQHttpError
from gnsq.http.responses import is_unknown_path, shown
from gnsq.logs import LogOwner
from gnsq.lookupd import Answer, LookupdClient, is_unknown_topic

__all__ = [
    "MAX_NSQDS",
    "KnownNodes",
    "LookupReport",
    "Nodes",
    "TopicNodes",
    "lookup_nodes",
    "lookup_nsqds",
    "parse_lookupds",
]

logger = logging.getLogger(__name__)

# Seconds for one nsqlookupd to answer; a silent one must not hold up a round.
LOOKUP_TIMEOUT = 5.0
# Bytes of an answer. To parse JSON holds the hub: 16 MB of empty lists for 1.6 s with 390 MB, 64 MB for 8.8 s, 1.5 GB.
MAX_ANSWER_SIZE = 16 * 1024 * 1024
# nsqds that are taken from all answers together, unless an option says otherwise.
MAX_NSQDS = 1000
# nsqds of an answer that are looked at before other greenlets have their turn: 1 to 2 ms.
_SLICE = 500
# Characters of a host name, Source: RFC 1035; an IP address has fewer.
_MAX_HOST_LENGTH = 255
# Rounds in a row without an nsqd, from which on that is a warning.
_WARNING_FROM = 3


def parse_lookupds(addresses: Addresses, http: Mapping[str, Any] | None = None) -> list[LookupdClient]:
    """Turn what a constructor was given into clients.

    Args:
        http: Options of HttpOptions; LOOKUP_TIMEOUT and MAX_ANSWER_SIZE hold where they say nothing else.

    Raises:
        TypeError, ValueError: As LookupdClient.from_url().
    """
    if not isinstance(addresses, (str, list, tuple)):
        raise TypeError(
            f"lookupd_http_addresses must be a URL, 'host:port', or a list or tuple of them, not {addresses!r}"
        )
    items = [addresses] if isinstance(addresses, str) else addresses
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"lookupd address must be a str such as 'http://host:4161', not {item!r}")
    if http is not None and not isinstance(http, Mapping):
        raise TypeError(f"lookupd_options must be a dict, not a {type(http).__name__}")
    options = {"timeout": LOOKUP_TIMEOUT, "max_response_size": MAX_ANSWER_SIZE, **(http or {})}
    return [LookupdClient.from_url(item, **options) for item in items]


class LookupReport:
    """What each nsqlookupd has answered last.

    Args:
        owner: Consumer or Producer that asks, which log lines name.

    Attributes:
        failures: Why the last answer can't be used, by the address of the nsqlookupd; without those that can.
        wrong: Addresses at which something else than nsqlookupd answers, and always did.
        empty_rounds: Rounds in a row in which an nsqlookupd answered and none named an nsqd.
    """

    def __init__(self, owner: LogOwner | None = None) -> None:
        self._owner = owner
        self.failures: dict[str, str] = {}
        self.wrong: set[str] = set()
        self.empty_rounds = 0
        # Those that have answered as nsqlookupd does.
        self._proven: set[str] = set()

    def warn(self, address: str, text: str, *arguments: object) -> None:
        """Log a WARNING: the address of an nsqlookupd, the owner, a text. An owner has one a minute for each text."""
        if self._owner is None:
            logger.warning(f"%s: {text}", address, *arguments)
        else:
            repeats = self._owner.rate_limited(logger)
            repeats.log(logging.WARNING, f"{address} {text}", f"%s: {text}", self._owner.at(address), *arguments)

    def note(self, address: str, failure: str | None, *, is_other: bool = False) -> None:
        """Note the end of a question.

        Args:
            failure: Why the answer can't be used; None if it can.
            is_other: Whether something else than nsqlookupd has answered.
        """
        if failure is None:
            self._proven.add(address)
            self.failures.pop(address, None)
        else:
            self.failures[address] = failure
        # One that was an nsqlookupd, such as one behind a proxy that restarts, is only failing.
        if is_other and address not in self._proven:
            self.wrong.add(address)
        elif failure is None:
            self.wrong.discard(address)

    def end_round(self, *, answered: bool, known: bool) -> None:
        """Note that all were asked: whether any has answered, and whether any nsqd is known."""
        self.empty_rounds = 0 if known else self.empty_rounds + answered

    def explanations(self, lookupds: Iterable[LookupdClient], topic: str = "") -> list[str]:
        """Say of each nsqlookupd why no nsqd is known through it.

        Args:
            topic: That nsqds were looked for; empty for all nsqds.
        """
        return [f"{lookupd.address}: {self._explanation(lookupd.address, topic)}" for lookupd in lookupds]

    def _explanation(self, address: str, topic: str) -> str:
        if address in self.failures:
            return self.failures[address]
        if address not in self._proven:
            return "not answered yet"
        return f"no nsqd with topic {topic} there" if topic else "no nsqd there"

    def empty_line(self, lookupds: Sequence[LookupdClient], topic: str, seconds: float) -> tuple[int, str] | None:
        """Make the log line that says that no nsqd is known, with its level; None if an nsqd is, or nobody answered.

        Args:
            topic: As in explanations().
            seconds: Until they are asked again.
        """
        if not self.empty_rounds:
            return None
        failed = f" ({len(self.failures)} failed)" if self.failures else ""
        nobody = f"none of {len(lookupds)} nsqlookupds{failed} knows an nsqd"
        if len(lookupds) == 1:
            nobody = "the nsqlookupd knows no nsqd"
        what = f"topic {topic}: {nobody} with it yet" if topic else f"{nobody} yet"
        level = logging.WARNING if self.empty_rounds >= _WARNING_FROM else logging.INFO
        return level, f"{what}; asking again in {seconds:.3g} s"


def lookup_nsqds(
    lookupds: Iterable[LookupdClient],
    topic: str,
    found: Callable[[str], object],
    *,
    report: LookupReport | None = None,
    limit: _Limit | None = None,
) -> int:
    """Ask all nsqlookupds at once which nsqds have a topic.

    Args:
        found: Called with each ``host:port`` as soon as an answer names it; more than once where several do.
        report: Notes what each has answered.
        limit: Of the nsqds; default: no more than MAX_NSQDS.

    Returns:
        How many of them answered. One that fails or is silent is logged and does not hold up what the others say;
        one that does not know the topic has answered.
    """

    def ask(lookupd: LookupdClient) -> Answer:
        try:
            return lookupd.lookup(topic)
        except NSQHttpError as error:
            if is_unknown_topic(error):
                return {"producers": []}
            raise

    what = f"lookup of topic {topic}"
    question = _Question(ask, found, what, "tcp_port", report or LookupReport(), limit or _Limit())
    return _ask_all(lookupds, question)


def lookup_nodes(
    lookupds: Iterable[LookupdClient],
    found: Callable[[str], object],
    *,
    port: str = "tcp_port",
    report: LookupReport | None = None,
    limit: _Limit | None = None,
) -> int:
    """Ask all nsqlookupds at once which nsqds there are, whatever topics they have.

    Args:
        found, report, limit: As in lookup_nsqds().
        port: Which of their ports to name: ``tcp_port`` or ``http_port``.

    Returns:
        As lookup_nsqds().
    """
    question = _Question(
        lambda lookupd: lookupd.nodes(), found, "lookup of nodes", port, report or LookupReport(), limit or _Limit()
    )
    return _ask_all(lookupds, question)


class TopicNodes:
    """Those nsqds that have a topic, followed over rounds.

    Args:
        max_nsqds: nsqds that are known at most.
        owner: Consumer or Producer that log lines name.

    Attributes:
        known: What each nsqlookupd named when it answered last, together. Not all that any ever named: where one is
            down for good that would grow with each nsqd that is replaced.
        report: What each nsqlookupd has answered last.
    """

    def __init__(
        self,
        lookupds: Sequence[LookupdClient],
        topic: str,
        max_nsqds: int = MAX_NSQDS,
        owner: LogOwner | None = None,
    ) -> None:
        self._lookupds = lookupds
        self._topic = topic
        self._max_nsqds = max_nsqds
        self._named: list[set[str]] = [set() for _ in lookupds]
        self.report = LookupReport(owner)

    @property
    def known(self) -> set[str]:
        """See above."""
        return set().union(*self._named)

    def ask(self, found: Callable[[str], object], kept: Collection[str] = ()) -> bool:
        """Ask all nsqlookupds at once, and wait for the last of them.

        Args:
            found: Called with each known ``host:port``, as soon as an answer names it, or its nsqlookupd gives none: an
                nsqd that was lost must not wait for an nsqlookupd that is down. More than once where several do.
            kept: nsqds that count for the limit, too, as they are still connected.

        Returns:
            Whether any of them answered.
        """
        limit = _Limit(self._max_nsqds, self.known.union(kept))
        asking = Group()
        try:
            answers = [asking.spawn(self._ask_one, number, found, limit) for number in range(len(self._lookupds))]
            asking.join()
        finally:
            asking.kill()
        answered = any(answer.value for answer in answers)
        self.report.end_round(answered=answered, known=any(self._named))
        return answered

    def _ask_one(self, number: int, found: Callable[[str], object], limit: _Limit) -> bool:
        named: set[str] = set()

        def note(address: str) -> None:
            named.add(address)
            found(address)

        lookupd = self._lookupds[number]
        answered = lookup_nsqds([lookupd], self._topic, note, report=self.report, limit=limit) > 0
        if not answered and not named:
            for address in list(self._named[number]):
                note(address)
        self._named[number] = named
        return answered


class Nodes:
    """All nsqds that nsqlookupds know, followed over rounds.

    Args:
        port: As in lookup_nodes().
        max_nsqds, owner: As for TopicNodes.

    Attributes:
        report: What each nsqlookupd has answered last.
    """

    def __init__(
        self,
        lookupds: Sequence[LookupdClient],
        port: str = "tcp_port",
        max_nsqds: int = MAX_NSQDS,
        owner: LogOwner | None = None,
    ) -> None:
        self._lookupds = lookupds
        self._port = port
        self._max_nsqds = max_nsqds
        self._known = KnownNodes()
        self.report = LookupReport(owner)

    def ask(self, found: Callable[[str], object] = lambda address: None) -> tuple[set[str], set[str]]:
        """Ask all nsqlookupds at once, and wait for the last of them.

        Args:
            found: Called with each ``host:port`` as soon as an answer names it; more than once where several do.

        Returns:
            Which nsqds are to be added, and which to be released, as KnownNodes.learn().
        """
        named: set[str] = set()

        def note(address: str) -> None:
            named.add(address)
            found(address)

        limit = _Limit(self._max_nsqds, self._known.known)
        answered = lookup_nodes(self._lookupds, note, port=self._port, report=self.report, limit=limit)
        changes = self._known.learn(named, complete=answered == len(self._lookupds))
        self.report.end_round(answered=answered > 0, known=bool(self._known.known))
        return changes


class KnownNodes:
    """Which nsqds are known, from round to round. Decides only.

    Attributes:
        known: They.
    """

    def __init__(self) -> None:
        self.known: set[str] = set()
        # Those that the round before did not name, where all answered in it.
        self._missing: set[str] = set()

    def learn(self, named: set[str], *, complete: bool) -> tuple[set[str], set[str]]:
        """Note a round.

        Args:
            named: All that the nsqlookupds named together.
            complete: Whether all of them answered.

        Returns:
            Those that are new, and those to be forgotten, because nobody named them in two complete rounds in a row:
            an nsqlookupd that has just started knows nobody for some seconds, one that is down says nothing.
        """
        new = named - self.known
        missing = self.known - named if complete else set()
        gone = missing & self._missing
        self.known = (self.known | new) - gone
        self._missing = missing - gone
        return new, gone


class _Limit:
    """Which nsqds of a round's answers are taken: those that were known, and others while there are fewer than a limit.

    Attributes:
        size: The limit.
    """

    def __init__(self, size: int = MAX_NSQDS, known: Iterable[str] = ()) -> None:
        self.size = size
        self._taken = set(known)

    def try_take(self, address: str) -> bool:
        """Take an nsqd; False if there are too many."""
        if address not in self._taken:
            if len(self._taken) >= self.size:
                return False
            self._taken.add(address)
        return True


@dataclass(frozen=True, slots=True)
class _Question:
    """What nsqlookupds are asked, and where the answers go.

    Attributes:
        ask: Sends it to one of them.
        what: It is, for the log.
        found, port, report, limit: As in lookup_nodes().
    """

    ask: Callable[[LookupdClient], Answer]
    found: Callable[[str], object]
    what: str
    port: str
    report: LookupReport
    limit: _Limit


def _ask_all(lookupds: Iterable[LookupdClient], question: _Question) -> int:
    asking = Group()
    try:
        answers = [asking.spawn(_ask_one, lookupd, question) for lookupd in lookupds]
        asking.join()
    finally:
        asking.kill()
    return sum(1 for answer in answers if answer.value)


def _ask_one(lookupd: LookupdClient, question: _Question) -> bool:
    """Ask one nsqlookupd; say whether all of its answer could be used."""
    address, what, report = lookupd.address, question.what, question.report
    try:
        answer = question.ask(lookupd)
    except NSQHttpError as error:
        text = _without_address(error, address)
        report.warn(address, "%s failed: %s", what, text)
        report.note(address, text, is_other=error.status == 200 or is_unknown_path(error))
        return False
    try:
        producers = _producers(answer)
    except ValueError as error:
        report.warn(address, "%s: answer is not nsqlookupd's: %s", what, error)
        report.note(address, f"answer is not nsqlookupd's: {error}", is_other=True)
        return False
    unusable, left_out, first = _take(producers, question)
    if left_out:
        text = "%s: left out %d of %d nsqds: there are %d already, the option max_nsqds"
        report.warn(address, text, what, left_out, len(producers), question.limit.size)
    # One that makes no sense hides none of the others.
    failure = f"answer is not nsqlookupd's: can't use {unusable} of {len(producers)} nsqds, such as {first}"
    if unusable:
        report.warn(address, "%s: %s", what, failure)
    report.note(address, failure if unusable else None)
    return not unusable


def _without_address(error: NSQHttpError, address: str) -> str:
    """Cut off what was asked and where, which stands before the text wherever it is shown."""
    text = str(error)
    return text.partition(": ")[2] if text.startswith(f"GET {address}") else text


def _producers(answer: Answer) -> list[Any]:  # Any: whatever JSON the server sends
    """Take the list of nsqds out of an answer.

    Raises:
        ValueError: If there is none.
    """
    if not isinstance(answer, dict) or "producers" not in answer:
        raise ValueError(f"no producers in {shown(answer)}")
    producers = answer["producers"]
    if producers is None:  # Go's for an empty list
        return []
    if not isinstance(producers, list):
        raise ValueError(f"producers {shown(producers)} are no list")
    return producers


def _take(producers: list[Any], question: _Question) -> tuple[int, int, str]:  # Any: as above
    """Tell of all nsqds of an answer that can be connected to, up to the limit.

    Returns:
        How many can't be connected to, how many are above the limit, and the first of the former with its reason.
    """
    unusable, left_out, first = 0, 0, ""
    for number, producer in enumerate(producers, 1):
        if number % _SLICE == 0:
            gevent.sleep(0)
        try:
            address = _producer_address(producer, question.port)
        except ValueError as error:
            unusable += 1
            first = first or f"{shown(producer)}: {error}"
            continue
        if question.limit.try_take(address):
            question.found(address)
        else:
            left_out += 1
    return unusable, left_out, first


def _producer_address(producer: object, port_name: str) -> str:
    """Say where an nsqd listens.

    Raises:
        ValueError: If nothing can be connected to there. The text does not show the nsqd: that takes long.
    """
    if not isinstance(producer, dict):
        raise ValueError("it is no object")
    # "address" is what servers before 0.2.22 said.
    host = producer.get("broadcast_address") or producer.get("address")
    port = producer.get(port_name)
    if not isinstance(host, str) or not isinstance(port, int) or not is_port(port):
        raise ValueError(f"it has no broadcast_address and {port_name}")
    if is_unix(host):
        raise ValueError("its broadcast_address is the path of a unix socket, which only configuration may name")
    if len(host) > _MAX_HOST_LENGTH or not host.isprintable() or not _NOT_IN_HOSTS.isdisjoint(host):
        raise ValueError("its broadcast_address is neither a host name nor an IP address")
    address = format_address(host, port)
    parse_address(address)  # refuses what can't be connected to
    return address


_NOT_IN_HOSTS = frozenset(" /?#@[]\\")
