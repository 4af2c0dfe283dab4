"""All topics of one nsqd, with their channels and messages, and the time of the next timeout or end of a delay.

Pure: takes ``now`` (seconds of a monotonic clock), calls subscribers and BrokerEvents, and knows no bytes of the wire,
no socket, no clock. A delivery or a FIN costs a few dict operations. The next timeout is known without a look at all
messages. Source: nsqd nsqd.go and topic.go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fakensqd.message import MessageIdGenerator, QueuedMessage, Subscriber
from fakensqd.nsqd.channel import BrokerError, BrokerEvents, Channel, MessageHolder
from fakensqd.options import NsqdOptions

__all__ = ["Broker", "BrokerError", "BrokerEvents", "Channel", "MessageHolder", "QueuedMessage", "Topic"]

# The beginning of 2020, the default of epoch_ns.
_EPOCH_NS = 1_577_836_800 * 10**9


class Broker:
    """All topics of one nsqd.

    Args:
        options: nsqd's flags. Topics, channels and statistics read a few of them.
        events: Functions that the broker calls when something happens; default: it calls none.
        epoch_ns: The wall clock's time at now = 0, in nanoseconds since 1970.

    Attributes:
        due: Time at which to call expire(); infinity if no message has a timeout or delay. FIN does not change due.
    """

    def __init__(
        self, options: NsqdOptions | None = None, events: BrokerEvents | None = None, *, epoch_ns: int = _EPOCH_NS
    ) -> None:
        self.options = options or NsqdOptions()
        self.events = events or BrokerEvents()
        self.topics: dict[str, Topic] = {}
        self.due = math.inf
        self._epoch_ns = epoch_ns

    def wall_ns(self, now: float) -> int:
        """Convert a monotonic time to the wall clock's time, in nanoseconds since 1970."""
        return self._epoch_ns + int(now * 1e9)

    def ensure_topic(self, name: str) -> Topic:
        """Return the topic with this name. Make the topic if it does not exist."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(self, name)
            self.events.on_register(name, None)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels and messages, and close the connections of its subscribers.

        Raises:
            KeyError: If there is no topic of that name.
        """
        topic = self.topics.pop(name)
        self.events.on_unregister(name, None)
        for channel in topic.channels.values():
            self.events.on_unregister(name, channel.name)
            channel.close()
        topic.channels.clear()
        topic.empty()

    def reset_after_restart(self, now: float, *, keep_messages: bool) -> Broker:
        """Make the broker that nsqd has after a restart.

        The new broker has no counts, no delays, no messages in flight, and no ephemeral topics and channels.

        Args:
            keep_messages: False: drop all messages.
        """
        broker = Broker(self.options, self.events, epoch_ns=self._epoch_ns)
        for old in self.topics.values():
            if old.ephemeral:
                continue
            topic = broker.ensure_topic(old.name)
            topic.paused = old.paused
            # If the clock has not moved since the last message, a new generator would make the same ids again.
            topic._ids = old._ids
            for channel in old.channels.values():
                if not channel.ephemeral:
                    new = topic.ensure_channel(channel.name, now)
                    new.paused = channel.paused
                    new.restore(channel.stored() if keep_messages else ())
            topic.restore(old.stored() if keep_messages else (), now)
        return broker

    def channels(self) -> Iterator[Channel]:
        """Return all channels of all topics."""
        return (channel for topic in self.topics.values() for channel in topic.channels.values())

    def schedule_expiry(self, when: float) -> None:
        """Note that a message times out, or its delay ends, at this time."""
        if when < self.due:
            self.due = when
            self.events.on_due(when)

    def expire(self, now: float) -> list[QueuedMessage]:
        """Queue messages that have timed out, or whose delay has ended.

        Returns:
            The messages that have timed out.
        """
        self.due = math.inf
        return [message for channel in list(self.channels()) for message in channel.expire(now)]


class Topic(MessageHolder):
    """A topic. Passes each message to every channel; keeps them while paused, not started, or without a channel."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(broker, name)
        self.channels: dict[str, Channel] = {}
        self.message_bytes = 0
        # False while this nsqd asks nsqlookupds for the topic's channels. Messages then wait in the topic.
        self._started = True
        self._broker = broker
        self._ids = MessageIdGenerator(broker.options.node_id)

    def publish(self, bodies: Sequence[bytes], now: float, delay: float = 0.0) -> None:
        """Make messages; pass them to the channels, or keep them. A delay begins when the message is in a channel."""
        timestamp = self._broker.wall_ns(now)
        ids = self._ids.next(len(bodies), timestamp)
        messages = [QueuedMessage(id_, body, timestamp, delay) for id_, body in zip(ids, bodies, strict=True)]
        self.message_count += len(messages)
        self.message_bytes += sum(map(len, bodies))
        self._broker.events.on_publish(self.name, bodies)
        if self._is_holding:
            self._append(messages)
        else:
            self._pass_on(messages, now)

    def ensure_channel(self, name: str, now: float) -> Channel:
        """Return the channel; make it if missing. The first gets the topic's messages, unless the topic keeps them."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(self._broker, self.name, name)
            self._broker.events.on_register(self.name, name)
            self._release(now)
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel, and disconnect its subscribers. An ephemeral topic is deleted with its last channel.

        Raises:
            KeyError: If the topic has no channel of that name.
        """
        channel = self.channels.pop(name)
        self._broker.events.on_unregister(self.name, name)
        channel.close()
        if self.ephemeral and not self.channels:
            self._broker.delete_topic(self.name)

    def leave_channel(self, channel: Channel, subscriber: Subscriber) -> None:
        """Remove a subscriber from a channel. An ephemeral channel is deleted with its last subscriber."""
        channel.remove(subscriber)
        if channel.ephemeral and not channel.subscribers and self.channels.get(channel.name) is channel:
            self.delete_channel(channel.name)

    def set_paused(self, paused: bool, now: float) -> None:
        """Pause or unpause the topic. While it is paused, new messages do not reach the channels."""
        self.paused = paused
        self._release(now)

    def set_started(self, started: bool, now: float) -> None:
        """Note whether the topic's channels are known. While they are unknown, messages do not reach the channels."""
        self._started = started
        self._release(now)

    def empty(self) -> None:
        """Drop the messages that are in no channel yet."""
        self._queue.clear()

    def restore(self, messages: Sequence[QueuedMessage], now: float) -> None:
        """Queue messages of before a restart, or pass them to the channels. The topic's message count omits them."""
        self._append(messages)
        self._release(now)

    @property
    def _is_holding(self) -> bool:
        return self.paused or not self.channels or not self._started

    def _release(self, now: float) -> None:
        if self._queue and not self._is_holding:
            messages = self._take(len(self._queue))
            self._pass_on([message for message in messages if not message.delay], now)
            for message in messages:
                if message.delay:
                    self._pass_on([message], now)

    def _pass_on(self, messages: Sequence[QueuedMessage], now: float) -> None:
        # As in nsqd, the first channel gets the messages themselves, the other channels get copies; this saves a copy.
        originals: Sequence[QueuedMessage] | None = messages
        for channel in self.channels.values():
            own = originals if originals is not None else [message.copy() for message in messages]
            originals = None
            if own and own[0].delay:
                channel.defer(own, own[0].delay, now)
            else:
                channel.put(own)
