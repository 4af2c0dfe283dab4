"""Base class of FakeNsqd and FakeLookupd: listeners, connections, start and stop, states.

Owns the sockets and all greenlets of the server. Knows no command and no endpoint.
"""

from __future__ import annotations

import itertools
import logging
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

import gevent
from gevent import socket
from gevent.event import Event as GeventEvent
from gevent.pool import Group

from fakensqd.addresses import peer_address
from fakensqd.clock import Clock, ManualClock, RealClock
from fakensqd.daemon.connection import Connection, TransportStack
from fakensqd.daemon.session import ConnectionSession
from fakensqd.effects import AskAuth, Close, Execute, HttpResponse, IoResult, Reset, Wait
from fakensqd.faults.control import AddedRules, FaultControl, make_rules, tell_unfired
from fakensqd.faults.http import FaultyApplication
from fakensqd.faults.link import ActiveToxic, Link, reset_socket, wait_for_end
from fakensqd.faults.rules import Action, ActionFunction, Event, Match, Point, Rule, Scenario, ServerProtocol
from fakensqd.options import DaemonOptions
from fakensqd.ports import HttpPort, TcpPort
from fakensqd.router import Application, Request
from fakensqd.server import Server
from fakensqd.transcript import Entry, Transcript, wait_until
from gnsq.concurrency.greenlets import check_is_failure, spawn, supervised
from gnsq.transport import TcpTransport

if TYPE_CHECKING:
    import ssl

__all__ = ["Daemon"]

_Value = TypeVar("_Value")
# Entries of the transcript in the report of a failed test.
_REPORTED_ENTRIES = 200


class Daemon(Server):
    """A server with a TCP port, an HTTP port and, with a TLS context, an HTTPS port; HTTP and HTTPS may be off.

    Args:
        clock: Source of the time; default: real time.
        https_address: Address of the HTTPS port, which a server with a TLS context has.
        context: TLS context; None if the server does not offer TLS.

    Attributes:
        errors: Exceptions that show a bug of the emulator, or of a test's own action.
        clock: Source of the time.
        link: The network between the clients of the TCP port and this server; toxics are added to it.
        faults: Fault rules and transcript of this server.
        seed: Seed for the random numbers of faults.
    """

    # The events that rules can act on.
    fault_protocol: ServerProtocol

    def __init__(
        self,
        options: DaemonOptions,
        clock: Clock | None,
        *,
        https_address: str = "",
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.clock: Clock = clock or RealClock()
        self.hostname = socket.gethostname()
        self.errors: list[BaseException] = []
        self._seed = options.seed
        self._record = options.record
        self._tcp = TcpPort(options.tcp_address)
        self._http = HttpPort(options.http_address)
        self._https = HttpPort(https_address if context is not None else "", context)
        self._ports = (self._tcp, self._http, self._https)
        self._context = context
        # Function that asks the auth servers; a subclass sets it if there are any.
        self._ask_auth: Callable[[AskAuth], IoResult] | None = None
        self._greenlets = Group()
        self._set_up()

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """Make all that changes while the server runs, for a new server and for reset()."""
        self.faults = FaultControl(
            type(self).__name__,
            self.fault_protocol,
            seed=self._seed,
            record=self._record,
            on_active=self._attach_faults,
        )
        self.seed = self._seed = self.faults.seed
        self.link = Link(self.clock, self.seed)
        self._processing_delay = 0.0
        # stop_reading() clears _resumed for HTTP, and adds the toxic _stall to the TCP connections.
        self._resumed = GeventEvent()
        self._resumed.set()
        self._stall: ActiveToxic | None = None
        # The open connections and their numbers.
        self._connections: dict[Connection, int] = {}
        self._connection_numbers = itertools.count(1)

    @abstractmethod
    def _open_session(self, remote_address: str, wake: Callable[[], bool]) -> ConnectionSession:
        """Make the session of a new TCP connection."""

    @abstractmethod
    def _application(self, *, secure: bool) -> Application:
        """Make the application of the HTTP port, or of the HTTPS port."""

    def _on_started(self) -> None:
        """Continue the start. The addresses of all ports are known by now."""

    def _on_restart(self, *, keep_messages: bool) -> None:
        """Drop the state that a restart of the real process loses."""

    def _spawn(self, function: Callable[..., None], *args: object) -> gevent.Greenlet:
        """Call a function in a greenlet that is killed when this daemon stops. An exception is recorded in errors."""
        greenlet = spawn(f"fakensqd-{function.__name__}", function, *args, on_failure=self._record_error)
        self._greenlets.add(greenlet)
        return greenlet

    def _record_error(self, error: BaseException) -> None:
        check_is_failure(error)
        logging.getLogger(type(self).__module__).error("internal error of the emulator", exc_info=error)
        self.errors.append(error)

    # --- public -------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tcp_address}>"

    def start(self) -> Self:
        if self.running:
            return self
        try:
            for port in self._ports:
                port.bind()
        except OSError:
            for port in self._ports:
                port.stop()
            raise
        self._tcp.serve(supervised("fakensqd-serve", self._serve, self._record_error))
        for http in [port for port in (self._http, self._https) if port.address]:
            application = self._application(secure=http is self._https)
            http.serve(self._apply_state(FaultyApplication(application, self.faults, self.clock)))
        self._on_started()
        return self

    def now(self) -> float:
        """Return the clock's monotonic time, which the broker and the registry use."""
        return self.clock.monotonic()

    def _shut_down(self) -> None:
        self._close()

    def _added_rules(self) -> Sequence[Rule]:
        return self.faults.added

    def _close(self, *, keeps_ports: bool = False) -> None:
        for port in self._ports:
            port.close(keeps_port=keeps_ports)
        for port in self._ports:
            port.stop(keeps_port=keeps_ports)
        self.link.abort()
        self._greenlets.kill()

    @property
    def running(self) -> bool:
        """True if the server listens."""
        return self._tcp.is_serving

    @property
    def tcp_address(self) -> str:
        """``host:port`` for clients of the TCP protocol, or a unix path. start() replaces port 0 by a free port."""
        return self._tcp.address

    @property
    def http_address(self) -> str:
        """``host:port`` for HTTP, a unix path, or "" without HTTP. The first start replaces port 0 by a free port."""
        return self._http.address

    @property
    def tcp_port(self) -> int:
        """The port of tcp_address; -1 for a unix socket."""
        return self._tcp.port

    @property
    def http_port(self) -> int:
        """The port of http_address."""
        return self._http.port

    @property
    def https_address(self) -> str:
        """``host:port`` for HTTPS; empty without HTTPS."""
        return self._https.address

    @property
    def https_port(self) -> int:
        """The port of https_address; 0 without HTTPS."""
        return self._https.port

    # --- faults and transcript ----------------------------------------------------------------------------------------

    def add(
        self, match: Match | Scenario, *actions: Action | ActionFunction, optional: bool = False, name: str = ""
    ) -> AddedRules:
        """Add a rule or a scenario: ``add(on.reply("PUB", topic="orders").nth(3), disconnect())``.

        The rule also applies to connections that exist already. If several rules match an event, the oldest rule acts.

        Args:
            optional: The rule may never act. For another rule that never acted, the end of a ``with`` block with the
                result, or stop(), raises RuleNeverActed, or adds a note to the exception that is under way.
            name: Name in the transcript.

        Raises:
            TypeError: If the arguments are in another order, a match has no action, or a scenario gets actions.
            ValueError: If an action is not allowed for the events that are matched, or this server has no such events.
        """
        rules = make_rules(match, actions, optional=optional, name=name)
        self.faults.add(rules, self.now())
        return AddedRules(rules, self.faults.remove)

    def unfired(self) -> list[str]:
        """Describe each required rule that never fired, and the event that came closest to a match."""
        return self.faults.unfired()

    def record(self) -> None:
        """Begin to record a transcript. Does nothing if one is recorded already, for example by ``record=True``."""
        self.faults.start_transcript()

    @property
    def transcript(self) -> Transcript:
        """The recorded events.

        Raises:
            RuntimeError: If nothing is recorded.
        """
        transcript = self.faults.transcript
        if transcript is None:
            raise RuntimeError(
                f"nothing is recorded: make it with {type(self).__name__}(record=True), or call record()"
            )
        return transcript

    def wait_until(
        self, predicate: Callable[[Self], _Value], expected: object = True, *, timeout: float = 10.0
    ) -> _Value:
        """Wait until a function returns the expected value: ``wait_until(lambda nsqd: nsqd.depth("t"), 3)``.

        Args:
            predicate: Called with this server, on the server's thread.
            expected: The wanted value; True accepts every value that is true.
            timeout: Seconds of real time.

        Returns:
            The value.

        Raises:
            AssertionError: If the time is over. The text has the expected and nearest value, and the transcript's end.
        """
        __tracebackhide__ = True
        if not callable(predicate):
            raise TypeError(
                "wait_until() takes a function that gets the server, such as lambda nsqd: nsqd.depth('t'), not "
                f"{predicate!r}"
            )
        return wait_until(lambda: predicate(self), expected, timeout=timeout, transcript=self.faults.transcript)

    def report(self) -> str:
        """Describe the seed and the end of the transcript, for the report of a failed test."""
        lines = [f"{type(self).__name__}, seed={self.seed}"]
        if (transcript := self.faults.transcript) is not None:
            lines.append(transcript.text(_REPORTED_ENTRIES) or "(nothing happened)")
        return "\n".join(lines)

    # --- states -------------------------------------------------------------------------------------------------------

    def down(self) -> None:
        """Abort connections and refuse new ones, until up() or start(). Topics and messages stay."""
        if not self.running:
            return
        self._close(keeps_ports=True)

    def up(self) -> None:
        """Listen on the same ports again. Does nothing if the server is up."""
        self.start()

    def restart(self, *, keep_messages: bool = True) -> None:
        """Go down, and come up on the same ports like a new process, which has only the state that was in files.

        Args:
            keep_messages: True: like an nsqd that is stopped and writes its messages to files. False: like an nsqd that
                is killed and loses its messages.
        """
        self.down()
        self._on_restart(keep_messages=keep_messages)
        self.up()

    def kill(self) -> None:
        """Go down like a process that is killed: nsqd loses its messages. start() starts it again."""
        self.down()
        self._on_restart(keep_messages=False)

    def reset(self) -> None:
        """Become a new server on the same ports: no topics, messages, rules, toxics, states and errors.

        The transcript begins again, and so do the numbers of connections and the random numbers of faults. A
        ManualClock goes back to its start. All connections are aborted, and clients must connect again: what a client
        has sent, or what a fault has held back, could otherwise reach the next test. A server that is down comes up.

        Raises:
            RuleNeverActed: As stop(), after the reset.
            RuntimeError: If a client, or another server, still waits by the ManualClock, which then does not go back.
        """
        rules = self._added_rules()
        self.down()
        try:
            self._begin_again()
        finally:
            self.up()
        tell_unfired(rules, sys.exception())

    def _begin_again(self) -> None:
        """Do what reset() does while the server is down."""
        try:
            if isinstance(self.clock, ManualClock):
                self.clock.reset()
        finally:
            self.errors.clear()
            self._set_up()

    def stop_reading(self) -> None:
        """Until resume_reading(), accept connections, but read and send nothing."""
        from fakensqd.faults.toxics import stall

        if self._stall is None:
            self._stall = self.link.add(stall(), kept=True)
            self._resumed.clear()

    def resume_reading(self) -> None:
        """Read again, beginning with the data that clients have sent since stop_reading()."""
        if self._stall is not None:
            self._stall.remove()
            self._stall = None
            self._resumed.set()

    def set_processing_delay(self, seconds: float) -> None:
        """Process commands and HTTP requests after a delay. Commands that arrive together are delayed only once.

        Args:
            seconds: The delay; 0: none.

        Raises:
            ValueError: If the seconds are negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds {seconds} must be 0 or more")
        self._processing_delay = seconds
        for connection in self._connections:
            connection.processing_delay = seconds

    def states(self) -> dict[str, bool | float]:
        """Return the states by name: True if the server is in this state; for processing_delay, the seconds."""
        return {
            "down": not self.running,
            "stop_reading": not self._resumed.is_set(),
            "processing_delay": self._processing_delay,
        }

    def _apply_state(self, application: Application) -> Application:
        def respond(request: Request) -> HttpResponse:
            self._resumed.wait()  # until resume_reading() sets the event, or stop() kills this greenlet
            if self._processing_delay:
                self.clock.sleep(self._processing_delay)
            return application(request)

        return respond

    # --- connections --------------------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = peer_address(address)
        number = next(self._connection_numbers)
        if not self._admit(sock, peer, number):
            self._record_end(number)
            return
        transport = self.link.wrap(TcpTransport(sock, peer), lambda: reset_socket(sock))
        stack = TransportStack(
            transport,
            self.clock,
            context=self._context,
            reset=lambda: transport.abort(reset=True),
        )
        open_session = partial(self._open_session, peer)
        connection = Connection(
            stack, self.clock, open_session, self._record_error, self._ask_auth, self._processing_delay
        )
        self._connections[connection] = number
        if self.faults.is_active:
            connection.session.attach(self.faults, number)
        try:
            # If another client disconnected before this client connected, first read the end of the old connection.
            # Otherwise the server may push messages to the old connection. Both connections may be accepted in the same
            # round of the event loop, so wait two rounds: in the first, the last data of the old connection is read; in
            # the second, its end.
            for _ in range(2):
                socket.wait_read(sock.fileno())
            connection.run()
            del self._connections[connection]
            transport.wait_closed()
        finally:
            self._connections.pop(connection, None)
            transport.abort()
            self._record_end(number)

    def _admit(self, sock: socket.socket, peer: str, number: int) -> bool:
        """Record a new connection, and apply the rules about connections.

        Returns:
            False if a rule has closed the connection, or has left it without service until the client closed it.
        """
        self.faults.record(Entry(self.now(), number, "connect", detail=peer))
        for step in self.faults.apply_rules(Event(Point.CONNECT, "", self.now(), number), (Execute(),)):
            match step:
                case Wait(seconds):
                    self.clock.sleep(seconds)
                case Execute():
                    return True
                case Close():
                    return False
                case Reset():
                    reset_socket(sock)
                    return False
        wait_for_end(sock)
        return False

    def _record_end(self, number: int) -> None:
        self.faults.record(Entry(self.now(), number, "end"))

    def _attach_faults(self) -> None:
        for connection, number in self._connections.items():
            connection.session.attach(self.faults, number)
