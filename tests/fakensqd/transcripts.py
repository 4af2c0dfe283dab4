"""Play recorded sessions of real servers against a server, on gevent, many at a time.

What a session is, step by step and token by token, is described in tests/vectors/transcripts/README.md. A session is
played on connections of its own, in a greenlet; what differs is raised as Difference.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import ssl
import string
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
from gevent import socket
from gevent.pool import Pool

from gnsq.errors import NSQSocketError
from gnsq.layers import CompressedTransport, TlsTransport
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.transport import TcpTransport, Transport

Step = dict[str, Any]

FILES = Path(__file__).parent.parent / "vectors" / "transcripts"
HEARTBEAT_FRAME = (0, b"_heartbeat_")
HTTP_HEADERS = ("content-type", "x-nsq-content-type", "allow", "location")
AT_ONCE = 120


class Difference(AssertionError):
    """The server did something else than the recorded one."""


@dataclass(frozen=True)
class Transcript:
    """One file: who speaks, how frames look, and the sessions by id."""

    header: dict[str, Any]
    sessions: dict[str, dict[str, Any]]


def load(name: str) -> Transcript:
    """Read a file of recorded sessions."""
    header, *sessions = map(json.loads, (FILES / f"{name}.jsonl").read_text().splitlines())
    assert header["sessions"] == len(sessions)
    return Transcript(header, {session["id"]: session for session in sessions})


# --- templates --------------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"\{([A-Z]+)((?::\w+)*)\}")
# What each token that is not bound to a value may stand for.
FREE = {
    "VERSION": rb'[^"\s]+',
    "HOST": rb'[^"\s]+',
    "PORT": rb"\d{1,5}",
    "INT": rb"-?\d+",
    "UNIXTIME": rb"\d{9,11}",
    "ADDR": rb'[^"\s]+:\d{1,5}',
    "GO": rb"[^\s()]+",
    "DURATION": rb"[0-9.a-z\xc2\xb5]+",
    "RFC": rb"[0-9T:+Z.-]+",
    "REST": rb".*",
}
NUMBERS = {"{INT}", "{UNIXTIME}", "{PORT}"}

Codec = Callable[[str], bytes]


@dataclass
class Names:
    """What the tokens of one session stand for: its run, message ids, timestamps."""

    run: bytes
    values: dict[str, bytes] = field(default_factory=dict)

    def expand(self, template: str, codec: Codec = bytes.fromhex) -> bytes:
        """Put values in the place of tokens."""
        return b"".join(self._value(*piece, codec) for piece in pieces(template))

    def _value(self, token: str | None, text: str, codec: Codec) -> bytes:
        match token:
            case None:
                return codec(text)
            case "RUN":
                return self.run
            case "REP":
                byte, count = text.split(":")
                return bytes.fromhex(byte) * int(count)
            case _:
                return self.values[f"{token}:{text}"]

    def compare(self, template: str, data: bytes, codec: Codec = bytes.fromhex) -> None:
        """Check data against a template; ids and timestamps seen for the first time are kept."""
        new: dict[str, str] = {}
        pattern = b"".join(self._pattern(*piece, codec, new) for piece in pieces(template))
        found = re.fullmatch(pattern, data, re.DOTALL)
        if found is None:
            raise Difference(f"got {shortened(data)}, wanted {shortened(template)}")
        for name, group in new.items():
            value = found[group]
            if name.startswith("TS"):
                assert abs(int.from_bytes(value, "big") / 1e9 - time.time()) < 600, "timestamp is not now"
            else:
                assert value not in self.values.values(), f"id {value!r} is not a new one"
            self.values[name] = value

    def _pattern(self, token: str | None, text: str, codec: Codec, new: dict[str, str]) -> bytes:
        name = f"{token}:{text}"
        if token in FREE:
            return b"(?:%s)" % FREE[token]
        if token == "REP":
            # Compiling a megabyte of literal takes seconds.
            byte, count = text.split(":")
            return b"(?:%s){%d}" % (re.escape(bytes.fromhex(byte)), int(count))
        if token in ("ID", "TS") and name not in self.values:
            if name in new:
                return b"(?P=%s)" % new[name].encode()
            new[name] = f"{token}_{text}"
            return b"(?P<%s>%s)" % (new[name].encode(), b"[0-9a-f]{16}" if token == "ID" else b".{8}")
        return re.escape(self._value(token, text, codec))


def pieces(template: str) -> Iterator[tuple[str | None, str]]:
    """Cut a template into tokens, with their arguments, and what is between them, with None."""
    end = 0
    for token in TOKEN.finditer(template):
        if token.start() > end:
            yield None, template[end : token.start()]
        yield token[1], token[2].removeprefix(":")
        end = token.end()
    if end < len(template):
        yield None, template[end:]


def shortened(data: object) -> str:
    text = repr(data)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)})"


def compare_json(wanted: Any, got: Any, names: Names) -> None:
    """Check a JSON value, types included; strings may hold tokens."""
    if wanted == "{ANY}":
        return
    if isinstance(wanted, str) and wanted in NUMBERS:
        wanted = got if type(got) is int else wanted
    if type(wanted) is not type(got):
        raise Difference(f"got {shortened(got)}, wanted {shortened(wanted)}")
    if isinstance(wanted, dict):
        keys = [names.expand(key, str.encode).decode() for key in wanted]
        if keys != list(got):
            raise Difference(f"got keys {list(got)}, wanted {keys}")
        for key, value in zip(keys, wanted.values(), strict=True):
            compare_json(value, got[key], names)
    elif isinstance(wanted, list):
        if len(wanted) != len(got):
            raise Difference(f"got {shortened(got)}, wanted {len(wanted)} items")
        for one, other in zip(wanted, got, strict=True):
            compare_json(one, other, names)
    elif isinstance(wanted, str):
        names.compare(wanted, got.encode(), str.encode)
    elif wanted != got:
        raise Difference(f"got {shortened(got)}, wanted {shortened(wanted)}")


def sorted_lists(value: Any) -> Any:
    """Put lists that came out of a Go map into an order."""
    if isinstance(value, dict):
        return {key: sorted_lists(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted(map(sorted_lists, value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


# --- connections ------------------------------------------------------------------------------------------------------


class Ended(Exception):
    """The server has closed the connection."""


class Wire:
    """One connection of a session."""

    def __init__(self, address: tuple[str, int], *, typed: bool) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport: Transport = TcpTransport(self._socket, "player")
        self._typed = typed
        self._buffer = b""

    def upgrade(self, layer: str, level: int) -> None:
        # What came behind the last frame belongs to the new layer; in front of TLS nothing may.
        rest, self._buffer = self._buffer, b""
        if layer == "tls":
            assert not rest, f"in front of TLS: {shortened(rest)}"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            transport = TlsTransport(self._transport, context)
            with gevent.Timeout(10, Difference("no TLS handshake")):
                transport.handshake()
            self._transport = transport
        else:
            codec = {"deflate": lambda: Deflate(level), "snappy": Snappy}[layer]()
            self._transport = CompressedTransport(self._transport, codec, rest)

    def send(self, data: bytes) -> None:
        # The server may have closed; the next step tells.
        with contextlib.suppress(NSQSocketError), gevent.Timeout(30, Difference("cannot send")):
            self._transport.sendall(data)

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def frame(self, within: float) -> tuple[int | None, bytes] | None:
        """Wait for a frame; None if none comes in time.

        Raises:
            Ended: If the connection ends first.
        """
        deadline = time.monotonic() + within
        while (frame := self._cut()) is None:
            data = None
            try:
                with gevent.Timeout(max(deadline - time.monotonic(), 0.001), False):
                    data = self._transport.recv(1 << 20)
            except NSQSocketError:
                data = b""
            if data is None:
                return None
            if not data:
                if self._buffer:
                    raise Difference(f"closed inside of a frame: {shortened(self._buffer)}")
                raise Ended
            self._buffer += data
        return frame

    def _cut(self) -> tuple[int | None, bytes] | None:
        if len(self._buffer) < 4:
            return None
        (size,) = struct.unpack_from(">i", self._buffer)
        if not 0 <= size < 1 << 26:
            raise Difference(f"frame of size {size}")
        if len(self._buffer) < 4 + size:
            return None
        data, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
        return (struct.unpack_from(">i", data)[0], data[4:]) if self._typed else (None, data)


# --- sessions ---------------------------------------------------------------------------------------------------------


class Player:
    """Plays one session."""

    def __init__(self, tcp: tuple[str, int], http_address: tuple[str, int], *, typed: bool) -> None:
        self._tcp = tcp
        self._http = http_address
        self._typed = typed
        self._names = Names("".join(random.choices(string.ascii_lowercase + string.digits, k=8)).encode())
        self._wires: dict[str, Wire] = {}
        self._marks: dict[str, float] = {}

    def play(self, session: dict[str, Any]) -> None:
        """Play all steps.

        Raises:
            Difference: If the server does something else.
        """
        try:
            for number, step in enumerate(session["steps"], 1):
                try:
                    self._step(step)
                except (AssertionError, OSError, ValueError, http.client.HTTPException) as error:
                    raise Difference(f"step {number} ({step['do']}): {type(error).__name__}: {error}") from error
        finally:
            for wire in self._wires.values():
                wire.close()

    def _step(self, step: Step) -> None:
        match step:
            case {"do": "connect", "c": name}:
                self._wires[name] = Wire(self._tcp, typed=self._typed)
            case {"do": "send", "c": name, "hex": template}:
                self._wires[name].send(self._names.expand(template))
            case {"do": "upgrade", "c": name, "to": layer}:
                self._wires[name].upgrade(layer, step.get("level", 6))
            case {"do": "half_close", "c": name}:
                self._wires[name].half_close()
            case {"do": "close", "c": name}:
                self._wires[name].close()
            case {"do": "sleep", "for": seconds}:
                gevent.sleep(seconds)
            case {"do": "mark", "name": name}:
                self._marks[name] = time.monotonic()
            case {"do": "recv", "c": name}:
                self._receive(self._wires[name], step)
            case {"do": "drain", "c": name}:
                self._drain(self._wires[name], step)
            case {"do": "http"}:
                self._request_until_right(step)
            case _:
                raise AssertionError(f"unknown step {step}")

    # --- frames -------------------------------------------------------------------------------------------------------

    def _receive(self, wire: Wire, step: Step) -> None:
        within, heartbeats = step.get("within", 5.0), step.get("heartbeats")
        beats = 0

        def following(seconds: float) -> tuple[int | None, bytes] | None:
            nonlocal beats
            while (frame := wire.frame(seconds)) == HEARTBEAT_FRAME and heartbeats:
                beats += 1
            return frame

        left = list(step["frames"])
        while left:
            try:
                frame = following(within)
            except Ended:
                raise Difference(f"closed; wanted {shortened(left[0])}") from None
            if frame is None:
                raise Difference(f"nothing in {within} s; wanted {shortened(left[0])}")
            self._compare_frame(left, frame, unordered=step.get("unordered", False))
        if step.get("closed"):
            try:
                frame = following(within)
            except Ended:
                pass
            else:
                raise Difference(f"not closed: {shortened(frame)}")
        self._check_time(step)
        if (quiet := step.get("quiet")) and not step.get("closed"):
            try:
                frame = following(quiet)
            except Ended:
                raise Difference("closed, should stay open") from None
            if frame is not None:
                raise Difference(f"not quiet: {shortened(frame)}")
        if heartbeats and not heartbeats["min"] <= beats <= heartbeats["max"]:
            raise Difference(f"{beats} heartbeats, wanted {heartbeats}")

    def _compare_frame(self, left: list[Step], frame: tuple[int | None, bytes], *, unordered: bool) -> None:
        """Compare a frame with the next wanted one, or with any; take it from what is left."""
        for wanted in left if unordered else left[:1]:
            try:
                if wanted.get("type") != frame[0]:
                    raise Difference(f"got {shortened(frame)}, wanted {shortened(wanted)}")
                self._names.compare(wanted["hex"], frame[1])
            except Difference as error:
                difference = error
            else:
                left.remove(wanted)
                return
        raise difference

    def _check_time(self, step: Step) -> None:
        if after := step.get("after"):
            elapsed = time.monotonic() - self._marks[after["mark"]]
            if not after["min"] <= elapsed <= after["max"]:
                raise Difference(f"after {elapsed:.3f} s, wanted {after}")

    def _drain(self, wire: Wire, step: Step) -> None:
        count = 0
        while (frame := wire.frame(step["quiet"])) is not None:
            if frame != HEARTBEAT_FRAME:
                assert frame[0] == 2, f"got {shortened(frame)}, wanted messages"
                count += 1
        if not step["count"]["min"] <= count <= step["count"]["max"]:
            raise Difference(f"{count} messages, wanted {step['count']}")

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _request_until_right(self, step: Step) -> None:
        deadline = time.monotonic() + step.get("retry", 0)
        while True:
            status, headers, body = self._request(step)
            try:
                self._compare_answer(step["answer"], status, headers, body)
            except Difference:
                if time.monotonic() >= deadline:
                    raise
                gevent.sleep(0.05)
            else:
                return

    def _request(self, step: Step) -> tuple[int, dict[str, str | None], bytes]:
        path = self._names.expand(step["path"], str.encode).decode()
        body = self._names.expand(step["body"]) if "body" in step else None
        connection = http.client.HTTPConnection(*self._http)
        connection.sock = socket.create_connection(self._http, timeout=15)
        try:
            # The server may refuse before all of the body was read: there is an answer all the same.
            with contextlib.suppress(ConnectionError):
                connection.request(
                    step["method"],
                    path,
                    iter([body]) if step.get("chunked") else body,
                    step.get("headers") or {},
                    encode_chunked=step.get("chunked", False),
                )
            response = connection.getresponse()
            return response.status, {name: response.getheader(name) for name in HTTP_HEADERS}, response.read()
        finally:
            connection.close()

    def _compare_answer(self, wanted: Step, status: int, headers: dict[str, str | None], body: bytes) -> None:
        if status != wanted["status"]:
            raise Difference(f"status {status} {shortened(body)}, wanted {wanted['status']}")
        for name, value in wanted["headers"].items():
            expanded = value and self._names.expand(value, str.encode).decode()
            if normal(name, headers[name]) != normal(name, expanded):
                raise Difference(f"header {name} is {headers[name]}, wanted {expanded}")
        if "json" in wanted:
            got = json.loads(body)
            compare_json(wanted["json"], sorted_lists(got) if wanted.get("unordered") else got, self._names)
        elif "text" in wanted:
            text = re.sub(b" +", b" ", body) if wanted.get("collapse") else body
            self._names.compare(wanted["text"], text, str.encode)


def normal(name: str, value: str | None) -> object:
    if value is None:
        return None
    return set(re.split("[ ,]+", value)) if name == "allow" else value.lower()


def phase(session: dict[str, Any]) -> int:
    """Say when to play a session: with all others (0), with others that take their time (1), or alone (2)."""
    if session.get("exclusive"):
        return 2
    slow = [step["do"] in ("sleep", "mark", "drain") or "within" in step for step in session["steps"]]
    return int(any(slow) or sum(step.get("quiet", 0.0) for step in session["steps"]) > 1.0)


def play_all(transcript: Transcript, number: int, make_player: Callable[[], Player]) -> dict[str, str]:
    """Play the sessions of one phase, many at a time; give back what was different, by id."""
    differences: dict[str, str] = {}

    def play(session: dict[str, Any]) -> None:
        try:
            make_player().play(session)
        except Difference as error:
            differences[session["id"]] = str(error)

    sessions = [session for session in transcript.sessions.values() if phase(session) == number]
    Pool(1 if number == 2 else AT_ONCE).map(play, sessions)
    return differences
