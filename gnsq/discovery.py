"""Finds nsqds: queries all nsqlookupds, combines their answers, and remembers the answers from query to query.

The address of an nsqlookupd may lead to another server. So an answer is not trusted: the number of nsqds is limited,
and each nsqd must have a host and a port. This module does not connect to the nsqds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import gevent
from gevent.pool import Group

from gnsq.addresses import Addresses, check_no_pair, check_single, format_address, is_host, is_port, is_unix
from gnsq.clock import monotonic
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQHttpError
from gnsq.http.responses import is_unknown_path, shown
from gnsq.logs import LogOwner
from gnsq.lookupd import Answer, LookupdClient, is_unknown_topic
from gnsq.protocol.names import checked_names
from gnsq.texts import shown_argument

__all__ = [
    "MAX_NSQDS",
    "AllNodes",
    "TopicNodes",
    "listed_producers",
    "parse_lookupds",
    "producer_address",
    "registered_topics",
]

logger = logging.getLogger(__name__)

# Default limit of one query, in seconds. A round of queries lasts until its slowest query has ended.
LOOKUP_TIMEOUT = 5.0
# Default limit of an answer in bytes. Parsing JSON blocks the hub: 16 MB of numbers take 0.5 s. The result may take
# much memory: 390 MB for 16 MB of empty lists.
MAX_ANSWER_SIZE = 16 * 1024 * 1024
# Limit of the nsqds that are known from all nsqlookupds together, so that a wrong answer does not cost as many
# connections. No known cluster has as many.
MAX_NSQDS = 1000
# Other greenlets run after each 500 nsqds of an answer. To process 500 nsqds takes 1 to 2 ms.
_NSQDS_PER_TURN = 500
# From this number of empty rounds on, log_empty_round() logs at WARNING.
_WARN_AFTER_EMPTY_ROUNDS = 3

# What an answer says about an nsqd.
Producer = Mapping[str, Any]  # Any: the server may send any JSON


def parse_lookupds(addresses: Addresses, http: Mapping[str, Any] | None = None) -> list[LookupdClient]:
    """Make clients from a constructor's argument lookupd_http_addresses.

    Args:
        http: Options of HttpOptions. Two have other defaults here: ``timeout`` (LOOKUP_TIMEOUT) and
            ``max_response_size`` (MAX_ANSWER_SIZE).

    Raises:
        TypeError, ValueError: If an argument has a wrong type, and in the cases of LookupdClient.from_url().
    """
    if not isinstance(addresses, (str, list, tuple)):
        raise TypeError(
            "lookupd_http_addresses must be a URL, 'host:port', or a list or tuple of them, not "
            f"{shown_argument(addresses)}"
        )
    check_no_pair(addresses)
    items = [addresses] if isinstance(addresses, str) else addresses
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"lookupd address must be a str such as 'http://host:4161', not {shown_argument(item)}")
        check_single(item, "URL or 'host:port' of an nsqlookupd")
    if http is not None and not isinstance(http, Mapping):
        raise TypeError(f"lookupd_options must be a dict, not a {type(http).__name__}")
    given = {name: value for name, value in (http or {}).items() if value is not None}
    options = {"timeout": LOOKUP_TIMEOUT, "max_response_size": MAX_ANSWER_SIZE, **given}
    return [LookupdClient.from_url(item, **options) for item in items]


class _Lookup:
    """Queries nsqlookupds for nsqds. Base class of TopicNodes and AllNodes, which remember the answers.

    Args:
        topic: Topic of the nsqds; empty for all nsqds.
        port: Which port of an nsqd to use: ``tcp_port`` or ``http_port``.
        owner: Of the log lines; None: the caller reports failures, and they are logged at DEBUG.

    Attributes:
        failures: By address of an nsqlookupd: why the last query failed, or a part of its answer can't be used.
            Otherwise no entry.
        wrong: Addresses at which another server than nsqlookupd has answered, and no answer was ever wholly usable.
    """

    def __init__(
        self,
        lookupds: Sequence[LookupdClient],
        topic: str = "",
        port: str = "tcp_port",
        owner: LogOwner | None = None,
    ) -> None:
        self.failures: dict[str, str] = {}
        self.wrong: set[str] = set()
        self._owner = owner if owner is not None else LogOwner("", monotonic)
        self._lookupds = lookupds
        self._topic = topic
        self._port = port
        self._failures_at = logging.DEBUG if owner is None else logging.WARNING
        # Addresses that have given a wholly usable answer, once or more often.
        self._confirmed: set[str] = set()
        # Number of rounds with a wholly usable answer since an nsqd was known last. A round queries all nsqlookupds.
        self._empty_rounds = 0

    def has_answered(self, address: str) -> bool:
        """Return True if the nsqlookupd with this address has given a wholly usable answer, once or more often."""
        return address in self._confirmed

    def explanations(self) -> list[str]:
        """Explain for each nsqlookupd why no nsqd is known through it."""
        return [f"{lookupd.address}: {self._explanation(lookupd.address)}" for lookupd in self._lookupds]

    def _explanation(self, address: str) -> str:
        if address in self.failures:
            return self.failures[address]
        if address not in self._confirmed:
            return "not answered yet"
        return f"no nsqd with topic {self._topic} there" if self._topic else "no nsqd there"

    def log_empty_round(self, log: logging.Logger, seconds: float) -> None:
        """If nsqlookupds have answered, but no nsqd is known, log that; after the first line in a minute and level, at
        DEBUG.

        Args:
            seconds: Seconds until the next round.
        """
        if not self._empty_rounds:
            return
        failed = f" ({len(self.failures)} failed)" if self.failures else ""
        none = f"none of {len(self._lookupds)} nsqlookupds{failed} knows an nsqd"
        if len(self._lookupds) == 1:
            none = "the nsqlookupd knows no nsqd"
        what = f"topic {self._topic}: {none} with it yet" if self._topic else f"{none} yet"
        level = logging.WARNING if self._empty_rounds >= _WARN_AFTER_EMPTY_ROUNDS else logging.INFO
        self._owner.log(log).limited(level, f"empty round {level}", "%s; asking again in %.3g s", what, seconds)

    def _end_round(self, answers: Iterable[bool], known: Collection[str]) -> None:
        """Count the round if it is empty.

        Args:
            answers: For each nsqlookupd: whether it has given a wholly usable answer.
        """
        self._empty_rounds = 0 if known else self._empty_rounds + any(answers)

    def _log(self, level: int, address: str, text: str, *arguments: object) -> None:
        """Log a line about an nsqlookupd; after the first in a minute with this address and text, log at DEBUG."""
        what = f"lookup of topic {self._topic}" if self._topic else "lookup of nodes"
        log = self._owner.log(logger, nsqlookupd=address)
        log.limited(level, f"{address} {text}", f"%s {text}", what, *arguments)

    def _fail(self, address: str, failure: str, *, is_other_server: bool) -> None:
        """Log and record a query that failed, or whose answer can't be used as a whole."""
        self._log(self._failures_at, address, "failed: %s", failure)
        self.failures[address] = failure
        # An address that has given a wholly usable answer is not wrong: a proxy there may be restarting now.
        if is_other_server and address not in self._confirmed:
            self.wrong.add(address)

    def _query_all(self, query: Callable[[int], bool]) -> list[bool]:
        """Call a function with the index of each nsqlookupd, in one greenlet per call, and wait for all results."""
        group = Group()
        try:
            queries = [
                spawn(f"gnsq-query-{lookupd.address}", query, number, on_failure="not asked")
                for number, lookupd in enumerate(self._lookupds)
            ]
            for each in queries:
                group.add(each)
            group.join()
        finally:
            group.kill()
        return [bool(query.value) for query in queries]

    def _query(self, number: int, found: Callable[[str, Producer], object], admitted: set[str]) -> bool:
        """Query one nsqlookupd. A failure is logged and recorded.

        Args:
            found: Called with the ``host:port`` of each nsqd in the answer that is usable and admitted, and with its
                part of the answer. ValueError: this can't be used.
            admitted: The known nsqds. A new nsqd is added to them, unless their number is MAX_NSQDS already.

        Returns:
            True if an answer came and all nsqds in it are usable. If only some are, found() was called for these.
        """
        lookupd = self._lookupds[number]
        address = lookupd.address
        try:
            producers = listed_producers(self._ask(lookupd))
        except NSQHttpError as error:
            is_other_server = error.status == 200 or is_unknown_path(error)
            self._fail(address, error.explanation, is_other_server=is_other_server)
            return False
        except ValueError as error:
            self._fail(address, f"answer is not nsqlookupd's: {error}", is_other_server=True)
            return False
        unusable, left_out, first = 0, 0, ""
        for index, producer in enumerate(producers, 1):
            if index % _NSQDS_PER_TURN == 0:
                gevent.sleep(0)
            try:
                nsqd = producer_address(producer, self._port)
                if nsqd in admitted or len(admitted) < MAX_NSQDS:
                    found(nsqd, producer)
                    admitted.add(nsqd)
                else:
                    left_out += 1
            except ValueError as error:
                unusable += 1
                first = first or f"{shown(producer)}: {error}"
        if left_out:
            text = "left out %d of %d nsqds: there are %d already, the limit"
            self._log(logging.WARNING, address, text, left_out, len(producers), MAX_NSQDS)
        if unusable:
            failure = f"answer is not nsqlookupd's: can't use {unusable} of {len(producers)} nsqds, such as {first}"
            self._fail(address, failure, is_other_server=False)
            return False
        self._confirmed.add(address)
        self.wrong.discard(address)
        self.failures.pop(address, None)
        return True

    def _ask(self, lookupd: LookupdClient) -> Answer:
        if not self._topic:
            return lookupd.nodes()
        try:
            return lookupd.lookup(self._topic)
        except NSQHttpError as error:
            if is_unknown_topic(error):
                return {"producers": []}
            raise


class TopicNodes(_Lookup):
    """The nsqds that have a topic. If a query fails and finds no nsqd, those of the last usable answer stay known."""

    def __init__(self, lookupds: Sequence[LookupdClient], topic: str, owner: LogOwner | None = None) -> None:
        super().__init__(lookupds, topic, owner=owner)
        # The nsqds in the last usable answer of each nsqlookupd. A single set of all answers would keep lost nsqds.
        self._answers: list[set[str]] = [set() for _ in lookupds]

    @property
    def addresses(self) -> set[str]:
        """Addresses of the nsqds in the last usable answers of all nsqlookupds."""
        return set().union(*self._answers)

    def refresh(self, found: Callable[[str], object], connected: Collection[str] = ()) -> bool:
        """Query all nsqlookupds at the same time, and wait for all. Return True if an answer was wholly usable.

        Args:
            found: Called with the ``host:port`` of each nsqd in an nsqlookupd's answer (in its last usable answer, if
                the query fails), without waiting for other nsqlookupds. One nsqd may come from several answers.
            connected: Further nsqds that count for the limit MAX_NSQDS.
        """
        admitted = self.addresses.union(connected)

        def query(number: int) -> bool:
            addresses: set[str] = set()

            def record(address: str) -> None:
                addresses.add(address)
                found(address)

            answered = self._query(number, lambda address, _: record(address), admitted)
            if not answered and not addresses:
                for address in list(self._answers[number]):
                    record(address)
            self._answers[number] = addresses
            return answered

        answers = self._query_all(query)
        self._end_round(answers, self.addresses)
        return any(answers)


class AllNodes(_Lookup):
    """All nsqds that nsqlookupds know.

    A round of queries is complete if all answers are wholly usable. An nsqd is forgotten when no nsqlookupd names it in
    two complete rounds in a row. One round does not suffice: an nsqlookupd that has just started may know no nsqd.
    """

    def __init__(
        self,
        lookupds: Sequence[LookupdClient],
        port: str = "tcp_port",
        owner: LogOwner | None = None,
    ) -> None:
        super().__init__(lookupds, port=port, owner=owner)
        self._addresses: set[str] = set()
        # Known addresses that no nsqlookupd named in the last round, if that round was complete.
        self._missing: set[str] = set()

    def refresh(
        self, found: Callable[[str, Producer], object] = lambda address, producer: None
    ) -> tuple[set[str], set[str]]:
        """Query all nsqlookupds at the same time, and wait for all of them. Return the addresses that are new, and
        the addresses that were forgotten.

        Args:
            found: Called with the ``host:port`` of an nsqd as soon as an answer names it, for each such answer, and
                with its part of the answer. ValueError: this can't be used.
        """
        named: set[str] = set()
        admitted = set(self._addresses)

        def record(address: str, producer: Producer) -> None:
            found(address, producer)
            named.add(address)

        answers = self._query_all(lambda number: self._query(number, record, admitted))
        new = named - self._addresses
        missing = self._addresses - named if all(answers) else set()
        gone = missing & self._missing
        self._addresses = (self._addresses | new) - gone
        self._missing = missing - gone
        self._end_round(answers, self._addresses)
        return new, gone


def listed_producers(answer: object) -> list[Any]:  # Any: the server may send any JSON
    """Return the list of nsqds of an answer. null counts as an empty list. Raise ValueError if there is no list."""
    if not isinstance(answer, dict) or "producers" not in answer:
        raise ValueError(f"no producers in {shown(answer)}")
    producers = answer["producers"]
    if producers is None:  # Go writes a list that was never filled as null
        return []
    if not isinstance(producers, list):
        raise ValueError(f"producers {shown(producers)} are no list")
    return producers


def registered_topics(producer: Producer) -> list[str]:
    """Return the topics of an nsqd in an answer of all nodes, except those that a tombstone hides. Raise ValueError if
    they are not valid."""
    topics = checked_names(producer.get("topics"), "topic")
    hidden = producer.get("tombstones") or [False] * len(topics)
    if not isinstance(hidden, list) or len(hidden) != len(topics):
        raise ValueError("its tombstones are not those of its topics")
    return [topic for topic, is_hidden in zip(topics, hidden, strict=True) if not is_hidden]


def producer_address(producer: object, port_name: str) -> str:
    """Return the address of an nsqd in an answer. Raise ValueError if the address is not valid. The text of the error
    shows the address at most: the whole answer may be too long to be formatted quickly."""
    if not isinstance(producer, dict):
        raise ValueError("it is not an object")
    # nsqlookupd before 0.2.22 calls the broadcast_address "address".
    host = producer.get("broadcast_address") or producer.get("address")
    port = producer.get(port_name)
    if not isinstance(host, str) or not isinstance(port, int) or not is_port(port):
        raise ValueError(f"it has no broadcast_address and {port_name}")
    if is_unix(host):
        raise ValueError("its broadcast_address is the path of a unix socket, which only configuration may name")
    if not is_host(host):
        raise ValueError("its broadcast_address is neither a host name nor an IP address")
    return format_address(host, port)
