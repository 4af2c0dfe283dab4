"""Types of arguments: names of topics and channels. Servers are asked for names, to complete them.

To ask never fails: errors give no names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import click
import gevent
from click.shell_completion import CompletionItem
from gevent.event import Event

from gnsq.cli.cluster import Cluster, given_settings, load_cluster
from gnsq.cli.nodes import http_address
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQHttpError
from gnsq.lookupd import LookupdClient
from gnsq.nsqd import NsqdHTTPClient
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name, checked_names
from gnsq.running import StopSignals

__all__ = ["CHANNEL", "TOPIC"]

# Seconds after the questions that a person waits for the first answer, and then for those of the other servers. The
# start of Python does not count: on a busy machine it takes longer than the answers.
LIMIT = 3.0
OTHERS_LIMIT = 1.0


class _Name(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            (assert_valid_topic_name if self.name == "topic" else assert_valid_channel_name)(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete from the names that the servers know."""
        topic = None
        if self.name == "channel":
            topics = [ctx.params.get(each.name or "") for each in ctx.command.params if each.type is TOPIC]
            topic = next((name for name in topics if isinstance(name, str)), None)
            if topic is None:
                return []
        return [CompletionItem(name) for name in sorted(_server_names(ctx, topic)) if name.startswith(incomplete)]


def _server_names(context: click.Context, topic: str | None) -> set[str]:
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


TOPIC = _Name("topic")
CHANNEL = _Name("channel")
