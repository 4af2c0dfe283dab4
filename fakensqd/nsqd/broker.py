"""Topics and channels: what is queued, in flight, deferred, timed out, paused, and who gets it.

Pure: takes ``now`` (seconds of a monotonic clock), wakes consumers by calling them, knows no bytes of the wire, no
socket and no clock. Per message: delivery and FIN cost a few dict operations, timeouts are found without a search.
Source: nsqd nsqd.go and topic.go.

When nsqd looks for messages whose time has come, and where: at every scan, in some channels of its last listing.

Pure. Seconds; scans and listings are counted from the start. Source: nsqd nsqd.go queueScanLoop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from fakensqd.message import MessageIdGenerator, MessageQueue, QueuedMessage
from fakensqd.nsqd.channel import BrokerError, Channel, Subscriber
from fakensqd.options import NsqdOptions
from gnsq.protocol.names import is_ephemeral

__all__ = [
    "Broker",
    "BrokerError",
    "Channel",
    "Subscriber",
    "QueuedMessage",
    "Topic",
]


_EPOCH_NS = 1_577_836_800 * 10**9


def _nothing(*_: object) -> None:
    """Stand in for a listener that nobody has set."""


class Topic:
    """A topic: hands each message to every channel, and holds messages while there is none or it is paused."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        # A topic that is not started holds its messages: nsqlookupd is being asked for its channels.
        self._started = True
        self._broker = broker
        self._ids = MessageIdGenerator(broker.options.node_id)
        self._backlog = MessageQueue(broker, name, None, broker.options.mem_queue_size, ephemeral=self.ephemeral)

    @property
    def depth(self) -> int:
        """Messages that wait here, in no channel yet."""
        return len(self._backlog)

    @property
    def backend_depth(self) -> int:
        """How many of them are on disk, or would be if there is no data path."""
        return self._backlog.backend_depth

    @property
    def ephemeral(self) -> bool:
        """Whether it goes with its last channel."""
        return is_ephemeral(self.name)

    def publish(self, bodies: Sequence[bytes], now: float, delay: float = 0.0) -> None:
        """Take messages in; a delay begins when they reach a channel."""
        timestamp = self._broker.wall_ns(now)
        ids = self._ids.next(len(bodies), timestamp)
        messages = [QueuedMessage(id_, body, timestamp, delay) for id_, body in zip(ids, bodies, strict=True)]
        self.message_count += len(messages)
        self.message_bytes += sum(map(len, bodies))
        self._broker.on_publish(self.name, bodies)
        if self._holding:
            self._backlog.extend(messages)
        else:
            self._hand_over(messages, now)

    def ensure_channel(self, name: str, now: float) -> Channel:
        """Give back a channel, made if there is none of that name; the first one gets what the topic holds."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(self._broker, self.name, name, now)
            self._broker.on_register(self.name, name)
            self._release(now)
        return channel

    def delete_channel(self, name: str) -> None:
        """Forget a channel with its messages and hang up on its consumers.

        Raises:
            KeyError: If there is none of that name.
        """
        channel = self.channels.pop(name)
        self._broker.on_unregister(self.name, name)
        channel.close()
        if self.ephemeral and not self.channels:
            self._broker.delete_topic(self.name)

    def leave_channel(self, channel: Channel, subscriber: Subscriber) -> None:
        """Take a consumer off a channel; an ephemeral channel goes with its last one."""
        channel.remove(subscriber)
        if channel.ephemeral and not channel.subscribers and self.channels.get(channel.name) is channel:
            self.delete_channel(channel.name)

    def set_paused(self, paused: bool, now: float) -> None:
        """Stop, or let on again, what goes from here to the channels."""
        self.paused = paused
        self._release(now)
        self._broker.on_pause()

    def set_started(self, started: bool, now: float) -> None:
        """Hold messages back, or let them on, while its channels are being learnt."""
        self._started = started
        self._release(now)

    def empty(self) -> None:
        """Drop what waits here; channels keep theirs."""
        self._backlog.clear()

    def stored(self) -> list[QueuedMessage]:
        """List what nsqd would write to disk when it stops; channels have their own."""
        return list(self._backlog)

    def on_disk(self) -> list[QueuedMessage]:
        """List what of it is on disk already."""
        return self._backlog.on_disk()

    def restore(self, messages: Sequence[QueuedMessage], now: float) -> None:
        """Take in what was stored, and is on disk; it counts as depth, not as messages that came in."""
        self._backlog.restore(messages)
        self._release(now)

    @property
    def _holding(self) -> bool:
        return self.paused or not self.channels or not self._started

    def _release(self, now: float) -> None:
        if self._backlog and not self._holding:
            messages = self._backlog.take(len(self._backlog))
            self._hand_over([message for message in messages if not message.delay], now)
            for message in messages:
                if message.delay:
                    self._hand_over([message], now)

    def _hand_over(self, messages: Sequence[QueuedMessage], now: float) -> None:
        # The first channel gets the messages themselves, the others copies; as nsqd does, and it saves one each.
        copies: Sequence[QueuedMessage] | None = messages
        for channel in self.channels.values():
            own = copies if copies is not None else [message.copy() for message in messages]
            copies = None
            if own and own[0].delay:
                channel.defer(own, own[0].delay, now)
            else:
                channel.put(own)


class Broker:
    """All topics of one nsqd.

    Args:
        options: nsqd's flags; the sizes and times of queues and messages are used here.
        epoch_ns: The wall clock, in nanoseconds since 1970, at now = 0; default: the beginning of 2020.

    Attributes:
        on_register, on_unregister: Called with topic and channel (None for the topic itself) on each change.
        on_stored, on_removed: Called with topic, channel (None for the topic itself) and messages for which there is no
            room in memory; and with the ids of those that leave.
        on_publish: Called with topic and bodies that it has taken.
        on_pause: Called when a topic or channel has been paused, or let on.
        on_due: Called with a time when something falls due earlier than ``due`` said so far.
        due: When expire() is worth calling next; infinity if never. It may turn out that nothing is left then.
    """

    def __init__(self, options: NsqdOptions | None = None, *, epoch_ns: int = _EPOCH_NS) -> None:
        self.options = options or NsqdOptions()
        self.topics: dict[str, Topic] = {}
        self.on_register: Callable[[str, str | None], None] = _nothing
        self.on_unregister: Callable[[str, str | None], None] = _nothing
        self.on_stored: Callable[[str, str | None, Sequence[QueuedMessage]], None] = _nothing
        self.on_removed: Callable[[str, str | None, Sequence[bytes]], None] = _nothing
        self.on_publish: Callable[[str, Sequence[bytes]], None] = _nothing
        self.on_pause: Callable[[], None] = _nothing
        self.on_due: Callable[[float], None] = _nothing
        self.due = math.inf
        self._epoch_ns = epoch_ns

    def wall_ns(self, now: float) -> int:
        """The wall clock, in nanoseconds since 1970."""
        return self._epoch_ns + int(now * 1e9)

    def ensure_topic(self, name: str) -> Topic:
        """Give back a topic, made if there is none of that name."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(self, name)
            self.on_register(name, None)
        return topic

    def delete_topic(self, name: str) -> None:
        """Forget a topic with its channels and messages, and hang up on its consumers.

        Raises:
            KeyError: If there is none of that name.
        """
        topic = self.topics.pop(name)
        self.on_unregister(name, None)
        for channel in topic.channels.values():
            self.on_unregister(name, channel.name)
            channel.close()
        topic.channels.clear()
        topic.empty()

    def reset_after_restart(self, now: float, *, keep_messages: bool) -> Broker:
        """Make the broker that nsqd has after a restart: no counts, no delays, nothing in flight, nothing ephemeral."""
        broker = Broker(self.options, epoch_ns=self._epoch_ns)
        for old in self.topics.values():
            if old.ephemeral:
                continue
            topic = broker.ensure_topic(old.name)
            topic.paused = old.paused
            # A clock that stands still would give ids out twice.
            topic._ids = old._ids
            for channel in old.channels.values():
                if not channel.ephemeral:
                    new = topic.ensure_channel(channel.name, now)
                    new.paused = channel.paused
                    new.restore(_undelayed(channel.stored() if keep_messages else channel.on_disk()))
            topic.restore(_undelayed(old.stored() if keep_messages else old.on_disk()), now)
        return broker

    def channels(self) -> Iterator[Channel]:
        """All channels of all topics."""
        return (channel for topic in self.topics.values() for channel in topic.channels.values())

    def schedule_expiry(self, when: float) -> None:
        """Note that something is to be expired at that time."""
        if when < self.due:
            self.due = when
            self.on_due(when)

    def expire(self, now: float) -> list[QueuedMessage]:
        """Queue again what has timed out and what was deferred until now; give back what has timed out."""
        self.due = math.inf
        return [message for channel in list(self.channels()) for message in channel.expire(now)]


def _undelayed(messages: list[QueuedMessage]) -> list[QueuedMessage]:
    for message in messages:
        message.delay = 0.0
    return messages
