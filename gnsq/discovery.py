"""Where the nsqds are: what nsqlookupds answer.

Asks and unites; who connects to what is the consumer's business.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import gevent

from gnsq.addresses import Addresses, joined
from gnsq.errors import NSQHttpError
from gnsq.lookupd import LookupdClient

__all__ = ["lookup_nsqds", "parse_lookupds"]

logger = logging.getLogger(__name__)


def parse_lookupds(addresses: Addresses) -> list[LookupdClient]:
    """Turn what a constructor was given into clients.

    Raises:
        TypeError, ValueError: As parse_address().
    """
    if not isinstance(addresses, (str, list, tuple)):
        raise TypeError(
            f"lookupd_http_addresses must be a URL, 'host:port', or a list or tuple of them, not {addresses!r}"
        )
    items = [addresses] if isinstance(addresses, str) else addresses
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"lookupd address must be a str such as 'http://host:4161', not {item!r}")
    return [LookupdClient.from_url(item) for item in items]


def lookup_nsqds(lookupds: Iterable[LookupdClient], topic: str) -> tuple[set[str], int]:
    """Ask all nsqlookupds at once which nsqds have a topic.

    Returns:
        The union of their answers as ``host:port``, and how many of them answered. One that fails is logged and
        does not hide what the others say; one that does not know the topic has answered.
    """
    found: set[str] = set()
    answers = gevent.joinall([gevent.spawn(_lookup_one, lookupd, topic) for lookupd in lookupds])
    answered = 0
    for greenlet in answers:
        if greenlet.value is not None:
            answered += 1
            found |= greenlet.value
    return found, answered


def _lookup_one(lookupd: LookupdClient, topic: str) -> set[str] | None:
    try:
        producers = lookupd.lookup(topic)["producers"]
        return {joined(*_producer_address(producer)) for producer in producers or ()}
    except NSQHttpError as error:
        if error.status == 404:
            return set()
        logger.warning("%s: lookup of topic %s failed: %s", lookupd.address, topic, error)
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("%s: lookup of topic %s: answer is not nsqlookupd's: %r", lookupd.address, topic, error)
    return None


def _producer_address(producer: Mapping[str, object]) -> tuple[str, int]:
    # "address" is what servers before 0.2.22 said.
    host = producer.get("broadcast_address") or producer["address"]
    port = producer["tcp_port"]
    if not isinstance(host, str) or not isinstance(port, int):
        raise TypeError(f"producer {producer!r} has no broadcast_address and tcp_port")
    return host, port
