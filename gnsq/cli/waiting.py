"""What a command finds at a topic before it subscribes: messages that wait for the topic's first channel, which it
would get, and messages in other channels, which it would not get. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gnsq.cli.sums import Row, Snapshot
from gnsq.protocol.names import is_ephemeral
from gnsq.texts import counted

__all__ = ["Finding", "find"]

# Channels that a text names.
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be said about a topic and a channel.

    Attributes:
        text: A sentence without its full stop; empty if there is nothing to say.
        is_known: True if the answers of the servers suffice to know it.
        loses: True if the channel is ephemeral and would take messages that wait for the first channel, or if that is
            not known: nsqd deletes with the channel what is left in it.
        exists: True if an nsqd has the channel.
        has_no_topic: True if no nsqd has the topic.
    """

    text: str = ""
    is_known: bool = True
    loses: bool = False
    exists: bool = False
    has_no_topic: bool = False


def find(snapshot: Snapshot, topic: str, channel: str, nsqds: Collection[str]) -> Finding:
    """Return what is to be said before a subscription.

    Args:
        nsqds: The nsqds that are subscribed to whether they have the topic or not. The others come from nsqlookupd.
    """
    row = next((row for row in snapshot.topics if row.topic == topic), None)
    # nsqlookupd tells a new topic of another nsqd the channels that stay. So if one nsqd has them, the others do.
    channels = [] if row is None or not snapshot.lookupds else row.channels
    is_known = not snapshot.unreached or not all(is_ephemeral(each.channel) for each in channels)
    is_known = is_known and (bool(snapshot.reached) or _have_all_answered(snapshot))
    if row is not None and (waiting := _without_channel(row)):
        return _first_channel(row, channel, waiting)
    if is_ephemeral(channel) and not is_known:
        why = "; ".join(snapshot.failures)
        return Finding(f"not known whether messages wait for the first channel of topic {topic}: {why}", False, True)
    if row is not None:
        return _one_of_several(row, channel)
    if snapshot.reached or _have_all_answered(snapshot):
        where = " on the nsqds that have answered" if snapshot.unreached else ""
        then = "nsqd creates it" if nsqds else "this waits for an nsqd that has it"
        return Finding(f"topic {topic} does not exist{where}; {then}", has_no_topic=not snapshot.unreached)
    return Finding(f"not known whether topic {topic} exists: {'; '.join(snapshot.failures)}", is_known=False)


def _have_all_answered(snapshot: Snapshot) -> bool:
    return bool(snapshot.lookupds) and not any(snapshot.lookupds.values())


def _without_channel(topic: Row) -> int:
    """Number of messages on the nsqds where the topic has no channel."""
    with_channel = {address for channel in topic.channels for address in channel.by_nsqd}
    waiting = (counts["depth"] for address, counts in topic.by_nsqd.items() if address not in with_channel)
    return sum(max(each, 0) for each in waiting)


def _first_channel(row: Row, channel: str, waiting: int) -> Finding:
    # On the nsqds that have the messages.
    what = f"topic {row.topic} has no channel{' on some nsqds' if row.channels else ''}"
    if is_ephemeral(channel):
        text = f"{counted(waiting, 'message', spec=',')} {'waits' if waiting == 1 else 'wait'} for its first one"
        return Finding(f"{what}, and {text}", loses=True)
    messages = counted(waiting, "waiting message", spec=",")
    exists = any(each.channel == channel for each in row.channels)
    return Finding(f"{what}: {channel} gets {messages}. {_stays(row.topic, channel)}", exists=exists)


def _one_of_several(topic: Row, channel: str) -> Finding:
    if any(row.channel == channel for row in topic.channels):
        return Finding(exists=True)
    if is_ephemeral(channel) or not topic.channels:
        return Finding()
    text = f"channel {channel} of topic {topic.topic} is new: it gets what is published from now on"
    waiting = [row for row in topic.channels if row.counts["depth"] > 0]
    if waiting:
        waiting.sort(key=lambda row: -row.counts["depth"])
        named = ", ".join(f"{row.channel} {row.counts['depth']:,}" for row in waiting[:MAX_NAMED])
        more = f", and {len(waiting) - MAX_NAMED} more" if len(waiting) > MAX_NAMED else ""
        text += f", not what waits in other channels ({named}{more}): --channel NAME takes that"
    return Finding(f"{text}. {_stays(topic.topic, channel)}")


def _stays(topic: str, channel: str) -> str:
    return f"It stays and collects messages, until gnsq channel delete {topic} {channel}"
