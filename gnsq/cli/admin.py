"""gnsq topic and gnsq channel: create, delete, empty, pause and list topics and channels on all nsqds of a cluster."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click
import gevent
from click.core import ParameterSource
from gevent.socket import wait_read

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import Command, Group, before_signal
from gnsq.cli.nodes import NodePoller, short_address
from gnsq.cli.snapshot import Counts, Row, Snapshot
from gnsq.cli.stats import report
from gnsq.cli.table import failures
from gnsq.cli.topics import CHANNEL, TOPIC
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQHttpError
from gnsq.running import StopSignals
from gnsq.texts import counted, printable, without_secrets

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
    text = f"""Create, delete, empty, pause and list {name}s.

    The nsqds are those that nsqlookupd names and those of --nsqd, which are asked at their HTTP ports. An nsqd that
    fails is named, with the command that repeats it there.
    """
    lines = (
        ["gnsq topic list", "gnsq topic create orders", "gnsq topic delete orders --cluster test --yes"]
        if name == "topic"
        else ["gnsq channel list orders", "gnsq channel pause orders billing", "gnsq channel empty orders billing"]
    )
    group = Group(name, help=text, examples="\n".join(lines))
    for verb in _VERBS:
        group.add_command(_changing_command(verb, kinds))
    group.add_command(_list_topics if name == "topic" else _list_channels)
    return group


def _changing_command(verb: _Verb, kinds: tuple[str, ...]) -> click.Command:
    types = {"topic": TOPIC, "channel": CHANNEL}
    parameters: list[click.Parameter] = [click.Argument([kind], type=types[kind]) for kind in kinds]
    only = "Only this nsqd of those that are found: its HTTP address, as gnsq stats shows it. Repeat for several."
    parameters.append(click.Option(["--only"], metavar="HOST:PORT", multiple=True, help=only))
    if verb.destroys:
        parameters.append(click.Option(["--yes"], is_flag=True, help="Do not ask. Needed if stdin is not a terminal."))

    def run(
        cluster: Cluster,
        stop: StopSignals,
        topic: str,
        only: tuple[str, ...],
        channel: str | None = None,
        yes: bool = False,
    ) -> int:
        return _run(verb, cluster, stop, topic, channel, only, is_sure=yes or not verb.destroys)

    names = "orders" if kinds == ("topic",) else "orders billing"
    examples = f"gnsq {kinds[-1]} {verb.name} {names}"
    if verb.destroys:
        examples += f"\n{examples} --cluster test --yes"
    text = verb.helps[len(kinds) - 1]
    return Command(verb.name, callback=run, params=parameters, help=text, examples=examples, says_why=True)


def _run(
    verb: _Verb,
    cluster: Cluster,
    stop: StopSignals,
    topic: str,
    channel: str | None,
    only: tuple[str, ...],
    *,
    is_sure: bool,
) -> int:
    """Ask all nsqds, then the user, then do it. Return the exit status."""
    if not is_sure and not (sys.stdin is not None and sys.stdin.isatty()):
        raise click.UsageError("this deletes messages: give --yes, or run it on a terminal, where it asks")
    poller = NodePoller(cluster, topic)
    found = before_signal(stop, poller.poll)
    change = _Change(verb, topic, channel, poller, found, only)
    if (absent := change.absent()) is not None:
        for failure in failures(found):
            click.echo(failure, err=True)
        raise click.ClickException(absent)
    if verb.destroys:
        click.echo(change.description(), err=True)
        if not is_sure:
            click.echo(f"{verb.name.capitalize()} {change.name} with these messages? [y/N] ", nl=False, err=True)
            try:
                answer = before_signal(stop, _answer)
            except click.exceptions.Exit:
                click.echo(err=True)  # the shell begins a line after that
                raise
            if answer.strip().lower() not in ("y", "yes"):
                click.echo(f"not {verb.done}", err=True)
                return 1
    # From here on a first signal waits: each request ends after its timeout, and then it is known what was done.
    change.perform()
    return change.report()


def _answer() -> str:
    wait_read(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), 1024).decode(errors="replace")


class _Change:
    """A change of a topic or channel on nsqds.

    Args:
        only: HTTP addresses of the nsqds to change; empty: all.

    Attributes:
        name: What is changed, for texts.
    """

    def __init__(
        self, verb: _Verb, topic: str, channel: str | None, poller: NodePoller, found: Snapshot, only: tuple[str, ...]
    ) -> None:
        self.name = f"topic {topic}" if channel is None else f"channel {channel} of topic {topic}"
        self._verb = verb
        self._names = (topic,) if channel is None else (topic, channel)
        self._poller = poller
        self._found = found
        self._is_limited = bool(only)
        self._chosen = _limited(found, only)
        row = self._row(self._chosen)
        self._having = [] if row is None else sorted(row.by_nsqd)
        # By address: why it failed; empty if it did not.
        self._results: dict[str, str] = {}
        self._lookupd_results: dict[str, str] = {}

    def _row(self, snapshot: Snapshot) -> Row | None:
        rows = {row.key: row for topic in snapshot.topics for row in (topic, *topic.channels)}
        return rows.get((self._names[0], self._names[1] if len(self._names) > 1 else ""))

    def _targets(self) -> list[str]:
        """Addresses of the nsqds to ask."""
        if self._verb.name != "create":
            return self._having
        able = self._chosen.reached
        if len(self._names) > 1:
            able = [node for node in able if node.stats is not None and (self._names[0], "") in node.stats.counts]
        return [node.address for node in able if node.address not in self._having]

    def absent(self) -> str | None:
        """Return why there is nothing to change, if so."""
        if not self._chosen.reached:
            return "no nsqd could be reached"
        if self._having or self._targets():
            return None
        where = " that has answered" if self._found.unreached else ""
        if self._verb.name == "create":
            topic = self._names[0]
            return f"no nsqd{where} has a topic {topic}: create it before, by gnsq topic create {topic}"
        if self._verb.name == "delete" and self._names[-1] in self._poller.registered(*self._names[:-1]):
            return None
        return f"no nsqd{where} has a {self.name}"

    def description(self) -> str:
        """Say what is there."""
        row = self._row(self._chosen)
        if row is None:
            return f"{self.name}: on no nsqd, only registered at nsqlookupd"
        parts = [f"{self.name} on {counted(len(row.by_nsqd), 'nsqd')}: {_numbers(row.counts)}"]
        if self._verb.name == "delete":
            parts += [f"channel {each.channel}: {_numbers(each.counts)}" for each in row.channels]
        return "; ".join(parts)

    def perform(self) -> None:
        """Do it at nsqlookupds, if they have a part in it, and then at nsqds."""
        if self._concerns_lookupds():
            self._lookupd_results = self._at_all((each.address, each) for each in self._poller.lookupds)
        clients = ((address, self._poller.client(address)) for address in self._targets())
        self._results = self._at_all(clients)

    def _concerns_lookupds(self) -> bool:
        if self._verb.name == "create":
            return len(self._names) > 1
        # Consumers must find what is left at other nsqds, or at one that does not answer.
        row = self._row(self._found)
        is_left = bool(self._found.unreached) or (row is not None and len(row.by_nsqd) > len(self._having))
        return self._verb.name == "delete" and not is_left

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
        done = [short_address(address) for address, error in self._results.items() if not error]
        if done:
            click.echo(f"{self.name} {self._verb.done} at {', '.join(done)}", err=True)
        if self._verb.name == "create" and self._having:
            click.echo(f"{self.name} exists at {', '.join(map(short_address, self._having))}", err=True)
        if self._verb.name == "delete" and (at := [each for each, error in self._lookupd_results.items() if not error]):
            click.echo(f"{self.name} removed from nsqlookupd {', '.join(map(short_address, at))}", err=True)
        failed = {address: error for address, error in self._results.items() if error}
        failed |= {node.address: printable(node.error) for node in self._chosen.unreached}
        for address, error in failed.items():
            click.echo(f"Error: not {self._verb.done} at nsqd {short_address(address)}: {error}", err=True)
        if failed:
            click.echo(f"To repeat it there: {_command_line(map(short_address, failed))}", err=True)
        unasked = {} if self._is_limited else {each: error for each, error in self._found.lookupds.items() if error}
        for address, error in unasked.items():
            left_out = "nsqds that only it knows were left out"
            click.echo(f"Error: nsqlookupd {short_address(address)}: {printable(error)}; {left_out}", err=True)
        refused = {each: error for each, error in self._lookupd_results.items() if error and each not in unasked}
        for address, error in refused.items():
            click.echo(f"Error: not {self._verb.done} at nsqlookupd {short_address(address)}: {error}", err=True)
        if unasked or refused:
            click.echo(f"To repeat all: {_command_line()}", err=True)
        return 1 if failed or unasked or refused else 0


def _limited(snapshot: Snapshot, only: tuple[str, ...]) -> Snapshot:
    """Return a snapshot of some of the nsqds.

    Raises:
        click.UsageError: If one of them was not found.
    """
    if not only:
        return snapshot
    nodes = {short_address(node.address): node for node in snapshot.nodes}
    chosen = set()
    for address in map(short_address, only):
        if address not in nodes:
            raise click.UsageError(f"--only {address} is none of the nsqds found: {', '.join(sorted(nodes))}")
        chosen.add(nodes[address].same_as or nodes[address].address)
    return dataclasses.replace(snapshot, nodes=tuple(node for node in snapshot.nodes if node.address in chosen))


def _numbers(counts: Counts) -> str:
    parts = [f"depth {counts['depth']:,}"]
    for key, what in (("in_flight_count", "in flight"), ("deferred_count", "deferred")):
        if counts.get(key):
            parts.append(f"{counts[key]:,} {what}")
    return ", ".join(parts)


def _command_line(only: Iterable[str] = ()) -> str:
    """Write the command line of this command for these nsqds; without --yes, since a topic may be made again."""
    context = click.get_current_context()
    words = [context.command_path]
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not is_given or name in ("yes", "only", "verbose"):
            continue
        value = context.params[name]
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(parameter, click.Option):
                words.append(parameter.opts[0])
            if each is not True:
                words.append(shlex.quote(without_secrets(str(each))))
    return " ".join([*words, *(f"--only {address}" for address in only)])


# --- lists


@click.command("list", cls=Command, examples="gnsq topic list --lookupd 127.0.0.1:4161")
def _list_topics(cluster: Cluster, stop: StopSignals) -> int:
    """Print the names of all topics, one in each line.

    Also those that only nsqlookupd knows. Numbers: gnsq stats --once.
    """
    return _list(cluster, stop, None)


@click.command("list", cls=Command, examples="gnsq channel list orders")
@click.argument("topic", type=TOPIC)
def _list_channels(cluster: Cluster, stop: StopSignals, topic: str) -> int:
    """Print the names of TOPIC's channels, one in each line.

    Also those that only nsqlookupd knows. Numbers: gnsq stats TOPIC --once.
    """
    return _list(cluster, stop, topic)


def _list(cluster: Cluster, stop: StopSignals, topic: str | None) -> int:
    poller = NodePoller(cluster, topic)
    snapshot = before_signal(stop, poller.poll)
    registered = before_signal(stop, poller.registered, *([] if topic is None else [topic]))
    rows = snapshot.topics if topic is None else [channel for each in snapshot.topics for channel in each.channels]
    names = sorted({row.channel or row.topic for row in rows}.union(registered))
    for name in names:
        click.echo(name)
    is_unknown = topic is not None and not names and not snapshot.topics
    return report(snapshot, topic, None) or int(is_unknown)


topic, channel = _group("topic"), _group("channel")
