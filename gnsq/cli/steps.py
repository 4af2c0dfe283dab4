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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gevent import socket

from gnsq.addresses import format_address, is_unix, parse_address
from gnsq.census import short_address
from gnsq.cli import advice
from gnsq.cli.nodes import http_address
from gnsq.cli.servers import Cluster
from gnsq.discovery import listed_producers, producer_address
from gnsq.errors import NSQErrorCode, NSQException, NSQHttpError
from gnsq.http.responses import shown
from gnsq.lookupd import LookupdClient
from gnsq.message import Message
from gnsq.nsqd import NsqdHTTPClient, NsqdTCPClient
from gnsq.nsqd.connect import TransportStack, load_certificates
from gnsq.options import ConnectionOptions
from gnsq.protocol.frames import Frame
from gnsq.protocol.handshake import (
    Handshake,
    Identity,
    ReadFrame,
    StartCompression,
    StartTLS,
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
# nsqd's default.
TCP_PORT = 4150
# A certificate that is valid for fewer days is a warning.
MIN_DAYS = 30
# In place of a secret, if none is given. It is never sent.
NO_SECRET = b"gnsq ping has no secret"


class Status(enum.Enum):
    """Outcome of a step."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(slots=True)
class Check:
    """The result of one step.

    Attributes:
        step: Name of the step.
        seconds: How long it took; None if it was skipped.
        text: What was found, or what is wrong.
        advice: What to do; empty if nothing.
    """

    step: str
    status: Status = Status.OK
    seconds: float | None = None
    text: str = ""
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


class _Failed(Exception):
    """A step has failed, and its check is recorded."""


class _Recorder:
    """Records the checks of one server.

    Args:
        explain: Explains why a step has failed.
    """

    def __init__(self, explain: Callable[[Exception], advice.Explanation]) -> None:
        self.checks: list[Check] = []
        self._explain = explain
        self._started = 0.0

    def _begin(self, name: str) -> Check:
        self.checks.append(Check(name))
        self._started = time.monotonic()
        return self.checks[-1]

    def _end(self) -> Check:
        self.checks[-1].seconds = time.monotonic() - self._started
        return self.checks[-1]

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Check]:
        """Record a step, which is the block.

        Raises:
            _Failed: If the block raises an expected error.
        """
        try:
            yield self._begin(name)
        except (NSQException, OSError, ValueError) as error:
            check = self._end()
            check.status, (check.text, check.advice) = Status.FAILED, self._explain(error)
            raise _Failed from error
        self._end()

    def next_step(self, name: str) -> Check:
        """End the step that runs, and record the rest of its block as another one."""
        self._end()
        return self._begin(name)


# --- nsqlookupd


def check_lookupd(client: LookupdClient, is_only_source: bool) -> tuple[list[Check], list[Target]]:
    """Ask an nsqlookupd for its nsqds.

    Args:
        is_only_source: True if no nsqd is given, so that an answer without nsqds is a failure.
    """
    targets, url = [], short_address(client.address)

    def explain(error: Exception) -> advice.Explanation:
        kind, tcp_port = _kind_of_server(client.host, client.port, client.options.timeout)
        facts = advice.Facts(
            format_address(client.host, client.port),
            "nsqlookupd",
            server_name=client.host,
            has_ca=client.options.ca_certs is not None,
            kind=kind,
            tcp_port=tcp_port,
        )
        return advice.explain(error, facts)

    recorder = _Recorder(explain)
    with contextlib.suppress(_Failed), recorder.step("nodes") as check:
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
        check.text = f"version {_version(client)}, knows {counted(len(targets), 'nsqd')}"
        if not targets:
            if is_only_source:
                raise NSQException("knows no nsqd", code="NO_NSQD")
            check.status, (check.text, check.advice) = Status.WARNING, advice.SENTENCES["NO_NSQD"]
    return recorder.checks, targets


def _version(client: LookupdClient) -> str:
    try:
        return printable(str(client.info().get("version", "unknown")))
    except NSQHttpError:
        return "unknown"


def _kind_of_server(host: str, port: int, timeout: float) -> tuple[advice.Kind, int]:
    """Find out what kind of server listens on a port, and nsqd's TCP port, for the advice after a failed step."""
    if is_unix(host):
        return advice.Kind.UNKNOWN, TCP_PORT
    limit = min(timeout, PROBE_TIMEOUT)
    try:
        info = NsqdHTTPClient(host, port, timeout=limit, retries=0).info()
    except NSQHttpError as error:
        if error.status is not None:
            return advice.Kind.HTTP, TCP_PORT
    else:
        if not isinstance(info, dict) or "version" not in info:
            return advice.Kind.HTTP, TCP_PORT
        if "tcp_port" not in info:
            return advice.Kind.LOOKUPD_HTTP, TCP_PORT
        return advice.Kind.NSQD_HTTP, info["tcp_port"] if isinstance(info["tcp_port"], int) else TCP_PORT
    # nsqlookupd answers this PING with OK; nsqd, which has another protocol, with an error frame.
    with contextlib.suppress(NSQException), time_limit(limit, "no answer"):
        transport = connect(host, port, limit)
        try:
            transport.sendall(b"  V1PING\n")
            answer = transport.recv(64)
        finally:
            transport.close()
        if answer.endswith(b"\x00\x02OK"):
            return advice.Kind.LOOKUPD_TCP, TCP_PORT
        if b"E_BAD_PROTOCOL" in answer:
            return advice.Kind.NSQD_TCP, TCP_PORT
    return advice.Kind.UNKNOWN, TCP_PORT


# --- nsqd


def _observed(
    steps: Handshake, stack: TransportStack, recorder: _Recorder, on_tls: Callable[[TlsTransport], object]
) -> Handshake:
    """Yield the steps of a handshake, and record its parts. Call a function with the TLS transport after its handshake.

    Raises:
        NSQException: If the next step is AUTH with NO_SECRET.
    """
    response: Frame | None = None
    identified = check = recorder.checks[-1]
    while True:
        try:
            step = steps.send(response)
        except StopIteration as end:
            identity: Identity = end.value
            return identity
        match step:
            case StartTLS():
                check = recorder.next_step("TLS")
            case StartCompression(codec):
                check = recorder.next_step("compression")
                check.text = codec.name
            case Write(data) if data.startswith(b"AUTH\n"):
                check = recorder.next_step("AUTH")
                if data.endswith(NO_SECRET):
                    raise auth_required()
            case ReadFrame() if check.step == "TLS" and isinstance(stack.below_log, TlsTransport):
                on_tls(stack.below_log)
        response = yield step
        if response is not None and check is identified:
            with contextlib.suppress(ValueError, AttributeError, KeyError):  # an old nsqd answers with a plain OK
                check.text = f"nsqd {printable(str(json.loads(response[1])['version']))}"


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
        # Without a secret, the handshake would end before TLS, if nsqd requires AUTH.
        self._options = load_certificates(dataclasses.replace(options, auth_secret=options.auth_secret or NO_SECRET))
        name = f"gnsq-ping-{secrets.token_hex(8)}#ephemeral"
        self._is_own_topic = topic is None
        self._topic = topic or name
        self._channel = name
        self._recorder = _Recorder(self._explain)

    def run(self) -> list[Check]:
        """Do all steps, of which a later one may fail for another reason than an earlier one."""
        steps = [*([] if is_unix(self._host) else ["resolve"]), "connect", "IDENTIFY"]
        steps += ["TLS"] if self._options.wants_tls else []
        steps += ["subscribe", "publish", "receive"]
        checks = self._recorder.checks
        with contextlib.suppress(_Failed), contextlib.ExitStack() as connections:
            self._resolve()
            self._connect(connections)
            self._pass_message(connections)
        checks += [
            Check(step, Status.SKIPPED, None, "not tried")
            for step in steps
            if step not in {check.step for check in checks}
        ]
        with contextlib.suppress(_Failed):
            self._check_http()
        return checks

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
            kind, tcp_port = _kind_of_server(self._host, self._port, self._cluster.timeout)
            facts = dataclasses.replace(facts, kind=kind, tcp_port=tcp_port)
        return advice.explain(error, facts)

    def _resolve(self) -> None:
        if is_unix(self._host):
            return
        with self._recorder.step("resolve") as check, self._limit("name not resolved", "ETIMEDOUT"):
            try:
                infos = socket.getaddrinfo(self._host, self._port, type=stdlib_socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                raise NSQException("name not resolved", code="HOST_UNKNOWN") from error
            check.text = ", ".join(dict.fromkeys(str(info[4][0]) for info in infos))

    def _limit(self, what: str, code: str = "") -> contextlib.AbstractContextManager[None]:
        return time_limit(self._cluster.timeout, what, self._target.address, code=code)

    # --- handshake

    def _stack(self, connections: contextlib.ExitStack, options: ConnectionOptions) -> TransportStack:
        """Connect."""
        stack = TransportStack(self._host, self._port, options)
        stack.connect()
        connections.callback(stack.connected.close)
        return stack

    def _connect(self, connections: contextlib.ExitStack) -> None:
        recorder = self._recorder
        with recorder.step("connect"):
            stack = self._stack(connections, self._options)
        with recorder.step("IDENTIFY") as first, self._limit("no end of the handshake"):
            first.text = "nsqd without a version"
            steps = _observed(
                *(handshake(self._options), stack, recorder), lambda tls: _describe_tls(tls.object, recorder.checks[-1])
            )
            identity = stack.run_handshake(steps)
        if identity.warnings:
            first.status, first.text = Status.WARNING, "; ".join(identity.warnings)
        if identity.auth:
            recorder.checks[-1].text = identity.account
        logger.info("%s: connected, %s", self._target.address, identity.summary)

    def _certificate_names(self) -> tuple[str, ...]:
        """Read the names in nsqd's certificate, which is checked except for its name. Return () if that fails."""
        context = client_context(ConnectionOptions(**self._cluster.connection))
        context.check_hostname = False
        options = dataclasses.replace(self._options, tls_context=context, tls_options=None)
        found: list[TlsTransport] = []
        recorder = _Recorder(lambda error: ("", ""))
        with contextlib.ExitStack() as connections, self._limit("no certificate"):
            stack = self._stack(connections, options)
            with contextlib.suppress(_Failed), recorder.step("IDENTIFY"):
                stack.run_handshake(_observed(handshake(options), stack, recorder, found.append))
            return _names(found[0].object.getpeercert()) if found else ()

    # --- the way of a message

    def _pass_message(self, connections: contextlib.ExitStack) -> None:
        """Subscribe, publish a message and receive it. Publish also if the subscription fails."""
        body = self._channel.encode()
        with contextlib.suppress(_Failed), self._recorder.step("subscribe") as subscribed:
            with self._limit("no response to SUB"):
                subscriber = self._client(connections)
                subscriber.subscribe(self._topic, self._channel)
                subscriber.check_ok()
                subscriber.ready(1)
            subscribed.text = f"channel {self._channel}"
        with self._recorder.step("publish") as check, self._limit("no response to PUB"):
            publisher = self._client(connections)
            started = time.monotonic()
            publisher.publish(self._topic, body)
            publisher.check_ok()
            check.text = f"topic {self._topic}"
        if subscribed.status is Status.FAILED:
            return
        with self._recorder.step("receive") as check, self._limit("no message", "NOT_RECEIVED"):
            _receive(subscriber, body)
            check.text = f"round trip {1000 * (time.monotonic() - started):.1f} ms"

    def _client(self, connections: contextlib.ExitStack) -> NsqdTCPClient:
        client = NsqdTCPClient(self._host, self._port, **self._cluster.connection)
        connections.callback(client.close_stream)
        client.connect()
        client.identify()
        return client

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
                self._recorder.checks.append(Check("health", Status.WARNING, 0.0, str(error)))
                return
        elif done.get("resolve") is Status.FAILED and self._host in address:
            return
        client = self._cluster.nsqd_client(address)
        with self._recorder.step("health") as check:
            try:
                client.ping()
                check.text = f"OK ({short_address(client.address)})"
            except NSQHttpError as error:
                check.status = Status.FAILED if error.status == 500 else Status.WARNING
                check.text, check.advice = advice.explain_http(error, client.address.rstrip("/"), is_guessed=is_guessed)
                if self._is_own_topic and done["publish"] is Status.OK and done["subscribe"] is not Status.OK:
                    check.text += f"; topic {self._topic} stays on nsqd"
        if check.status is Status.WARNING:
            return
        if self._is_own_topic and Status.OK in (done["publish"], done["subscribe"]):
            with self._recorder.step("delete topic") as check:
                try:
                    client.delete_topic(self._topic)
                except NSQHttpError as error:
                    if error.status != 404:  # 404: nsqd has deleted the ephemeral topic already
                        check.status = Status.WARNING
                        check.text = f"{error}; nsqd deletes the ephemeral topic by itself"


def _receive(client: NsqdTCPClient, body: bytes) -> None:
    """Wait for the message with a body. Finish all messages: the channel is this program's own."""
    while True:
        _, received = client.read_response()
        if isinstance(received, NSQErrorCode):
            raise received
        if isinstance(received, Message):
            received.finish()
            if received.body == body:
                return


def _describe_tls(tls: ssl.SSLObject, check: Check) -> None:
    cipher = tls.cipher()
    check.text = f"{tls.version()}, {cipher[0] if cipher else 'no cipher'}"
    certificate = tls.getpeercert()
    if not certificate:  # ssl does not read a certificate that it does not check
        check.text += ", certificate not checked"
        return
    names = ", ".join(_names(certificate)) or "no name"
    days = int((ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) // 86400)
    check.text += f", certificate of {names}, expires in {counted(days, 'day')}"
    if days < MIN_DAYS:
        check.status, check.advice = Status.WARNING, "renew the certificate, and restart nsqd"


def _names(certificate: Any) -> tuple[str, ...]:  # Any: ssl's dictionary, whose values have several types
    return tuple(printable(value) for _, value in (certificate or {}).get("subjectAltName", ()))
