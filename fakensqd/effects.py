"""What a session wants done to its connection. Values only; who performs them owns the socket.

A Question stops the session: it reads nothing and says nothing more until its resume() is given the Answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fakensqd.nsqd.auth import Authorization
    from gnsq.protocol.compression import Codec

__all__ = [
    "Answer",
    "AskAuth",
    "Close",
    "Effect",
    "Execute",
    "Failed",
    "HttpAnswer",
    "Open",
    "Question",
    "Reset",
    "Secured",
    "Send",
    "SendBehind",
    "SendLater",
    "StartCompression",
    "StartTLS",
    "Step",
    "TimeOut",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Send what is queued, then close the connection."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Send what is queued, then end the connection with a TCP RST."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for some seconds; what follows waits, too. As a question, its answer is None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StartTLS:
    """Send what is queued, then wait for the client's TLS handshake. The answer is Secured or Failed."""


@dataclass(frozen=True, slots=True)
class StartCompression:
    """Send what is queued, then compress and decompress. The answer is None."""

    codec: Codec


@dataclass(frozen=True, slots=True)
class AskAuth:
    """Ask the auth servers about a client. The answer is the first good one's, or None."""

    secret: bytes
    remote_ip: str
    common_name: str
    tls: bool

    @property
    def parameters(self) -> list[tuple[str, str | bytes]]:
        """What stands in the query."""
        return [
            ("common_name", self.common_name),
            ("remote_ip", self.remote_ip),
            ("secret", self.secret),
            ("tls", "true" if self.tls else "false"),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """TLS is on. The words are those of /stats; the common name is that of the client's certificate."""

    version: str
    cipher_suite: str
    common_name: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """TLS is not on; the words are for the client."""

    text: str


Question = StartTLS | StartCompression | AskAuth | Wait
Answer: TypeAlias = "Secured | Failed | Authorization | None"
Effect = Send | Close | Reset | Question

# --- what faults are made of: performed before a connection sees it ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendLater:
    """Send these bytes in some seconds; nothing waits for them."""

    data: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class SendBehind:
    """Send these bytes behind the frame that comes next."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Execute:
    """Execute the command, or answer the request; with another body than it came with, if there is one here."""

    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class TimeOut:
    """Take the message back from its consumer, as if its timeout had come."""

    message_id: bytes


@dataclass(frozen=True, slots=True)
class Open:
    """Serve the connection that has been accepted."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Answer a request. The size is that of the body unless it says otherwise."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    size: int | None = None


Step = Send | SendLater | SendBehind | Close | Reset | Wait | Execute | TimeOut | Open | HttpAnswer
