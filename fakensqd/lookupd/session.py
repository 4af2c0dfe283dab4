"""The connection of one nsqd to nsqlookupd. Takes bytes and times, and returns effects.

Pure: writes into a Registry, and knows no socket and no clock. Source: nsqlookupd lookup_protocol_v1.go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fakensqd.effects import Close, Effect, IoRequest, IoResult, Send
from fakensqd.faults.injector import ConnectionInjector
from fakensqd.faults.interceptor import InterceptedSession
from fakensqd.golang import encoding_json
from fakensqd.input_buffer import SIZE, BodyReader, CommandError, InputBuffer, Read
from fakensqd.lookupd.registry import Peer, Registry
from gnsq.protocol.names import valid_channel_name, valid_topic_name

__all__ = ["MAGIC_V1", "LookupdSession"]

MAGIC_V1 = b"  V1"
_OK = b"OK"
_SPACE = b"\t\n\v\f\r "
_FIELDS = {
    "broadcast_address": encoding_json.STRING,
    "hostname": encoding_json.STRING,
    "tcp_port": encoding_json.INT,
    "http_port": encoding_json.INT,
    "version": encoding_json.STRING,
    "remote_address": encoding_json.STRING,
}

_Handler = Callable[["LookupdSession", list[bytes]], Read[None] | None]


class _FatalError(CommandError):
    """An error after which the connection is closed."""

    @property
    def frame(self) -> bytes:
        """Size and data. There is no frame type: errors look like other responses."""
        return _framed(self.data)


class _InputEnded(Exception):
    """The input ended at a place where nsqlookupd sends no error."""


class LookupdSession:
    """The server's side of one connection.

    Args:
        remote_address: ``host:port``, the id of this nsqd.
        identity: Returns the response to IDENTIFY.
    """

    def __init__(
        self, registry: Registry, *, remote_address: str, identity: Callable[[], Mapping[str, object]]
    ) -> None:
        self._registry = registry
        self._remote_address = remote_address
        self._identity = identity
        self._now = 0.0
        self._peer: Peer | None = None
        self._input = InputBuffer()
        self._closed = False
        self._output: list[bytes] = []
        self._io_request: IoRequest | None = None
        self._intercepted: InterceptedSession | None = None
        self._command_loop = self._execute_commands()

    # --- called by the connection -------------------------------------------------------------------------------------

    def attach(self, injector: ConnectionInjector) -> None:
        """Give the events to an injector, beginning with the next command. Does nothing if there is an injector."""
        self._intercepted = self._intercepted or InterceptedSession(
            injector, self._input, self._output, self._body_reader
        )

    def receive(self, data: bytes, now: float) -> list[Effect]:
        """Take bytes of the nsqd."""
        self._input.decoder.feed(data)
        return self._advance(now)

    def end_of_input(self, now: float) -> list[Effect]:
        """Note that the nsqd sends nothing more."""
        self._input.ended = True
        return self._advance(now)

    def resume(self, result: IoResult, now: float) -> list[Effect]:
        """Continue with the result of the last IoRequest."""
        self._io_request = None
        return self._advance(now, result)

    def tick(self, now: float) -> list[Effect]:
        """Return the effects that a fault has delayed until now."""
        self._now = now
        return [] if self._intercepted is None else self._effects()

    pump = tick  # only responses are sent

    def disconnected(self) -> None:
        """Note that the peer sends no more. Responses that are already queued are still sent."""
        self._closed = True
        if self._peer is not None:
            self._registry.disconnect(self._peer)

    @property
    def due(self) -> float:
        """When to call tick(), seconds; infinity if never."""
        return math.inf if self._intercepted is None else self._intercepted.due

    @property
    def names(self) -> tuple[str, str, str]:
        """The address that nsqd gives to clients (its remote address before IDENTIFY), and no topic and channel."""
        peer = self._peer
        return (self._remote_address if peer is None else f"{peer.broadcast_address}:{peer.tcp_port}", "", "")

    # --- input --------------------------------------------------------------------------------------------------------

    def _advance(self, now: float, result: IoResult = None) -> list[Effect]:
        self._now = now
        if self._closed or self._io_request is not None:
            return self.tick(now)
        try:
            self._io_request = self._command_loop.send(result)
        except StopIteration:
            self.disconnected()
        effects = self._effects()
        if self._io_request is not None:
            effects.append(self._io_request)
        return effects

    def _effects(self) -> list[Effect]:
        if self._intercepted is not None:
            return self._intercepted.take(self._now, flush=True, closed=self._closed)
        effects: list[Effect] = [Send(b"".join(self._output))] if self._output else []
        self._output.clear()
        if self._closed:
            effects.append(Close())
        return effects

    def _execute_commands(self) -> Read[None]:
        try:
            if (yield from self._read(len(MAGIC_V1))) != MAGIC_V1:
                raise _FatalError(b"E_BAD_PROTOCOL")
            while True:
                line = yield from self._read_line()
                if self._intercepted is not None and self._intercepted.is_idle:
                    self._intercepted = None
                words = line.strip(_SPACE).split(b" ")
                handler = self._handler(words[0])
                if self._intercepted is not None:
                    begin, legal = partial(handler, self, words), handler is not _refuse
                    if (yield from self._intercepted.execute(words, begin, self._get_now, legal=legal)):
                        return
                elif (steps := handler(self, words)) is not None:
                    yield from steps
        except _FatalError as error:
            self._output.append(error.frame)
        except _InputEnded:
            pass

    def _get_now(self) -> float:
        return self._now

    def _read_line(self) -> Read[bytes]:
        # Without the decoder's take_line(), which limits the length: nsqlookupd has no limit.
        decoder = self._input.decoder
        while b"\n" not in (data := decoder.peek(decoder.buffered) or b""):
            if self._input.ended:
                raise _InputEnded
            yield None
        return (yield from self._read(data.index(b"\n") + 1))

    def _read(self, count: int) -> Read[bytes]:
        while (data := self._input.decoder.take(count)) is None:
            if self._input.ended:
                raise _InputEnded
            yield None
        return data

    # --- commands -----------------------------------------------------------------------------------------------------

    def _handler(self, name: bytes) -> _Handler:
        if name == b"IDENTIFY" and self._peer is not None:
            return _refuse
        return _HANDLERS.get(name, _refuse)

    def _body_reader(self, words: list[bytes]) -> BodyReader | None:
        return _read_identify if words[0] == b"IDENTIFY" else None

    def _respond(self, data: bytes) -> None:
        self._output.append(_framed(data))

    def _ping(self, words: list[bytes]) -> None:
        if self._peer is not None:
            self._peer.last_update = self._now
        self._respond(_OK)

    def _register(self, words: list[bytes]) -> None:
        self._registry.register(*self._names(words))
        self._respond(_OK)

    def _unregister(self, words: list[bytes]) -> None:
        self._registry.unregister(*self._names(words))
        self._respond(_OK)

    def _names(self, words: list[bytes]) -> tuple[Peer, str, str]:
        if self._peer is None:
            raise _FatalError(b"E_INVALID client must IDENTIFY")
        verb, *names = (word.decode("latin-1") for word in words)
        if not names:
            raise _FatalError(f"E_INVALID {verb} insufficient number of params".encode())
        topic, channel = names[0], names[1] if len(names) > 1 else ""
        if not valid_topic_name(topic):
            raise _FatalError(f"E_BAD_TOPIC {verb} topic name '{topic}' is not valid".encode("latin-1"))
        if channel and not valid_channel_name(channel):
            raise _FatalError(f"E_BAD_CHANNEL {verb} channel name '{channel}' is not valid".encode("latin-1"))
        return self._peer, topic, channel

    def _identify(self, words: list[bytes]) -> Read[None]:
        try:
            body = yield from _read_identify(self._input)
        except CommandError as error:
            raise (_FatalError(error.data) if error.data else _InputEnded) from None
        try:
            values: dict[str, Any] = encoding_json.decode(body, _FIELDS)  # Any: decode() has checked each type
        except ValueError:
            raise _FatalError(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not all(values.get(name) for name in ("broadcast_address", "tcp_port", "http_port", "version")):
            raise _FatalError(b"E_BAD_BODY IDENTIFY missing fields")
        self._peer = Peer(
            id=self._remote_address,
            broadcast_address=values["broadcast_address"],
            hostname=values.get("hostname", ""),
            tcp_port=values["tcp_port"],
            http_port=values["http_port"],
            version=values["version"],
            last_update=self._now,
        )
        self._registry.connect(self._peer)
        self._respond(encoding_json.encode(self._identity()))


def _framed(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


def _read_identify(source: InputBuffer) -> Read[bytes]:
    size = yield from source.read_size(b"E_BAD_BODY IDENTIFY failed to read body size")
    if size < 0:
        raise CommandError(b"")  # the real nsqlookupd crashes
    return (yield from source.read(size, b"E_BAD_BODY IDENTIFY failed to read body"))


def _refuse(session: LookupdSession, words: list[bytes]) -> None:
    if words[0] == b"IDENTIFY":
        raise _FatalError(b"E_INVALID cannot IDENTIFY again")
    raise _FatalError(b"E_INVALID invalid command %s" % words[0])


_HANDLERS: dict[bytes, _Handler] = {
    b"PING": LookupdSession._ping,
    b"IDENTIFY": LookupdSession._identify,
    b"REGISTER": LookupdSession._register,
    b"UNREGISTER": LookupdSession._unregister,
}
