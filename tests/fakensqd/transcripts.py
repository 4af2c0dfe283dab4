"""Play recorded sessions of real servers against a server, on gevent, many at a time.

tests/vectors/transcripts/README.md describes the steps and tokens of a session. A greenlet plays each session, on its
own connections. A response that differs raises Difference.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
from gevent import socket
from gevent.pool import Pool

from fakensqd.clock import Clock, RealClock
from gnsq.errors import NSQProtocolError, NSQSocketError
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.tls import TlsTransport
from gnsq.transport import CompressedTransport, TcpTransport, Transport
from tests.fakensqd.templates import Difference, Names, compare_json, shortened, sorted_lists
from tests.kit import LIMIT, allow_open_files

Step = dict[str, Any]

FILES = Path(__file__).parent.parent / "vectors" / "transcripts"
HEARTBEAT_FRAME = (0, b"_heartbeat_")
HTTP_HEADERS = ("content-type", "x-nsq-content-type", "allow", "location")
# Of each file. Seven files at once, with both ends of a connection or two, need 14 open files and more for each.
MAX_CONCURRENT_SESSIONS = min(max((allow_open_files(2048) - 200) // 14, 1), 120)


@dataclass(frozen=True)
class Transcript:
    """One file: its header and the sessions by id."""

    header: dict[str, Any]
    sessions: dict[str, dict[str, Any]]


def load(name: str) -> Transcript:
    """Read a file of recorded sessions of this repository."""
    return load_file(FILES / f"{name}.jsonl")


def load_file(path: Path) -> Transcript:
    """Read a file of recorded sessions."""
    header, *sessions = map(json.loads, path.read_text().splitlines())
    assert header["sessions"] == len(sessions)
    return Transcript(header, {session["id"]: session for session in sessions})


# --- connections ------------------------------------------------------------------------------------------------------


class Ended(Exception):
    """The server has closed the connection."""


class Wire:
    """One connection of a session."""

    def __init__(self, address: tuple[str, int], clock: Clock, *, typed: bool) -> None:
        self._clock = clock
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport: Transport = TcpTransport(self._socket, "player")
        self._typed = typed
        self._buffer = b""

    def upgrade(self, transport_name: str, level: int) -> None:
        # Bytes after the last frame belong to the new transport. There must be none before TLS.
        rest, self._buffer = self._buffer, b""
        if transport_name == "tls":
            assert not rest, f"before TLS: {shortened(rest)}"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            transport = TlsTransport(self._transport, context)
            with gevent.Timeout(10, Difference("no TLS handshake")):
                transport.handshake()
            self._transport = transport
        else:
            codec = {"deflate": lambda: Deflate(level), "snappy": Snappy}[transport_name]()
            self._transport = CompressedTransport(self._transport, codec, rest)

    def send(self, data: bytes) -> None:
        # The server may have closed the connection; the next step checks that.
        with contextlib.suppress(NSQSocketError), gevent.Timeout(30, Difference("cannot send")):
            self._transport.sendall(data)

    def half_close(self) -> None:
        with contextlib.suppress(OSError):  # as in send()
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def frame(self, within: float) -> tuple[int | None, bytes] | None:
        """Wait for a frame; return None after the time.

        Raises:
            Ended: If the connection ends first.
        """
        deadline = self._clock.monotonic() + within
        while (frame := self._next_frame()) is None:
            timeout = self._clock.timeout(max(deadline - self._clock.monotonic(), 0.001))
            try:
                with timeout:
                    data = self._transport.recv(1 << 20)
            except gevent.Timeout as error:
                if error is not timeout:
                    raise
                return None
            except NSQSocketError:
                data = b""
            except NSQProtocolError as error:
                raise Difference(str(error)) from error
            if not data:
                if self._buffer:
                    raise Difference(f"closed inside of a frame: {shortened(self._buffer)}")
                raise Ended
            self._buffer += data
        return frame

    def _next_frame(self) -> tuple[int | None, bytes] | None:
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


@dataclass
class Received:
    """Data of one step: frames, number of heartbeats, whether the connection ended, time of the last data."""

    frames: list[tuple[int | None, bytes]] = field(default_factory=list)
    beats: int = 0
    ended: bool = False
    at: float = 0.0


@dataclass(frozen=True)
class Answer:
    """An HTTP response, with the headers that are compared."""

    status: int
    headers: dict[str, str | None]
    body: bytes


class Player:
    """Plays one session.

    Args:
        clock: Measures the times of a session; default: real time.
    """

    def __init__(
        self, tcp: tuple[str, int], http_address: tuple[str, int], *, typed: bool, clock: Clock | None = None
    ) -> None:
        self._tcp = tcp
        self._http = http_address
        self._typed = typed
        self._clock = clock or RealClock()
        self._names = Names("".join(random.choices(string.ascii_lowercase + string.digits, k=8)).encode())
        self._wires: dict[str, Wire] = {}
        self._marks: dict[str, float] = {}

    def play(self, session: dict[str, Any]) -> None:
        """Play all steps.

        Raises:
            Difference: If the server behaves differently.
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
                self._wires[name] = Wire(self._tcp, self._clock, typed=self._typed)
            case {"do": "send", "c": name, "hex": template}:
                self._wires[name].send(self._names.expand(template))
            case {"do": "upgrade", "c": name, "to": transport_name}:
                self._wires[name].upgrade(transport_name, step.get("level", 6))
            case {"do": "half_close", "c": name}:
                self._wires[name].half_close()
            case {"do": "close", "c": name}:
                self._wires[name].close()
            case {"do": "sleep", "for": seconds}:
                self._clock.sleep(seconds)
            case {"do": "mark", "name": name}:
                self._marks[name] = self._clock.monotonic()
            case {"do": "recv", "c": name}:
                self._receive(self._wires[name], step)
            case {"do": "drain", "c": name}:
                self._drain(self._wires[name], step)
            case {"do": "http"}:
                self._request_until_equal(step)
            case _:
                raise AssertionError(f"unknown step {step}")

    # --- frames -------------------------------------------------------------------------------------------------------

    def _receive(self, wire: Wire, step: Step) -> None:
        received = self._collect(wire, step)
        try:
            self._compare_received(step, received)
        except Difference as difference:
            self.differs(step, received, difference)

    def _collect(self, wire: Wire, step: Step) -> Received:
        """Receive as many frames as are expected. If the step is about data after them, wait for that, too."""
        received = Received()
        within, heartbeats = step.get("within", LIMIT), step.get("heartbeats")

        def take(seconds: float) -> bool:
            try:
                while (frame := wire.frame(seconds)) == HEARTBEAT_FRAME and heartbeats:
                    received.beats += 1
            except Ended:
                received.ended = True
                return False
            if frame is not None:
                received.frames.append(frame)
            return frame is not None

        while len(received.frames) < len(step["frames"]) and take(within):
            pass
        received.at = self._clock.monotonic()
        if step.get("closed") and not received.ended:
            take(within)
            received.at = self._clock.monotonic()
        elif step.get("quiet") and not received.ended:
            take(step["quiet"])
        return received

    def _compare_received(self, step: Step, received: Received) -> None:
        left = list(step["frames"])
        for frame in received.frames:
            if not left:
                raise Difference(f"{'not closed' if step.get('closed') else 'not quiet'}: {shortened(frame)}")
            self._compare_frame(left, frame, unordered=step.get("unordered", False))
        if left:
            how = "closed" if received.ended else f"nothing in {step.get('within', LIMIT)} s"
            raise Difference(f"{how}; wanted {shortened(left[0])}")
        if step.get("closed") and not received.ended:
            raise Difference("not closed")
        if step.get("quiet") and not step.get("closed") and received.ended:
            raise Difference("closed, should stay open")
        if after := step.get("after"):
            elapsed = round(received.at - self._marks[after["mark"]], 6)
            if not after["min"] <= elapsed <= after["max"]:
                raise Difference(f"after {elapsed:.3f} s, wanted {after}")
        heartbeats = step.get("heartbeats")
        if heartbeats and not heartbeats["min"] <= received.beats <= heartbeats["max"]:
            raise Difference(f"{received.beats} heartbeats, wanted {heartbeats}")

    def differs(self, step: Step, received: Received | Answer, difference: Difference) -> None:
        """Handle a difference. The session continues if this does not raise."""
        raise difference

    def _compare_frame(self, left: list[Step], frame: tuple[int | None, bytes], *, unordered: bool) -> None:
        """Compare a frame with the next expected one, or with any, and remove that one from the list."""
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

    def _drain(self, wire: Wire, step: Step) -> None:
        count = 0
        while (frame := wire.frame(step["quiet"])) is not None:
            if frame != HEARTBEAT_FRAME:
                assert frame[0] == 2, f"got {shortened(frame)}, wanted messages"
                count += 1
        if not step["count"]["min"] <= count <= step["count"]["max"]:
            raise Difference(f"{count} messages, wanted {step['count']}")

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _request_until_equal(self, step: Step) -> None:
        deadline = self._clock.monotonic() + step.get("retry", 0)
        while True:
            answer = self._request(step)
            try:
                self._compare_answer(step["answer"], answer)
            except Difference as difference:
                if self._clock.monotonic() >= deadline:
                    self.differs(step, answer, difference)
                    return
                self._clock.sleep(0.05)
            else:
                return

    def _request(self, step: Step) -> Answer:
        path = self._names.expand(step["path"], str.encode).decode()
        body = self._names.expand(step["body"]) if "body" in step else None
        connection = http.client.HTTPConnection(*self._http)
        connection.sock = socket.create_connection(self._http, timeout=15)
        try:
            # The server may respond before it has read the whole body.
            with contextlib.suppress(ConnectionError):
                connection.request(
                    step["method"],
                    path,
                    iter([body]) if step.get("chunked") else body,
                    step.get("headers") or {},
                    encode_chunked=step.get("chunked", False),
                )
            response = connection.getresponse()
            headers = {name: response.getheader(name) for name in HTTP_HEADERS}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    def _compare_answer(self, wanted: Step, answer: Answer) -> None:
        if answer.status != wanted["status"]:
            raise Difference(f"status {answer.status} {shortened(answer.body)}, wanted {wanted['status']}")
        for name, value in wanted["headers"].items():
            expanded = value and self._names.expand(value, str.encode).decode()
            if normal(name, answer.headers[name]) != normal(name, expanded):
                raise Difference(f"header {name} is {answer.headers[name]}, wanted {expanded}")
        if "json" in wanted:
            got = json.loads(answer.body)
            compare_json(wanted["json"], sorted_lists(got) if wanted.get("unordered") else got, self._names)
        elif "text" in wanted:
            text = re.sub(b" +", b" ", answer.body) if wanted.get("collapse") else answer.body
            self._names.compare(wanted["text"], text, str.encode)


def normal(name: str, value: str | None) -> object:
    if value is None:
        return None
    return set(re.split("[ ,]+", value)) if name == "allow" else value.lower()


def phase(session: dict[str, Any]) -> int:
    """Return when to play a session: with all others (0), with other slow ones (1), or alone (2)."""
    if session.get("exclusive"):
        return 2
    slow = [step["do"] in ("sleep", "mark", "drain") or "within" in step for step in session["steps"]]
    return int(any(slow) or sum(step.get("quiet", 0.0) for step in session["steps"]) > 1.0)


def play_all(transcript: Transcript, number: int, make_player: Callable[[], Player]) -> dict[str, str]:
    """Play the sessions of one phase, many at a time; return the differences by session id."""
    differences: dict[str, str] = {}

    def play(session: dict[str, Any]) -> None:
        try:
            make_player().play(session)
        except Difference as error:
            differences[session["id"]] = str(error)

    sessions = [session for session in transcript.sessions.values() if phase(session) == number]
    Pool(1 if number == 2 else MAX_CONCURRENT_SESSIONS).map(play, sessions)
    return differences
