"""Asks servers for the names of topics and channels, to complete arguments. Never fails: errors give no names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import click
import gevent
from gevent.pool import Group

from gnsq.cli.cluster import Cluster, given_settings, load_cluster
from gnsq.cli.nodes import http_address
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQHttpError
from gnsq.lookupd import LookupdClient
from gnsq.nsqd import NsqdHTTPClient

__all__ = ["server_names"]

# Limit in seconds of all questions together. With the start of Python, a completion takes less than a second.
LIMIT = 0.5


def server_names(context: click.Context, topic: str | None) -> set[str]:
    """Return the names of all topics, or of a topic's channels, that servers know.

    Args:
        context: Of the command, whose options may have no cluster or a wrong one.
        topic: The topic whose channels are wanted; None for the topics.
    """
    values = context.params
    try:
        cluster = load_cluster(values.get("cluster"), values.get("config_file"), given_settings(context))
    except click.UsageError:
        return set()
    found: set[str] = set()

    def ask(names: Callable[[], Iterable[object]]) -> None:
        # A server may send anything.
        with contextlib.suppress(NSQHttpError, ValueError, TypeError, KeyError, AttributeError):
            found.update(name for name in names() if isinstance(name, str))

    group = Group()
    for question in _questions(cluster, topic):
        group.add(spawn("gnsq-ask", ask, question, on_failure="a server was not asked"))
    with gevent.Timeout(LIMIT, False):
        group.join()
    group.kill()
    return found


def _questions(cluster: Cluster, topic: str | None) -> list[Callable[[], Iterable[object]]]:
    nsqds = list(cluster.nsqds_http)
    if not nsqds:
        for nsqd in cluster.nsqds:
            with contextlib.suppress(ValueError):
                nsqds.append(http_address(nsqd))
    lookups = [_of_lookupd(client, topic) for client in cluster.lookupd_clients()]
    return lookups + [_of_nsqd(cluster.nsqd_client(address), topic) for address in nsqds]


def _of_lookupd(client: LookupdClient, topic: str | None) -> Callable[[], Iterable[object]]:
    if topic is None:
        return lambda: client.topics()["topics"]
    return lambda: client.channels(topic)["channels"]


def _of_nsqd(client: NsqdHTTPClient, topic: str | None) -> Callable[[], Iterable[object]]:
    def names() -> Iterable[object]:
        topics = client.stats(topic, include_clients=False, include_mem=False)["topics"] or []
        if topic is None:
            return [each["topic_name"] for each in topics]
        return [channel["channel_name"] for each in topics for channel in each["channels"]]

    return names
