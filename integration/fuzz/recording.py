"""Play a program with a server, and write down what it responds: a session, as tests/vectors/transcripts has them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import gevent

from gnsq.protocol.frames import MESSAGE
from integration.fuzz.programs import TOKENS, Ask, Program, Send
from tests.fakensqd.templates import Difference, pieces, sorted_lists
from tests.fakensqd.transcripts import HTTP_HEADERS, Answer, Ended, Player, Step

# Seconds in which a server must respond. A recording waits that long only if it expects a response that does not come.
LIMIT = 10.0
MAGIC = {True: b"  V2", False: b"  V1"}
# After SUB, most commands have no response. The error of this one, whose id no program has, comes after all messages
# that were sent before.
FENCE = b"FIN the-fence-has-it\n"
FENCE_ERROR = (1, b"E_FIN_FAILED FIN the-fence-has-it failed ID not in flight")
# Values of JSON that are not the same in each run, with the tokens of recorded sessions.
FREE = {
    "remote_address": "{ADDR}",
    "connect_ts": "{UNIXTIME}",
    "start_time": "{UNIXTIME}",
    "https_port": "{PORT}",
}
STATS = "/stats?format=json&include_mem=false&topic="
Session = dict[str, Any]


class Recording(Player):
    """Plays a program, and records the session. The responses of the server tell what is sent and received next."""

    def record(self, program: Program) -> Session:
        """Play a program, then read all connections to their ends."""
        self._steps: list[Step] = []
        # By a program's name of a connection: that of the session, which is another one after the connection has ended.
        self._open: dict[str, str] = {}
        self._subscribed: set[str] = set()
        session: Session = {"id": "", "title": "", "steps": self._steps}
        try:
            for action in program:
                if isinstance(action, Ask):
                    self._ask(action)
                else:
                    self._send(action)
            if self._typed:
                self._ask(Ask("GET", f"{STATS}{{RUN}}t&include_clients=false"))
            for name in list(self._open):
                # nsqd loses the messages that wait in its output buffer when a connection ends.
                self._fence(name)
                if name in self._open:
                    self._end(name)
        except (Difference, AssertionError, OSError, ValueError) as error:
            session["stopped"] = f"{type(error).__name__}: {error}"
        finally:
            for wire in self._wires.values():
                wire.close()
        return session

    def _do(self, **step: Any) -> None:
        self._steps.append(step)
        self._step(step)

    # --- TCP ----------------------------------------------------------------------------------------------------------

    def _send(self, action: Send) -> None:
        name = action.connection
        if name not in self._open:
            self._open[name] = f"{name}{len(self._wires)}"
            self._do(do="connect", c=self._open[name])
            self._write(name, MAGIC[self._typed])
        self._write(name, action.data)
        if action.ends:
            self._end(name)
        elif name not in self._subscribed:
            reply = b""
            for _ in range(action.replies):
                reply = self._receive_frames(name, is_last=lambda frame: True)
            self._note_state(name, action.data, reply)
        if self._subscribed:
            self._settle()
        self._fence(name)

    def _fence(self, name: str) -> None:
        """Receive all messages that a subscribed connection was sent."""
        if name in self._subscribed:
            self._write(name, FENCE)
            self._receive_frames(name, is_last=lambda frame: frame == FENCE_ERROR)

    def _write(self, name: str, data: bytes) -> None:
        parts = TOKENS.split(data)
        template = "".join(part.decode() if TOKENS.fullmatch(part) else part.hex() for part in parts)
        for token, text in pieces(template):
            if token == "ID" and f"ID:{text}" not in self._names.values:
                template = template.replace(f"{{ID:{text}}}", (b"%016d" % int(text)).hex())
        self._do(do="send", c=self._open[name], hex=template)

    def _note_state(self, name: str, data: bytes, reply: bytes) -> None:
        """Do after IDENTIFY and SUB what the response says."""
        if data.startswith(b"SUB ") and reply == b"OK":
            self._subscribed.add(name)
        if self._typed and data.startswith(b"IDENTIFY") and reply.startswith(b"{"):
            settled = json.loads(reply)
            for layer in ("tls", "snappy", "deflate"):
                if settled.get(layer.replace("tls", "tls_v1")) and name in self._open:
                    self._do(do="upgrade", c=self._open[name], to=layer, level=settled["deflate_level"])
                    self._receive_frames(name, is_last=lambda frame: True)

    def _end(self, name: str) -> None:
        self._do(do="half_close", c=self._open[name])
        self._receive_frames(name, is_last=lambda frame: False)
        self._do(do="close", c=self._open[name]) if name in self._open else None

    def _receive_frames(self, name: str, *, is_last: Callable[[Any], bool]) -> bytes:
        """Record the frames up to the last one, and return its data; b"" if the connection ends before."""
        if name not in self._open:
            return b""
        wire = self._wires[self._open[name]]
        step: Step = {"do": "recv", "c": self._open[name], "frames": []}
        # Messages may come before a response or after it.
        if name in self._subscribed:
            step["unordered"] = True
        self._steps.append(step)
        frame = None
        try:
            while frame is None or not is_last(frame):
                frame = wire.frame(LIMIT)
                if frame is None:
                    raise Difference(f"{self._open[name]}: nothing in {LIMIT} s")
                step["frames"].append(self._written(frame))
        except Ended:
            step["closed"] = True
            del self._open[name]
            self._subscribed.discard(name)
            return b""
        return frame[1]

    def _written(self, frame: tuple[int | None, bytes]) -> Step:
        kind, data = frame
        if kind != MESSAGE:
            text = self._names.template(data)
            for port in (self._tcp[1], self._http[1]):  # in nsqlookupd's response to IDENTIFY
                text = text.replace((b'":%d,' % port).hex(), b'":'.hex() + "{PORT}" + b",".hex())
            return {**({} if kind is None else {"type": kind}), "hex": text}
        values, message_id = self._names.values, data[10:26]
        found = [token for token, value in values.items() if value == message_id]
        number = found[0].removeprefix("ID:") if found else str(1 + len(values) // 2)
        values |= {f"ID:{number}": message_id, f"TS:{number}": data[:8]}
        (attempts,) = struct.unpack(">H", data[8:10])
        text = self._names.template(data[26:])
        return {"type": MESSAGE, "attempts": attempts, "hex": f"{{TS:{number}}}{attempts:04x}{{ID:{number}}}{text}"}

    def _settle(self) -> None:
        """Wait until nsqd has sent all messages that it may send."""
        with gevent.Timeout(LIMIT, Difference("messages wait, and are not sent")):
            while True:
                answer = self._request({"method": "GET", "path": STATS + "{RUN}t"})
                if all(map(_is_settled, json.loads(answer.body)["topics"] or ())):
                    return
                gevent.sleep(0.002)

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _ask(self, action: Ask) -> None:
        step: Step = {"do": "http", "method": action.method, "path": action.path}
        if action.body is not None:
            step |= {"body": action.body.hex()} | ({"chunked": True} if action.chunked else {})
        self._steps.append(step)
        step["answer"] = self._described(self._request(step))
        step |= {"unordered": True} if not self._typed else {}
        if self._subscribed:
            self._settle()

    def _described(self, got: Answer) -> Step:
        answer: Step = {"status": got.status, "headers": {name: got.headers[name] for name in HTTP_HEADERS}}
        answer["headers"] = {
            name: value and value.replace(self._names.run.decode(), "{RUN}")
            for name, value in answer["headers"].items()
        }
        text = got.body.decode(errors="surrogateescape").replace(self._names.run.decode(), "{RUN}")
        if "json" in (got.headers["content-type"] or "") and text:
            found = json.loads(text)
            if self._typed:
                return {**answer, "json": _tokens(found)}
            return {**answer, "unordered": True, "json": _tokens(sorted_lists(found))}
        return {**answer, "text": text}


def _is_settled(topic: Any) -> bool:  # Any: JSON
    if topic["depth"] and topic["channels"] and not topic["paused"]:
        return False
    return not any(
        channel["depth"]
        and not channel["paused"]
        and any(client["in_flight_count"] < client["ready_count"] for client in channel["clients"])
        for channel in topic["channels"]
    )


def _tokens(value: Any) -> Any:
    """Put tokens in place of the values that are not the same in each run."""
    if isinstance(value, dict):
        return {key: FREE[key] if key in FREE else _tokens(each) for key, each in value.items()}
    return [_tokens(each) for each in value] if isinstance(value, list) else value
