"""Logs each command and each frame of a connection at DEBUG: topic, channel, message id and size.

No line has a body, a secret or the text of a handshake. If DEBUG is off when a connection is opened, it costs nothing.
"""

from __future__ import annotations

import logging

from gnsq.errors import NSQFrameError
from gnsq.logs import ClientLog, LogOwner
from gnsq.protocol.commands import MAGIC_V2, WITH_BODY, CommandDecoder
from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE, FrameDecoder, decode_message
from gnsq.texts import MAX_SHOWN, counted, id_text, printable
from gnsq.transport import Transport

__all__ = ["LoggedTransport", "logged"]

logger = logging.getLogger(__name__)


def logged(transport: Transport, owner: LogOwner, nsqd: str) -> Transport:
    """Return a transport that logs, if DEBUG is on now. Otherwise return the transport itself."""
    return LoggedTransport(transport, owner.log(logger, nsqd=nsqd)) if logger.isEnabledFor(logging.DEBUG) else transport


class LoggedTransport:
    """Logs what passes through the topmost transport of a connection."""

    def __init__(self, transport: Transport, log: ClientLog) -> None:
        self._below = transport
        self._logger = log
        self._commands = CommandDecoder()
        # The line of a command whose body is not complete.
        self._line: bytes | None = None
        self._frames = FrameDecoder()

    def recv(self, size: int) -> bytes:
        """Receive bytes, and log the frames that they complete."""
        data = self._below.recv(size)
        if self._frames.failure is None:
            for frame in self._frames.feed(data):
                text, fields = _described(*frame)
                self._logger.debug("received %s", text, extra=fields)
            if self._frames.failure is not None:  # the client itself closes the connection, and says why
                self._logger.debug("received %s", _not_a_frame(self._frames.pending))
        return data

    def sendall(self, data: bytes) -> None:
        """Log the commands that the bytes complete, and send them."""
        self._commands.feed(data)
        while (text := self._next_command()) is not None:
            self._logger.debug("sent %s", text)
        self._below.sendall(data)

    def shutdown_write(self) -> None:
        """Shut down the sending side."""
        self._below.shutdown_write()

    def close(self) -> None:
        """Close the transport."""
        self._below.close()

    def _next_command(self) -> str | None:
        source = self._commands
        if self._line is None:
            if source.peek(len(MAGIC_V2)) == MAGIC_V2:
                source.take(len(MAGIC_V2))
                return "the protocol's version, V2"
            try:
                self._line = source.take_line()
            except ValueError:  # the user of NsqdTCPClient may send anything
                return f"{counted(len(source.take_remaining()), 'byte')} that are no command"
            if self._line is None:
                return None
        word, text = self._line.partition(b" ")[0], printable(self._line)
        if word in WITH_BODY:
            size = source.peek(4)
            body = None if size is None else source.take(4 + int.from_bytes(size))
            if body is None:
                return None
            count = f", {counted(int.from_bytes(body[4:8]), 'message')}" if word == b"MPUB" else ""
            text += f"{count}, {counted(len(body) - 4, 'byte')}"
        self._line = None
        return text


def _described(kind: int, data: bytes) -> tuple[str, dict[str, object]]:
    """Return the text of a frame, and the fields of its line."""
    if kind == ERROR:
        return f"error {printable(data)}", {}
    if kind == RESPONSE:
        # Responses to IDENTIFY and AUTH are JSON, with what the auth server says about the secret's owner.
        is_word = len(data) < MAX_SHOWN and not data.startswith(b"{")
        return f"response {printable(data)}" if is_word else f"response, {counted(len(data), 'byte')}", {}
    if kind != MESSAGE:
        return _not_a_frame(8 + len(data)), {}
    try:
        _, attempts, message_id, body = decode_message(data)
    except NSQFrameError:
        return _not_a_frame(8 + len(data)), {}
    shown = id_text(message_id)
    text = f"message {shown}, attempt {attempts}, {counted(len(body), 'byte')}"
    return text, {"message_id": shown, "attempt": attempts}


def _not_a_frame(size: int) -> str:
    return f"{counted(size, 'byte')} that are no frame"
