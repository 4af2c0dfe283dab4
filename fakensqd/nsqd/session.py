"""One client of nsqd that speaks the V2 protocol. Takes received bytes and the time, and returns effects.

Pure: calls a Broker, and knows no socket and no clock. Source: nsqd protocol_v2.go and client_v2.go.
"""

# The way of a PUB to the subscriber that gets the message:
#
#  1. `Daemon._serve` in daemon/daemon.py accepts the connection of the producer and makes a `Connection` in
#     daemon/connection.py with a `Session`.
#  2. `Connection._read` in daemon/connection.py receives bytes and passes them to `ConnectionSession.receive` in
#     daemon/session.py, the base class of `Session`.
#  3. `ConnectionSession._execute_commands` in daemon/session.py takes a line out of the input, and finds the handler of
#     the command in `_HANDLERS`, by the state of the session.
#  4. `Session._publish` calls `read_publish` in nsqd/commands.py, which checks the topic's name and then reads the body
#     with `InputBuffer.read_body` in input_buffer.py.
#  5. `Session._put` calls `Topic.publish` in nsqd/broker.py, which makes a message with an id of
#     `MessageIdGenerator.next` in message.py. Then `Session._put` appends OK to the output.
#  6. `Channel.put` in nsqd/channel.py queues the message, and wakes a subscriber by `Session.wake`.
#  7. `Connection._write_loop` in daemon/connection.py, in the writer greenlet of the subscriber, calls `Session.pump`.
#  8. `Session._deliver` takes messages from `Channel.deliver` in nsqd/channel.py, and encodes a frame for each message.
#     The channel notes these messages as in flight.
#  9. `ConnectionSession._effects` in daemon/session.py returns the frames as one effect, and `Connection._perform` in
#     daemon/connection.py queues its bytes for the writer greenlet, which sends them.
#
# The states of a client, and the commands that change them:
#
#                  +------+   SUB   +------------+   CLS   +---------+
#     "  V2" ----> | INIT | ------> | SUBSCRIBED | ------> | CLOSING |
#                  +------+         +------------+         +---------+
#
# A table at the end of the module lists the commands that are legal in each state. For any other command, nsqd sends
# E_INVALID and closes the connection. If nsqd requires TLS, only IDENTIFY is legal until TLS is established.

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fakensqd.daemon.session import ConnectionSession, Handler
from fakensqd.effects import Effect, IoResult
from fakensqd.faults.rules import ServerProtocol
from fakensqd.input_buffer import SIZE, BodyReader, CommandError, InputBuffer, Read
from fakensqd.message import Subscriber
from fakensqd.nsqd import commands
from fakensqd.nsqd.broker import Broker, BrokerError, Channel
from fakensqd.nsqd.identify import OK_FRAME, ClientHandshake
from fakensqd.options import NsqdOptions
from gnsq.protocol.commands import MAGIC_V2
from gnsq.protocol.frames import CLOSE_WAIT, ERROR, HEARTBEAT, MESSAGE, MESSAGE_FRAME, RESPONSE, encode_frame

__all__ = ["NSQD", "Session", "State"]

_HEARTBEAT_FRAME = encode_frame(RESPONSE, HEARTBEAT)
# Maximum number of messages that one wake-up delivers; other subscribers then get messages. With a batch
# of this size, the cost per message is low.
_MAX_BATCH = 256
# Bytes of a message frame that its size counts besides the body.
_MESSAGE_OVERHEAD = MESSAGE_FRAME.size - SIZE.size


class State(enum.IntEnum):
    """State of a client. /stats shows these numbers."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


class Session(ConnectionSession, Subscriber):
    """One client of nsqd.

    Args:
        broker: The broker of the nsqd.
        now: Time at which the client connected, in seconds.
        remote_address: ``host:port`` of the client, for statistics.
        on_wake: Called if there may be output for pump(). Returns True if pump() will be called soon.

    Attributes:
        ready_count: The RDY count, as /stats shows it.
        published_by_topic: Number of messages that this client has published to each topic.
        heartbeats: If False, no heartbeats are sent, and a client that sends nothing stays connected.
    """

    magic = MAGIC_V2
    bad_magic = encode_frame(ERROR, b"E_BAD_PROTOCOL")

    def __init__(
        self,
        broker: Broker,
        *,
        now: float = 0.0,
        remote_address: str = "127.0.0.1:0",
        on_wake: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(now)
        self.remote_address = remote_address
        self.connected_ns = broker.wall_ns(now)
        self.state = State.INIT
        self.ready_count = 0
        # The count of the last RDY. ready_count is lower in releases in which each message reduces it.
        self._last_ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.published_by_topic: dict[str, int] = {}
        self.heartbeats = True
        self._broker = broker
        self._options: NsqdOptions = broker.options
        self._on_wake = on_wake
        self._channel: Channel | None = None
        self._heartbeat_due = self._read_due = math.inf
        # Keeps the read deadline while the session waits for an IoResult, since the deadline does not apply meanwhile.
        self._suspended_read_due = math.inf
        # How many bytes of messages wait in the output; 0 with an output_buffer_timeout.
        self._waiting_bytes = 0
        host = remote_address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        self.handshake = ClientHandshake(self._options, host, self)
        self._tls_missing = self._options.tls_policy > 0
        self._handlers = _HANDLERS_BEFORE_TLS if self._tls_missing else _HANDLERS[State.INIT]
        self._auth_required = bool(self._options.auth_http_addresses)
        self._rdy_counts_down = not self._options.since(0, 3, 0)

    # --- called by the connection -------------------------------------------------------------------------------------

    def resume(self, result: IoResult, now: float) -> list[Effect]:
        """Continue the command that waits for this result. The last effect was its request."""
        self._read_due = self._suspended_read_due
        return super().resume(result, now)

    def pump(self, now: float) -> list[Effect]:
        """Deliver messages of the channel, at most as many as RDY and _MAX_BATCH allow, and return the output."""
        self.now = now
        self._deliver()
        return self._effects()

    def tick(self, now: float) -> list[Effect]:
        """Send a heartbeat if its time has come. Close the connection if the client has been silent for too long."""
        self.now = now
        if self.heartbeats and now >= self._read_due:
            # The silence counts as the end of input: an incomplete body gets an error frame, an incomplete line none.
            return self.end_of_input(now)
        if self.heartbeats and now >= self._heartbeat_due:
            self._heartbeat_due = now + self.handshake.delivery_settings.heartbeat_interval
            self._waiting_bytes = 0
            if self._intercepted is None:
                self.respond(_HEARTBEAT_FRAME)
            else:
                self._intercepted.push(_HEARTBEAT_FRAME)
        return self._effects()

    def disconnected(self) -> None:
        """Note that the connection ends, and leave the channel. Earlier output may still be sent."""
        super().disconnected()
        self._heartbeat_due = self._read_due = math.inf
        channel, self._channel = self._channel, None
        if channel is not None:
            self._broker.topics[channel.topic_name].leave_channel(channel, self)

    @property
    def due(self) -> float:
        """Time in seconds at which tick() must be called; infinity: never. Each call of a method may change it."""
        due = min(self._heartbeat_due, self._read_due) if self.heartbeats else math.inf
        return due if self._intercepted is None else min(due, self._intercepted.due)

    # --- called by an InterceptedSession ------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, str, str]:
        """The client id, and the subscribed topic and channel; before SUB, the topic and the channel are empty."""
        channel = self._channel
        return (self.handshake.client_id, *((channel.topic_name, channel.name) if channel is not None else ("", "")))

    def expire_message(self, message_id: bytes) -> None:
        if self._channel is not None:
            self._channel.time_out(message_id)

    def body_reader(self, words: list[bytes]) -> BodyReader | None:
        read = _COMMANDS[words[0]].read
        if read is None or (words[0] == b"MPUB" and self._auth_required and self.handshake.authorization is None):
            return None
        return partial(read, words, self._options)

    # --- called by the channel ----------------------------------------------------------------------------------------

    def wake(self) -> bool:
        return self._on_wake()

    def message_timed_out(self) -> None:
        self.in_flight_count -= 1
        self._on_wake()

    def channel_emptied(self) -> None:
        self.in_flight_count = 0
        self._on_wake()

    def channel_closed(self) -> None:
        self._channel = None
        self.disconnected()
        self._on_wake()

    # --- output -------------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        channel = self._channel
        if channel is None or self._closed:
            return
        capacity = 0 if channel.paused else self._capacity
        if capacity > 0 and channel.depth:
            capacity -= self._send_messages(channel, min(capacity, _MAX_BATCH))
        if capacity > 0:
            # For more, the channel wakes this session again, but first the subscribers that have waited longer.
            channel.add_ready(self)
            buffer = self.handshake.message_buffer
            self._flush |= not buffer or self._waiting_bytes > buffer
        else:
            channel.remove_ready(self)
            self._flush = True
        if self._flush:
            self._waiting_bytes = 0

    @property
    def _capacity(self) -> int:
        """The number of messages that RDY still allows.

        Before nsqd 0.3.0, each message that is sent reduces the RDY count by 1.

        Source: nsqd client_v2.go IsReadyForMessages.
        """
        capacity = self._last_ready_count - self.in_flight_count
        return min(capacity, self.ready_count) if self._rdy_counts_down else capacity

    def _send_messages(self, channel: Channel, limit: int) -> int:
        settings = self.handshake.delivery_settings
        keep = self._is_sampled if settings.sample_rate else None
        messages = channel.deliver(self, limit, self.now, settings.msg_timeout, keep)
        pack = MESSAGE_FRAME.pack
        # One struct for both headers takes half of the time of encode_frame() with encode_message().
        frames = [
            pack(
                len(message.body) + _MESSAGE_OVERHEAD, MESSAGE, message.timestamp, message.attempts & 0xFFFF, message.id
            )
            + message.body
            for message in messages
        ]
        if not settings.output_buffer_timeout:
            self._waiting_bytes += sum(map(len, frames))
        self.in_flight_count += len(frames)
        self.message_count += len(frames)
        if self._rdy_counts_down:
            self.ready_count -= len(frames)
        if self._intercepted is None:
            self.output += frames
        else:
            for message, frame in zip(messages, frames, strict=True):
                self._intercepted.push(frame, message)
        return len(frames)

    def _is_sampled(self) -> bool:
        return random.randrange(100) <= self.handshake.delivery_settings.sample_rate

    # --- input --------------------------------------------------------------------------------------------------------

    def _on_connected(self) -> None:
        self._heartbeat_due = self.now + self.handshake.settings.heartbeat_interval

    def _on_advanced(self) -> None:
        if self._executed and not self._closed:
            # Each complete command sets the read deadline: all bytes of the next command must arrive before that time.
            interval = self.handshake.settings.heartbeat_interval
            self._read_due = self.now + 2 * interval if interval else math.inf
        self._deliver()
        if self._request is not None:
            # While the session waits for an IoResult, the client does not have to send anything.
            self._suspended_read_due, self._read_due = self._read_due, math.inf

    def _refuse(self, words: list[bytes]) -> None:
        if self._tls_missing:
            raise CommandError(b"E_INVALID cannot %s in current state (TLS required)" % words[0])
        if words[0] in _COMMANDS:
            raise CommandError(b"E_INVALID cannot %s in current state" % words[0])
        raise CommandError(b"E_INVALID invalid command %s" % words[0])

    def _set_state(self, state: State) -> None:
        self.state, self._handlers = state, _HANDLERS[state]

    # --- commands: before SUB -----------------------------------------------------------------------------------------

    def _identify(self, words: list[bytes]) -> Read[None]:
        is_first = not self.handshake.identified
        asked = yield from self.handshake.identify(words)
        if is_first:
            interval = self.handshake.settings.heartbeat_interval
            self._heartbeat_due = self.now + interval if interval else math.inf
        yield from self.handshake.negotiate(asked)
        if self._tls_missing and self.handshake.tls is not None:
            self._tls_missing = False
            self._set_state(State.INIT)

    def _subscribe(self, words: list[bytes]) -> Read[None]:
        if not self.handshake.settings.heartbeat_interval:
            raise CommandError(b"E_INVALID cannot SUB with heartbeats disabled")
        topic_name, channel_name = commands.subscription(words)
        if self._auth_required:
            yield from self.handshake.authorize(b"SUB", topic_name, channel_name)
        channel = self._broker.ensure_topic(topic_name).ensure_channel(channel_name, self.now)
        try:
            channel.add(self)
        except BrokerError as error:
            raise CommandError(b"E_SUB_FAILED SUB failed %s" % str(error).encode()) from None
        self._channel = channel
        self._set_state(State.SUBSCRIBED)
        self.respond(OK_FRAME)

    def _authenticate(self, words: list[bytes]) -> Read[None]:
        return self.handshake.authenticate(words)

    # --- commands: publishing -----------------------------------------------------------------------------------------

    def _publish(self, words: list[bytes]) -> Read[None]:
        topic_name, body = yield from commands.read_publish(words, self._options, self.input)
        if self._auth_required:
            yield from self.handshake.authorize(b"PUB", topic_name)
        self._put(topic_name, [body])

    def _defer(self, words: list[bytes]) -> Read[None]:
        topic_name, delay, body = yield from commands.read_defer(words, self._options, self.input)
        if self._auth_required:
            yield from self.handshake.authorize(b"DPUB", topic_name)
        self._put(topic_name, [body], delay)

    def _multipublish(self, words: list[bytes]) -> Read[None]:
        topic_name = commands.topic_name(words)
        if self._auth_required:
            yield from self.handshake.authorize(b"MPUB", topic_name)
        # nsqd makes the topic before it reads the body.
        self._broker.ensure_topic(topic_name)
        bodies = yield from commands.read_multipublish(words, self._options, self.input)
        self._put(topic_name, bodies)

    def _put(self, topic_name: str, bodies: list[bytes], delay: float = 0.0) -> None:
        self._broker.ensure_topic(topic_name).publish(bodies, self.now, delay)
        self.published_by_topic[topic_name] = self.published_by_topic.get(topic_name, 0) + len(bodies)
        self.respond(OK_FRAME)

    # --- commands: consuming ------------------------------------------------------------------------------------------

    def _ready(self, words: list[bytes]) -> None:
        self.ready_count = self._last_ready_count = commands.ready_count(words, self._options.max_rdy_count)

    def _do_nothing(self, words: list[bytes]) -> None:
        """Ignore NOP, and RDY after CLS."""

    def _finish(self, words: list[bytes]) -> None:
        message_ids = [commands.message_id(words)]
        if self._intercepted is None:
            # Finish all messages whose FINs have come together: each then takes 0.2 us, and alone 1.2 us.
            message_ids += commands.take_finishes(self.input)
        failed = self._subscribed.finish_all(self, message_ids)
        finished = len(message_ids) - len(failed)
        self.finish_count += finished
        self.in_flight_count -= finished
        if failed:
            raise CommandError(*(_failed_text(b"FIN", message_id, error) for message_id, error in failed))

    def _requeue(self, words: list[bytes]) -> None:
        message_id = commands.message_id(words, 3)
        delay = commands.requeue_delay(words, self._options.max_req_timeout)
        try:
            self._subscribed.requeue(self, message_id, delay, self.now)
        except BrokerError as error:
            raise CommandError(_failed_text(words[0], words[1], error)) from None
        self.requeue_count += 1
        self.in_flight_count -= 1

    def _touch(self, words: list[bytes]) -> None:
        message_id = commands.message_id(words)
        try:
            self._subscribed.touch(self, message_id, self.handshake.settings.msg_timeout, self.now)
        except BrokerError as error:
            raise CommandError(_failed_text(words[0], words[1], error)) from None

    @property
    def _subscribed(self) -> Channel:
        assert self._channel is not None  # these commands are legal after SUB only
        return self._channel

    def _close(self, words: list[bytes]) -> None:
        self.ready_count = self._last_ready_count = 0
        self._set_state(State.CLOSING)
        self.respond(encode_frame(RESPONSE, CLOSE_WAIT))


def _failed_text(name: bytes, message_id: bytes, error: BrokerError) -> bytes:
    return b"E_%s_FAILED %s %s failed %s" % (name, name, message_id, str(error).encode())


@dataclass(frozen=True, slots=True)
class _Command:
    """One command.

    Attributes:
        handlers: The function that executes the command, by the states in which the command is legal.
        parameters: Names of the first parameters, as in the fields of a fault's Event.
        read: Checks the parameters and reads the body; None if there is no body.
    """

    handlers: dict[State, Handler]
    parameters: tuple[str, ...] = ()
    read: Callable[[list[bytes], NsqdOptions, InputBuffer], Read[object]] | None = None


_INIT, _SUBSCRIBED, _CLOSING = State
_TOPIC, _CHANNEL, _MESSAGE = ("topic",), ("topic", "channel"), ("message_id",)
_COMMANDS: dict[bytes, _Command] = {
    b"IDENTIFY": _Command({_INIT: Session._identify}, read=commands.read_identify),
    b"AUTH": _Command({_INIT: Session._authenticate}, read=commands.read_auth),
    b"SUB": _Command({_INIT: Session._subscribe}, _CHANNEL),
    b"RDY": _Command({_SUBSCRIBED: Session._ready, _CLOSING: Session._do_nothing}),
    b"FIN": _Command({_SUBSCRIBED: Session._finish, _CLOSING: Session._finish}, _MESSAGE),
    b"REQ": _Command({_SUBSCRIBED: Session._requeue, _CLOSING: Session._requeue}, _MESSAGE),
    b"TOUCH": _Command({_SUBSCRIBED: Session._touch, _CLOSING: Session._touch}, _MESSAGE),
    b"CLS": _Command({_SUBSCRIBED: Session._close}),
    b"PUB": _Command(dict.fromkeys(State, Session._publish), _TOPIC, commands.read_publish),
    b"MPUB": _Command(dict.fromkeys(State, Session._multipublish), _TOPIC, commands.read_multipublish),
    b"DPUB": _Command(dict.fromkeys(State, Session._defer), _TOPIC, commands.read_defer),
    b"NOP": _Command(dict.fromkeys(State, Session._do_nothing)),
}
_HANDLERS: dict[State, dict[bytes, Handler]] = {
    state: {name: command.handlers[state] for name, command in _COMMANDS.items() if state in command.handlers}
    for state in State
}
_HANDLERS_BEFORE_TLS: dict[bytes, Handler] = {b"IDENTIFY": Session._identify}

# The events of nsqd that rules can act on.
NSQD = ServerProtocol({name.decode(): command.parameters for name, command in _COMMANDS.items()}, has_frame_types=True)
