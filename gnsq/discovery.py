"""Where the nsqds are: what nsqlookupds answer.

Asks, unites and remembers; who connects to what is the business of consumers and producers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gevent.pool import Group

from gnsq.addresses import Addresses, joined, parse_address
from gnsq.errors import NSQHttpError
from gnsq.lookupd import Answer, LookupdClient

__all__ = ["KnownNodes", "Nodes", "TopicNodes", "lookup_nodes", "lookup_nsqds", "parse_lookupds"]

logger = logging.getLogger(__name__)

# Seconds for one nsqlookupd to answer; a silent one must not hold up a round.
LOOKUP_TIMEOUT = 5.0


def parse_lookupds(addresses: Addresses, http: Mapping[str, Any] | None = None) -> list[LookupdClient]:
    """Turn what a constructor was given into clients.

    Args:
        http: Options of HttpOptions; without a timeout, LOOKUP_TIMEOUT holds.

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
    options = {"timeout": LOOKUP_TIMEOUT, **(http or {})}
    return [LookupdClient.from_url(item, **options) for item in items]


def lookup_nsqds(lookupds: Iterable[LookupdClient], topic: str, found: Callable[[str], None]) -> int:
    """Ask all nsqlookupds at once which nsqds have a topic.

    Args:
        found: Called with each ``host:port`` as soon as an answer names it; more than once where several do.

    Returns:
        How many of them answered. One that fails or is silent is logged and does not hold up what the others say;
        one that does not know the topic has answered.
    """

    def ask(lookupd: LookupdClient) -> Answer:
        try:
            return lookupd.lookup(topic)
        except NSQHttpError as error:
            if error.status == 404:
                return {"producers": []}
            raise

    return _ask_all(lookupds, ask, found, what=f"lookup of topic {topic}", port="tcp_port")


def lookup_nodes(lookupds: Iterable[LookupdClient], found: Callable[[str], None], *, port: str = "tcp_port") -> int:
    """Ask all nsqlookupds at once which nsqds there are, whatever topics they have.

    Args:
        found: As in lookup_nsqds().
        port: Which of their ports to name: ``tcp_port`` or ``http_port``.

    Returns:
        As lookup_nsqds().
    """
    return _ask_all(lookupds, lambda lookupd: lookupd.nodes(), found, what="lookup of nodes", port=port)


class TopicNodes:
    """Those nsqds that have a topic, followed over rounds.

    Attributes:
        known: What each nsqlookupd named when it answered last, together. Not all that any ever named: where one is
            down for good that would grow with each nsqd that is replaced.
    """

    def __init__(self, lookupds: Sequence[LookupdClient], topic: str) -> None:
        self._lookupds = lookupds
        self._topic = topic
        self._named: list[set[str]] = [set() for _ in lookupds]

    @property
    def known(self) -> set[str]:
        """See above."""
        return set().union(*self._named)

    def ask(self, found: Callable[[str], None]) -> bool:
        """Ask all nsqlookupds at once, and wait for the last of them.

        Args:
            found: Called with each known ``host:port``, as soon as an answer names it, or its nsqlookupd gives none: an
                nsqd that was lost must not wait for an nsqlookupd that is down. More than once where several do.

        Returns:
            Whether any of them answered.
        """
        asking = Group()
        try:
            answers = [asking.spawn(self._ask_one, number, found) for number in range(len(self._lookupds))]
            asking.join()
        finally:
            asking.kill()
        return any(answer.value for answer in answers)

    def _ask_one(self, number: int, found: Callable[[str], None]) -> bool:
        named: set[str] = set()

        def note(address: str) -> None:
            named.add(address)
            found(address)

        answered = lookup_nsqds([self._lookupds[number]], self._topic, note) > 0
        if not answered and not named:
            for address in list(self._named[number]):
                note(address)
        self._named[number] = named
        return answered


class Nodes:
    """All nsqds that nsqlookupds know, followed over rounds.

    Args:
        port: As in lookup_nodes().
    """

    def __init__(self, lookupds: Sequence[LookupdClient], port: str = "tcp_port") -> None:
        self._lookupds = lookupds
        self._port = port
        self._known = KnownNodes()

    def ask(self, found: Callable[[str], None] = lambda address: None) -> tuple[set[str], set[str]]:
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

        answered = lookup_nodes(self._lookupds, note, port=self._port)
        return self._known.learn(named, complete=answered == len(self._lookupds))


class KnownNodes:
    """Which nsqds are known, from round to round. Decides only."""

    def __init__(self) -> None:
        self._known: set[str] = set()
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
        new = named - self._known
        missing = self._known - named if complete else set()
        gone = missing & self._missing
        self._known = (self._known | new) - gone
        self._missing = missing - gone
        return new, gone


def _ask_all(
    lookupds: Iterable[LookupdClient],
    ask: Callable[[LookupdClient], Answer],
    found: Callable[[str], None],
    *,
    what: str,
    port: str,
) -> int:
    asking = Group()
    try:
        answers = [asking.spawn(_ask_one, lookupd, ask, found, what, port) for lookupd in lookupds]
        asking.join()
    finally:
        asking.kill()
    return sum(1 for answer in answers if answer.value)


def _ask_one(
    lookupd: LookupdClient, ask: Callable[[LookupdClient], Answer], found: Callable[[str], None], what: str, port: str
) -> bool:
    try:
        producers = ask(lookupd)["producers"]
        if producers is None:  # Go's for an empty list
            return True
        if not isinstance(producers, list):
            raise TypeError(f"producers {producers!r:.80} are no list")
    except NSQHttpError as error:
        logger.warning("%s: %s failed: %s", lookupd.address, what, error)
        return False
    except (KeyError, TypeError) as error:
        _log_nonsense(lookupd, what, error)
        return False
    understood = True
    for producer in producers:
        try:
            address = _producer_address(producer, port)
        except (KeyError, TypeError, ValueError) as error:
            # One that makes no sense hides none of the others.
            _log_nonsense(lookupd, what, error)
            understood = False
        else:
            found(address)
    return understood


def _log_nonsense(lookupd: LookupdClient, what: str, error: Exception) -> None:
    logger.warning("%s: %s: answer is not nsqlookupd's: %r", lookupd.address, what, error)


def _producer_address(producer: object, port_name: str) -> str:
    if not isinstance(producer, dict):
        raise TypeError(f"producer {producer!r:.80} is no object")
    # "address" is what servers before 0.2.22 said.
    host = producer.get("broadcast_address") or producer["address"]
    port = producer[port_name]
    if not isinstance(host, str) or not isinstance(port, int):
        raise TypeError(f"producer {producer!r} has no broadcast_address and {port_name}")
    address = joined(host, port)
    parse_address(address)  # refuses what can't be connected to
    return address
