"""FakeNsqd: an nsqd in this process.

Owns its listeners, connections and timers (through Daemon). What it does with messages is the Broker's, what it says
is Session's and nsqd_http's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from fakensqd import tls
from fakensqd.auth_client import AuthClient
from fakensqd.broker import Broker, Topic
from fakensqd.clock import Clock, Timer
from fakensqd.daemon import Daemon
from fakensqd.http_server import Application, split_address
from fakensqd.lookup_peer import LookupPeer
from fakensqd.nsqd_http import nsqd_application, tls_required_application
from fakensqd.options import NsqdOptions, TlsRequired
from fakensqd.session import Session
from gnsq.protocol.names import is_ephemeral

__all__ = ["FakeNsqd"]


class FakeNsqd(Daemon):
    """An nsqd 1.3.0, in the hub of the caller: start() or ``with``.

    A stop keeps topics and messages; started again, it has them and the same ports.

    Args:
        clock: What to ask for time; default: the machine's.
        options: nsqd's flags with underscores, see NsqdOptions; durations in seconds.

    Raises:
        TypeError: If an option does not exist.
        ValueError: If a value is out of its bounds, or an address is none.
        OSError: If a certificate, key or file of CAs can't be read, or is none.
    """

    def __init__(self, *, clock: Clock | None = None, **options: object) -> None:
        self.options = NsqdOptions.of("FakeNsqd", options)
        super().__init__(
            self.options.tcp_address,
            self.options.http_address,
            clock,
            https_address=self.options.https_address,
            context=tls.server_context(self.options),
        )
        self.hostname = socket.gethostname()
        self._ask_auth = AuthClient(self.options, self.clock).ask
        addresses = self.options.lookupd_tcp_addresses
        self.lookupd_tcp_addresses: tuple[str, ...] = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        for address in self.lookupd_tcp_addresses:
            split_address(address)
        started_ns = self.clock.time_ns()
        self.start_time = started_ns // 10**9
        self.broker = Broker(self.options, epoch_ns=started_ns - round(self.clock.monotonic() * 1e9))
        self.broker.on_due = self._arm
        self.broker.on_register = self._register
        self.broker.on_unregister = self._unregister
        self._timer: Timer | None = None
        self._peers: dict[str, LookupPeer] = {}

    @property
    def broadcast_address(self) -> str:
        """The address that nsqlookupd gives to consumers."""
        return self.options.broadcast_address

    @property
    def sessions(self) -> list[Session]:
        """Those of the connections that are open."""
        return [connection.session for connection in self._connections if isinstance(connection.session, Session)]

    def now(self) -> float:
        """The clock's time, as the broker knows it."""
        return self.clock.monotonic()

    def stop(self) -> None:
        """Close everything at once: listeners, connections, greenlets. Does nothing if it is stopped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._peers.clear()
        super().stop()

    def wait_registered(self) -> None:
        """Wait until each nsqlookupd knows this nsqd, or has been tried once."""
        for peer in list(self._peers.values()):
            peer.wait_tried()

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these nsqlookupds from now on, and with no other."""
        self.lookupd_tcp_addresses = addresses
        for address in [address for address in self._peers if address not in addresses]:
            self._peers.pop(address).stop()
        for address in addresses:
            if address not in self._peers:
                peer = LookupPeer(address, self._identity(), self._registrations, self.clock, self.options)
                self._peers[address] = peer
                self._spawn(peer.run)

    def _started(self) -> None:
        self.set_lookupd_tcp_addresses(self.lookupd_tcp_addresses)
        self._expire()

    def _open_session(self, remote_address: str, wake: Callable[[], bool]) -> Session:
        return Session(self.broker, now=self.now(), remote_address=remote_address, on_wake=wake)

    def _application(self, *, secure: bool) -> Application:
        if self.options.tls_policy is TlsRequired.TCP_AND_HTTP and not secure:
            return tls_required_application(self)
        return nsqd_application(self)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _arm(self, due: float) -> None:
        if not self.running:
            return  # start() looks for what has fallen due
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.clock.call_later(due - self.now(), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.broker.expire(self.now())

    # --- nsqlookupd ---------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, object]:
        return {
            "broadcast_address": self.options.broadcast_address,
            "hostname": self.hostname,
            "http_port": self.options.broadcast_http_port or self.http_port,
            "tcp_port": self.options.broadcast_tcp_port or self.tcp_port,
        }

    def _registrations(self) -> list[tuple[str, str | None]]:
        """What a newly connected nsqlookupd is told."""
        registrations: list[tuple[str, str | None]] = []
        for topic in self.broker.topics.values():
            registrations += [(topic.name, channel) for channel in topic.channels] or [(topic.name, None)]
        return registrations

    def _register(self, topic: str, channel: str | None) -> None:
        for peer in self._peers.values():
            peer.register(topic, channel)
        if channel is None and any(peer.askable for peer in self._peers.values()):
            # Before the first message moves on, the channels that others have of this topic are made here, too.
            self.broker.topics[topic].set_started(False, self.now())
            self._spawn(self._learn_channels, self.broker.topics[topic])

    def _learn_channels(self, topic: Topic) -> None:
        try:
            names = {name for peer in list(self._peers.values()) for name in peer.channels(topic.name)}
            if self.broker.topics.get(topic.name) is topic:
                for name in names:
                    if not is_ephemeral(name):
                        topic.ensure_channel(name, self.now())
        finally:
            topic.set_started(True, self.now())

    def _unregister(self, topic: str, channel: str | None) -> None:
        for peer in self._peers.values():
            peer.unregister(topic, channel)
