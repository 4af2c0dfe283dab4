"""Effects that a session asks its connection for, and steps of fault actions. Values only.

After an IoRequest, the session executes no command until its resume() gets the IoResult.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fakensqd.nsqd.auth import Authorization
    from gnsq.protocol.compression import Codec

__all__ = [
    "AskAuth",
    "Close",
    "Effect",
    "Execute",
    "ExpireMessage",
    "FaultStep",
    "HttpResponse",
    "IoRequest",
    "IoResult",
    "Reset",
    "Send",
    "StartCompression",
    "StartTLS",
    "TlsEstablished",
    "TlsFailed",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes.

    Attributes:
        delay: Seconds until these bytes are sent; later bytes do not wait for them.
        after_next: True: send this frame after the next frame. Only steps of faults have delay or after_next.
    """

    data: bytes
    delay: float = 0.0
    after_next: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Send the queued bytes, then close the connection."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Send the queued bytes, then end the connection with a TCP RST."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait some seconds before the next effect or step. The result of a Wait that is an IoRequest is None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StartTLS:
    """Send the queued bytes, then do the TLS handshake. The result is TlsEstablished or TlsFailed."""


@dataclass(frozen=True, slots=True)
class StartCompression:
    """Send the queued bytes; compress all later output, and decompress all later input. The result is None."""

    codec: Codec


@dataclass(frozen=True, slots=True)
class AskAuth:
    """Ask the auth servers about a client. The result is the first valid response, or None."""

    secret: bytes
    remote_ip: str
    common_name: str
    tls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsEstablished:
    """TLS is established. Version and cipher suite are as in /stats; common_name is of the client's certificate."""

    version: str
    cipher_suite: str
    common_name: str = ""


@dataclass(frozen=True, slots=True)
class TlsFailed:
    """The TLS handshake failed; the client gets the text."""

    text: str


IoRequest = StartTLS | StartCompression | AskAuth | Wait
IoResult: TypeAlias = "TlsEstablished | TlsFailed | Authorization | None"
Effect = Send | Close | Reset | IoRequest

# --- steps of faults: connections never get the classes below ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Execute:
    """Execute the command or request, or serve the accepted connection. A ``body`` replaces the body of the command."""

    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class ExpireMessage:
    """Let a message in flight time out now."""

    message_id: bytes


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Respond to an HTTP request. The Content-Length is `size`, or the body's real length if `size` is None."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    size: int | None = None


FaultStep = Send | Close | Reset | Wait | Execute | ExpireMessage | HttpResponse
