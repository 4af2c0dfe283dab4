"""Where the nsqds are: what nsqlookupds answer.

Asks and unites; who connects to what is the consumer's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gevent.pool import Group

from gnsq.addresses import Addresses, joined, parse_address
from gnsq.errors import NSQHttpError
from gnsq.lookupd import LookupdClient

__all__ = ["lookup_nsqds", "parse_lookupds"]

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
    asking = Group()
    try:
        answers = [asking.spawn(_lookup_one, lookupd, topic, found) for lookupd in lookupds]
        asking.join()
    finally:
        asking.kill()
    return sum(1 for answer in answers if answer.value)


def _lookup_one(lookupd: LookupdClient, topic: str, found: Callable[[str], None]) -> bool:
    try:
        producers = lookupd.lookup(topic)["producers"] or []
        if not isinstance(producers, list):
            raise TypeError(f"producers {producers!r:.80} are no list")
    except NSQHttpError as error:
        if error.status == 404:
            return True
        logger.warning("%s: lookup of topic %s failed: %s", lookupd.address, topic, error)
        return False
    except (KeyError, TypeError) as error:
        _log_nonsense(lookupd, topic, error)
        return False
    understood = True
    for producer in producers:
        try:
            address = _producer_address(producer)
        except (KeyError, TypeError, ValueError) as error:
            # One that makes no sense hides none of the others.
            _log_nonsense(lookupd, topic, error)
            understood = False
        else:
            found(address)
    return understood


def _log_nonsense(lookupd: LookupdClient, topic: str, error: Exception) -> None:
    logger.warning("%s: lookup of topic %s: answer is not nsqlookupd's: %r", lookupd.address, topic, error)


def _producer_address(producer: object) -> str:
    if not isinstance(producer, dict):
        raise TypeError(f"producer {producer!r:.80} is no object")
    # "address" is what servers before 0.2.22 said.
    host = producer.get("broadcast_address") or producer["address"]
    port = producer["tcp_port"]
    if not isinstance(host, str) or not isinstance(port, int):
        raise TypeError(f"producer {producer!r} has no broadcast_address and tcp_port")
    address = joined(host, port)
    parse_address(address)  # refuses what can't be connected to
    return address
