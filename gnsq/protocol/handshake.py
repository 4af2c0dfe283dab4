"""The order of a connection's first steps: magic, IDENTIFY, TLS, compression, AUTH.

Pure: a generator that yields what is to be done (Write, ReadFrame, StartTLS, StartCompression) and returns the
Identity. Who performs the steps owns the socket. Frames are taken one at a time: bytes behind an answer may belong to
the layer that begins there. Source: the V2 specification, IDENTIFY and AUTH; nsqd protocol_v2.go IDENTIFY, AUTH.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gnsq.errors import NSQBadBody, NSQErrorCode, NSQException, NSQInvalid, NSQProtocolError, make_error
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.compression import DEFAULT_DEFLATE_LEVEL, Codec, Deflate, Snappy, require_snappy
from gnsq.protocol.frames import ERROR, HEARTBEAT, OK, RESPONSE, Frame
from gnsq.texts import printable

__all__ = [
    "Handshake",
    "Identity",
    "ReadFrame",
    "StartCompression",
    "StartTLS",
    "Step",
    "Write",
    "auth_steps",
    "with_hint",
    "handshake",
    "identify_steps",
    "max_req_timeout",
    "upgrade_steps",
]

# What a server that does not negotiate allows. Source: the client guide, "nsqd Max RDY Count".
DEFAULT_MAX_RDY_COUNT = 2500
# What nsqd uses without being told, in seconds. One that does not negotiate may not know what it is asked for.
DEFAULT_MSG_TIMEOUT = 60.0
DEFAULT_HEARTBEAT_INTERVAL = 30.0
# What nsqd 1.3.0 takes by default (--min-output-buffer-timeout); below, each message costs it a flush of its own.
LOW_OUTPUT_BUFFER_TIMEOUT = 25
_REQ_REFUSED = re.compile(r"REQ timeout [0-9]+ out of range 0-([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """Wait for one whole frame and send it into the generator.

    Attributes:
        due: What it should be, for who has waited in vain.
    """

    due: str


@dataclass(frozen=True, slots=True)
class StartTLS:
    """Begin TLS, as its client. Nothing may have come behind the last frame: it would not be nsqd's."""


@dataclass(frozen=True, slots=True)
class StartCompression:
    """Compress and decompress from here on; what came behind the last frame is compressed already."""

    codec: Codec


@dataclass(frozen=True, slots=True)
class Identity:
    """What IDENTIFY settled. Durations in seconds; None where the server did not say.

    A server that answers with a plain OK may do what it was asked for, or keep to its own: then msg_timeout is the
    shorter and heartbeat_interval the longer of the two.
    """

    version: str | None = None
    max_rdy_count: int = DEFAULT_MAX_RDY_COUNT
    msg_timeout: float | None = None
    max_msg_timeout: float | None = None
    # 0 without heartbeats.
    heartbeat_interval: float = DEFAULT_HEARTBEAT_INTERVAL
    auth_required: bool = False
    tls: bool = False
    compression: Codec | None = None
    # The server's answer as it came; empty when it was a plain OK.
    answer: Mapping[str, object] = field(default_factory=dict)
    # Its answer to AUTH; empty when none was sent.
    auth: Mapping[str, object] = field(default_factory=dict)
    # What the user should know though it works.
    warnings: tuple[str, ...] = ()

    @property
    def counts_rdy_down(self) -> bool:
        """Whether nsqd takes RDY as how many more messages may come, not as a ceiling on what is in flight.

        Source: nsqd, "don't decrement RDY count", released with 0.3.0.
        """
        try:
            major, minor = (int(part) for part in (self.version or "").split(".")[:2])
        except ValueError:
            # A version nobody can read: a RDY too many does no harm, one too few stops the messages.
            return True
        return (major, minor) < (0, 3)

    @property
    def summary(self) -> str:
        """The server's version and what is on, for a log."""
        layers = ["TLS"] if self.tls else []
        if self.compression is not None:
            layers.append(self.compression.name)
        if self.auth:
            layers.append("AUTH")
        return ", ".join([f"nsqd {printable(self.version or '') or 'without negotiation'}", *layers])


Step = Write | ReadFrame | StartTLS | StartCompression
Handshake = Generator[Step, Frame | None, Identity]


def handshake(options: ConnectionOptions) -> Handshake:
    """Yield the steps from the first byte to a connection that may SUB and PUB; return its Identity.

    Raises:
        NSQErrorCode: What nsqd said instead.
        NSQProtocolError: If an answer is none of nsqd's.
        NSQException: If nsqd does not offer the TLS that was asked for, or requires AUTH and there is no secret.
        ImportError: If snappy is asked for and python-snappy can't be imported; before anything is sent.
    """
    if options.snappy:
        require_snappy()
    yield Write(commands.MAGIC_V2)
    return (yield from identify_steps(options))


def identify_steps(options: ConnectionOptions) -> Handshake:
    """Yield the steps of handshake() behind the magic; nsqd takes IDENTIFY more than once, until SUB."""
    yield Write(commands.identify(options.identify_body()))
    identity = _identity((yield from _read_response("IDENTIFY")), options)
    if identity.auth_required and options.auth_secret is None:
        raise NSQException("nsqd requires AUTH (it runs with --auth-http-address): give auth_secret")
    if identity.tls:
        yield from upgrade_steps(StartTLS())
    if identity.compression is not None:
        yield from upgrade_steps(StartCompression(identity.compression))
    if identity.auth_required:
        assert options.auth_secret is not None  # asked above, before anything else was sent
        identity = replace(identity, auth=(yield from auth_steps(options.auth_secret)))
    return identity


def upgrade_steps(step: StartTLS | StartCompression) -> Generator[Step, Frame | None, None]:
    """Yield the steps of one upgrade; nsqd sends an OK through each new layer.

    Raises:
        NSQErrorCode: If nsqd does not begin the layer.
        NSQProtocolError: If something else comes.
    """
    yield step
    layer = step.codec.name if isinstance(step, StartCompression) else "TLS"
    answer = yield from _read_response(layer)
    if answer != OK:
        raise NSQProtocolError(f"answer {answer[:80]!r} behind the start of {layer}, OK was due")


def auth_steps(secret: bytes) -> Generator[Step, Frame | None, Mapping[str, object]]:
    """Yield the steps of AUTH; return nsqd's answer: ``identity``, ``identity_url``, ``permission_count``.

    Raises:
        NSQErrorCode: If nsqd does not accept the secret.
        NSQProtocolError: If its answer is not JSON.
    """
    yield Write(commands.auth(secret))
    data = yield from _read_response("AUTH")
    answer = _json_object(data)
    if answer is None:
        raise NSQProtocolError(f"answer {data[:80]!r} to AUTH is no JSON object")
    return answer


def _read_response(command: str) -> Generator[Step, Frame | None, bytes]:
    """Read the next response; heartbeats may come in front of it once IDENTIFY has started them."""
    while True:
        frame = yield ReadFrame(f"answer to {command}")
        assert frame is not None  # what the performer sends in answer to ReadFrame
        frame_type, data = frame
        if frame_type == ERROR:
            raise with_hint(make_error(data))
        if frame_type != RESPONSE:
            raise NSQProtocolError(f"frame of type {frame_type} in answer to {command}; a response was due")
        if data != HEARTBEAT:
            return data
        yield Write(commands.NOP)


def _json_object(data: bytes) -> dict[str, object] | None:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _identity(data: bytes, options: ConnectionOptions) -> Identity:
    answer = {} if data == OK else _json_object(data)
    if answer is None:
        raise NSQProtocolError(f"answer {data[:80]!r} to IDENTIFY is neither OK nor a JSON object")
    max_rdy_count = answer.get("max_rdy_count", DEFAULT_MAX_RDY_COUNT)
    if not isinstance(max_rdy_count, int) or isinstance(max_rdy_count, bool) or not 0 <= max_rdy_count < 2**63:
        shown = printable(repr(max_rdy_count))
        raise NSQProtocolError(f"max_rdy_count {shown} in the answer to IDENTIFY is no count")
    version = answer.get("version")
    msg_timeout, heartbeat_interval = _seconds(answer.get("msg_timeout")), max(options.heartbeat_interval, 0.0)
    if data == OK:
        if options.msg_timeout is not None:
            msg_timeout = min(options.msg_timeout, DEFAULT_MSG_TIMEOUT)
        if heartbeat_interval:
            heartbeat_interval = max(heartbeat_interval, DEFAULT_HEARTBEAT_INTERVAL)
    return Identity(
        version=None if version is None else str(version),
        max_rdy_count=max_rdy_count,
        msg_timeout=msg_timeout,
        max_msg_timeout=_seconds(answer.get("max_msg_timeout")),
        heartbeat_interval=heartbeat_interval,
        auth_required=bool(answer.get("auth_required")),
        tls=_tls(answer, options),
        compression=_compression(answer, options),
        answer=answer,
        warnings=tuple(_warnings(answer, options)),
    )


def _tls(answer: Mapping[str, object], options: ConnectionOptions) -> bool:
    """Decide about TLS; never on in clear text when TLS was asked for."""
    offered = bool(answer.get("tls_v1"))
    if options.wants_tls and not offered:
        how = "it runs without --tls-cert and --tls-key" if answer else "it answers IDENTIFY with a plain OK"
        raise NSQException(f"TLS was asked for and nsqd does not offer it ({how}); nothing more was sent")
    if offered and not options.wants_tls:
        raise NSQProtocolError("nsqd begins TLS, which was not asked for")
    return offered


def _compression(answer: Mapping[str, object], options: ConnectionOptions) -> Codec | None:
    wanted = {"snappy": options.snappy, "deflate": options.deflate}
    offered = [name for name in wanted if answer.get(name)]
    if not offered:
        return None
    if offered != [name for name in wanted if wanted[name]]:
        raise NSQProtocolError(f"nsqd begins {' and '.join(offered)}, which was not asked for")
    if options.snappy:
        return Snappy()
    level = answer.get("deflate_level")
    # An answer may say 0, as the specification's example does.
    return Deflate(level if isinstance(level, int) and 1 <= level <= 9 else DEFAULT_DEFLATE_LEVEL)


def _warnings(answer: Mapping[str, object], options: ConnectionOptions) -> Iterator[str]:
    for name in ("snappy", "deflate"):
        if getattr(options, name) and not answer.get(name):
            yield f"{name} was asked for and nsqd does not offer it; going on without compression"
    if answer.get("deflate") and options.output_buffer_size == -1:
        # Source: nsqd's writer then flushes into the compressor, not through it.
        yield "output_buffer_size -1 with deflate: nsqd 1.3.0 leaves messages in its compressor; use 64 or more"
    if not options.wants_tls and (options.tls_options is not None or options.server_hostname is not None):
        yield "tls_options or server_hostname are given and tls_v1 is not: going on in clear text"
    if 0 < options.output_buffer_timeout < LOW_OUTPUT_BUFFER_TIMEOUT:
        yield (
            f"output_buffer_timeout {options.output_buffer_timeout} ms is below {LOW_OUTPUT_BUFFER_TIMEOUT} ms: nsqd "
            "works harder for each message, and refuses it unless its --min-output-buffer-timeout allows it"
        )


def with_hint(error: NSQErrorCode) -> NSQErrorCode:
    """Add to nsqd's words what to do, where it is known; the texts are nsqd 1.3.0's."""
    if isinstance(error, NSQBadBody) and error.text.startswith("IDENTIFY") and error.text.endswith("is invalid"):
        error.advice = (
            "nsqd's flags --max-heartbeat-interval, --max-output-buffer-size, --min-output-buffer-timeout, "
            "--max-output-buffer-timeout and --max-msg-timeout set the limits of these options"
        )
    elif isinstance(error, NSQInvalid) and "TLS required" in error.text:
        error.advice = "nsqd runs with --tls-required: give tls_v1=True"
    elif (limit := max_req_timeout(error)) is not None:
        error.advice = (
            f"requeue with at most {limit} ms, nsqd's --max-req-timeout; nsqd from 1.1.0 on cuts more to that"
        )
    return error


def max_req_timeout(error: NSQException | None) -> int | None:
    """Read from the refusal of a REQ the longest delay that nsqd takes, in milliseconds; None from all other errors.

    Source: nsqd protocol_v2.go REQ, before 1.1.0; it tells nanoseconds.
    """
    found = _REQ_REFUSED.fullmatch(error.text) if isinstance(error, NSQInvalid) else None
    return None if found is None else int(found[1]) // 1_000_000


def _seconds(milliseconds: object) -> float | None:
    if not isinstance(milliseconds, (int, float)) or isinstance(milliseconds, bool) or not 0 < milliseconds < 2**63:
        return None
    return milliseconds / 1000
