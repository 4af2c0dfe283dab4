"""Real nsqd and nsqlookupd for tests that also run with the emulator: RealNsqd, RealLookupd, RealCluster.

A server is a program that is started here, on free ports and with a data path of its own; a service of the user's
compose file; or one that runs already, and has an address. Asks it over its HTTP API, and collects bodies over TCP; a
call blocks its thread, also in a gevent hub, for the milliseconds that the server takes. What a real server can't do
raises Unavailable, for which the pytest plugin skips the test. Source of flags: nsqd 1.3.0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeVar
from urllib.parse import urlencode

from fakensqd.addresses import join_address, open_socket, split_address
from fakensqd.cluster import Cluster, FakeCluster
from fakensqd.lookupd.server import FakeLookupd
from fakensqd.nsqd.published import AnyNsqd, check_body_types
from fakensqd.nsqd.server import FakeNsqd
from fakensqd.options import OWN_OPTIONS, DaemonOptions, LookupdOptions, NsqdOptions
from fakensqd.transcript import wait_until
from gnsq.clock import monotonic
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, MESSAGE, FrameDecoder, decode_message

__all__ = ["RealCluster", "RealLookupd", "RealNsqd", "Unavailable", "WITHOUT_MEANING"]

_Value = TypeVar("_Value")
_Path = str | os.PathLike[str]

# Seconds for a program's start, for its end, in which nsqd writes its messages to the disk, for a server that should
# run already, and for one request or the collection of a topic's bodies.
START_LIMIT = 60.0
STOP_LIMIT = 30.0
REACH_LIMIT = 10.0
REQUEST_LIMIT = 30.0
# Seconds after which a connection that brings nothing is asked about.
_QUIET = 0.02
# Options of the emulator that have no meaning for a real server.
WITHOUT_MEANING = frozenset({"record", "seed"})
# Bytes of the log in the report of a failed test.
_REPORTED = 5000
# Attributes that only objects of the emulator have, not its classes.
_ATTRIBUTES = ("broker", "clock", "errors", "faults", "link", "seed")


class Unavailable(Exception):
    """A test asks a real server for what only the emulator has, or a server that is not its own to stop."""


class _Program:
    """A program that keeps its ports and its data when it starts again.

    Args:
        addresses: ``host:port`` for TCP and for HTTP; port 0: a free port.
        data_path: Folder of its data; "": one of its own; None: it has no data.
        log: File to which its log is appended; "": one of its own.
    """

    def __init__(self, command: Sequence[str], addresses: Sequence[str], data_path: str | None, log: str) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._ended = contextlib.ExitStack()
        # Sockets that never listen keep the ports for the program, also while it is down.
        sockets = [
            self._ended.enter_context(open_socket(split_address(address), listening=False)) for address in addresses
        ]
        tcp, http = (join_address(*sock.getsockname()[:2]) for sock in sockets)
        self.addresses = tcp, http
        temporary = tempfile.TemporaryDirectory(prefix="fakensqd-", ignore_cleanup_errors=True)
        folder = self._ended.enter_context(temporary)
        self._log = Path(log or f"{folder}/log")
        self._has_own_data = not data_path
        flags = [f"--tcp-address={tcp}", f"--http-address={http}"]
        if data_path is not None:
            flags.append(f"--data-path={data_path or folder}")
        self._command = [*command, *flags]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> tuple[str, str]:
        if not self.is_running:
            with open(self._log, "ab") as log:
                # A group of its own, since a script may have started the program.
                self.process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        return self.addresses

    def end(self, *, kill: bool) -> None:
        """End with SIGTERM or SIGKILL, and wait for it. Does nothing if it has ended."""
        process, self.process = self.process, None
        if process is not None:
            try:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
                process.wait(STOP_LIMIT)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def close(self) -> None:
        with self._ended:
            self.end(kill=self._has_own_data)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-_REPORTED:] if self._log.exists() else ""


class _Service:
    """A service of the compose file in the working directory. It stays up: the next run need not wait for it."""

    is_running = True

    def __init__(self, service: str, ports: tuple[int, int]) -> None:
        self._service = service
        self._ports = ports

    def start(self) -> tuple[str, str]:
        _compose("up", "--detach", "--wait", self._service)
        tcp, http = (_compose("port", self._service, str(port)).strip() for port in self._ports)
        return tcp.replace("0.0.0.0", "127.0.0.1"), http.replace("0.0.0.0", "127.0.0.1")

    def end(self, *, kill: bool) -> None:
        _compose("kill" if kill else "stop", self._service)

    def close(self) -> None:
        """Leave it as it is."""

    def log(self) -> str:
        return _compose("logs", "--tail", "50", self._service)


def _compose(*words: str) -> str:
    """Run docker compose; return what it prints."""
    command = ["docker", "compose", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10 * START_LIMIT)
    except (OSError, subprocess.SubprocessError) as error:
        raise OSError(f"{' '.join(command)}: {error}\n{getattr(error, 'stderr', None) or ''}") from error
    return done.stdout


class _RealServer:
    """Base class of the real servers: addresses, start and end, requests over HTTP.

    Args:
        program: The program, or its command in words; default: the one on PATH.
        flags: More flags, as the program takes them.
        data_path: Folder of nsqd's data, which stays; default: one of its own, which is deleted at the end.
        log: File to which the program's log is appended.
        options: As the emulator's; of its own options, record and seed have no effect here.

    Raises:
        FileNotFoundError: If there is no such program.
        Unavailable: If an option is the emulator's alone.
        TypeError, ValueError: As of the emulator's constructor.
    """

    name: ClassVar[str]
    _options: ClassVar[type[DaemonOptions]]
    _emulator: ClassVar[type]
    _ports: ClassVar[tuple[int, int]]
    _own_flags: ClassVar[tuple[str, ...]] = ("--broadcast-address=127.0.0.1",)
    _has_data: ClassVar[bool] = False

    def __init__(
        self,
        *,
        program: _Path | Sequence[str] = "",
        flags: Sequence[str] = (),
        data_path: _Path = "",
        log: _Path = "",
        **options: Any,  # of all types; the options' class checks them
    ) -> None:
        command = [_found(self.name, program)] if isinstance(program, (str, os.PathLike)) else program
        given = _flags(self._options, type(self), options)
        addresses = [options.get(name, "127.0.0.1:0") for name in ("tcp_address", "http_address")]
        data = os.fspath(data_path) if self._has_data else None
        process = _Program([*command, *self._own_flags, *given, *flags], addresses, data, os.fspath(log))
        self._begin(process, *process.addresses)

    def _begin(self, process: _Program | _Service | None, tcp_address: str, http_address: str) -> None:
        self._process = process
        self._addresses = tcp_address, http_address

    @property
    def tcp_address(self) -> str:
        """``host:port`` for the TCP protocol."""
        return self._addresses[0]

    @property
    def http_address(self) -> str:
        """``host:port`` for HTTP."""
        return self._addresses[1]

    @property
    def tcp_port(self) -> int:
        """The port of tcp_address."""
        return split_address(self.tcp_address)[1]

    @property
    def http_port(self) -> int:
        """The port of http_address."""
        return split_address(self.http_address)[1]

    @classmethod
    def at(cls, tcp_address: str, http_address: str) -> Self:
        """Name a server that runs already: it can't be started and stopped here."""
        for address in (tcp_address, http_address):
            split_address(address)
        return cls._of(None, tcp_address, http_address)

    @classmethod
    def service(cls, service: str = "") -> Self:
        """Take a service of the compose file in the working directory; default: the one named as the program."""
        return cls._of(_Service(service or cls.name, cls._ports), "", "")

    @classmethod
    def _of(cls, process: _Program | _Service | None, tcp_address: str, http_address: str) -> Self:
        self = cls.__new__(cls)
        self._begin(process, tcp_address, http_address)
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tcp_address}>"

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(self, self._emulator, name)

    @property
    def pid(self) -> int:
        """The number of the program's process."""
        process = self._process.process if isinstance(self._process, _Program) else None
        if process is None:
            raise Unavailable(f"{self.name} {self.tcp_address} is no process that was started here and runs")
        return process.pid

    def start(self) -> Self:
        """Start the server, unless it runs, and wait until it answers, on the same ports as before.

        Raises:
            OSError: If it does not answer, within a minute if it was started here; the text has its log.
        """
        try:
            if self._process is not None:
                self._addresses = self._process.start()
            self._wait_until_it_answers()
        except BaseException:  # also after ctrl-C: nothing else ends the program
            self.close()
            raise
        return self

    def _wait_until_it_answers(self) -> None:
        limit = REACH_LIMIT if self._process is None else START_LIMIT
        deadline = monotonic() + limit
        while True:
            try:
                self._ask("GET", "/ping")
                return
            except OSError as error:
                if not self.running or monotonic() > deadline:
                    said = f"has not answered within {limit:g} s" if self.running else "has ended at its start"
                    raise OSError(f"{self.name} {said}: {error}\n{self.report()}") from error
            time.sleep(0.005)

    @property
    def running(self) -> bool:
        """False if a program that was started here has ended, or has not started."""
        return self._process is None or self._process.is_running

    def stop(self) -> None:
        """Stop the server in order, with SIGTERM: nsqd writes its messages to the disk. start() starts it again."""
        self._owned("stop").end(kill=False)

    def kill(self) -> None:
        """Kill the server: nsqd loses the messages that it has not synced to its disk. start() starts it again."""
        self._owned("kill").end(kill=True)

    def restart(self, *, keep_messages: bool = True) -> None:
        """Stop or kill the server, and start it again."""
        self._owned("restart").end(kill=not keep_messages)
        self.start()

    def _owned(self, what: str) -> _Program | _Service:
        if self._process is None:
            raise Unavailable(f"{what}: {self.name} {self.tcp_address} was not started here")
        return self._process

    def close(self) -> None:
        """End a program for good, and delete its data; leave every other server as it is."""
        if self._process is not None:
            self._process.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def wait_until(
        self, predicate: Callable[[Self], _Value], expected: object = True, *, timeout: float = 10.0
    ) -> _Value:
        """Wait until a function returns the expected value, as the emulator's wait_until() does."""
        __tracebackhide__ = True
        return wait_until(lambda: predicate(self), expected, timeout=timeout)

    def report(self) -> str:
        """Return the end of the server's log, for the report of a failed test."""
        try:
            log = self._process.log() if self._process is not None else ""
        except OSError as error:
            log = str(error)
        return f"{type(self).__name__} {self.tcp_address}\n{log}"

    def request(self, method: str, path: str, body: bytes = b"", **parameters: object) -> bytes:
        """Ask the HTTP API; return the body of the response.

        Raises:
            OSError: If the server does not answer, or refuses; the text has its answer.
        """
        target = f"{path}?{urlencode(parameters)}"
        status, text = self._ask(method, target, body)
        if status != 200:
            said = f"{status} {text.decode(errors='replace')}"
            raise OSError(f"{self.name} {self.http_address} has answered {method} {target} with {said}")
        return text

    def _ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = HTTPConnection(*split_address(self.http_address), timeout=REQUEST_LIMIT)
        with contextlib.closing(connection):
            try:
                connection.request(method, target, body)
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, HTTPException) as error:
                raise OSError(f"{self.name} {self.http_address} does not answer: {error!r}") from error


def _refuse(server: object, emulator: type, name: str) -> NoReturn:
    """Raise Unavailable for a public attribute of the emulator, AttributeError for any other one."""
    if not name.startswith("_") and (hasattr(emulator, name) or name in _ATTRIBUTES):
        raise Unavailable(f"{name} is the emulator's alone: {type(server).__name__} has no such thing")
    raise AttributeError(f"{type(server).__name__!r} object has no attribute {name!r}")


def _found(name: str, program: _Path) -> str:
    """Return the path of a program: of the one that is named, or else of the usual one on PATH.

    Raises:
        FileNotFoundError: If there is none.
    """
    found = shutil.which(program or name)
    if found is None:
        where = (
            f"{os.fspath(program)!r} is no program that can be run"
            if program
            else f"there is no program {name} on PATH"
        )
        raise FileNotFoundError(f"{where}: install nsqd and nsqlookupd, or name them")
    return found


def _flags(kind: type[DaemonOptions], owner: type, options: Mapping[str, Any]) -> list[str]:  # Any: of all types
    """Check options of the emulator, and return them as flags of a program. Of two equal flags, Go takes the last."""
    if emulated := sorted((options.keys() & {*OWN_OPTIONS, "clock"}) - WITHOUT_MEANING):
        raise Unavailable(f"the option {emulated[0]} is the emulator's alone")
    kind.from_keywords(owner, options)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    flags = []
    for name, value in options.items():
        if name in (*WITHOUT_MEANING, "tcp_address", "http_address"):
            continue
        values = value if isinstance(value, (tuple, list)) else (value,)
        flag = name.removesuffix("es" if name.endswith("addresses") else "").replace("_", "-")
        for each in values:
            text = f"{each:.9f}s" if fields[name].metadata["unit"] == "s" else str(each)
            flags.append(f"--{flag}={text.lower() if isinstance(each, bool) else text}")
    return flags


class RealLookupd(_RealServer):
    """A real nsqlookupd. Call start() or use ``with``."""

    name = "nsqlookupd"
    _options = LookupdOptions
    _emulator = FakeLookupd
    _ports = (4160, 4161)


class RealNsqd(_RealServer, AnyNsqd):
    """A real nsqd, with what tests ask of a FakeNsqd. Call start() or use ``with``."""

    name = "nsqd"
    _options = NsqdOptions
    _emulator = FakeNsqd
    _ports = (4150, 4151)
    _own_flags = ("--broadcast-address=127.0.0.1", "--https-address=127.0.0.1:0")
    _has_data = True

    def _begin(self, process: _Program | _Service | None, tcp_address: str, http_address: str) -> None:
        super()._begin(process, tcp_address, http_address)
        # The channel through which messages() collects, what it has read, by topic, and the names by topic().
        self._channel = f"fakensqd-{uuid.uuid4().hex[:8]}"
        self._collected: dict[str, list[bytes]] = {}
        self._named: list[str] = []

    def publish(self, topic: str, *bodies: bytes, delay: float = 0.0) -> None:
        """Publish messages over HTTP, as FakeNsqd.publish() does.

        Raises:
            ValueError: If bodies is empty, or the delay is negative.
            TypeError: If a body is not bytes.
            OSError: If nsqd refuses the topic, a body or the delay.
        """
        self._check_publish(topic, bodies, delay)
        if delay:
            for body in bodies:
                self.request("POST", "/pub", body, topic=topic, defer=round(delay * 1000))
            return
        chunk: list[bytes] = []
        size = 0
        for body in bodies:
            if chunk and size + len(body) > NsqdOptions.max_body_size // 2:
                self._publish_together(topic, chunk)
                chunk, size = [], 0
            chunk.append(body)
            size += len(body)
        self._publish_together(topic, chunk)

    def _publish_together(self, topic: str, bodies: Sequence[bytes]) -> None:
        self.request("POST", "/mpub", commands.multipublish_body(bodies), topic=topic, binary="true")

    def _check_publish(self, topic: str, bodies: Sequence[bytes], delay: float) -> None:
        if not bodies:
            raise ValueError("publish() needs at least one body")
        if delay < 0:
            raise ValueError(f"delay {delay:g} s must be 0 or more")
        check_body_types(bodies)

    def messages(self, topic: str, channel: str | None = None) -> list[bytes]:
        """List the bodies published to a topic since the first call, which makes a channel for them.

        If the topic has no other channel at the first call, its messages from before it are among them: nsqd keeps them
        for the first channel. Deferred messages are among them when they are due.

        Raises:
            RuntimeError: If the topic has had other channels before the first call.
            Unavailable: If a channel is given, since nsqd does not show the bodies that a channel has; if the topic is
                paused and has messages; if nsqd wants TLS or AUTH.
            OSError: If nsqd does not deliver the messages within half a minute.
        """
        if channel is not None:
            raise Unavailable(f"messages({topic!r}, {channel!r}): nsqd shows no bodies: ask depth() and in_flight()")
        if topic not in self._collected:
            if others := sorted({*self._channel_names().get(topic, ())} - {self._channel}):
                raise RuntimeError(
                    f"topic {topic!r} has channels ({', '.join(others)}), which have got what was published before: "
                    f"call messages({topic!r}) once before they are made, since then its bodies are collected"
                )
            self.request("POST", "/topic/create", topic=topic)
            self.request("POST", "/channel/create", topic=topic, channel=self._channel)
            self._collected[topic] = []
        if self._left(topic):
            self._collect(topic, self._collected[topic])
        return list(self._collected[topic])

    def _left(self, topic: str) -> bool:
        """Return whether the topic has messages that were not collected."""
        found = self._stats().get(topic)
        if found is None:
            return False
        channels = [each for each in found["channels"] if each["channel_name"] == self._channel]
        if found["paused"] and found["depth"]:
            raise Unavailable(f"topic {topic!r} is paused: nsqd gives its messages to no channel")
        return bool(found["depth"] or any(each["depth"] or each["in_flight_count"] for each in channels))

    def _collect(self, topic: str, bodies: list[bytes]) -> None:
        """Read and finish messages of the channel that collects until none are left."""
        deadline = monotonic() + REQUEST_LIMIT
        decoder = FrameDecoder()
        with socket.create_connection(split_address(self.tcp_address), REQUEST_LIMIT) as sock:
            sock.sendall(commands.MAGIC_V2 + commands.identify({"feature_negotiation": True}))
            while True:
                if not select.select([sock], [], [], _QUIET)[0]:
                    if not self._left(topic):
                        break
                    if monotonic() > deadline:
                        raise OSError(
                            f"nsqd {self.tcp_address} has not delivered all of {topic!r} in {REQUEST_LIMIT} s"
                        )
                    continue
                data = sock.recv(65536)
                if not data:
                    raise OSError(f"nsqd {self.tcp_address} has closed the connection that collects {topic!r}")
                finished = []
                for kind, frame in decoder.feed(data):
                    if kind == MESSAGE:
                        _, _, message_id, body = decode_message(frame)
                        bodies.append(body)
                        finished.append(message_id)
                    elif kind == ERROR:
                        self._on_error(frame.decode(errors="replace"))
                    elif frame.startswith(b"{"):
                        count = json.loads(frame)["max_rdy_count"]
                        sock.sendall(commands.subscribe(topic, self._channel) + commands.ready(count))
                if finished:
                    sock.sendall(commands.finish_all(finished))
            # RDY 0 first: nsqd would give the next messages to a client that it does not know to be gone.
            sock.sendall(commands.ready(0))
            sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while sock.recv(65536):
                    pass

    def _on_error(self, text: str) -> None:
        if text.startswith(("E_AUTH", "E_INVALID", "E_UNAUTHORIZED")):
            raise Unavailable(f"messages() is for an nsqd without AUTH, and that does not require TLS: {text}")
        raise OSError(f"nsqd {self.tcp_address}: {text}")

    def topic(self, prefix: str = "test") -> str:
        named = super().topic(prefix)
        self._named.append(named)
        return named

    def close(self) -> None:
        """End a program for good, and delete its data. On every other nsqd, delete what was made for the tests."""
        if not isinstance(self._process, _Program):
            with contextlib.suppress(OSError):  # it is down
                for topic, channels in self._channel_names().items():
                    if topic in self._named:
                        self.request("POST", "/topic/delete", topic=topic)
                    elif self._channel in channels:
                        self.request("POST", "/channel/delete", topic=topic, channel=self._channel)
        super().close()

    def _kept_bodies(self) -> Mapping[str, Sequence[bytes]]:
        return self._collected

    def _transcript_end(self) -> str:
        return ""

    def _stats(self) -> dict[str, dict[str, Any]]:  # Any: JSON
        """Return nsqd's statistics of each topic."""
        topics = json.loads(self.request("GET", "/stats", format="json"))["topics"]
        return {each["topic_name"]: each for each in topics or ()}

    def _numbers(self, name: str, topic: str, channel: str | None) -> list[int]:
        found = [each for each in [self._stats().get(topic)] if each]
        if channel is not None:
            found = [each for topic in found for each in topic["channels"] if each["channel_name"] == channel]
        return [int(each[name]) for each in found]

    def _channel_names(self) -> Mapping[str, Collection[str]]:
        return {name: [each["channel_name"] for each in topic["channels"]] for name, topic in self._stats().items()}


class RealCluster(Cluster[RealNsqd, RealLookupd]):
    """Real nsqds that are registered with real nsqlookupds, with what tests ask of a FakeCluster.

    Args:
        nsqds: Number of nsqds.
        lookupds: Number of nsqlookupds.
        program: The program of nsqd, beside which nsqlookupd is; default: those on PATH.
        options: Options of the nsqds, as in RealNsqd.

    Raises:
        FileNotFoundError, Unavailable, TypeError, ValueError: As of RealNsqd.
    """

    def __init__(
        self,
        nsqds: int = 2,
        lookupds: int = 1,
        *,
        program: _Path = "",
        **options: Any,  # of all types
    ) -> None:
        beside = Path(program).parent / RealLookupd.name if program else ""
        self._stack = contextlib.ExitStack()
        self.nsqds, self.lookupds = [], []
        self._new_lookupds = [functools.partial(RealLookupd, program=beside)] * lookupds
        self._new_nsqds = [functools.partial(RealNsqd, program=program, **options)] * nsqds

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(self, FakeCluster, name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start all servers, unless they run, and wait until the nsqds are registered."""
        if self.nsqds:
            return self
        with contextlib.ExitStack() as stack:
            self.lookupds = [stack.enter_context(make()) for make in self._new_lookupds]
            addresses = tuple(lookupd.tcp_address for lookupd in self.lookupds)
            self.nsqds = [stack.enter_context(make(lookupd_tcp_addresses=addresses)) for make in self._new_nsqds]
            for nsqd in self.nsqds:
                # One for all, since each nsqd makes the channels that the nsqlookupds know of a topic.
                nsqd._channel = self.nsqds[0]._channel
            for lookupd in self.lookupds:
                lookupd.wait_until(_registered, len(self.nsqds), timeout=START_LIMIT)
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """End all servers for good."""
        self._stack.close()


def _registered(lookupd: RealLookupd) -> int:
    return len(json.loads(lookupd.request("GET", "/nodes"))["producers"])
