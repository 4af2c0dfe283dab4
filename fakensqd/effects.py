"""What a session wants done to its connection. Values only; who performs them owns the socket.

A Question stops the session: it reads nothing and says nothing more until its resume() is given the Answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from fakensqd.auth import Authorization
from gnsq.protocol.compression import Codec

__all__ = [
    "Answer",
    "AskAuth",
    "Close",
    "Effect",
    "Failed",
    "Question",
    "Secured",
    "Send",
    "StartCompression",
    "StartTLS",
]


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Send what is queued, then close the connection."""


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


Question = StartTLS | StartCompression | AskAuth
Answer = Secured | Failed | Authorization | None
Effect = Send | Close | Question
