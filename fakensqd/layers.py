"""The transports of one accepted connection: TCP, then TLS, then compression.

Owns the stack and the time that a TLS handshake may take. Source: nsqd client_v2.go UpgradeTLS, UpgradeDeflate,
UpgradeSnappy: each begins on top of what is below it, whatever had been there before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fakensqd.clock import Clock, run_within
from fakensqd.effects import Answer, Failed, StartCompression, StartTLS
from gnsq.transport import Transport

if TYPE_CHECKING:
    import ssl

__all__ = ["Layers"]

# For the handshake of a client. Source: client_v2.go UpgradeTLS.
_HANDSHAKE_TIMEOUT = 5.0


class Layers:
    """A stack of transports.

    Args:
        tcp: The lowest.
        reset: Breaks it in a way that the client notices; default: it is closed.
        addresses: Ours and the client's, for the words about a handshake that does not come.
        context: For TLS; None if it is not offered.

    Attributes:
        top: What the session's bytes go through.
    """

    def __init__(
        self,
        tcp: Transport,
        clock: Clock,
        *,
        addresses: tuple[str, str] = ("", ""),
        context: ssl.SSLContext | None = None,
        reset: Callable[[], None] | None = None,
    ) -> None:
        self.top = self._secured = self._tcp = tcp
        self._clock = clock
        self._addresses = addresses
        self._context = context
        self._reset = reset or tcp.close

    def start(self, layer: StartTLS | StartCompression) -> Answer:
        """Put a layer on; give back what its question is to be answered with."""
        if isinstance(layer, StartTLS):
            return self._start_tls()
        # What is imported here takes long, and most clients never ask for it.
        from gnsq.tls import CompressedTransport

        self.top = CompressedTransport(self._secured, layer.codec)
        return None

    def close(self) -> None:
        """Close the connection, without a word of TLS: so does nsqd."""
        self._tcp.close()

    def reset(self) -> None:
        """Break the connection: what was sent and is still on its way is lost."""
        self._reset()

    def _start_tls(self) -> Answer:
        from fakensqd import tls

        context = self._context
        assert context is not None  # the session knows what is offered
        try:
            outcome = run_within(self._clock, _HANDSHAKE_TIMEOUT, lambda: tls.handshake(self._tcp, context))
        except TimeoutError:
            return Failed(f"read tcp {self._addresses[0]}->{self._addresses[1]}: i/o timeout")
        if isinstance(outcome, Failed):
            return outcome
        self.top, secured = outcome
        self._secured = self.top
        return secured
