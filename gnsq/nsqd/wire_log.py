"""Logs each command and each frame of a connection at DEBUG: topic, channel, message id and size.

No line has a body, a secret or the text of a handshake. If DEBUG is off when a connection is opened, it costs nothing.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

from gnsq.protocol.commands import MAGIC_V2
from gnsq.protocol.frames import ERROR, MESSAGE, MESSAGE_FRAME, RESPONSE
from gnsq.texts import MAX_SHOWN, counted, printable
from gnsq.transport import Transport

__all__ = ["LoggedTransport", "logged"]

logger = logging.getLogger(__name__)

_HEADER = struct.Struct(">ii")
_SIZE = struct.Struct(">i")
_WITH_BODY = {b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"}


def logged(transport: Transport, subject: str) -> Transport:
    """Return a transport that logs, if DEBUG is on now. Otherwise return the transport itself.

    Args:
        subject: Beginning of the lines: the nsqd and the client.
    """
    return LoggedTransport(transport, subject) if logger.isEnabledFor(logging.DEBUG) else transport


class LoggedTransport:
    """Logs what passes through the topmost transport of a connection."""

    def __init__(self, transport: Transport, subject: str) -> None:
        self._below = transport
        self._subject = subject
        self._sent = _Stream(_command)
        self._received = _Stream(_frame)

    def recv(self, size: int) -> bytes:
        """Receive bytes, and log the frames whose beginning they complete."""
        data = self._below.recv(size)
        for text in self._received.feed(data):
            logger.debug("%s: received %s", self._subject, text)
        return data

    def sendall(self, data: bytes) -> None:
        """Log the commands in the bytes, and send them."""
        for text in self._sent.feed(data):
            logger.debug("%s: sent %s", self._subject, text)
        self._below.sendall(data)

    def shutdown_write(self) -> None:
        """Shut down the sending side."""
        self._below.shutdown_write()

    def close(self) -> None:
        """Close the transport."""
        self._below.close()


class _Stream:
    """Describes the units of a stream of bytes. Of each unit only the beginning is kept, not its body.

    Args:
        describe: Function that returns a description of the unit that some bytes begin with, and its size; None if it
            needs more bytes.
    """

    def __init__(self, describe: Callable[[bytes], tuple[str, int] | None]) -> None:
        self._describe = describe
        self._kept = b""
        self._skipped = 0  # bytes of a body that are still to come

    def feed(self, data: bytes) -> list[str]:
        """Return a description of each unit whose beginning is complete now."""
        data = self._kept + data
        texts: list[str] = []
        while True:
            skipped = min(self._skipped, len(data))
            data, self._skipped = data[skipped:], self._skipped - skipped
            found = None if self._skipped else self._describe(data)
            if found is None:
                self._kept = data
                return texts
            text, self._skipped = found
            texts.append(text)


def _command(data: bytes) -> tuple[str, int] | None:
    if data.startswith(MAGIC_V2):
        return "the protocol's version, V2", len(MAGIC_V2)
    line, end, rest = data.partition(b"\n")
    if not end:
        return None
    word = line.partition(b" ")[0]
    text = printable(line)
    if word not in _WITH_BODY:
        return text, len(line) + 1
    if len(rest) < _SIZE.size * (2 if word == b"MPUB" else 1):
        return None
    (size,) = _SIZE.unpack_from(rest)
    if word == b"MPUB":
        text += f", {counted(_SIZE.unpack_from(rest, _SIZE.size)[0], 'message')}"
    return f"{text}, {counted(size, 'byte')}", len(line) + 1 + _SIZE.size + size


def _frame(data: bytes) -> tuple[str, int] | None:
    if len(data) < _HEADER.size:
        return None
    size, kind = _HEADER.unpack_from(data)
    end = _SIZE.size + size
    if kind == MESSAGE and size >= MESSAGE_FRAME.size - _SIZE.size:
        if len(data) < MESSAGE_FRAME.size:
            return None
        _, _, _, attempts, message_id = MESSAGE_FRAME.unpack_from(data)
        text = f"message {printable(message_id)}, attempt {attempts}, {counted(end - MESSAGE_FRAME.size, 'byte')}"
        return text, end
    if kind not in (RESPONSE, ERROR) or size < _SIZE.size:
        # No frame: the client itself closes the connection, and says why.
        return f"{counted(len(data), 'byte')} that are no frame", len(data)
    if len(data) < min(end, _HEADER.size + MAX_SHOWN):
        return None
    body = data[_HEADER.size : end]
    if kind == ERROR:
        return f"error {printable(body)}", end
    # Responses to IDENTIFY and AUTH are JSON, with what the auth server says about the secret's owner.
    is_word = len(body) < MAX_SHOWN and not body.startswith(b"{")
    return f"response {printable(body)}" if is_word else f"response, {counted(end - _HEADER.size, 'byte')}", end
