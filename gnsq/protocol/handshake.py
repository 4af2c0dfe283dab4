"""The handshake at the start of a connection: magic ("  V2"), IDENTIFY, TLS, compression, AUTH. Pure.

The handshake is a generator that yields steps (Write, ReadFrame, StartTLS, StartCompression) and returns the Identity.
Its caller performs the steps. Frames are read one at a time, as bytes after a response may be encrypted or compressed.
The generators raise NSQErrorCode if nsqd refuses, and NSQProtocolError for a response that no nsqd sends.
Source: the V2 specification, IDENTIFY and AUTH; nsqd protocol_v2.go IDENTIFY, AUTH.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gnsq.errors import NSQException, NSQProtocolError, make_error
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.compression import DEFAULT_DEFLATE_LEVEL, Codec, Deflate, Snappy, require_snappy
from gnsq.protocol.frames import ERROR, HEARTBEAT, OK, RESPONSE, Frame
from gnsq.texts import counted, printable

__all__ = [
    "Handshake",
    "Identity",
    "ReadFrame",
    "StartCompression",
    "StartTLS",
    "Step",
    "Write",
    "auth_required",
    "auth_steps",
    "handshake",
    "identify_body",
    "identify_steps",
    "upgrade_steps",
]

# max_rdy_count of a server that does not announce it. Source: the client guide, "nsqd Max RDY Count".
DEFAULT_MAX_RDY_COUNT = 2500
# nsqd's defaults in seconds. A server that does not negotiate may use these defaults and not the client's values.
DEFAULT_MSG_TIMEOUT = 60.0
DEFAULT_HEARTBEAT_INTERVAL = 30.0
# Milliseconds; nsqd 1.3.0's default of --min-output-buffer-timeout. With a shorter timeout nsqd flushes more often.
LOW_OUTPUT_BUFFER_TIMEOUT = 25
# nsqlookupd answers the magic with E_BAD_PROTOCOL in a frame without a type, so the text is where the type would be.
_LOOKUPD_ERROR = int.from_bytes(b"E_BA")


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """Read one frame. The caller sends this frame into the generator.

    Attributes:
        expected: Describes the awaited frame, for the error text if it does not come in time.
    """

    expected: str


@dataclass(frozen=True, slots=True)
class StartTLS:
    """Start TLS as a client. If bytes have arrived after the last frame, raise an error: they are in clear text."""


@dataclass(frozen=True, slots=True)
class StartCompression:
    """Compress and decompress from now on. Bytes that have arrived after the last frame are compressed already."""

    codec: Codec


@dataclass(frozen=True, slots=True)
class Identity:
    """The results of IDENTIFY and AUTH. Durations are in seconds. A value that the server did not send has its default.

    A server that responds with a plain OK may use the client's values or its own defaults. In this case msg_timeout is
    the shorter of these two (None if the client asked for no value), and heartbeat_interval the longer.

    Attributes:
        heartbeat_interval: The interval that the client asked for; 0 if heartbeats are switched off.
        response: The server's response to IDENTIFY; empty if it was a plain OK.
        auth: The server's response to AUTH; empty if AUTH was not sent.
        warnings: Texts for the user about problems that do not prevent the connection.
    """

    version: str | None = None
    max_rdy_count: int = DEFAULT_MAX_RDY_COUNT
    msg_timeout: float | None = None
    max_msg_timeout: float | None = None
    heartbeat_interval: float = DEFAULT_HEARTBEAT_INTERVAL
    auth_required: bool = False
    tls: bool = False
    compression: Codec | None = None
    response: Mapping[str, object] = field(default_factory=dict)
    auth: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def counts_rdy_down(self) -> bool:
        """True if nsqd takes, or may take, RDY as the number of further messages, not as the limit of those in flight.

        Source: nsqd, "don't decrement RDY count", released with 0.3.0.
        """
        try:
            major, minor = (int(part) for part in (self.version or "").split(".")[:2])
        except ValueError:
            # The version is unknown. Return True: then RDY is sent more often, which does no harm. If RDY were sent too
            # seldom, no messages would come.
            return True
        return (major, minor) < (0, 3)

    @property
    def summary(self) -> str:
        """Text for the log: the server's version, and TLS, compression and AUTH if they are used."""
        parts = ["TLS"] if self.tls else []
        if self.compression is not None:
            parts.append(self.compression.name)
        if self.auth:
            parts.append("AUTH")
        return ", ".join([f"nsqd {printable(self.version or '') or 'without negotiation'}", *parts])

    @property
    def account(self) -> str:
        """What nsqd's response to AUTH tells of the secret: the name of its identity, and its number of permissions."""
        name = printable(str(self.auth.get("identity", ""))) or "without a name"
        count = self.auth.get("permission_count")
        return f"identity {name}" + (f", {counted(count, 'permission')}" if isinstance(count, int) else "")


Step = Write | ReadFrame | StartTLS | StartCompression
Handshake = Generator[Step, Frame | None, Identity]


def handshake(options: ConnectionOptions) -> Handshake:
    """Yield all steps of a handshake, after which SUB and PUB may be sent. Return the Identity.

    Raises:
        NSQException: If nsqd refuses a step, does not offer the wanted TLS, or requires AUTH and there is no secret.
        ImportError: If snappy is wanted and python-snappy can't be imported; nothing was sent.
    """
    if options.snappy:
        require_snappy()
    yield Write(commands.MAGIC_V2)
    return (yield from identify_steps(options))


def identify_steps(options: ConnectionOptions) -> Handshake:
    """Yield the steps of handshake() after the magic. nsqd accepts IDENTIFY repeatedly before SUB, but AUTH once."""
    yield Write(commands.identify(identify_body(options)))
    identity = _identity((yield from _read_response("IDENTIFY")), options)
    if identity.auth_required and options.auth_secret is None:
        raise auth_required()
    if identity.tls:
        yield from upgrade_steps(StartTLS())
    if identity.compression is not None:
        yield from upgrade_steps(StartCompression(identity.compression))
    if identity.auth_required:
        assert options.auth_secret is not None  # otherwise the first check has raised an error
        identity = replace(identity, auth=(yield from auth_steps(options.auth_secret)))
    return identity


def auth_required() -> NSQException:
    """Make the error if nsqd requires AUTH and there is no secret."""
    text, hint = "nsqd requires AUTH, and no secret is given", "nsqd runs with --auth-http-address: give {auth_secret}"
    return NSQException(text, code="AUTH_REQUIRED", name="auth_secret", hint=hint)


def identify_body(options: ConnectionOptions) -> dict[str, object]:
    """Build the JSON object of IDENTIFY. Durations are in milliseconds."""
    hostname = options.hostname if options.hostname is not None else socket.gethostname()
    client_id = options.client_id if options.client_id is not None else hostname.split(".")[0]
    body: dict[str, object] = {
        "client_id": client_id,
        "hostname": hostname,
        # Servers before 0.2.28 know client_id and hostname only under these names.
        "short_id": client_id,
        "long_id": hostname,
        "feature_negotiation": True,
        "heartbeat_interval": -1 if options.heartbeat_interval == -1 else round(options.heartbeat_interval * 1000),
        "tls_v1": options.wants_tls,
    }
    for name in ("output_buffer_size", "output_buffer_timeout", "snappy", "deflate", "user_agent"):
        body[name] = getattr(options, name)
    if options.deflate:
        body["deflate_level"] = options.deflate_level
    if options.sample_rate:
        body["sample_rate"] = options.sample_rate
    if options.msg_timeout is not None:
        body["msg_timeout"] = round(options.msg_timeout * 1000)
    return body


def upgrade_steps(step: StartTLS | StartCompression) -> Generator[Step, Frame | None, None]:
    """Yield the steps that start TLS or compression. nsqd's OK, which ends them, is encrypted or compressed already."""
    yield step
    name = step.codec.name if isinstance(step, StartCompression) else "TLS"
    response = yield from _read_response(name)
    if response != OK:
        raise NSQProtocolError(f"response {response[:80]!r} after the start of {name}, expected OK")


def auth_steps(secret: bytes) -> Generator[Step, Frame | None, Mapping[str, object]]:
    """Yield the steps of AUTH. Return nsqd's response: ``identity``, ``identity_url`` and ``permission_count``."""
    yield Write(commands.auth(secret))
    data = yield from _read_response("AUTH")
    response = _json_object(data)
    if response is None:
        raise NSQProtocolError(f"response {data[:80]!r} to AUTH is not a JSON object")
    return response


def _read_response(command: str) -> Generator[Step, Frame | None, bytes]:
    """Yield the steps that read the next response. Heartbeats that nsqd sends before the response are answered."""
    while True:
        frame = yield ReadFrame(f"response to {command}")
        assert frame is not None  # the caller sends a frame after ReadFrame
        frame_type, data = frame
        if frame_type == ERROR:
            raise make_error(data)
        if frame_type != RESPONSE:
            text = f"frame of type {frame_type} in response to {command}, expected a response"
            if frame_type == _LOOKUPD_ERROR:
                text += ": is this nsqlookupd's TCP port (4160) in place of nsqd's (4150)?"
            raise NSQProtocolError(text)
        if data != HEARTBEAT:
            return data
        yield Write(commands.NOP)


def _json_object(data: bytes) -> dict[str, object] | None:
    try:
        response = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return response if isinstance(response, dict) else None


def _identity(data: bytes, options: ConnectionOptions) -> Identity:
    response = {} if data == OK else _json_object(data)
    if response is None:
        raise NSQProtocolError(f"response {data[:80]!r} to IDENTIFY is neither OK nor a JSON object")
    max_rdy_count = response.get("max_rdy_count", DEFAULT_MAX_RDY_COUNT)
    if not isinstance(max_rdy_count, int) or isinstance(max_rdy_count, bool) or not 0 <= max_rdy_count < 2**63:
        shown = printable(repr(max_rdy_count))
        raise NSQProtocolError(f"max_rdy_count {shown} in the response to IDENTIFY is not a count")
    version = response.get("version")
    msg_timeout, heartbeat_interval = _seconds(response.get("msg_timeout")), max(options.heartbeat_interval, 0.0)
    if data == OK:
        if options.msg_timeout is not None:
            msg_timeout = min(options.msg_timeout, DEFAULT_MSG_TIMEOUT)
        if heartbeat_interval:
            heartbeat_interval = max(heartbeat_interval, DEFAULT_HEARTBEAT_INTERVAL)
    return Identity(
        version=None if version is None else str(version),
        max_rdy_count=max_rdy_count,
        msg_timeout=msg_timeout,
        max_msg_timeout=_seconds(response.get("max_msg_timeout")),
        heartbeat_interval=heartbeat_interval,
        auth_required=bool(response.get("auth_required")),
        tls=_tls(response, options),
        compression=_compression(response, options),
        response=response,
        warnings=tuple(_warnings(response, options)),
    )


def _tls(response: Mapping[str, object], options: ConnectionOptions) -> bool:
    """Return True if TLS must be started. Raise if TLS is wanted and not offered, or offered and not wanted."""
    offered = bool(response.get("tls_v1"))
    if options.wants_tls and not offered:
        how = "it runs without --tls-cert and --tls-key" if response else "it answers IDENTIFY with a plain OK"
        text = f"TLS was asked for and nsqd does not offer it ({how}); nothing more was sent"
        raise NSQException(text, code="TLS_NOT_OFFERED", name="tls_v1")
    if offered and not options.wants_tls:
        raise NSQProtocolError("nsqd begins TLS, which was not asked for")
    return offered


def _compression(response: Mapping[str, object], options: ConnectionOptions) -> Codec | None:
    wanted = {"snappy": options.snappy, "deflate": options.deflate}
    offered = [name for name in wanted if response.get(name)]
    if not offered:
        return None
    if offered != [name for name in wanted if wanted[name]]:
        raise NSQProtocolError(f"nsqd begins {' and '.join(offered)}, which was not asked for")
    if options.snappy:
        return Snappy()
    level = response.get("deflate_level")
    # Use the default for a level that is not valid: the response in the specification's example has level 0.
    return Deflate(level if isinstance(level, int) and 1 <= level <= 9 else DEFAULT_DEFLATE_LEVEL)


def _warnings(response: Mapping[str, object], options: ConnectionOptions) -> Iterator[str]:
    for name in ("snappy", "deflate"):
        if getattr(options, name) and not response.get(name):
            yield f"{name} was asked for and nsqd does not offer it; going on without compression"
    for name, least in (("output_buffer_size", 64), ("output_buffer_timeout", LOW_OUTPUT_BUFFER_TIMEOUT)):
        if response.get("deflate") and getattr(options, name) == -1:
            # Either turns the timeout of the buffer off, and nothing else flushes the compressor for a message.
            yield f"{name} -1 with deflate: nsqd 1.3.0 leaves messages in its compressor; use {least} or more"
    if 0 < options.output_buffer_timeout < LOW_OUTPUT_BUFFER_TIMEOUT:
        yield (
            f"output_buffer_timeout {options.output_buffer_timeout} ms is below {LOW_OUTPUT_BUFFER_TIMEOUT} ms: nsqd "
            "works harder for each message, and refuses it unless its --min-output-buffer-timeout allows it"
        )


def _seconds(milliseconds: object) -> float | None:
    if not isinstance(milliseconds, (int, float)) or isinstance(milliseconds, bool) or not 0 < milliseconds < 2**63:
        return None
    return milliseconds / 1000
