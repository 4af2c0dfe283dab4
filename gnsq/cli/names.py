"""Asks servers for the names of topics and channels, to complete arguments. Never fails: errors give no names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import click
import gevent
from gevent.event import Event

from gnsq.cli.cluster import Cluster, given_settings, load_cluster
from gnsq.cli.nodes import http_address
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQHttpError
from gnsq.lookupd import LookupdClient
from gnsq.nsqd import NsqdHTTPClient
from gnsq.protocol.names import checked_names
from gnsq.running import StopSignals

__all__ = ["server_names"]

# Seconds after the questions that a person waits for the first answer, and then for those of the other servers. The
# start of Python does not count: on a busy machine it takes longer than the answers.
LIMIT = 3.0
OTHERS_LIMIT = 1.0


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
    import gnsq.http.connections  # noqa: F401  # its import would count for the first question

    found: set[str] = set()
    answered = Event()

    def ask(names: Callable[[], list[str]]) -> None:
        # A server may send anything.
        with contextlib.suppress(NSQHttpError, ValueError, TypeError, KeyError, AttributeError):
            found.update(names())
            answered.set()

    asked = [spawn("gnsq-names", ask, question, on_failure=None) for question in _questions(cluster, topic)]
    stop = context.find_object(StopSignals)
    ends = [
        answered,
        spawn("gnsq-names", gevent.joinall, asked, on_failure=None),
        *([stop.requested] if stop is not None else []),
    ]
    gevent.wait(ends, LIMIT, count=1)
    if answered.is_set():
        gevent.joinall(asked, OTHERS_LIMIT)
    gevent.killall(asked)
    return found


def _questions(cluster: Cluster, topic: str | None) -> list[Callable[[], list[str]]]:
    nsqds = list(cluster.nsqds_http)
    if not nsqds:
        for nsqd in cluster.nsqds:
            with contextlib.suppress(ValueError):
                nsqds.append(http_address(nsqd))
    lookups = [_of_lookupd(client, topic) for client in cluster.lookupd_clients()]
    return lookups + [_of_nsqd(cluster.nsqd_client(address), topic) for address in nsqds]


def _of_lookupd(client: LookupdClient, topic: str | None) -> Callable[[], list[str]]:
    if topic is None:
        return lambda: checked_names(client.topics()["topics"], "topic")
    return lambda: checked_names(client.channels(topic)["channels"], "channel")


def _of_nsqd(client: NsqdHTTPClient, topic: str | None) -> Callable[[], list[str]]:
    def names() -> list[str]:
        topics = client.stats(topic, include_clients=False, include_mem=False)["topics"] or []
        if topic is None:
            return checked_names([each["topic_name"] for each in topics], "topic")
        return checked_names([channel["channel_name"] for each in topics for channel in each["channels"]], "channel")

    return names
