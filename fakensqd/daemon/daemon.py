"""What FakeNsqd and FakeLookupd have in common: their listeners, connections, start and stop, and states.

Owns the sockets and every greenlet. Knows no command and no endpoint.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import gevent
from gevent import socket
from gevent.event import Event
from gevent.pool import Group, Pool
from gevent.server import StreamServer

from fakensqd.addresses import (
    bound_address,
    join_address,
    listen,
    listen_address,
    peer_address,
    remove_socket_file,
    split_address,
)
from fakensqd.clock import Clock, RealClock
from fakensqd.daemon.connection import Connection, ConnectionSession, DaemonState, TransportStack
from fakensqd.effects import AskAuth, IoResult
from fakensqd.faults.control import AddedRules, FaultControl
from fakensqd.faults.http import FaultsEndpoint, FaultyApplication
from fakensqd.faults.link import ActiveToxic, Link, reset_socket
from fakensqd.faults.rules import NSQD, Action, ActionFunction, Match, Scenario, ServerProtocol
from fakensqd.http.server import Application, HttpPort
from fakensqd.thread import Server
from fakensqd.transcript import Transcript, wait_until
from gnsq.transport import TcpTransport

if TYPE_CHECKING:
    import ssl

__all__ = ["Daemon"]

_Value = TypeVar("_Value")


class Daemon(Server):
    """A server with a TCP and an HTTP port, and perhaps one of HTTPS, started with start() or ``with``.

    It may be put into states, each until it is taken out of it: down, not reading, delayed. Toxics are put on its link.

    Args:
        record: Record a transcript from the beginning.
        seed: Of the random numbers of faults; None: a random one.
        faults_over_http: Whether ``/faults`` is served.
        faults_http_address: Where to listen for ``/faults`` alone; empty: nowhere.
        https_address: Where to listen for HTTPS, if there is a context.
        context: For TLS; None if it is not offered.

    Attributes:
        errors: What should not have happened: exceptions inside of the emulator.
        clock: What it asks for time.
        link: Between the clients of its TCP port and itself.
        faults: Its fault rules and transcript.
        seed: Of the random numbers of faults.
    """

    # What rules can act on; nsqlookupd has another protocol.
    fault_protocol: ServerProtocol = NSQD

    def __init__(
        self,
        tcp_address: str,
        http_address: str,
        clock: Clock | None,
        *,
        record: bool = False,
        seed: int | None = None,
        faults_over_http: bool = False,
        faults_http_address: str = "",
        https_address: str = "",
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.clock: Clock = clock or RealClock()
        self.faults = FaultControl(
            type(self).__name__, self.clock, seed=seed, record=record, protocol=self.fault_protocol
        )
        self.seed = self.faults.seed
        self.errors: list[BaseException] = []
        # After a stop, start() takes the same ports again: clients reconnect to where they were.
        self._tcp_bind = listen_address(tcp_address)
        self._http = HttpPort(http_address)
        self._https = HttpPort(https_address, context) if https_address and context is not None else None
        self._http_ports = [self._http] if self._https is None else [self._http, self._https]
        # Answers while the daemon is down.
        self._faults_over_http = faults_over_http
        self._faults_port = HttpPort(faults_http_address if faults_over_http else "")
        self._context = context
        # A subclass whose sessions want to know sets it.
        self._ask_auth: Callable[[AskAuth], IoResult] | None = None
        self.link = Link(self.clock, self.seed)
        self._state = DaemonState()
        self._stalled: ActiveToxic | None = None
        self._resumed: Event | None = None
        # Holds the ports while it is down, so that nobody else gets them.
        self._reserved: list[socket.socket] = []
        self._connections: dict[Connection, None] = {}
        self._greenlets = Group()
        self._tcp_server: StreamServer | None = None

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _open_session(self, remote_address: str, wake: Callable[[], bool]) -> ConnectionSession:
        """Make the session of a new TCP connection."""

    @abstractmethod
    def _application(self, *, secure: bool) -> Application:
        """Give the WSGI function of the HTTP port, or of the HTTPS port."""

    def _on_started(self) -> None:
        """Do what is to be done once both ports are known."""

    def _spawn(self, function: Callable[..., None], *args: object) -> gevent.Greenlet:
        """Run something in a greenlet that ends with this daemon."""
        greenlet = gevent.Greenlet(self._logged, function, *args)
        self._greenlets.start(greenlet)
        return greenlet

    def _logged(self, function: Callable[..., None], *args: object) -> None:
        try:
            function(*args)
        except Exception as error:
            logging.getLogger(type(self).__module__).exception("internal error of the emulator")
            self.errors.append(error)

    # --- public -------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen on all ports, and give back this server. Does nothing if it listens already.

        Raises:
            OSError: If an address cannot be listened on.
        """
        if self._tcp_server is not None:
            return self
        self._release_ports()
        tcp_listener = listen(self._tcp_bind)
        try:
            for port in self._http_ports:
                port.bind()
            if not self._faults_port.is_serving:
                self._faults_port.bind()
        except OSError:
            tcp_listener.close()
            for port in self._http_ports:
                port.stop()
            raise
        self._tcp_bind = bound_address(tcp_listener)
        self._tcp_server = StreamServer(tcp_listener, self._serve, spawn=Pool())
        self._tcp_server.start()
        for port in self._http_ports:
            application = self._application(secure=port is self._https)
            application = self._apply_state(FaultyApplication(application, self.faults.injector, self.clock))
            port.serve(FaultsEndpoint(self, application) if self._faults_over_http else application)
        if not self._faults_port.is_serving and self._faults_port.address:
            self._faults_port.serve(FaultsEndpoint(self, None))
        self._on_started()
        return self

    def stop(self) -> None:
        """Close everything at once: listeners, connections, greenlets. Does nothing if it is stopped."""
        self._faults_port.stop()
        self._close()

    def _close(self) -> None:
        """Close everything but the port of ``/faults``."""
        self._release_ports()
        if self._tcp_server is None:
            return
        tcp_server, self._tcp_server = self._tcp_server, None
        tcp_server.close()
        remove_socket_file(self._tcp_bind)
        for port in self._http_ports:
            port.close()
        tcp_server.stop(timeout=0)
        # stop() kills them for a second at most, which is too short for hundreds of connections on a busy machine.
        tcp_server.pool.kill()
        for port in self._http_ports:
            port.stop()
        self.link.abort()
        self._greenlets.kill()

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._tcp_server is not None

    @property
    def tcp_address(self) -> str:
        """``host:port`` that clients of the TCP protocol connect to; port 0 before the first start. Or a unix path."""
        return join_address(*self._tcp_bind)

    @property
    def http_address(self) -> str:
        """``host:port`` that HTTP clients connect to; port 0 before the first start."""
        return self._http.address

    @property
    def tcp_port(self) -> int:
        """The port of tcp_address; -1 for a unix socket."""
        return self._tcp_bind[1]

    @property
    def http_port(self) -> int:
        """The port of http_address."""
        return self._http.port

    @property
    def https_address(self) -> str:
        """``host:port`` that HTTPS clients connect to; empty without HTTPS."""
        return self._https.address if self._https is not None else ""

    @property
    def https_port(self) -> int:
        """The port of https_address; 0 without HTTPS."""
        return self._https.port if self._https is not None else 0

    @property
    def faults_http_address(self) -> str:
        """``host:port`` of ``/faults``, which answers in every state; empty without ``faults_over_http``."""
        return self._faults_port.address

    # --- faults and transcript ----------------------------------------------------------------------------------------

    def add(
        self, match: Match | Scenario, *actions: Action | ActionFunction, optional: bool = False, name: str = ""
    ) -> AddedRules:
        """Add a rule or a scenario: ``add(on.reply("PUB", topic="orders").nth(3), disconnect())``.

        It acts on open connections, too. If several rules match an event, the first one of them acts.

        Args:
            optional: Do not report the rule if it never fires.
            name: Name in the transcript.

        Raises:
            TypeError: If the arguments are in another order.
            ValueError: If the action is not for such events, or this server does not have them.
        """
        return self.faults.add(match, *actions, optional=optional, name=name)

    def unfired(self) -> list[str]:
        """For each required rule that never fired, describe the closest event."""
        return self.faults.injector.unfired()

    def record(self) -> None:
        """Begin to record a transcript, unless there is one: with ``record=True`` it begins at once."""
        self.faults.record()

    @property
    def transcript(self) -> Transcript:
        """The recorded events.

        Raises:
            RuntimeError: If nothing is recorded.
        """
        return self.faults.transcript

    def wait_until(
        self, predicate: Callable[[Self], _Value], expected: object = True, *, timeout: float = 10.0
    ) -> _Value:
        """Wait until a function returns the expected value: ``wait_until(lambda nsqd: nsqd.depth("t"), 3)``.

        Args:
            predicate: Gets this server, on its thread.
            expected: A value; True: any value that is true.
            timeout: Seconds of real time.

        Returns:
            The value.

        Raises:
            AssertionError: If the time is over; shows the expected value, the nearest one, and the transcript.
        """
        __tracebackhide__ = True
        transcript = self.faults.injector.transcript
        return wait_until(lambda: predicate(self), expected, timeout=timeout, transcript=transcript)

    def report(self) -> str:
        """Describe the seed and the end of the transcript, for the report of a failed test."""
        return self.faults.report()

    # --- states -------------------------------------------------------------------------------------------------------

    def down(self) -> None:
        """Go away until up(), or start(): connections are cut and the ports refuse. What it knows stays.

        The port of ``/faults`` answers on.
        """
        if not self.running:
            return
        self._close()
        addresses = [self.tcp_address, *(port.address for port in self._http_ports)]
        self._reserved = [_reserved(address) for address in addresses if address and "/" not in address]

    def up(self) -> None:
        """Come back, on the same ports. Does nothing if it is up."""
        self.start()

    def restart(self, *, keep_messages: bool = True) -> None:
        """Go down and come back as a new process would: with what its files had, and on the same ports.

        Args:
            keep_messages: Whether nsqd has had the time to write its messages; killed, it has not.
        """
        self.down()
        self._on_restart(keep_messages=keep_messages)
        self.up()

    def stop_reading(self) -> None:
        """Take connections, and neither read nor answer on any until resume_reading(), over HTTP as well."""
        from fakensqd.faults.toxics import stall

        if self._stalled is None:
            self._stalled = self.link.add(stall(), kept=True)
            self._resumed = Event()

    def resume_reading(self) -> None:
        """Undo stop_reading(): what has come meanwhile is read now."""
        if self._stalled is not None and self._resumed is not None:
            self._stalled.remove()
            self._resumed.set()
            self._stalled = self._resumed = None

    def set_processing_delay(self, seconds: float) -> None:
        """Work on whatever clients send, and on requests, so much later; commands that come together wait together.

        Args:
            seconds: 0 is as fast as ever.

        Raises:
            ValueError: If they are negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds {seconds} must be 0 or more")
        self._state.processing_delay = seconds

    def states(self) -> dict[str, bool | float]:
        """Give the states that it is in; false or 0: it is not in this one."""
        return {
            "down": not self.running,
            "stop_reading": self._resumed is not None,
            "processing_delay": self._state.processing_delay,
        }

    def _on_restart(self, *, keep_messages: bool) -> None:
        """Lose what does not outlive the process; a subclass knows what that is."""

    def _release_ports(self) -> None:
        while self._reserved:
            self._reserved.pop().close()

    def _apply_state(self, application: Application) -> Application:
        def answer(
            environ: dict[str, Any], start_response: Callable[..., Any]
        ) -> Iterable[bytes]:  # Any: as WSGI has it
            while self._resumed is not None:
                self._resumed.wait()  # resume_reading() sets it; a stop ends this greenlet
            if self._state.processing_delay:
                self.clock.sleep(self._state.processing_delay)
            return application(environ, start_response)

        return answer

    # --- connections --------------------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = peer_address(address)
        if (number := self.faults.admit(sock, peer)) is None:
            return
        linked = self.link.wrap(TcpTransport(sock, peer), lambda: reset_socket(sock))
        stack = TransportStack(
            linked,
            self.clock,
            addresses=(self.tcp_address, peer),
            context=self._context,
            reset=lambda: linked.abort(reset=True),
        )
        connection = Connection(
            stack,
            self.clock,
            lambda wake: self._open_session(peer, wake),
            self.errors.append,
            self._ask_auth,
            self._state,
        )
        self._connections[connection] = None
        self.faults.open_session(connection.session, number)
        try:
            # Who hung up before this client came must be noticed before this one is served, or its messages go to the
            # one that is gone. Connections that are accepted together do not go through the event loop by themselves:
            # the first round reads what the other had still to say, behind which, in the second, its end is seen.
            for _ in range(2):
                socket.wait_read(sock.fileno())
            connection.run()
            del self._connections[connection]
            linked.wait_closed()
        finally:
            self._connections.pop(connection, None)
            linked.abort()
            self.faults.end_connection(number, connection.session)


def _reserved(address: str) -> socket.socket:
    """Hold a port on which nobody listens."""
    host, port = split_address(address)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
