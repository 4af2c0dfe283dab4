"""One V2 client as nsqd sees it: bytes in, effects out.

Pure: takes ``now``, asks a Broker, knows no socket and no clock. What a client sends is worked on by a generator that
reads as nsqd's own loop does and pauses where bytes are missing. Source: nsqd protocol_v2.go and client_v2.go.

What is to be sent to one client, and when: nsqd's buffer, and the ticker that empties it.

Pure. Whatever is no message empties it at once, and so does a message that leaves the client ready for no other.
Source: nsqd protocol_v2.go, messagePump; Go's bufio.Writer.

PUB, DPUB and MPUB of one client.

Pure. Each is a generator that reads what it needs, puts messages into topics, and answers through a callable. Source:
nsqd protocol_v2.go PUB, DPUB, MPUB.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Iterable
from functools import partial

from fakensqd.effects import Close, Effect, IoRequest, IoResult, Send
from fakensqd.faults.interceptor import Tap, Tapped
from fakensqd.input_buffer import BodyReader, CommandError, InputBuffer, Read
from fakensqd.nsqd import commands
from fakensqd.nsqd.broker import Broker, BrokerError, Channel
from fakensqd.nsqd.identify import OK_FRAME, ClientHandshake, Settings
from fakensqd.options import NsqdOptions
from gnsq.protocol.commands import MAGIC_V2
from gnsq.protocol.frames import CLOSE_WAIT, ERROR, HEARTBEAT, MESSAGE, RESPONSE, encode_frame, encode_message

__all__ = [
    "Output",
    "Publishing",
    "Session",
    "State",
]


# Size and type of a frame are written apart from what it holds.
_WORD = 4


class Output:
    """The frames of one client that are not sent yet.

    Args:
        now: When the ticker begins, seconds.

    Attributes:
        frames: Those that take() gives; others may be with a tap.
        due: When tick() is worth calling; infinity if never.
    """

    def __init__(self, now: float) -> None:
        self.frames: list[bytes] = []
        self.due = math.inf
        self._flush = False
        self._sizes: list[int] = []
        # Bytes that are in the buffer, and that have run out of it.
        self._buffered = self._leaving = 0
        self._since = now
        self._ticks = 0

    def start(self, now: float) -> None:
        """Let the ticker begin anew."""
        self._since, self._ticks = now, 0

    def respond(self, frame: bytes) -> None:
        """Say something that is no message."""
        self.frames.append(frame)
        self._flush = True

    def add(self, sizes: Iterable[int]) -> None:
        """Take note of the sizes of messages that are to be sent."""
        self._sizes += sizes

    def flush(self) -> None:
        """Keep nothing back."""
        self._flush = True

    def hold(self, now: float, period: float, size: float) -> None:
        """Keep messages back until the buffer is full, or the ticker ticks.

        Args:
            period: Of the ticker, seconds; 0: there is none.
            size: Of the buffer, bytes.
        """
        if not self._sizes and not self._buffered:
            return
        for frame in self._sizes:
            for part in (_WORD, _WORD, frame - 2 * _WORD):
                self._write(part, size)
        self._sizes.clear()
        # A tick that nobody has waited for is kept: the first message after a silence leaves at once.
        self.due = self._since + (self._ticks + 1) * period if period else math.inf
        self.tick(now, period)

    def _write(self, part: int, size: float) -> None:
        if self._buffered and part > size - self._buffered:
            part -= int(size) - self._buffered
            self._leaving += int(size)
            self._buffered = 0
        if part > size:
            # With nothing in front of it, it does not go through the buffer.
            self._leaving += part
        else:
            self._buffered += part

    def tick(self, now: float, period: float) -> None:
        """Empty the buffer if the time has come."""
        if now >= self.due:
            self._ticks = max(self._ticks + 1, int((now - self._since) / period))
            self._flush = True

    def take(self) -> bytes:
        """Give what may leave now."""
        if not (self._flush or self._leaving):
            return b""
        data = b"".join(self.frames)
        self.frames.clear()
        if self._flush:
            self.drain()
            return data
        if rest := data[self._leaving :]:
            self.frames.append(rest)
        data, self._leaving = data[: self._leaving], 0
        return data

    def drain(self) -> bool:
        """Say whether anything may leave now; then all of it is taken to have left."""
        if not (self._flush or self._leaving):
            return False
        self._flush, self._buffered, self._leaving, self.due = False, 0, 0, math.inf
        self._sizes.clear()
        return True


class Publishing:
    """What one client publishes.

    Args:
        source: What it sends.
        handshake: Knows what it may do.
        respond: Sends it a frame.
        now: Gives the time, seconds.

    Attributes:
        count_by_topic: Messages published so far.
    """

    def __init__(
        self,
        broker: Broker,
        source: InputBuffer,
        handshake: ClientHandshake,
        respond: Callable[[bytes], None],
        now: Callable[[], float],
    ) -> None:
        self.count_by_topic: dict[str, int] = {}
        self._broker = broker
        self._options = broker.options
        self._input = source
        self._handshake = handshake
        self._respond = respond
        self._now = now
        self._auth_required = bool(broker.options.auth_http_addresses)

    def body_reader(self, words: list[bytes]) -> BodyReader | None:
        """Give what reads the body of a command; None if it has none, or is refused without."""
        row = commands.NSQD_ROWS[words[0]]
        if row.read is None or (words[0] == b"MPUB" and self._auth_required and self._handshake.authorization is None):
            return None
        return partial(row.read, words, self._options)

    def publish(self, words: list[bytes]) -> Read[None]:
        """Do PUB."""
        topic_name, body = yield from commands.read_publish(words, self._options, self._input)
        if self._auth_required:
            yield from self._handshake.authorize(b"PUB", topic_name)
        self._put(topic_name, [body])

    def defer(self, words: list[bytes]) -> Read[None]:
        """Do DPUB."""
        topic_name, delay, body = yield from commands.read_defer(words, self._options, self._input)
        if self._auth_required:
            yield from self._handshake.authorize(b"DPUB", topic_name)
        self._put(topic_name, [body], delay)

    def multipublish(self, words: list[bytes]) -> Read[None]:
        """Do MPUB."""
        topic_name = commands.publish_topic(words, self._options.emulated)
        if self._auth_required:
            yield from self._handshake.authorize(b"MPUB", topic_name)
        # nsqd makes the topic before it has read anything.
        self._broker.ensure_topic(topic_name)
        bodies = yield from commands.read_multipublish(words, self._options, self._input)
        self._put(topic_name, bodies)

    def _put(self, topic_name: str, bodies: list[bytes], delay: float = 0.0) -> None:
        self._broker.ensure_topic(topic_name).publish(bodies, self._now(), delay)
        self.count_by_topic[topic_name] = self.count_by_topic.get(topic_name, 0) + len(bodies)
        self._respond(OK_FRAME)


_HEARTBEAT_FRAME = encode_frame(RESPONSE, HEARTBEAT)
# Deliveries per wake-up; then others get their turn. A send of so many is large enough to cost little per message.
_BATCH = 256

_Handler = Callable[["Session", list[bytes]], Read[None] | None]


class State(enum.IntEnum):
    """What a client has done so far; the numbers are those of /stats."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


class Session:
    """The server's side of one connection.

    Args:
        broker: Whose topics it uses.
        now: The time of the connection, seconds.
        remote_address: ``host:port``, for statistics.
        on_wake: Called when pump() is worth calling; says whether that will be at once.
        rng: Where sample_rate throws its dice.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        now: float = 0.0,
        remote_address: str = "127.0.0.1:0",
        on_wake: Callable[[], bool] = lambda: True,
        rng: random.Random | None = None,
    ) -> None:
        self.remote_address = remote_address
        self.connected_ns = broker.wall_ns(now)
        self.state = State.INIT
        self.ready_count = 0
        # The RDY that the client sent last; ready_count is less where it is counted down.
        self._last_ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self._broker = broker
        self._options: NsqdOptions = broker.options
        self._release = broker.options.emulated
        self._on_wake = on_wake
        self._rng = rng or random.Random()
        self._now = now
        self._channel: Channel | None = None
        self._heartbeat_due = self._read_due = math.inf
        # Off: no heartbeats, and nobody is hung up on for being silent.
        self.heartbeats = True
        self._input = InputBuffer()
        self._output = Output(now)
        host = remote_address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        self.handshake = ClientHandshake(self._options, host, self._input, self._output.respond, self._time)
        self._publishing = Publishing(broker, self._input, self.handshake, self._output.respond, self._time)
        self.published_by_topic = self._publishing.count_by_topic
        # What is legal now; everything else is _illegal().
        self._tls_missing = self._options.tls_policy > 0
        self._handlers = _TLS_FIRST if self._tls_missing else _HANDLERS[State.INIT]
        self._auth_required = bool(self._options.auth_http_addresses)
        # What the shell is to answer, and the deadline that waits meanwhile.
        self._io_request: IoRequest | None = None
        self._later_read_due = math.inf
        self._executed = False
        self._hung_up = False
        self._closed = False
        self._tap: Tapped | None = None
        self._command_loop = self._run()

    # --- what the shell calls -----------------------------------------------------------------------------------------

    def attach(self, tap: Tap) -> None:
        """Let a tap listen from the next command on, if none does."""
        self._tap = self._tap or Tapped(
            tap, self._input, self._output.frames, self._publishing.body_reader, self.time_out
        )

    def receive(self, data: bytes, now: float) -> list[Effect]:
        """Take what the client has sent."""
        self._input.decoder.feed(data)
        return self._advance(now)

    def end_of_input(self, now: float) -> list[Effect]:
        """Take note that the client will send nothing more."""
        self._input.ended = True
        return self._advance(now)

    def resume(self, answer: IoResult, now: float) -> list[Effect]:
        """Continue with the result of the last IoRequest."""
        self._io_request = None
        self._read_due = self._later_read_due
        return self._advance(now, answer)

    def pump(self, now: float) -> list[Effect]:
        """Deliver what the channel has, as far as RDY goes."""
        self._now = now
        if self._hung_up:
            self._closed = True
            return [Close()]
        self._deliver()
        return self._effects()

    def tick(self, now: float) -> list[Effect]:
        """Send the heartbeat that is due; close if the client has been silent for too long."""
        self._now = now
        self._output.tick(now, self.handshake.delivery_settings.output_buffer_timeout)
        if self.heartbeats and now >= self._read_due:
            # As if nothing more would come: a body that is missing is complained about, a line is not.
            return self.end_of_input(now)
        if self.heartbeats and now >= self._heartbeat_due:
            self._heartbeat_due = now + self.handshake.delivery_settings.heartbeat_interval
            if self._tap is None:
                self._output.respond(_HEARTBEAT_FRAME)
            else:
                self._tap.heartbeat(_HEARTBEAT_FRAME, now)
        return self._effects()

    def disconnected(self) -> None:
        """Leave the channel: the client is gone. What is still to be said may be."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None and not self._hung_up:
            self._broker.topics[channel.topic_name].leave_channel(channel, self)

    @property
    def settings(self) -> Settings:
        """What the last IDENTIFY has settled."""
        return self.handshake.settings

    @property
    def due(self) -> float:
        """When tick() is worth calling, seconds; infinity if never. It may move away, with every command."""
        due = min(self._heartbeat_due, self._read_due) if self.heartbeats else math.inf
        due = min(due, self._output.due)
        return due if self._tap is None else min(due, self._tap.due)

    @property
    def names(self) -> tuple[str, str, str]:
        """Its client id, and the topic and channel that it subscribes to; empty before SUB."""
        channel = self._channel
        return (self.handshake.client_id, *((channel.topic_name, channel.name) if channel is not None else ("", "")))

    # --- what the tap calls -------------------------------------------------------------------------------------------

    def time_out(self, message_id: bytes) -> None:
        """Take a message back, as if its timeout had come; does nothing if none of that id is in flight."""
        if self._channel is not None:
            self._channel.time_out(message_id)

    # --- what the channel calls ---------------------------------------------------------------------------------------

    def wake(self) -> bool:
        """There may be something to deliver."""
        return self._on_wake()

    def message_timed_out(self) -> None:
        """One of the messages in flight here has been taken back."""
        self.in_flight_count -= 1
        self._on_wake()

    def channel_emptied(self) -> None:
        """All messages in flight here have been dropped."""
        self.in_flight_count = 0
        self._on_wake()

    def channel_closed(self) -> None:
        """The channel is gone: close without a word."""
        self._hung_up = True
        self._on_wake()

    # --- output -------------------------------------------------------------------------------------------------------

    def _effects(self) -> list[Effect]:
        effects: list[Effect] = []
        if self._closed:
            self._output.due = math.inf
        if self._tap is not None:
            effects = self._tap.take(self._now, flush=self._output.drain(), closed=self._closed)
            if self._closed:
                # What is still to leave has its own time.
                self._heartbeat_due = self._read_due = math.inf
        else:
            if data := self._output.take():
                effects.append(Send(data))
            if self._closed:
                effects.append(Close())
        return effects

    def _deliver(self) -> None:
        channel = self._channel
        if channel is None or self._closed:
            return
        capacity = 0 if channel.paused else self._capacity
        if capacity > 0 and channel.depth:
            capacity -= self._take(channel, min(capacity, _BATCH))
        if capacity <= 0:
            channel.remove_ready(self)
            self._output.flush()
        else:
            # The rest after this is sent, and after others have had their share.
            channel.add_ready(self)
            # nsqd holds back what is below RDY. Here only for those who want another time than the default, or none:
            # tests want to see the message.
            period = self.handshake.delivery_settings.output_buffer_timeout
            if period == self._options.output_buffer_timeout and period:
                self._output.flush()
            else:
                # Deflate has a buffer of its own, which no message fills that is worth a test.
                size = math.inf if self.handshake.deflate else self.handshake.settings.output_buffer_size
                self._output.hold(self._now, period, size)

    @property
    def _capacity(self) -> int:
        """How many messages RDY allows now. Source: nsqd client_v2.go IsReadyForMessages; 0.2.31's counts down, too."""
        capacity = self._last_ready_count - self.in_flight_count
        return min(capacity, self.ready_count) if self._options.rdy_counts_down else capacity

    def _take(self, channel: Channel, limit: int) -> int:
        settings = self.handshake.delivery_settings
        keep = self._sampled if settings.sample_rate else None
        messages = channel.deliver(self, limit, self._now, settings.msg_timeout, keep)
        frames = [
            encode_frame(MESSAGE, encode_message(message.timestamp, message.attempts, message.id, message.body))
            for message in messages
        ]
        self._output.add(map(len, frames))
        self.in_flight_count += len(frames)
        self.message_count += len(frames)
        if self._options.rdy_counts_down:
            self.ready_count -= len(frames)
        if self._tap is None:
            self._output.frames += frames
        else:
            self._tap.messages(messages, frames, self._now)
        return len(frames)

    def _sampled(self) -> bool:
        return self._rng.randrange(100) <= self.handshake.delivery_settings.sample_rate

    # --- input --------------------------------------------------------------------------------------------------------

    def _advance(self, now: float, answer: IoResult = None) -> list[Effect]:
        if self._hung_up:
            return self.pump(now)
        self._now = now
        if self._closed or self._io_request is not None:
            return [] if self._tap is None else self._effects()
        self._executed = False
        try:
            io_request = self._io_request = self._command_loop.send(answer)
        except StopIteration:
            io_request = None
            self.disconnected()
        if self._executed:
            # The deadline runs from the end of the last whole command and covers all of the next.
            interval = self.handshake.settings.heartbeat_interval
            self._read_due = now + 2 * interval if interval else math.inf
        self._deliver()
        effects = self._effects()
        if io_request is not None:
            # Nobody waits for the client meanwhile.
            self._later_read_due, self._read_due = self._read_due, math.inf
            effects.append(io_request)
        return effects

    def _run(self) -> Read[None]:
        """Work on the client's bytes; paused while they are not enough, over when the connection is."""
        decoder = self._input.decoder
        while (magic := decoder.take(len(MAGIC_V2))) is None:
            if self._input.ended:
                return
            yield None
        if magic != MAGIC_V2:
            self._output.respond(encode_frame(ERROR, b"E_BAD_PROTOCOL"))
            return
        self._heartbeat_due = self._now + self.settings.heartbeat_interval
        self._executed = True
        while True:
            try:
                line = decoder.take_line()
            except ValueError:  # too long: nsqd closes without a word
                return
            if line is None:
                if self._input.ended:
                    return
                yield None
                continue
            if self._tap is not None and self._tap.idle:
                self._tap = None
            try:
                words = line.split(b" ")
                handler = self._handlers.get(words[0], _illegal)
                if self._tap is not None:
                    begin, legal = partial(handler, self, words), handler is not _illegal
                    if (yield from self._tap.execute(words, begin, self._time, legal=legal)):
                        return
                elif (reading := handler(self, words)) is not None:
                    yield from reading
            except CommandError as refusal:
                self._output.respond(refusal.frame)
                if refusal.fatal:
                    return
            self._executed = True

    def _time(self) -> float:
        return self._now

    def _set_state(self, state: State) -> None:
        self.state, self._handlers = state, _HANDLERS[state]

    # --- commands: before SUB -----------------------------------------------------------------------------------------

    def _identify(self, words: list[bytes]) -> Read[None]:
        first = not self.handshake.identified
        asked = yield from self.handshake.identify(words)
        if first:
            interval = self.settings.heartbeat_interval
            self._heartbeat_due = self._now + interval if interval else math.inf
            self._output.start(self._now)
        yield from self.handshake.negotiate(asked)
        if self._tls_missing and self.handshake.tls is not None:
            self._tls_missing = False
            self._set_state(State.INIT)

    def _subscribe(self, words: list[bytes]) -> Read[None]:
        if not self.settings.heartbeat_interval:
            raise CommandError(b"E_INVALID cannot SUB with heartbeats disabled")
        topic_name, channel_name = commands.subscription(words, self._release)
        if self._auth_required:
            yield from self.handshake.authorize(b"SUB", topic_name, channel_name)
        channel = self._broker.ensure_topic(topic_name).ensure_channel(channel_name, self._now)
        try:
            channel.add(self)
        except BrokerError as error:
            raise CommandError(b"E_SUB_FAILED SUB failed %s" % str(error).encode()) from None
        self._channel = channel
        self._set_state(State.SUBSCRIBED)
        self._output.respond(OK_FRAME)

    # --- commands: consuming ------------------------------------------------------------------------------------------

    def _ready(self, words: list[bytes]) -> None:
        self._set_ready_count(commands.ready_count(words, self._options.max_rdy_count))

    def _set_ready_count(self, count: int) -> None:
        self.ready_count = self._last_ready_count = count

    def _ignore(self, words: list[bytes]) -> None:
        """Do nothing: NOP, and RDY once the client is closing."""

    def _finish(self, words: list[bytes]) -> None:
        message_id = commands.message_id(words)
        try:
            self._subscribed.finish(self, message_id, self._now)
        except BrokerError as error:
            raise _failure(words, error) from None
        self.finish_count += 1
        self.in_flight_count -= 1

    def _requeue(self, words: list[bytes]) -> None:
        message_id = commands.message_id(words)
        delay = commands.requeue_delay(words, self._options.max_req_timeout, self._release)
        try:
            self._subscribed.requeue(self, message_id, delay, self._now)
        except BrokerError as error:
            raise _failure(words, error) from None
        self.requeue_count += 1
        self.in_flight_count -= 1

    def _touch(self, words: list[bytes]) -> None:
        message_id = commands.message_id(words)
        try:
            self._subscribed.touch(self, message_id, self.settings.msg_timeout, self._now)
        except BrokerError as error:
            raise _failure(words, error) from None

    @property
    def _subscribed(self) -> Channel:
        assert self._channel is not None  # the table lets these commands through after SUB only
        return self._channel

    def _close(self, words: list[bytes]) -> None:
        self._set_ready_count(0)
        self._set_state(State.CLOSING)
        self._output.respond(encode_frame(RESPONSE, CLOSE_WAIT))


def _illegal(session: Session, words: list[bytes]) -> None:
    if session._tls_missing:
        raise CommandError(b"E_INVALID cannot %s in current state (TLS required)" % words[0])
    if words[0] in _COMMANDS:
        raise CommandError(b"E_INVALID cannot %s in current state" % words[0])
    raise CommandError(b"E_INVALID invalid command %s" % words[0])


def _failure(words: list[bytes], error: BrokerError) -> CommandError:
    name, message_id = words[0], words[1]
    return CommandError(b"E_%s_FAILED %s %s failed %s" % (name, name, message_id, str(error).encode()))


_INIT, _SUBSCRIBED, _CLOSING = State
# Which command is legal in which states; everything else gets "cannot X in current state".
_COMMANDS: dict[bytes, dict[State, _Handler]] = {
    b"IDENTIFY": {_INIT: Session._identify},
    b"AUTH": {_INIT: lambda session, words: session.handshake.authenticate(words)},
    b"SUB": {_INIT: Session._subscribe},
    b"RDY": {_SUBSCRIBED: Session._ready, _CLOSING: Session._ignore},
    b"FIN": {_SUBSCRIBED: Session._finish, _CLOSING: Session._finish},
    b"REQ": {_SUBSCRIBED: Session._requeue, _CLOSING: Session._requeue},
    b"TOUCH": {_SUBSCRIBED: Session._touch, _CLOSING: Session._touch},
    b"CLS": {_SUBSCRIBED: Session._close},
    b"PUB": dict.fromkeys(State, lambda session, words: session._publishing.publish(words)),
    b"MPUB": dict.fromkeys(State, lambda session, words: session._publishing.multipublish(words)),
    b"DPUB": dict.fromkeys(State, lambda session, words: session._publishing.defer(words)),
    b"NOP": dict.fromkeys(State, Session._ignore),
}
# The same, by state first.
_HANDLERS: dict[int, dict[bytes, _Handler]] = {
    state: {name: handlers[state] for name, handlers in _COMMANDS.items() if state in handlers} for state in State
}
_TLS_FIRST: dict[bytes, _Handler] = {b"IDENTIFY": Session._identify}
