"""The connection of one nsqd to nsqlookupd. Takes received bytes and the time, and returns effects.

Pure: writes into a Registry, and knows no socket and no clock. Source: nsqlookupd lookup_protocol_v1.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fakensqd.daemon.session import ConnectionSession, Handler
from fakensqd.faults.rules import ServerProtocol
from fakensqd.golang import encoding_json
from fakensqd.input_buffer import SIZE, BodyReader, CommandError, InputBuffer, Read
from fakensqd.lookupd.registry import Peer, Registry
from gnsq.protocol.commands import CommandDecoder
from gnsq.protocol.names import valid_channel_name, valid_topic_name

__all__ = ["LOOKUPD", "MAGIC_V1", "LookupdSession"]

MAGIC_V1 = b"  V1"
_SPACE = b"\t\n\v\f\r "
_FIELDS = {
    "broadcast_address": encoding_json.STRING,
    "hostname": encoding_json.STRING,
    "tcp_port": encoding_json.INT,
    "http_port": encoding_json.INT,
    "version": encoding_json.STRING,
    "remote_address": encoding_json.STRING,
}


class _FatalError(CommandError):
    """An error after which the connection is closed. If the error has no data, the client gets no response."""

    fatal = True

    @property
    def frames(self) -> list[bytes]:
        """The response: size and data. It has no frame type, so an error looks like any other response."""
        return [_framed(self.data)] if self.data else []


class _Decoder(CommandDecoder):
    """Takes lines of any length, and strips the white space around them."""

    __slots__ = ()

    def take_line(self) -> bytes | None:
        line, newline, _ = (self.peek(self.buffered) or b"").partition(b"\n")
        if not newline:
            return None
        self.take(len(line) + 1)
        return line.strip(_SPACE)


def _framed(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


_OK_FRAME = _framed(b"OK")


class LookupdSession(ConnectionSession):
    """nsqlookupd's side of the connection of one nsqd.

    Args:
        remote_address: ``host:port``, the id of this nsqd.
        identity: Returns the response to IDENTIFY.
    """

    magic = MAGIC_V1
    bad_magic = _framed(b"E_BAD_PROTOCOL")

    def __init__(
        self, registry: Registry, *, remote_address: str, identity: Callable[[], Mapping[str, object]]
    ) -> None:
        super().__init__(decoder=_Decoder())
        self._registry = registry
        self._remote_address = remote_address
        self._identity = identity
        self._peer: Peer | None = None
        self._handlers = _HANDLERS

    def disconnected(self) -> None:
        """Note that the connection ends, and unregister the nsqd. Earlier responses may still be sent."""
        super().disconnected()
        if self._peer is not None:
            self._registry.disconnect(self._peer)

    @property
    def names(self) -> tuple[str, str, str]:
        """nsqd's address for clients (before IDENTIFY, its remote address), an empty topic and an empty channel."""
        peer = self._peer
        return (self._remote_address if peer is None else f"{peer.broadcast_address}:{peer.tcp_port}", "", "")

    def body_reader(self, words: list[bytes]) -> BodyReader | None:
        return _read_identify if words[0] == b"IDENTIFY" else None

    # --- commands -----------------------------------------------------------------------------------------------------

    def _refuse(self, words: list[bytes]) -> None:
        if words[0] == b"IDENTIFY":
            raise _FatalError(b"E_INVALID cannot IDENTIFY again")
        raise _FatalError(b"E_INVALID invalid command %s" % words[0])

    def _ping(self, words: list[bytes]) -> None:
        if self._peer is not None:
            self._peer.last_update = self.now
        self.respond(_OK_FRAME)

    def _register(self, words: list[bytes]) -> None:
        self._registry.register(*self._names(words))
        self.respond(_OK_FRAME)

    def _unregister(self, words: list[bytes]) -> None:
        self._registry.unregister(*self._names(words))
        self.respond(_OK_FRAME)

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
        body = yield from _read_identify(self.input)
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
            last_update=self.now,
        )
        self._registry.connect(self._peer)
        self._handlers = _HANDLERS_IDENTIFIED
        self.respond(_framed(encoding_json.encode(self._identity())))


def _read_identify(source: InputBuffer) -> Read[bytes]:
    try:
        size = yield from source.read_size(b"E_BAD_BODY IDENTIFY failed to read body size")
        if size < 0:
            raise CommandError(b"")  # the real nsqlookupd crashes in this case
        return (yield from source.read(size, b"E_BAD_BODY IDENTIFY failed to read body"))
    except CommandError as error:
        raise _FatalError(error.data) from None


_HANDLERS: dict[bytes, Handler] = {
    b"PING": LookupdSession._ping,
    b"IDENTIFY": LookupdSession._identify,
    b"REGISTER": LookupdSession._register,
    b"UNREGISTER": LookupdSession._unregister,
}
# The events of nsqlookupd that rules can act on.
_NAMES = ("topic", "channel")
LOOKUPD = ServerProtocol({"IDENTIFY": (), "REGISTER": _NAMES, "UNREGISTER": _NAMES, "PING": ()}, has_frame_types=False)
_HANDLERS_IDENTIFIED = {name: handler for name, handler in _HANDLERS.items() if name != b"IDENTIFY"}
