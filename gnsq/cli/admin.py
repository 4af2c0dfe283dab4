"""gnsq topic and gnsq channel: create, delete, empty, pause, list and hide topics and channels of a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import gevent
from gevent.socket import wait_read

from gnsq.addresses import format_address, is_port
from gnsq.census import Counts, short_address
from gnsq.cli.command import Command, before_signal
from gnsq.cli.group import Group
from gnsq.cli.nodes import NodePoller
from gnsq.cli.servers import Cluster
from gnsq.cli.stats import report
from gnsq.cli.sums import Snapshot
from gnsq.cli.topics import CHANNEL, TOPIC
from gnsq.concurrency.greenlets import spawn
from gnsq.discovery import parse_lookupds
from gnsq.errors import NSQHttpError
from gnsq.lookupd import LookupdClient
from gnsq.running import StopSignals
from gnsq.texts import counted, printable

__all__ = ["channel", "topic"]


@dataclass(frozen=True)
class _Verb:
    """What a command does with a topic or channel.

    Attributes:
        done: Past participle, for what is said after it.
        destroys: True if messages are lost, so that the command asks before.
        helps: Help of the command for topics, and of that for channels.
    """

    name: str
    done: str
    helps: tuple[str, str]
    destroys: bool = False


_PAUSED_TOPIC = "While it is paused, nsqd takes messages for the topic, and keeps them there."
_VERBS = (
    _Verb(
        "create",
        "created",
        (
            "Create TOPIC on all nsqds.\n\nConsumers that ask nsqlookupd then find the topic before its first message.",
            "Create CHANNEL on all nsqds that have TOPIC.\n\nFrom then on the channel keeps all messages for its first "
            "consumer. It is registered at nsqlookupd first, so an nsqd that gets the topic later has it as well.",
        ),
    ),
    _Verb(
        "delete",
        "deleted",
        (
            "Delete TOPIC with its channels and all messages.\n\nStop producers and consumers before: a publish, and a "
            "consumer that knows the address of nsqd, creates the topic again. It is removed from nsqlookupd first, "
            "then from nsqd: a topic that is created again meanwhile stays registered, and consumers find its "
            "messages. If an nsqd does not answer, nsqlookupd keeps the topic, since that nsqd may have messages.",
            "Delete CHANNEL with its messages, and disconnect its consumers.\n\nA consumer that connects again creates "
            "the channel again. It is removed from nsqlookupd first, then from nsqd. If an nsqd does not answer, "
            "nsqlookupd keeps it.",
        ),
        destroys=True,
    ),
    _Verb(
        "empty",
        "emptied",
        (
            "Delete the messages that wait in TOPIC itself.\n\nThose are messages of a topic that has no channel or is "
            "paused. Its channels keep theirs: gnsq channel empty.",
            "Delete all messages of CHANNEL.\n\nAlso those in flight and the deferred ones.",
        ),
        destroys=True,
    ),
    _Verb("pause", "paused", (f"Stop TOPIC.\n\n{_PAUSED_TOPIC}", "Stop the deliveries of CHANNEL.")),
    _Verb("unpause", "unpaused", ("Let TOPIC go on after a pause.", "Let CHANNEL go on after a pause.")),
)


def _group(name: str) -> click.Group:
    kinds = ("topic",) if name == "topic" else ("topic", "channel")
    hides = ", list and hide" if name == "topic" else " and list"
    text = f"""Create, delete, empty, pause{hides} {name}s.

    The nsqds are those that nsqlookupd names and those of --nsqd, which are asked at their HTTP ports. An nsqd that
    fails is named. To do the rest, repeat the command.
    """
    lines = (
        ["gnsq topic list", "gnsq topic create orders", "gnsq topic delete orders --cluster test --yes"]
        if name == "topic"
        else ["gnsq channel list orders", "gnsq channel pause orders billing", "gnsq channel empty orders billing"]
    )
    group = Group(name, help=text, examples="\n".join(lines))
    for verb in _VERBS:
        group.add_command(_changing_command(verb, kinds))
    for command in (_list_topics, _tombstone) if name == "topic" else (_list_channels,):
        group.add_command(command)
    return group


def _changing_command(verb: _Verb, kinds: tuple[str, ...]) -> click.Command:
    types = {"topic": TOPIC, "channel": CHANNEL}
    parameters: list[click.Parameter] = [click.Argument([kind], type=types[kind]) for kind in kinds]
    names = "orders" if kinds == ("topic",) else "orders billing"
    examples = f"gnsq {kinds[-1]} {verb.name} {names}"
    if verb.destroys:
        parameters.append(click.Option(["--yes"], is_flag=True, help="Do not ask. Needed if stdin is not a terminal."))
        examples += f"\n{examples} --cluster test --yes"

    def run(cluster: Cluster, stop: StopSignals, yes: bool = False, **names: str) -> int:
        """Ask all nsqds, then the user, then do it. Return the exit status."""
        is_sure = yes or not verb.destroys
        if not is_sure and not (sys.stdin is not None and sys.stdin.isatty()):
            raise click.UsageError("this deletes messages: give --yes, or run it on a terminal, where it asks")
        poller = NodePoller(cluster, names["topic"])
        found = before_signal(stop, poller.poll)
        change = _Change(verb, [names[kind] for kind in kinds], poller, found)
        if (absent := change.absent()) is not None:
            for failure in found.failures:
                click.echo(failure, err=True)
            raise click.ClickException(absent)
        if verb.destroys:
            click.echo(change.description(), err=True)
        if not is_sure and not _is_agreed(f"{verb.name.capitalize()} {change.name} with these messages?", stop):
            click.echo(f"not {verb.done}", err=True)
            return 1
        # From here on a first signal waits: each request ends after its timeout, and then it is known what was done.
        change.perform()
        return change.report()

    return Command(
        verb.name, callback=run, params=parameters, help=verb.helps[len(kinds) - 1], examples=examples, says_why=True
    )


def _is_agreed(question: str, stop: StopSignals) -> bool:
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    try:
        return before_signal(stop, _answer).strip().lower() in (b"y", b"yes")
    except click.exceptions.Exit:
        click.echo(err=True)  # the shell begins a line after that
        raise


def _answer() -> bytes:
    wait_read(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), 1024)


class _Change:
    """A change of a topic or channel on all nsqds.

    Args:
        names: Of the topic, and then of the channel, if it is one.

    Attributes:
        name: What is changed, for texts.
    """

    def __init__(self, verb: _Verb, names: Sequence[str], poller: NodePoller, found: Snapshot) -> None:
        topic, *channel = names
        self.name = f"channel {channel[0]} of topic {topic}" if channel else f"topic {topic}"
        self._verb = verb
        self._names = names
        self._poller = poller
        self._found = found
        rows = {row.key: row for each in found.topics for row in (each, *each.channels)}
        self._row = rows.get((topic, channel[0] if channel else ""))
        self._having = sorted(self._row.by_nsqd) if self._row is not None else []
        # Addresses of the nsqds to ask.
        self._targets = self._having
        if verb.name == "create":
            able = rows[topic, ""].by_nsqd if channel and (topic, "") in rows else ()
            reached = [node.address for node in found.reached if not channel or node.address in able]
            self._targets = [address for address in reached if address not in self._having]
        # By address: why it failed; empty if it did not.
        self._results: dict[str, str] = {}
        self._lookupd_results: dict[str, str] = {}

    def absent(self) -> str | None:
        """Return why there is nothing to change, if so."""
        if not self._found.reached:
            return "no nsqd could be reached"
        if self._having or self._targets:
            return None
        where = " that has answered" if self._found.unreached else ""
        if self._verb.name == "create":
            topic = self._names[0]
            return f"no nsqd{where} has a topic {topic}: create it first, with gnsq topic create {topic}"
        if self._verb.name == "delete" and self._names[-1] in self._poller.census.registered(*self._names[:-1]):
            return None
        return f"no nsqd{where} has a {self.name}"

    def description(self) -> str:
        """Say what is there."""
        row = self._row
        if row is None:
            return f"{self.name}: on no nsqd, only registered at nsqlookupd"
        parts = [f"{self.name} on {counted(len(row.by_nsqd), 'nsqd')}: {_numbers(row.counts)}"]
        if self._verb.name == "delete":
            parts += [f"channel {each.channel}: {_numbers(each.counts)}" for each in row.channels]
        return "; ".join(parts)

    def perform(self) -> None:
        """Do it at nsqlookupds, if they have a part in it, and then at nsqds."""
        # Of a deleted topic, consumers must find what is left at an nsqd that does not answer.
        is_deleted_everywhere = self._verb.name == "delete" and not self._found.unreached
        if is_deleted_everywhere or (self._verb.name == "create" and len(self._names) > 1):
            self._lookupd_results = self._at_all((each.address, each) for each in self._poller.census.lookupds)
        self._results = self._at_all((address, self._poller.census.client(address)) for address in self._targets)

    def _at_all(self, clients: Iterable[tuple[str, Any]]) -> dict[str, str]:  # Any: a client of nsqd or nsqlookupd
        """Call the method of the verb at the same time. Return, by address, why it failed; empty if it did not."""
        method = f"{self._verb.name}_{'channel' if len(self._names) > 1 else 'topic'}"
        calls = {
            address: spawn(f"gnsq-change-{address}", self._call, getattr(client, method), on_failure=None)
            for address, client in clients
        }
        gevent.joinall(calls.values(), raise_error=True)
        return {address: calls[address].value for address in sorted(calls)}

    def _call(self, method: Callable[..., object]) -> str:
        try:
            method(*self._names)
        except NSQHttpError as error:
            if self._verb.name == "delete" and error.code.endswith("_NOT_FOUND"):
                return ""  # another one has deleted it
            return printable(error.explanation)
        return ""

    def report(self) -> int:
        """Write to stderr what was done, and what was not. Return the exit status."""
        removed = [address for address, error in self._lookupd_results.items() if not error]
        for what, addresses in (
            (f"{self._verb.done} at", [address for address, error in self._results.items() if not error]),
            ("exists at", self._having if self._verb.name == "create" else []),
            ("removed from nsqlookupd", removed if self._verb.name == "delete" else []),
        ):
            if addresses:
                click.echo(f"{self.name} {what} {', '.join(map(short_address, addresses))}", err=True)
        unreached = {node.address: printable(node.error) for node in self._found.unreached}
        unasked = {address: printable(error) for address, error in self._found.lookupds.items() if error}
        failed = [("nsqd", *each) for each in {**self._results, **unreached}.items()]
        failed += [("nsqlookupd", *each) for each in {**self._lookupd_results, **unasked}.items()]
        status = 0
        for kind, address, error in failed:
            if error:
                text = f"{kind} {short_address(address)}: {error}"
                if address in unasked:
                    text += "; nsqds that only it knows were left out"
                else:
                    text = f"not {self._verb.done} at {text}"
                click.echo(f"Error: {text}", err=True)
                status = 1
        if status:
            click.echo("To do the rest, repeat the command.", err=True)
        return status


def _numbers(counts: Counts) -> str:
    parts = [f"depth {counts['depth']:,}"]
    for key, what in (("in_flight_count", "in flight"), ("deferred_count", "deferred")):
        if counts.get(key):
            parts.append(f"{counts[key]:,} {what}")
    return ", ".join(parts)


# --- tombstones


@click.command("tombstone", cls=Command, examples="gnsq topic tombstone orders 10.0.0.7:4151", says_why=True)
@click.argument("topic", type=TOPIC)
@click.argument("node", metavar="HOST:PORT")
def _tombstone(cluster: Cluster, stop: StopSignals, topic: str, node: str) -> int:
    """Let consumers find TOPIC at one nsqd no more, before it is taken out of service.

    HOST:PORT is its broadcast address and HTTP port. All nsqlookupds hide it there for the time of their
    --tombstone-lifetime; again makes that longer. Then delete the topic at that nsqd, or stop it: consumers that are
    connected stay.
    """
    if not cluster.lookupds:
        raise click.UsageError("nsqlookupd keeps tombstones: give --lookupd HOST:PORT")
    failures: list[str] = []
    having: set[str] = set()
    is_hidden = False
    for lookupd in parse_lookupds(cluster.lookupds, cluster.http):
        try:
            named = before_signal(stop, _nsqds_of, lookupd, topic)
            for exact in [exact for exact, written in named.items() if node.lower() in (exact.lower(), written)]:
                lookupd.tombstone_topic(topic, exact)
                click.echo(f"topic {topic} of {exact} hidden at {short_address(lookupd.address)}", err=True)
                is_hidden = True
            having |= set(named)
        except NSQHttpError as error:
            failures.append(f"nsqlookupd {short_address(lookupd.address)}: {printable(error.explanation)}")
    if not is_hidden:
        others = f"those with it are {', '.join(sorted(having))}" if having else "no nsqd has it"
        failures.append(f"no nsqlookupd knows an nsqd {node} with topic {topic}: {others}")
    for text in failures:
        click.echo(f"Error: {text}", err=True)
    return 1 if failures else 0


def _nsqds_of(lookupd: LookupdClient, topic: str) -> dict[str, str]:
    """Return the nsqds with a topic, hidden or not: as nsqlookupd compares them, and as addresses are written."""
    producers = [each for each in lookupd.nodes()["producers"] if topic in (each.get("topics") or ())]
    pairs = [(each.get("broadcast_address"), each.get("http_port")) for each in producers]
    known = [(host, port) for host, port in pairs if isinstance(host, str) and is_port(port)]
    return {f"{host}:{port}": format_address(host, port).lower() for host, port in known}


# --- lists


@click.command("list", cls=Command, examples="gnsq topic list --lookupd 127.0.0.1:4161")
def _list_topics(cluster: Cluster, stop: StopSignals) -> int:
    """Print the names of all topics, one in each line.

    Also those that only nsqlookupd knows. Numbers: gnsq stats.
    """
    return _list(cluster, stop, None)


@click.command("list", cls=Command, examples="gnsq channel list orders")
@click.argument("topic", type=TOPIC)
def _list_channels(cluster: Cluster, stop: StopSignals, topic: str) -> int:
    """Print the names of TOPIC's channels, one in each line.

    Also those that only nsqlookupd knows. Numbers: gnsq stats TOPIC.
    """
    return _list(cluster, stop, topic)


def _list(cluster: Cluster, stop: StopSignals, topic: str | None) -> int:
    poller = NodePoller(cluster, topic)
    snapshot = before_signal(stop, poller.poll)
    registered = before_signal(stop, poller.census.registered, *([] if topic is None else [topic]))
    rows = snapshot.topics if topic is None else [channel for each in snapshot.topics for channel in each.channels]
    names = sorted({row.channel or row.topic for row in rows}.union(registered))
    for name in names:
        click.echo(name)
    if (status := report(snapshot, None, None)) == 0 and not names:
        if topic is not None and not snapshot.topics:
            raise click.ClickException(f"no nsqd has a topic {topic}; gnsq topic list shows all")
        click.echo("there are no topics" if topic is None else f"topic {topic} has no channels", err=True)
    return status


topic, channel = _group("topic"), _group("channel")
