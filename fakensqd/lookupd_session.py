"""One nsqd as nsqlookupd sees it: bytes in, effects out.

Pure: takes ``now``, writes into a Registry, knows no socket. Source: nsqlookupd lookup_protocol_v1.go.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from fakensqd import gojson
from fakensqd.effects import Close, Effect, Send
from fakensqd.reader import Reading
from fakensqd.registry import Peer, Registry
from gnsq.protocol.names import valid_channel_name, valid_topic_name

__all__ = ["MAGIC_V1", "LookupdSession"]

MAGIC_V1 = b"  V1"
_SIZE = struct.Struct(">i")
_SPACE = b"\t\n\v\f\r "
_FIELDS = {
    "broadcast_address": gojson.STRING,
    "hostname": gojson.STRING,
    "tcp_port": gojson.INT,
    "http_port": gojson.INT,
    "version": gojson.STRING,
    "remote_address": gojson.STRING,
}


class _Refusal(Exception):
    """An answer after which the connection ends."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


class _Ended(Exception):
    """The input ended where nothing is to be said about it."""


class LookupdSession:
    """The server's side of one connection.

    Args:
        remote_address: ``host:port``, the id of this nsqd.
        identity: Gives what IDENTIFY answers.
    """

    due = math.inf

    def __init__(
        self, registry: Registry, *, remote_address: str, identity: Callable[[], Mapping[str, object]]
    ) -> None:
        self._registry = registry
        self._remote_address = remote_address
        self._identity = identity
        self._now = 0.0
        self._peer: Peer | None = None
        self._buffer = bytearray()
        self._ended = False
        self._closed = False
        self._answers: list[bytes] = []
        self._program = self._run()

    # --- what the shell calls -----------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Effect]:
        """Take what the nsqd has sent."""
        self._buffer += data
        return self._advance(now)

    def end_of_input(self, now: float) -> list[Effect]:
        """Take note that nothing more will come."""
        self._ended = True
        return self._advance(now)

    def pump(self, now: float) -> list[Effect]:
        """Nothing is ever sent but answers."""
        return []

    def tick(self, now: float) -> list[Effect]:
        """Nothing is ever due."""
        return []

    def disconnected(self) -> None:
        """The connection is gone, and the nsqd with it."""
        self._closed = True
        if self._peer is not None:
            self._registry.disconnect(self._peer)

    # --- input --------------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        self._now = now
        if self._closed:
            return []
        try:
            next(self._program)
        except StopIteration:
            self._closed = True
        effects: list[Effect] = []
        if self._answers:
            # Size and data: there is no frame type, errors look like answers.
            effects.append(Send(b"".join(_SIZE.pack(len(data)) + data for data in self._answers)))
            self._answers.clear()
        if self._closed:
            effects.append(Close())
        return effects

    def _run(self) -> Reading[None]:
        try:
            if (yield from self._read(len(MAGIC_V1))) != MAGIC_V1:
                raise _Refusal(b"E_BAD_PROTOCOL")
            while True:
                line = yield from self._read_line()
                words = [word.decode("latin-1") for word in line.strip(_SPACE).split(b" ")]
                if words[0] == "IDENTIFY":
                    answer = yield from self._identify()
                else:
                    answer = self._execute(words)
                self._answers.append(answer)
        except _Refusal as refusal:
            self._answers.append(refusal.data)
        except _Ended:
            pass

    def _read_line(self) -> Reading[bytes]:
        while (end := self._buffer.find(b"\n")) < 0:
            if self._ended:
                raise _Ended
            yield None
        return (yield from self._read(end + 1))

    def _read(self, count: int) -> Reading[bytes]:
        while len(self._buffer) < count:
            if self._ended:
                raise _Ended
            yield None
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    # --- commands -----------------------------------------------------------------------------------------------------

    def _execute(self, words: list[str]) -> bytes:
        match words[0]:
            case "PING":
                if self._peer is not None:
                    self._peer.last_update = self._now
            case "REGISTER":
                self._registry.register(*self._names(words))
            case "UNREGISTER":
                self._registry.unregister(*self._names(words))
            case name:
                raise _Refusal(b"E_INVALID invalid command %s" % name.encode("latin-1"))
        return b"OK"

    def _names(self, words: list[str]) -> tuple[Peer, str, str]:
        if self._peer is None:
            raise _Refusal(b"E_INVALID client must IDENTIFY")
        verb, *names = words
        if not names:
            raise _Refusal(f"E_INVALID {verb} insufficient number of params".encode())
        topic, channel = names[0], names[1] if len(names) > 1 else ""
        if not valid_topic_name(topic):
            raise _Refusal(f"E_BAD_TOPIC {verb} topic name '{topic}' is not valid".encode("latin-1"))
        if channel and not valid_channel_name(channel):
            raise _Refusal(f"E_BAD_CHANNEL {verb} channel name '{channel}' is not valid".encode("latin-1"))
        return self._peer, topic, channel

    def _identify(self) -> Reading[bytes]:
        if self._peer is not None:
            raise _Refusal(b"E_INVALID cannot IDENTIFY again")
        try:
            (size,) = _SIZE.unpack((yield from self._read(_SIZE.size)))
        except _Ended:
            raise _Refusal(b"E_BAD_BODY IDENTIFY failed to read body size") from None
        if size < 0:
            raise _Ended  # the real one crashes
        try:
            body = yield from self._read(size)
        except _Ended:
            raise _Refusal(b"E_BAD_BODY IDENTIFY failed to read body") from None
        try:
            values: dict[str, Any] = gojson.decode(body, _FIELDS)  # Any: decode() has checked each type
        except ValueError:
            raise _Refusal(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not all(values.get(name) for name in ("broadcast_address", "tcp_port", "http_port", "version")):
            raise _Refusal(b"E_BAD_BODY IDENTIFY missing fields")
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
        return gojson.encode(self._identity())
