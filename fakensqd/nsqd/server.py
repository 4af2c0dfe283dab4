"""FakeNsqd: an nsqd in this process.

Owns listeners, connections and timers (through Daemon). A Broker has the messages; Session and nsqd/http.py respond to
clients. Modules that take long to import and that few tests need are imported at their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fakensqd.clock import Clock, Timer
from fakensqd.daemon.daemon import Daemon
from fakensqd.nsqd.broker import Broker, BrokerEvents, Topic
from fakensqd.nsqd.http import nsqd_application, tls_required_application
from fakensqd.nsqd.published import AnyNsqd, PublishedBodies, check_body_types
from fakensqd.nsqd.session import NSQD, Session
from fakensqd.options import NsqdOptions, TlsRequired
from fakensqd.router import Application
from fakensqd.transcript import Entry, UnknownChannel
from gnsq.protocol.names import assert_valid_topic_name, is_ephemeral
from gnsq.tracebacks import clears_locals

if TYPE_CHECKING:
    import ssl

    from fakensqd.lookupd.client import LookupPeer

__all__ = ["FakeNsqd"]


class FakeNsqd(Daemon, AnyNsqd):
    """An nsqd 1.3.0, or another release, in the hub of the caller. Call start() or use ``with``.

    This object keeps its topics, messages and ports when it is stopped and started again.

    Args:
        clock: Source of the time; default: real time.
        options: See NsqdOptions: nsqd's flags with underscores, and options of the emulator. Durations in seconds.

    Raises:
        TypeError: If an option does not exist.
        ValueError: If a value is out of its bounds, an address is malformed, or options exclude each other.
        OSError: If a file of certificates, a key or CAs can't be read, or is malformed.
    """

    fault_protocol = NSQD

    @clears_locals
    def __init__(
        self,
        *,
        clock: Clock | None = None,
        **options: Any,  # of all types; NsqdOptions checks them
    ) -> None:
        self.options = NsqdOptions.from_keywords(FakeNsqd, options)
        super().__init__(
            self.options,
            clock,
            https_address=self.options.https_address,
            context=_context(self.options),
        )
        if self.options.auth_http_addresses:
            from fakensqd.nsqd.auth_client import AuthClient

            self._ask_auth = AuthClient(self.options, self.clock).ask

    def _set_up(self) -> None:
        super()._set_up()
        self.lookupd_tcp_addresses = self.options.lookupd_tcp_addresses
        self.log_level = self.options.log_level
        self._published = PublishedBodies()
        events = BrokerEvents(
            on_register=self._register,
            on_unregister=self._unregister,
            on_publish=self._published.add,
            on_due=self._arm,
        )
        epoch_ns = self.clock.time_ns() - round(self.clock.monotonic() * 1e9)
        self._set_broker(Broker(self.options, events, epoch_ns=epoch_ns))
        self._heartbeats = True
        self._timer: Timer | None = None
        self._peers: dict[str, LookupPeer] = {}

    @property
    def sessions(self) -> list[Session]:
        """Sessions of the open connections."""
        return [connection.session for connection in self._connections if isinstance(connection.session, Session)]

    # --- messages, for tests ------------------------------------------------------------------------------------------

    def publish(self, topic: str, *bodies: bytes, delay: float = 0.0) -> None:
        """Publish messages, as producers do with PUB, or with DPUB if there is a delay.

        publish() uses no connection, so AUTH, fault rules and states do not apply, and the server may be down. If there
        is no such topic, it is made. A transcript records the call.

        Args:
            bodies: The body of each message.
            delay: Seconds until channels deliver the messages; at most max_req_timeout.

        Raises:
            ValueError: If bodies is empty, or nsqd would refuse the topic, a body, or the delay. Nothing is published.
            TypeError: If a body is not bytes.
        """
        self._check_publish(topic, bodies, delay)
        now = self.now()
        entry = Entry(now, 0, "publish", "publish", topic=topic, bodies=bodies, executed=1)
        entry.detail = f"delay {delay:g} s" if delay else ""
        self.faults.record(entry)
        self.broker.ensure_topic(topic).publish(bodies, now, delay)

    def _check_publish(self, topic: str, bodies: Sequence[bytes], delay: float) -> None:
        """Raise the errors of publish()."""
        options = self.options
        assert_valid_topic_name(topic)
        if not bodies:
            raise ValueError("publish() needs at least one body")
        check_body_types(bodies)
        for body in bodies:
            if not body:
                raise ValueError("body of 0 bytes is too small: nsqd takes 1 byte or more")
            if len(body) > options.max_msg_size:
                raise ValueError(f"body of {len(body)} bytes exceeds max_msg_size {options.max_msg_size}")
        if not 0 <= delay <= options.max_req_timeout:
            raise ValueError(f"delay {delay:g} s must be within 0 to {options.max_req_timeout:g} s (max_req_timeout)")

    def messages(self, topic: str, channel: str | None = None) -> list[bytes]:
        """List the bodies published to a topic so far, or the bodies that one of its channels still has.

        For a topic: all bodies published to this server over TCP, HTTP and by publish(), in the order of publishing,
        even if the messages are finished. Restarts and the deletion of the topic do not change the list.
        For a channel: messages that are not finished: queued, then in flight, then deferred.

        Returns:
            The bodies; an empty list if nothing was published to the topic.

        Raises:
            UnknownChannel: If a channel is given that does not exist.
            RuntimeError: For a topic, if its oldest bodies were dropped: at most 100,000 bodies and 64 MiB are kept.
        """
        if channel is None:
            return self._published.of(topic)
        found = self.broker.topics.get(topic)
        if found is None or channel not in found.channels:
            raise UnknownChannel(topic, channel, self._channel_names())
        return [message.body for message in found.channels[channel].stored()]

    def _numbers(self, name: str, topic: str, channel: str | None) -> list[int]:
        found = self.broker.topics.get(topic)
        holder = found if found is None or channel is None else found.channels.get(channel)
        return [] if holder is None else [getattr(holder, name)]

    def _channel_names(self) -> Mapping[str, Collection[str]]:
        return {topic.name: topic.channels for topic in self.broker.topics.values()}

    def _kept_bodies(self) -> Mapping[str, Sequence[bytes]]:
        return self._published.kept()

    def _transcript_end(self) -> str:
        return self.faults.transcript.end() if self.faults.transcript is not None else ""

    # --- state --------------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, bool | float]:
        """Return the states, see Daemon.states()."""
        return super().states() | {"pause_heartbeats": not self._heartbeats}

    def _close(self, *, keeps_ports: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._peers.clear()
        super()._close(keeps_ports=keeps_ports)

    def wait_registered(self) -> None:
        """Wait until each nsqlookupd has registered this nsqd, or one attempt to connect to it has failed."""
        for peer in list(self._peers.values()):
            peer.wait_attempted()

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these nsqlookupds, and disconnect from all others."""
        self.lookupd_tcp_addresses = addresses
        for address in [address for address in self._peers if address not in addresses]:
            self._peers.pop(address).stop()
        for address in addresses:
            if address not in self._peers:
                from fakensqd.lookupd.client import LookupPeer

                peer = LookupPeer(address, self._identity(), self._registrations, self.clock, self.options)
                self._peers[address] = peer
                self._spawn(peer.run)

    def pause_heartbeats(self) -> None:
        """Until resume_heartbeats(), send no heartbeats, and do not disconnect clients that send nothing."""
        self._set_heartbeats(False)

    def resume_heartbeats(self) -> None:
        """Undo pause_heartbeats(). Send heartbeats that are late; disconnect clients that were silent for too long."""
        self._set_heartbeats(True)
        for connection in list(self._connections):
            connection.tick()

    def _set_heartbeats(self, on: bool) -> None:
        self._heartbeats = on
        for session in self.sessions:
            session.heartbeats = on

    def _set_broker(self, broker: Broker) -> None:
        self.broker = broker
        self.start_time = self.clock.time_ns() // 10**9

    def _on_restart(self, *, keep_messages: bool) -> None:
        self._set_broker(self.broker.reset_after_restart(self.now(), keep_messages=keep_messages))

    def _on_started(self) -> None:
        self.set_lookupd_tcp_addresses(self.lookupd_tcp_addresses)
        self._expire()

    def _open_session(self, remote_address: str, wake: Callable[[], bool]) -> Session:
        session = Session(self.broker, now=self.now(), remote_address=remote_address, on_wake=wake)
        session.heartbeats = self._heartbeats
        return session

    def _application(self, *, secure: bool) -> Application:
        if self.options.tls_policy is TlsRequired.TCP_AND_HTTP and not secure:
            return tls_required_application(self)
        return nsqd_application(self)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _arm(self, due: float) -> None:
        if not self.running:
            return  # The next start() calls _expire().
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
        """List the pairs of topic and channel for a new nsqlookupd; the channel is None if the topic has no channel."""
        registrations: list[tuple[str, str | None]] = []
        for topic in self.broker.topics.values():
            registrations += [(topic.name, channel) for channel in topic.channels] or [(topic.name, None)]
        return registrations

    def _register(self, topic: str, channel: str | None) -> None:
        for peer in self._peers.values():
            peer.send(b"REGISTER", topic, channel)
        if channel is None and any(peer.can_query for peer in self._peers.values()):
            # Before its first message is delivered, the topic gets the channels that it has on other nsqds.
            self.broker.topics[topic].set_started(False, self.now())
            self._spawn(self._fetch_channels, self.broker.topics[topic])

    def _fetch_channels(self, topic: Topic) -> None:
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
            peer.send(b"UNREGISTER", topic, channel)


def _context(options: NsqdOptions) -> ssl.SSLContext | None:
    if not options.tls_offered:
        return None
    from fakensqd.tls import server_context

    return server_context(options)
