"""FakeLookupd: an nsqlookupd in this process, for fake and real nsqds.

Owns listeners and connections (through Daemon). A Registry has the registrations; LookupdSession and lookupd/http.py
respond to clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fakensqd.clock import Clock
from fakensqd.daemon.daemon import Daemon
from fakensqd.lookupd.http import lookupd_application
from fakensqd.lookupd.registry import Registry
from fakensqd.lookupd.session import LOOKUPD, LookupdSession
from fakensqd.options import LookupdOptions
from fakensqd.router import Application
from gnsq.tracebacks import clears_locals

__all__ = ["FakeLookupd"]


class FakeLookupd(Daemon):
    """An nsqlookupd 1.3.0 in the hub of the caller. Call start() or use ``with``.

    Args:
        clock: Source of the time; default: real time.
        options: See LookupdOptions: nsqlookupd's flags with underscores, and options of the emulator. Durations in
            seconds.

    Raises:
        TypeError: If an option does not exist.
        ValueError: If a value is out of its bounds, or an address is invalid.
    """

    fault_protocol = LOOKUPD

    @clears_locals
    def __init__(
        self,
        *,
        clock: Clock | None = None,
        **options: Any,  # of all types; LookupdOptions checks them
    ) -> None:
        self.options = LookupdOptions.from_keywords(FakeLookupd, options)
        super().__init__(self.options, clock)

    def _set_up(self) -> None:
        super()._set_up()
        self.registry = Registry()
        self._epoch_ns = self.clock.time_ns() - round(self.clock.monotonic() * 1e9)

    def wall_ns(self, now: float) -> int:
        """Convert a monotonic time to the wall clock's time, in nanoseconds since 1970."""
        return self._epoch_ns + int(now * 1e9)

    def _on_restart(self, *, keep_messages: bool) -> None:
        # nsqlookupd has no files: nsqds register everything again when they reconnect.
        self.registry = Registry()

    def _open_session(self, remote_address: str, wake: Callable[[], bool]) -> LookupdSession:
        return LookupdSession(self.registry, remote_address=remote_address, identity=self._identity)

    def _application(self, *, secure: bool) -> Application:
        return lookupd_application(self.registry, self.options, self.now, self.wall_ns, self.errors.append)

    def _identity(self) -> Mapping[str, object]:
        return {
            "broadcast_address": self.options.broadcast_address,
            "hostname": self.hostname,
            "http_port": self.http_port,
            "tcp_port": self.tcp_port,
            "version": self.options.release,
        }
