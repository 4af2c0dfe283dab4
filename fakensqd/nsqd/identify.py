"""Negotiation with a V2 client: IDENTIFY, TLS, compression, and AUTH.

Pure. IDENTIFY and AUTH are generators: they read their input, and pause with an IoRequest if the connection or an auth
server has to do something. Source: nsqd protocol_v2.go IDENTIFY, AUTH, CheckAuth; client_v2.go Identify and Set*().
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fakensqd.daemon.session import ConnectionSession
from fakensqd.effects import AskAuth, StartCompression, StartTLS, TlsEstablished, TlsFailed
from fakensqd.golang.encoding_json import BOOL, INT, INT32, STRING, FieldType, decode, encode
from fakensqd.golang.text import quote
from fakensqd.input_buffer import CommandError, Read
from fakensqd.nsqd import commands
from fakensqd.options import NsqdOptions
from gnsq.protocol.compression import DEFAULT_DEFLATE_LEVEL, Codec, Deflate, Snappy
from gnsq.protocol.frames import OK, RESPONSE, encode_frame

if TYPE_CHECKING:
    from fakensqd.nsqd.auth import Authorization

__all__ = ["FIELDS", "OK_FRAME", "ClientHandshake", "IdentifyField", "Settings", "decode_identify"]

OK_FRAME = encode_frame(RESPONSE, OK)

Values = Mapping[str, Any]  # Any: values of the types in FIELDS
_Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class IdentifyField:
    """One field of IDENTIFY, of its response, or of both.

    Attributes:
        type: Type in the body of IDENTIFY; None if the field is only in the response.
        since: First release that reads the field.
        answered_since: First release with the field in the response; None: never in the response.
        bounds: Least and greatest value of a setting, in Settings' unit; a str names an option; None: no setting.
        scale: A value in the body is this many times the value in Settings: 1000 if the body has milliseconds.
        default: Value of the setting if the client sends no IDENTIFY; None: the value of the option of the same name.
        off: Value of the setting if the body has -1; None: -1 is out of bounds.
    """

    type: FieldType | None
    since: _Version = (0, 2, 15)
    answered_since: _Version | None = None
    bounds: tuple[float | str, float | str] | None = None
    scale: int = 1
    default: float | None = None
    off: float | None = None


# nsqd checks the settings in this order.
FIELDS: dict[str, IdentifyField] = {
    "client_id": IdentifyField(STRING),
    "hostname": IdentifyField(STRING),
    "user_agent": IdentifyField(STRING, (0, 2, 25)),
    "feature_negotiation": IdentifyField(BOOL, (0, 2, 20)),
    "heartbeat_interval": IdentifyField(
        INT, (0, 2, 19), bounds=(1.0, "max_heartbeat_interval"), scale=1000, default=30.0, off=0.0
    ),
    "output_buffer_timeout": IdentifyField(
        INT,
        (0, 2, 21),
        (0, 3, 1),
        bounds=("min_output_buffer_timeout", "max_output_buffer_timeout"),
        scale=1000,
        off=0.0,
    ),
    "output_buffer_size": IdentifyField(
        INT, (0, 2, 21), (0, 3, 1), bounds=(64, "max_output_buffer_size"), default=16384, off=1
    ),
    "sample_rate": IdentifyField(INT32, (0, 2, 25), (0, 2, 25), bounds=(0, 99), default=0),
    "msg_timeout": IdentifyField(INT, (0, 2, 28), (0, 2, 21), bounds=(1.0, "max_msg_timeout"), scale=1000),
    "tls_v1": IdentifyField(BOOL, (0, 2, 22), (0, 2, 22)),
    "deflate": IdentifyField(BOOL, (0, 2, 23), (0, 2, 23)),
    "deflate_level": IdentifyField(INT, (0, 2, 23), (0, 2, 23)),
    "snappy": IdentifyField(BOOL, (0, 2, 23), (0, 2, 23)),
    "max_rdy_count": IdentifyField(None, answered_since=(0, 2, 15)),
    "version": IdentifyField(None, answered_since=(0, 2, 15)),
    "max_msg_timeout": IdentifyField(None, answered_since=(0, 2, 21)),
    "max_deflate_level": IdentifyField(None, answered_since=(0, 2, 23)),
    "auth_required": IdentifyField(None, answered_since=(0, 2, 29)),
}


def decode_identify(body: bytes, options: NsqdOptions) -> Values:
    """Decode the body of IDENTIFY. A field that is missing or unknown to this release gets the zero value of its type.

    Raises:
        ValueError: If Go would refuse the body.
    """
    types = {name: field.type for name, field in FIELDS.items() if field.type is not None}
    known = {name: type_ for name, type_ in types.items() if options.since(*FIELDS[name].since)}
    return {name: type_.python() for name, type_ in types.items()} | decode(body, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a connection. Durations are in seconds; 0 turns an interval or timeout off."""

    heartbeat_interval: float
    output_buffer_size: int
    output_buffer_timeout: float
    sample_rate: int
    msg_timeout: float

    @classmethod
    def default(cls, options: NsqdOptions) -> Settings:
        """Make the settings of a client that sends no IDENTIFY."""
        settings: dict[str, Any] = {
            name: getattr(options, name) if field.default is None else field.default
            for name, field in FIELDS.items()
            if field.bounds is not None
        }
        return cls(**settings)

    def updated(self, asked: Values, options: NsqdOptions) -> Settings:
        """Make the settings after an IDENTIFY. A value of 0 leaves a setting unchanged if 0 is below its bounds.

        Raises:
            ValueError: If a field is out of its bounds; the text is nsqd's.
        """
        settings: dict[str, Any] = {}
        for name, field in FIELDS.items():
            if field.bounds is None:
                continue
            value = asked[name]
            minimum, maximum = (getattr(options, each) if isinstance(each, str) else each for each in field.bounds)
            if value == -1 and field.off is not None:
                settings[name] = field.off
            elif value == 0 and minimum > 0:
                settings[name] = getattr(self, name)
            elif round(minimum * field.scale) <= value <= round(maximum * field.scale):
                settings[name] = value if field.scale == 1 else value / field.scale
            else:
                raise ValueError(f"{name.replace('_', ' ')} ({value}) is invalid")
        if asked["output_buffer_size"] == -1:
            settings["output_buffer_timeout"] = 0.0
        return Settings(**settings)


# nsqd's compressor writes complete blocks, each of 16384 literals and matches: about as many bytes of messages, less of
# random bytes, more of messages that are alike.
_DEFLATE_BLOCK = 65536


class ClientHandshake:
    """State of one client that IDENTIFY and AUTH change: its names, settings, TLS, compression and permissions.

    Args:
        remote_ip: IP address of the client; until IDENTIFY, also its client id and hostname.
        session: Has the input and the time; sends the responses.

    Attributes:
        settings: Settings after the last IDENTIFY.
        delivery_settings: Settings after the first IDENTIFY. nsqd's message pump ignores each later IDENTIFY.
        tls: Facts about TLS; None without TLS.
        authorization: Last response of the auth server; None before AUTH.
    """

    def __init__(self, options: NsqdOptions, remote_ip: str, session: ConnectionSession) -> None:
        self.client_id = self.hostname = remote_ip
        self.user_agent = ""
        self.settings = self.delivery_settings = Settings.default(options)
        self.identified = False
        self.tls: TlsEstablished | None = None
        self.snappy = self.deflate = False
        self.authorization: Authorization | None = None
        self._options = options
        self._remote_ip = remote_ip
        self._session = session
        self._secret = b""
        self._expires = 0.0

    @property
    def message_buffer(self) -> int:
        """How many bytes of messages wait for another frame, or until RDY allows no more; 0: messages are sent at once.

        Without an output_buffer_timeout, nothing flushes deflate's compressor, even without an output buffer.
        """
        settings = self.delivery_settings
        if settings.output_buffer_timeout:
            return 0
        size = settings.output_buffer_size
        return size + _DEFLATE_BLOCK if self.deflate else size if size > 1 else 0

    # --- IDENTIFY -----------------------------------------------------------------------------------------------------

    def identify(self, words: list[bytes]) -> Read[Values]:
        """Read the body of IDENTIFY and change the settings; negotiate() then sends the response."""
        body = yield from commands.read_identify(words, self._options, self._session.input)
        try:
            asked = decode_identify(body, self._options)
        except ValueError:
            raise CommandError(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        self.client_id, self.hostname, self.user_agent = asked["client_id"], asked["hostname"], asked["user_agent"]
        try:
            self.settings = self.settings.updated(asked, self._options)
        except ValueError as error:
            raise CommandError(b"E_BAD_BODY IDENTIFY %s" % str(error).encode()) from None
        if not self.identified:
            self.identified = True
            self.delivery_settings = self.settings
        return asked

    def negotiate(self, asked: Values) -> Read[None]:
        """Send the response to IDENTIFY. Start TLS and compression if asked for and offered; send OK after each."""
        options = self._options
        if not asked["feature_negotiation"]:
            self._session.respond(OK_FRAME)
            return
        tls = asked["tls_v1"] and options.tls_offered
        snappy, deflate = asked["snappy"] and options.snappy, asked["deflate"] and options.deflate
        if snappy and deflate:
            raise CommandError(b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
        # The response has the deflate level even without deflate.
        level = asked["deflate_level"] if deflate and asked["deflate_level"] > 0 else DEFAULT_DEFLATE_LEVEL
        level = min(level, options.max_deflate_level)
        response = {
            "max_rdy_count": options.max_rdy_count,
            "version": options.release,
            "max_msg_timeout": round(options.max_msg_timeout * 1000),
            "msg_timeout": round(self.settings.msg_timeout * 1000),
            "tls_v1": tls,
            "deflate": deflate,
            "deflate_level": level,
            "max_deflate_level": options.max_deflate_level,
            "snappy": snappy,
            "sample_rate": self.settings.sample_rate,
            "auth_required": bool(options.auth_http_addresses),
            "output_buffer_size": self.settings.output_buffer_size,
            "output_buffer_timeout": round(self.settings.output_buffer_timeout * 1000),
        }
        known = {name: value for name, value in response.items() if self._answers(name)}
        self._session.respond(encode_frame(RESPONSE, encode(known)))
        if tls:
            yield from self._start_tls()
        if snappy:
            self.snappy = yield from self._start_compression(Snappy())
        if deflate:
            self.deflate = yield from self._start_compression(Deflate(level))

    def _answers(self, name: str) -> bool:
        since = FIELDS[name].answered_since
        return since is not None and self._options.since(*since)

    def _start_tls(self) -> Read[None]:
        self._discard_input()
        result = yield StartTLS()
        if isinstance(result, TlsFailed):
            raise CommandError(b"E_IDENTIFY_FAILED IDENTIFY failed %s" % result.text.encode())
        assert isinstance(result, TlsEstablished)  # StartTLS has no third result
        self.tls = result
        self._session.respond(OK_FRAME)

    def _start_compression(self, codec: Codec) -> Read[bool]:
        self._discard_input()
        yield StartCompression(codec)
        self._session.respond(OK_FRAME)
        return True

    def _discard_input(self) -> None:
        # nsqd makes a new reader for the connection. The bytes in the old reader's buffer are lost.
        self._session.input.decoder.take_remaining()

    # --- AUTH ---------------------------------------------------------------------------------------------------------

    def authenticate(self, words: list[bytes]) -> Read[None]:
        """Execute AUTH: ask the auth server about the secret."""
        secret = yield from commands.read_auth(words, self._options, self._session.input)
        if self._has_grants:
            raise CommandError(b"E_INVALID AUTH already set")
        if not self._options.auth_http_addresses:
            raise CommandError(b"E_AUTH_DISABLED AUTH disabled")
        self._secret = secret
        authorization = yield from self._ask()
        if not authorization.grants:
            raise CommandError(b"E_UNAUTHORIZED AUTH no authorizations found")
        response = {
            "identity": authorization.identity,
            "identity_url": authorization.identity_url,
            "permission_count": len(authorization.grants),
        }
        self._session.respond(encode_frame(RESPONSE, encode(response)))

    def authorize(self, command: bytes, topic: str, channel: str = "") -> Read[None]:
        """Check that the client may use the topic or channel. Asks the auth server again if its response has expired.

        Raises:
            CommandError: If the client may not use the topic or channel, or has no grants, or no auth server responds.
        """
        if not self._has_grants:
            raise CommandError(b"E_AUTH_FIRST AUTH required before %s" % command)
        authorization = self.authorization
        assert authorization is not None  # _has_grants is true
        if self._session.now > self._expires:
            authorization = yield from self._ask()
        if not authorization.allows(topic, channel):
            names = (command, quote(topic.encode()), quote(channel.encode()))
            raise CommandError(b"E_UNAUTHORIZED AUTH failed for %s on %s %s" % names)

    @property
    def _has_grants(self) -> bool:
        return self.authorization is not None and bool(self.authorization.grants)

    def _ask(self) -> Read[Authorization]:
        common_name = self.tls.common_name if self.tls else ""
        result = yield AskAuth(self._secret, self._remote_ip, common_name, self.tls is not None)
        if result is None or isinstance(result, (TlsEstablished, TlsFailed)):
            raise CommandError(b"E_AUTH_FAILED AUTH failed")
        self.authorization = result
        self._expires = self._session.now + result.ttl
        return result
