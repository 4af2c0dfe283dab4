"""The steps of ``gnsq ping``: ask nsqlookupds, connect to nsqds, and send a message on its whole way.

The modules beside it explain an error (advice.py) and show the results (ping.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import secrets
import socket as stdlib_socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from gevent import socket

from gnsq.addresses import format_address, is_unix, parse_address
from gnsq.cli import advice
from gnsq.cli.cluster import Cluster
from gnsq.cli.nodes import http_address, short_address
from gnsq.discovery import listed_producers, producer_address
from gnsq.errors import NSQException, NSQHttpError, make_error
from gnsq.http.responses import shown
from gnsq.lookupd import LookupdClient
from gnsq.nsqd import NsqdHTTPClient
from gnsq.nsqd.connect import TransportStack, load_certificates
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, RESPONSE, Frame, decode_message
from gnsq.protocol.handshake import (
    Identity,
    ReadFrame,
    StartCompression,
    StartTLS,
    Step,
    Write,
    auth_required,
    handshake,
)
from gnsq.texts import counted, printable
from gnsq.tls import TlsTransport, client_context
from gnsq.transport import connect, time_limit

__all__ = ["Check", "NsqdChecker", "Status", "Target", "check_lookupd"]

logger = logging.getLogger(__name__)

# Limit in seconds of each attempt to find out what kind of server listens on a port.
PROBE_TIMEOUT = 2.0
# A certificate that is valid for fewer days is a warning.
MIN_DAYS = 30


class Status(enum.Enum):
    """Outcome of a step."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one step.

    Attributes:
        step: Name of the step.
        seconds: How long it took; None if it was skipped.
        text: What was found, or what is wrong.
        advice: What to do; empty if nothing.
    """

    step: str
    status: Status
    seconds: float | None
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """An nsqd to check.

    Attributes:
        address: TCP address.
        http_address: HTTP address; empty if unknown.
        named_by: Address of the nsqlookupd that has named it; empty for --nsqd.
    """

    address: str
    http_address: str
    named_by: str = ""


@dataclass
class _Found:
    """Report of a step that has not failed."""

    text: str = ""
    warning: str = ""
    advice: str = ""


class _Failed(Exception):
    """A step has failed, and its check is recorded."""


class _Recorder:
    """Records the checks of one server."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    @contextlib.contextmanager
    def step(self, name: str, explain: Callable[[Exception], advice.Explanation]) -> Iterator[_Found]:
        """Record a step, which is the block.

        Raises:
            _Failed: If the block raises an expected error.
        """
        found, started = _Found(), time.monotonic()
        try:
            yield found
        except (NSQException, OSError, ValueError) as error:
            seconds = time.monotonic() - started
            self.add(name, Status.FAILED, seconds, *explain(error))
            raise _Failed from error
        seconds = time.monotonic() - started
        if found.warning:
            self.add(name, Status.WARNING, seconds, found.warning, found.advice)
        else:
            self.add(name, Status.OK, seconds, found.text)

    def add(self, step: str, status: Status, seconds: float | None, text: str, advice: str = "") -> None:
        self.checks.append(Check(step, status, seconds, text, advice))


# --- nsqlookupd


def check_lookupd(client: LookupdClient, is_only_source: bool) -> tuple[list[Check], list[Target]]:
    """Ask an nsqlookupd for its nsqds.

    Args:
        is_only_source: True if no nsqd is given, so that an answer without nsqds is a failure.
    """
    recorder, targets, url = _Recorder(), [], short_address(client.address)

    def explain(error: Exception) -> advice.Explanation:
        server = _kind_of_server(client.host, client.port, client.options.timeout)
        has_ca = client.options.ca_certs is not None
        address = format_address(client.host, client.port)
        return advice.explain(
            error, advice.Facts(address, "nsqlookupd", server_name=client.host, has_ca=has_ca, server=server)
        )

    with contextlib.suppress(_Failed), recorder.step("nodes", explain) as found:
        producers = listed_producers(client.nodes())
        for producer in producers:
            try:
                address = producer_address(producer, "tcp_port")
            except ValueError as error:
                raise ValueError(f"can't use the nsqd {shown(producer)}: {error}") from error
            with contextlib.suppress(ValueError):  # an old nsqlookupd may give no HTTP port
                targets.append(Target(address, producer_address(producer, "http_port"), url))
                continue
            targets.append(Target(address, "", url))
        found.text = f"version {_version(client)}, knows {counted(len(targets), 'nsqd')}"
        if not targets:
            if is_only_source:
                raise NSQException("knows no nsqd", code="NO_NSQD")
            found.warning, found.advice = advice.SENTENCES["NO_NSQD"]
    return recorder.checks, targets


def _version(client: LookupdClient) -> str:
    try:
        return printable(str(client.info().get("version", "unknown")))
    except NSQHttpError:
        return "unknown"


def _kind_of_server(host: str, port: int, timeout: float) -> advice.Server:
    """Find out what kind of server listens on a port, for the advice after a failed step."""
    if is_unix(host):
        return advice.Server()
    limit = min(timeout, PROBE_TIMEOUT)
    try:
        info = NsqdHTTPClient(host, port, timeout=limit, retries=0).info()
    except NSQHttpError as error:
        if error.status is not None:
            return advice.Server(advice.Kind.HTTP)
    else:
        if not isinstance(info, dict) or "version" not in info:
            return advice.Server(advice.Kind.HTTP)
        if "tcp_port" not in info:
            return advice.Server(advice.Kind.LOOKUPD_HTTP)
        return advice.Server(advice.Kind.NSQD_HTTP, info["tcp_port"] if isinstance(info["tcp_port"], int) else None)
    # nsqlookupd answers this PING with OK; nsqd, which has another protocol, with an error frame.
    with contextlib.suppress(NSQException), time_limit(limit, "no answer"):
        transport = connect(host, port, limit)
        try:
            transport.sendall(b"  V1PING\n")
            answer = transport.recv(64)
        finally:
            transport.close()
        if answer.endswith(b"\x00\x02OK"):
            return advice.Server(advice.Kind.LOOKUPD_TCP)
        if b"E_BAD_PROTOCOL" in answer:
            return advice.Server(advice.Kind.NSQD_TCP)
    return advice.Server()


# --- nsqd


@dataclass
class _Phases:
    """The parts of a handshake, with the time of each.

    Attributes:
        name: The part that runs now.
        tls: The TLS transport after its handshake; None before, or without TLS.
        version: Version of nsqd.
    """

    name: str = "IDENTIFY"
    started: float = field(default_factory=time.monotonic)
    ended: dict[str, float] = field(default_factory=dict)
    tls: TlsTransport | None = None
    version: str = ""

    def end(self, following: str = "") -> float:
        """End the part that runs, and begin another one. Return the seconds of the part that has ended."""
        now = time.monotonic()
        seconds = self.ended[self.name] = now - self.started
        self.name, self.started = following, now
        return seconds


class NsqdChecker:
    """Checks one nsqd.

    Args:
        topic: Topic to use; None: an ephemeral one with a random name.
    """

    def __init__(self, cluster: Cluster, target: Target, topic: str | None) -> None:
        self._cluster = cluster
        self._target = target
        self._host, self._port = parse_address(target.address)
        options = ConnectionOptions(**cluster.connection)
        self._has_secret = options.auth_secret is not None
        # Without a secret, the handshake would end before TLS, if nsqd requires AUTH. This value is never sent.
        self._options = load_certificates(
            options if self._has_secret else dataclasses.replace(options, auth_secret=b"-")
        )
        name = f"gnsq-ping-{secrets.token_hex(8)}#ephemeral"
        self._is_own_topic = topic is None
        self._topic = topic or name
        self._channel = name
        self._recorder = _Recorder()
        self._stacks: list[TransportStack] = []

    def run(self) -> list[Check]:
        """Do all steps, of which a later one may fail for another reason than an earlier one."""
        steps = [*([] if is_unix(self._host) else ["resolve"]), "connect", "IDENTIFY"]
        steps += ["TLS"] if self._options.wants_tls else []
        steps += ["subscribe", "publish", "receive"]
        try:
            with contextlib.suppress(_Failed):
                self._resolve()
                self._pass_message(self._connect())
            done = {check.step for check in self._recorder.checks}
            for step in steps:
                if step not in done:
                    self._recorder.add(step, Status.SKIPPED, None, "not tried")
            with contextlib.suppress(_Failed):
                self._check_http()
        finally:
            for stack in self._stacks:
                if stack.transport is not None:
                    stack.transport.close()
        return self._recorder.checks

    def _explain(self, error: Exception) -> advice.Explanation:
        facts = advice.Facts(
            address=self._target.address,
            named_by=self._target.named_by,
            topic=self._topic,
            server_name=self._options.server_hostname or self._host,
            timeout=self._cluster.timeout,
            has_ca="ca_certs" in self._cluster.connection.get("tls_options", ()),
        )
        code = getattr(error, "code", "")
        if code == "CERT_WRONG_NAME":
            facts = dataclasses.replace(facts, certificate_names=self._certificate_names())
        elif code in advice.MAY_BE_ANOTHER_SERVER:
            facts = dataclasses.replace(facts, server=_kind_of_server(self._host, self._port, self._cluster.timeout))
        return advice.explain(error, facts)

    def _resolve(self) -> None:
        if is_unix(self._host):
            return
        with self._recorder.step("resolve", self._explain) as found, self._limit("name not resolved", "ETIMEDOUT"):
            try:
                infos = socket.getaddrinfo(self._host, self._port, type=stdlib_socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                raise NSQException("name not resolved", code="HOST_UNKNOWN") from error
            found.text = ", ".join(dict.fromkeys(str(info[4][0]) for info in infos))

    def _limit(self, what: str, code: str = "") -> contextlib.AbstractContextManager[None]:
        return time_limit(self._cluster.timeout, what, self._target.address, code=code)

    # --- handshake

    def _connect(self) -> TransportStack:
        stack = TransportStack(self._host, self._port, self._options)
        self._stacks.append(stack)
        with self._recorder.step("connect", self._explain):
            stack.connect()
        phases = _Phases()
        try:
            identity = self._handshake(stack, phases)
        except (NSQException, OSError, ValueError) as error:
            self._record_phases(phases, None)
            name, seconds = phases.name, phases.end()
            self._recorder.add(name, Status.FAILED, seconds, *self._explain(error))
            raise _Failed from error
        phases.end()
        self._record_phases(phases, identity)
        logger.info("%s:%d: connected, %s", self._host, self._port, identity.summary)
        return stack

    def _handshake(self, stack: TransportStack, phases: _Phases) -> Identity:
        with self._limit("no end of the handshake"):
            return stack.run_handshake(self._observed(handshake(self._options), stack, phases))

    def _observed(
        self, steps: Generator[Step, Frame | None, Identity], stack: TransportStack, phases: _Phases
    ) -> Generator[Step, Frame | None, Identity]:
        """Yield the steps of a handshake, and note when its parts begin."""
        response: Frame | None = None
        while True:
            try:
                step = steps.send(response)
            except StopIteration as end:
                identity: Identity = end.value
                return identity
            match step:
                case StartTLS():
                    phases.end("TLS")
                case StartCompression():
                    phases.end("compression")
                case Write(data) if data.startswith(b"AUTH\n"):
                    phases.end("AUTH")
                    if not self._has_secret:
                        raise auth_required()
                case ReadFrame() if phases.name == "TLS":
                    phases.tls = stack.below_log if isinstance(stack.below_log, TlsTransport) else None
            response = yield step
            if response is not None and phases.name == "IDENTIFY":
                with contextlib.suppress(ValueError, AttributeError):  # an old nsqd answers with a plain OK
                    phases.version = printable(str(json.loads(response[1]).get("version", "")))

    def _record_phases(self, phases: _Phases, identity: Identity | None) -> None:
        """Record the parts of a handshake that have ended without an error."""
        for name, seconds in phases.ended.items():
            found = _Found()
            if name == "IDENTIFY":
                found.text = f"nsqd {phases.version}" if phases.version else "nsqd without a version"
                found.warning = "; ".join(identity.warnings) if identity is not None else ""
            elif name == "TLS" and phases.tls is not None:
                _describe_tls(phases.tls.object, found)
            elif name == "compression" and identity is not None and identity.compression is not None:
                found.text = identity.compression.name
            elif name == "AUTH" and identity is not None:
                found.text = _describe_auth(identity)
            status = Status.WARNING if found.warning else Status.OK
            self._recorder.add(name, status, seconds, found.warning or found.text, found.advice)

    def _certificate_names(self) -> tuple[str, ...]:
        """Read the names in nsqd's certificate, which is checked except for its name. Return () if that fails."""
        options = ConnectionOptions(**self._cluster.connection)
        context = client_context(options)
        context.check_hostname = False
        options = dataclasses.replace(self._options, tls_context=context, tls_options=None)
        stack, phases = TransportStack(self._host, self._port, options), _Phases()
        self._stacks.append(stack)
        with contextlib.suppress(NSQException, OSError), self._limit("no certificate"):
            stack.connect()
            stack.run_handshake(self._observed(handshake(options), stack, phases))
        return _names(phases.tls.object.getpeercert()) if phases.tls is not None else ()

    # --- the way of a message

    def _pass_message(self, publisher: TransportStack) -> None:
        """Subscribe, publish a message and receive it. Publish also if the subscription fails."""
        subscriber = None
        with contextlib.suppress(_Failed), self._recorder.step("subscribe", self._explain) as found:
            subscriber = self._subscribe()
            found.text = f"channel {self._channel}"
        body = self._channel.encode()
        started = time.monotonic()
        with self._recorder.step("publish", self._explain) as found, self._limit("no response to PUB"):
            _request(publisher, commands.publish(self._topic, body))
            found.text = f"topic {self._topic}"
        if subscriber is None:
            return
        with self._recorder.step("receive", self._explain) as found, self._limit("no message", "NOT_RECEIVED"):
            _receive(subscriber, body)
            found.text = f"round trip {1000 * (time.monotonic() - started):.1f} ms"

    def _subscribe(self) -> TransportStack:
        stack = TransportStack(self._host, self._port, self._options)
        self._stacks.append(stack)
        with self._limit("no response to SUB"):
            stack.connect()
            stack.run_handshake(handshake(self._options))
            _request(stack, commands.subscribe(self._topic, self._channel))
            stack.allow_messages()
            stack.connected.sendall(commands.ready(1))
        return stack

    # --- HTTP

    def _check_http(self) -> None:
        """Ask nsqd for its health, and delete the topic."""
        done = {check.step: check.status for check in self._recorder.checks}
        address, is_guessed = self._target.http_address, False
        if not address:
            if done["IDENTIFY"] in (Status.FAILED, Status.SKIPPED):
                return  # the next port is as wrong as this one
            try:
                address, is_guessed = http_address(self._target.address), True
            except ValueError as error:
                self._recorder.add("health", Status.WARNING, 0.0, str(error))
                return
        elif done.get("resolve") is Status.FAILED and self._host in address:
            return
        client = self._cluster.nsqd_client(address)
        started = time.monotonic()
        try:
            client.ping()
        except NSQHttpError as error:
            status = Status.FAILED if error.status == 500 else Status.WARNING
            text, what = advice.explain_http(error, client.address.rstrip("/"), is_guessed=is_guessed)
            if self._is_own_topic and done["publish"] is Status.OK and done["subscribe"] is not Status.OK:
                text += f"; topic {self._topic} stays on nsqd"
            self._recorder.add("health", status, time.monotonic() - started, text, what)
            if status is Status.WARNING:
                return
        else:
            self._recorder.add("health", Status.OK, time.monotonic() - started, f"OK ({short_address(client.address)})")
        if self._is_own_topic and Status.OK in (done["publish"], done["subscribe"]):
            self._delete_topic(client)

    def _delete_topic(self, client: NsqdHTTPClient) -> None:
        started = time.monotonic()
        status, text = Status.OK, ""
        try:
            client.delete_topic(self._topic)
        except NSQHttpError as error:
            if error.status != 404:  # 404: nsqd has deleted the ephemeral topic already
                status, text = Status.WARNING, f"{error}; nsqd deletes the ephemeral topic by itself"
        self._recorder.add("delete topic", status, time.monotonic() - started, text)


def _request(stack: TransportStack, command: bytes) -> bytes:
    """Send a command and return its response.

    Raises:
        NSQErrorCode: If nsqd refuses.
    """
    stack.connected.sendall(command)
    return _read(stack, RESPONSE)


def _receive(stack: TransportStack, body: bytes) -> None:
    """Wait for the message with a body. Finish all messages: the channel is this program's own."""
    while True:
        _, _, message_id, received = decode_message(_read(stack, MESSAGE))
        stack.connected.sendall(commands.finish(message_id))
        if received == body:
            return


def _read(stack: TransportStack, wanted: int) -> bytes:
    """Read frames until one of the wanted type comes. Answer heartbeats."""
    while True:
        kind, data = stack.read_frame()
        if kind == ERROR:
            raise make_error(data)
        if kind == RESPONSE and data == HEARTBEAT:
            stack.connected.sendall(commands.NOP)
        elif kind == wanted:
            return data


def _describe_tls(tls: ssl.SSLObject, found: _Found) -> None:
    cipher = tls.cipher()
    found.text = f"{tls.version()}, {cipher[0] if cipher else 'no cipher'}"
    certificate = tls.getpeercert()
    if not certificate:  # ssl does not read a certificate that it does not check
        found.text += ", certificate not checked"
        return
    names = ", ".join(_names(certificate)) or "no name"
    days = int((ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) // 86400)
    found.text += f", certificate of {names}, expires in {counted(days, 'day')}"
    if days < MIN_DAYS:
        found.warning, found.advice = found.text, "renew the certificate, and restart nsqd"


def _names(certificate: Any) -> tuple[str, ...]:  # Any: ssl's dictionary, whose values have several types
    return tuple(printable(value) for _, value in (certificate or {}).get("subjectAltName", ()))


def _describe_auth(identity: Identity) -> str:
    name = printable(str(identity.auth.get("identity", ""))) or "without a name"
    count = identity.auth.get("permission_count")
    return f"identity {name}" + (f", {counted(count, 'permission')}" if isinstance(count, int) else "")
