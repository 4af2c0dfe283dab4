"""What comes before SUB: who the client is, which layers are on, what it may do.

Pure. IDENTIFY and AUTH are generators that read what they need, send answers through a callable, and pause with a
Question where something outside has to be done. Source: nsqd protocol_v2.go IDENTIFY, AUTH, CheckAuth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fakensqd import commands, gojson
from fakensqd.effects import AskAuth, Failed, Secured, StartCompression, StartTLS
from fakensqd.gotext import quote
from fakensqd.identify import Identification, IdentifyError, Settings, decode_identify, negotiated
from fakensqd.options import NsqdOptions
from fakensqd.reader import Input, Reading, Refusal
from gnsq.protocol.compression import Codec, Deflate, Snappy
from gnsq.protocol.frames import OK, RESPONSE, encode_frame

if TYPE_CHECKING:
    from fakensqd.auth import Authorization

__all__ = ["OK_FRAME", "Opening"]

OK_FRAME = encode_frame(RESPONSE, OK)


class Opening:
    """What one client has said of itself, and what holds since.

    Args:
        remote_ip: Its address; its name, too, until it says another.
        source: What it sends.
        respond: Sends it a frame.
        now: Gives the time, seconds.

    Attributes:
        settings: Those of the last IDENTIFY.
        pump_settings: Those of the first: nsqd's message pump keeps them.
        secured: What TLS has settled; None without TLS.
        authorization: What the auth server said; None before AUTH.
    """

    def __init__(
        self,
        options: NsqdOptions,
        remote_ip: str,
        source: Input,
        respond: Callable[[bytes], None],
        now: Callable[[], float],
    ) -> None:
        self.client_id = self.hostname = remote_ip
        self.user_agent = ""
        self.settings = self.pump_settings = Settings.default(options)
        self.identified = False
        self.secured: Secured | None = None
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

    def identify(self, words: list[bytes]) -> Reading[Identification]:
        """Read the body of IDENTIFY and put it into force; negotiate() answers it."""
        body = yield from commands.read_identify(words, self._options, self._input)
        try:
            asked = decode_identify(body, self._options.emulated)
        except ValueError:
            raise Refusal(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        self.client_id, self.hostname, self.user_agent = asked.client_id, asked.hostname, asked.user_agent
        try:
            self.settings = self.settings.identified(asked, self._options)
        except IdentifyError as error:
            raise Refusal(b"E_BAD_BODY IDENTIFY %s" % str(error).encode()) from None
        if not self.identified:
            self.identified = True
            self.pump_settings = self.settings
        return asked

    def negotiate(self, asked: Identification) -> Reading[None]:
        """Answer IDENTIFY and begin the layers that it asked for, each with an OK of its own."""
        if not asked.feature_negotiation or not self._options.negotiates:
            self._respond(OK_FRAME)
            return
        try:
            upgrades = negotiated(asked, self._options)
        except IdentifyError as error:
            raise Refusal(b"E_IDENTIFY_FAILED %s" % str(error).encode()) from None
        self._respond(encode_frame(RESPONSE, self.settings.answer(upgrades, self._options)))
        if upgrades.tls:
            yield from self._start_tls()
        if upgrades.snappy:
            self.snappy = yield from self._start_compression(Snappy())
        if upgrades.deflate:
            self.deflate = yield from self._start_compression(Deflate(upgrades.deflate_level))

    def _start_tls(self) -> Reading[None]:
        self._forget_input()
        outcome = yield StartTLS()
        if isinstance(outcome, Failed):
            raise Refusal(b"E_IDENTIFY_FAILED IDENTIFY failed %s" % outcome.text.encode())
        assert isinstance(outcome, Secured)  # the other answer there is
        self.secured = outcome
        self._respond(OK_FRAME)

    def _start_compression(self, codec: Codec) -> Reading[bool]:
        self._forget_input()
        yield StartCompression(codec)
        self._respond(OK_FRAME)
        return True

    def _forget_input(self) -> None:
        # nsqd puts a new reader on top of the connection; what the old one has buffered is lost with it.
        self._input.decoder.detach()

    # --- AUTH ---------------------------------------------------------------------------------------------------------

    def authenticate(self, words: list[bytes]) -> Reading[None]:
        """Do AUTH: ask the auth server about a secret."""
        secret = yield from commands.read_auth(words, self._options, self._input)
        if self._has_grants:
            raise Refusal(b"E_INVALID AUTH already set")
        if not self._options.auth_http_addresses:
            raise Refusal(b"E_AUTH_DISABLED AUTH disabled")
        self._secret = secret
        authorization = yield from self._ask()
        if not authorization.grants:
            raise Refusal(b"E_UNAUTHORIZED AUTH no authorizations found")
        answer = {
            "identity": authorization.identity,
            "identity_url": authorization.identity_url,
            "permission_count": len(authorization.grants),
        }
        self._respond(encode_frame(RESPONSE, gojson.encode(answer)))

    def authorize(self, command: bytes, topic: str, channel: str = "") -> Reading[None]:
        """Refuse a command that the client has no right to; asks again once the auth server's word has expired."""
        if not self._has_grants:
            raise Refusal(b"E_AUTH_FIRST AUTH required before %s" % command)
        authorization = self.authorization
        assert authorization is not None  # it has grants
        if self._now() > self._expires:
            authorization = yield from self._ask()
        if not authorization.allows(topic, channel):
            names = (command, quote(topic.encode()), quote(channel.encode()))
            raise Refusal(b"E_UNAUTHORIZED AUTH failed for %s on %s %s" % names)

    @property
    def _has_grants(self) -> bool:
        return self.authorization is not None and bool(self.authorization.grants)

    def _ask(self) -> Reading[Authorization]:
        common_name = self.secured.common_name if self.secured else ""
        answer = yield AskAuth(self._secret, self._remote_ip, common_name, self.secured is not None)
        if answer is None or isinstance(answer, (Secured, Failed)):
            raise Refusal(b"E_AUTH_FAILED AUTH failed")
        self.authorization = answer
        self._expires = self._now() + answer.ttl
        return answer
