"""IDENTIFY: what a client may ask for, what is settled, and the answer.

Pure. Durations are milliseconds in the body and in the answer, seconds in Settings. Source: nsqd client_v2.go, Set*();
protocol_v2.go IDENTIFY.

What comes before SUB: who the client is, which layers are on, what it may do.

Pure. IDENTIFY and AUTH are generators that read what they need, send answers through a callable, and pause with a
IoRequest where something outside has to be done. Source: nsqd protocol_v2.go IDENTIFY, AUTH, CheckAuth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fakensqd.effects import AskAuth, StartCompression, StartTLS, TlsEstablished, TlsFailed
from fakensqd.golang import encoding_json
from fakensqd.golang.text import quote
from fakensqd.input_buffer import CommandError, InputBuffer, Read
from fakensqd.nsqd import commands
from fakensqd.options import LATEST, NsqdOptions, Release
from gnsq.protocol.compression import DEFAULT_DEFLATE_LEVEL, Codec, Deflate, Snappy
from gnsq.protocol.frames import OK, RESPONSE, encode_frame

if TYPE_CHECKING:
    from fakensqd.nsqd.auth import Authorization

__all__ = [
    "DEFAULT_HEARTBEAT_INTERVAL",
    "OK_FRAME",
    "Identification",
    "IdentifyError",
    "ClientHandshake",
    "Settings",
    "Upgrades",
    "decode_identify",
    "negotiated",
]


DEFAULT_HEARTBEAT_INTERVAL = 30.0
DEFAULT_OUTPUT_BUFFER_SIZE = 16384

_FIELDS = {
    "client_id": encoding_json.STRING,
    "hostname": encoding_json.STRING,
    "heartbeat_interval": encoding_json.INT,
    "output_buffer_size": encoding_json.INT,
    "output_buffer_timeout": encoding_json.INT,
    "feature_negotiation": encoding_json.BOOL,
    "tls_v1": encoding_json.BOOL,
    "deflate": encoding_json.BOOL,
    "deflate_level": encoding_json.INT,
    "snappy": encoding_json.BOOL,
    "sample_rate": encoding_json.INT32,
    "user_agent": encoding_json.STRING,
    "msg_timeout": encoding_json.INT,
}
# Of releases before 1.0.0; others ignore them.
_OLD_FIELDS = {"short_id": encoding_json.STRING, "long_id": encoding_json.STRING}
# The release in which a field came, where that is after 0.2.15; before, it is ignored.
_FIELDS_SINCE = {
    **dict.fromkeys(("heartbeat_interval",), (0, 2, 19)),
    **dict.fromkeys(("feature_negotiation",), (0, 2, 20)),
    **dict.fromkeys(("output_buffer_size", "output_buffer_timeout"), (0, 2, 21)),
    **dict.fromkeys(("tls_v1",), (0, 2, 22)),
    **dict.fromkeys(("deflate", "deflate_level", "snappy"), (0, 2, 23)),
    **dict.fromkeys(("sample_rate", "user_agent"), (0, 2, 25)),
    **dict.fromkeys(("client_id", "hostname", "msg_timeout"), (0, 2, 28)),
}
# Likewise of the answer.
_ANSWERS_SINCE = {
    **dict.fromkeys(("max_msg_timeout", "msg_timeout"), (0, 2, 21)),
    **dict.fromkeys(("tls_v1",), (0, 2, 22)),
    **dict.fromkeys(("deflate", "deflate_level", "max_deflate_level", "snappy"), (0, 2, 23)),
    **dict.fromkeys(("sample_rate",), (0, 2, 25)),
    **dict.fromkeys(("auth_required",), (0, 2, 29)),
    **dict.fromkeys(("output_buffer_size", "output_buffer_timeout"), (0, 3, 1)),
}


class IdentifyError(Exception):
    """What is asked for cannot be had; the text is nsqd's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """The body of an IDENTIFY. 0 means: as it was."""

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    user_agent: str = ""
    msg_timeout: int = 0


def decode_identify(body: bytes, release: Release = LATEST) -> Identification:
    """Read the body of an IDENTIFY, the fields that the release knows.

    Raises:
        ValueError: If Go would not take it.
    """
    fields = {name: kind for name, kind in _FIELDS.items() if release.since(*_FIELDS_SINCE.get(name, (0, 0, 0)))}
    old = {} if release.since(1, 0, 0) else _OLD_FIELDS
    values: dict[str, Any] = encoding_json.decode(body, {**fields, **old})  # Any: decode() has checked each type
    for name, old_name in (("client_id", "short_id"), ("hostname", "long_id")):
        old_value = values.pop(old_name, "")
        values[name] = values.get(name) or old_value
    return Identification(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrades:
    """What begins behind the answer, in this order. The level is shown even if deflate is not on."""

    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFAULT_DEFLATE_LEVEL


def negotiated(asked: Identification, options: NsqdOptions) -> Upgrades:
    """Choose what is both asked for and offered.

    Raises:
        IdentifyError: If that is both compressions.
    """
    snappy, deflate = asked.snappy and options.snappy, asked.deflate and options.deflate
    if snappy and deflate:
        raise IdentifyError("cannot enable both deflate and snappy compression")
    level = asked.deflate_level if deflate and asked.deflate_level > 0 else DEFAULT_DEFLATE_LEVEL
    return Upgrades(
        tls=asked.tls_v1 and options.tls_offered,
        snappy=snappy,
        deflate=deflate,
        deflate_level=min(level, options.max_deflate_level),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is in force on a connection. Durations in seconds; an interval or timeout of 0 is off."""

    heartbeat_interval: float
    output_buffer_size: int
    output_buffer_timeout: float
    sample_rate: int
    msg_timeout: float

    @property
    def buffers_messages(self) -> bool:
        """Whether messages wait for another frame, for RDY to be reached, or for a full buffer: the client asked for an
        output buffer without a timeout."""
        return not self.output_buffer_timeout and self.output_buffer_size > 1

    @classmethod
    def default(cls, options: NsqdOptions) -> Settings:
        """What holds for a client that never says IDENTIFY."""
        return cls(
            heartbeat_interval=DEFAULT_HEARTBEAT_INTERVAL,
            output_buffer_size=DEFAULT_OUTPUT_BUFFER_SIZE,
            output_buffer_timeout=options.output_buffer_timeout,
            sample_rate=0,
            msg_timeout=options.msg_timeout,
        )

    def identified(self, asked: Identification, options: NsqdOptions) -> Settings:
        """What is in force after an IDENTIFY; checked in nsqd's order.

        Raises:
            IdentifyError: If a field is out of its bounds.
        """
        heartbeat_interval = _bounded_time(
            "heartbeat interval",
            asked.heartbeat_interval,
            self.heartbeat_interval,
            (1.0, options.max_heartbeat_interval),
        )
        output_buffer_timeout = _bounded_time(
            "output buffer timeout",
            asked.output_buffer_timeout,
            self.output_buffer_timeout,
            (options.min_output_buffer_timeout, options.max_output_buffer_timeout),
        )
        output_buffer_size = self.output_buffer_size
        if asked.output_buffer_size == -1:
            output_buffer_size, output_buffer_timeout = 1, 0.0
        elif 64 <= asked.output_buffer_size <= options.max_output_buffer_size:
            output_buffer_size = asked.output_buffer_size
        elif asked.output_buffer_size:
            raise IdentifyError(f"output buffer size ({asked.output_buffer_size}) is invalid")
        if not 0 <= asked.sample_rate <= 99:
            raise IdentifyError(f"sample rate ({asked.sample_rate}) is invalid")
        if asked.msg_timeout == -1:
            raise IdentifyError("msg timeout (-1) is invalid")
        return Settings(
            heartbeat_interval=heartbeat_interval,
            output_buffer_size=output_buffer_size,
            output_buffer_timeout=output_buffer_timeout,
            sample_rate=asked.sample_rate,
            msg_timeout=_bounded_time(
                "msg timeout", asked.msg_timeout, self.msg_timeout, (1.0, options.max_msg_timeout)
            ),
        )

    def answer(self, upgrades: Upgrades, options: NsqdOptions) -> bytes:
        """Build the answer to an IDENTIFY with feature_negotiation."""
        release = options.emulated
        answer: dict[str, object] = {
            "max_rdy_count": options.max_rdy_count,
            "version": options.version,
            "max_msg_timeout": _milliseconds(options.max_msg_timeout),
            "msg_timeout": _milliseconds(self.msg_timeout),
            "tls_v1": upgrades.tls,
            "deflate": upgrades.deflate,
            "deflate_level": upgrades.deflate_level,
            "max_deflate_level": options.max_deflate_level,
            "snappy": upgrades.snappy,
            "sample_rate": self.sample_rate,
            "auth_required": bool(options.auth_http_addresses),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": _milliseconds(self.output_buffer_timeout),
        }
        return encoding_json.encode(
            {name: value for name, value in answer.items() if release.since(*_ANSWERS_SINCE.get(name, (0, 0, 0)))}
        )


def _bounded_time(subject: str, asked_ms: int, current: float, bounds: tuple[float, float]) -> float:
    """Choose between what a client asks for, what is in force (0), and off (-1). Seconds, but for asked_ms."""
    if asked_ms == 0:
        return current
    if asked_ms == -1:
        return 0.0
    if not _milliseconds(bounds[0]) <= asked_ms <= _milliseconds(bounds[1]):
        raise IdentifyError(f"{subject} ({asked_ms}) is invalid")
    return asked_ms / 1000


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


OK_FRAME = encode_frame(RESPONSE, OK)


class ClientHandshake:
    """What one client has said of itself, and what holds since.

    Args:
        remote_ip: Its address; its name, too, until it says another.
        source: What it sends.
        respond: Sends it a frame.
        now: Gives the time, seconds.

    Attributes:
        settings: Those of the last IDENTIFY.
        delivery_settings: Those of the first: nsqd's message pump keeps them.
        tls: What TLS has settled; None without TLS.
        authorization: What the auth server said; None before AUTH.
    """

    def __init__(
        self,
        options: NsqdOptions,
        remote_ip: str,
        source: InputBuffer,
        respond: Callable[[bytes], None],
        now: Callable[[], float],
    ) -> None:
        self.client_id = self.hostname = remote_ip
        self.user_agent = ""
        self.settings = self.delivery_settings = Settings.default(options)
        self.identified = False
        self.tls: TlsEstablished | None = None
        self.snappy = self.deflate = False
        self.authorization: Authorization | None = None
        self._options = options
        self._remote_ip = remote_ip
        self._input = source
        self._respond = respond
        self._now = now
        self._secret = b""
        self._expires = 0.0

    # --- IDENTIFY -----------------------------------------------------------------------------------------------------

    def identify(self, words: list[bytes]) -> Read[Identification]:
        """Read the body of IDENTIFY and put it into force; negotiate() answers it."""
        body = yield from commands.read_identify(words, self._options, self._input)
        try:
            asked = decode_identify(body, self._options.emulated)
        except ValueError:
            raise CommandError(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        self.client_id, self.hostname, self.user_agent = asked.client_id, asked.hostname, asked.user_agent
        try:
            self.settings = self.settings.identified(asked, self._options)
        except IdentifyError as error:
            raise CommandError(b"E_BAD_BODY IDENTIFY %s" % str(error).encode()) from None
        if not self.identified:
            self.identified = True
            self.delivery_settings = self.settings
        return asked

    def negotiate(self, asked: Identification) -> Read[None]:
        """Answer IDENTIFY and begin the layers that it asked for, each with an OK of its own."""
        if not asked.feature_negotiation or not self._options.negotiates:
            self._respond(OK_FRAME)
            return
        try:
            upgrades = negotiated(asked, self._options)
        except IdentifyError as error:
            raise CommandError(b"E_IDENTIFY_FAILED %s" % str(error).encode()) from None
        self._respond(encode_frame(RESPONSE, self.settings.answer(upgrades, self._options)))
        if upgrades.tls:
            yield from self._start_tls()
        if upgrades.snappy:
            self.snappy = yield from self._start_compression(Snappy())
        if upgrades.deflate:
            self.deflate = yield from self._start_compression(Deflate(upgrades.deflate_level))

    def _start_tls(self) -> Read[None]:
        self._forget_input()
        outcome = yield StartTLS()
        if isinstance(outcome, TlsFailed):
            raise CommandError(b"E_IDENTIFY_FAILED IDENTIFY failed %s" % outcome.text.encode())
        assert isinstance(outcome, TlsEstablished)  # the other answer there is
        self.tls = outcome
        self._respond(OK_FRAME)

    def _start_compression(self, codec: Codec) -> Read[bool]:
        self._forget_input()
        yield StartCompression(codec)
        self._respond(OK_FRAME)
        return True

    def _forget_input(self) -> None:
        # nsqd puts a new reader on top of the connection; what the old one has buffered is lost with it.
        self._input.decoder.take_remaining()

    # --- AUTH ---------------------------------------------------------------------------------------------------------

    def authenticate(self, words: list[bytes]) -> Read[None]:
        """Do AUTH: ask the auth server about a secret."""
        secret = yield from commands.read_auth(words, self._options, self._input)
        if self._has_grants:
            raise CommandError(b"E_INVALID AUTH already set")
        if not self._options.auth_http_addresses:
            raise CommandError(b"E_AUTH_DISABLED AUTH disabled")
        self._secret = secret
        authorization = yield from self._ask()
        if not authorization.grants:
            raise CommandError(b"E_UNAUTHORIZED AUTH no authorizations found")
        answer = {
            "identity": authorization.identity,
            "identity_url": authorization.identity_url,
            "permission_count": len(authorization.grants),
        }
        self._respond(encode_frame(RESPONSE, encoding_json.encode(answer)))

    def authorize(self, command: bytes, topic: str, channel: str = "") -> Read[None]:
        """Refuse a command that the client has no right to; asks again once the auth server's word has expired."""
        if not self._has_grants:
            raise CommandError(b"E_AUTH_FIRST AUTH required before %s" % command)
        authorization = self.authorization
        assert authorization is not None  # it has grants
        if self._now() > self._expires:
            authorization = yield from self._ask()
        if not authorization.allows(topic, channel):
            names = (command, quote(topic.encode()), quote(channel.encode()))
            raise CommandError(b"E_UNAUTHORIZED AUTH failed for %s on %s %s" % names)

    @property
    def _has_grants(self) -> bool:
        return self.authorization is not None and bool(self.authorization.grants)

    def _ask(self) -> Read[Authorization]:
        common_name = self.tls.common_name if self.tls else ""
        answer = yield AskAuth(self._secret, self._remote_ip, common_name, self.tls is not None)
        if answer is None or isinstance(answer, (TlsEstablished, TlsFailed)):
            raise CommandError(b"E_AUTH_FAILED AUTH failed")
        self.authorization = answer
        self._expires = self._now() + answer.ttl
        return answer
