"""TLS over a transport, for client and server; and TLS contexts of clients, for nsqd's TCP port and for HTTPS.

TCP clients import this module only if they need TLS, since it imports ssl, which takes 8 ms.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from gevent.lock import BoundedSemaphore

from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.options import ConnectionOptions, TlsOptionsDict
from gnsq.texts import nearest, option_text, reason_of
from gnsq.transport import READ_SIZE, Transport

__all__ = ["TlsTransport", "certificate_end", "client_context", "explain_ssl_error", "make_context"]


# Number of the peer's first bytes that are kept, for an error text that quotes them.
MAX_FIRST_SIZE = 4096


class TlsTransport:
    """A TLS stream over another transport. ssl works in memory: only the other transport waits for the network.

    Args:
        inner: The transport of the encrypted bytes.
        context: Any ``ssl.SSLContext``.
        server_side: True for the server's side.
        server_hostname: The name that the server's certificate must have, if the context checks names; sent as SNI.
        peer: Address for error texts.

    Attributes:
        first: The bytes of the first read, up to MAX_FIRST_SIZE. If the peer does not start TLS, these bytes may be an
            error in clear text.
    """

    def __init__(
        self,
        inner: Transport,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        peer: str = "",
    ) -> None:
        self._inner = inner
        self._peer = peer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._sending = BoundedSemaphore(1)
        self.first = b""
        self.object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )

    def handshake(self) -> None:
        """Perform the TLS handshake, and check the peer's certificate if the context demands it.

        Raises:
            NSQSocketError: If the peer does not speak TLS, or one side refuses. The exception's cause is the error
                of ssl. The TLS alert was sent to the peer.
        """
        while True:
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
                continue
            except ssl.SSLError as error:
                self._flush()
                raise self._translate_ssl_error(error) from error
            self._flush()
            return

    def recv(self, size: int) -> bytes:
        pieces: list[bytes] = []
        total = 0
        # Read all records that have arrived: one record has at most 16 KiB.
        while total < size:
            try:
                piece = self.object.read(size - total)
            except ssl.SSLWantReadError:
                if pieces:
                    break
                # ssl may have made a response to a change of keys. If a sendall() is running, it sends the response.
                if self._outgoing.pending and not self._sending.locked():
                    self._flush()
                self._feed()
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                break
            except ssl.SSLError as error:
                raise self._translate_ssl_error(error) from error
            if not piece:
                break
            pieces.append(piece)
            total += len(piece)
            if not self._incoming.pending and not self.object.pending():
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sendall(self, data: bytes) -> None:
        if data:  # write() of ssl raises an error for empty data
            try:
                self.object.write(data)
            except ssl.SSLError as error:
                raise self._translate_ssl_error(error) from error
        self._flush()

    def shutdown_write(self) -> None:
        # unwrap() raises until the peer has shut down its side, too. When the peer does so, recv() returns b"".
        with contextlib.suppress(ssl.SSLError):
            self.object.unwrap()
        self._flush()
        self._inner.shutdown_write()

    def close(self) -> None:
        self._inner.close()

    def _feed(self) -> None:
        data = self._inner.recv(READ_SIZE)
        if not self.first:
            self.first = data[:MAX_FIRST_SIZE]
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        with self._sending:
            while self._outgoing.pending:
                self._inner.sendall(self._outgoing.read())

    def _translate_ssl_error(self, error: ssl.SSLError) -> NSQSocketError:
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return NSQConnectionClosed(
                "the peer closed the connection inside TLS", address=self._peer, code="TLS_CLOSED"
            )
        code, reason, hint = explain_ssl_error(error, self.object)
        # Leave out the errno: the same number means another error to the operating system than to ssl.
        return NSQSocketError(f"TLS failed: {reason}", address=self._peer, code=code, hint=hint)


# By OpenSSL's X509_V_ERR_ codes. Source: x509_vfy.h.
_UNKNOWN_CA = dict.fromkeys((18, 19, 20, 21), "CERT_UNKNOWN_CA")
_CERTIFICATE_CODES = {10: "CERT_EXPIRED", **_UNKNOWN_CA, 62: "CERT_WRONG_NAME", 64: "CERT_WRONG_NAME"}


_CERTIFICATE_HINTS = {
    "CERT_EXPIRED": "renew it, and restart the server; if it is valid, the clock of this machine is wrong",
    "CERT_UNKNOWN_CA": "name the CA's file as {ca_certs in tls_options} (default: the system's CAs), or switch the "
    "check off with {cert_reqs=ssl.CERT_NONE}",
    "CERT_WRONG_NAME": "if this is the right server, give the name in its certificate as {server_hostname}",
}


def explain_ssl_error(error: ssl.SSLError, tls: ssl.SSLObject | None = None) -> tuple[str, str, str]:
    """Return the code, the reason and the hint of an error of gnsq for an error of ssl.

    Args:
        tls: Where it was raised, if that is known: it tells the dates of certificates.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        code = _CERTIFICATE_CODES.get(error.verify_code, "CERT_REFUSED")
        reason = f"certificate not accepted: {error.verify_message.rstrip('.') or error}"
        if code == "CERT_EXPIRED" and tls is not None:
            ended = [end for end in map(certificate_end, _peer_chain(tls)) if end and end < datetime.now(UTC)]
            reason += f": it ended {min(ended):%Y-%m-%d}" if ended else ""
        return code, reason, _CERTIFICATE_HINTS.get(code, "")
    reason = error.reason or str(error)
    own, end = ("", None) if tls is None else _own_certificates.get(tls.context, ("", None))
    if end is not None and end < datetime.now(UTC) and "ALERT" in reason:
        text = f"the server refused: {reason}: your certificate {own} has expired: it ended {end:%Y-%m-%d}"
        return "OWN_CERT_EXPIRED", text, "renew it, and start the program again"
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return "NO_TLS", f"the peer does not answer in TLS: {reason}", ""
    if "ALERT" in reason or reason == "HANDSHAKE_FAILURE":
        return (
            "TLS_REFUSED",
            f"the server refused: {reason}",
            "perhaps it wants a client certificate ({certfile and keyfile in tls_options}; nsqd's flag "
            "--tls-client-auth-policy) or another version of TLS (--tls-min-version)",
        )
    return reason, reason, ""


def _peer_chain(tls: ssl.SSLObject) -> list[bytes]:
    """Return the certificates that the peer has sent, in DER. Empty: ssl does not tell them after a failed check."""
    if sys.version_info >= (3, 13):
        return tls.get_unverified_chain()
    # Python before 3.13 has the same function, but not its name.
    chain = getattr(tls, "_sslobj").get_unverified_chain()  # noqa: B009  # mypy knows no such name
    return [certificate.public_bytes(_DER) for certificate in chain or ()]


# _ssl.ENCODING_DER
_DER = 2


def certificate_end(der: bytes) -> datetime | None:
    """Return the end of a certificate's validity; None if these bytes are no certificate."""
    try:
        return _decode_end(der)
    except (ValueError, IndexError):
        return None


def _decode_end(der: bytes) -> datetime:
    """Decode the end of a certificate's validity. Source: RFC 5280, 4.1; X.690, 8.1."""

    def element(at: int) -> tuple[int, int]:
        """Return the places of an element's content, and of the next element."""
        size, begin = der[at + 1], at + 2
        if size > 0x7F:
            count = size & 0x7F
            size, begin = int.from_bytes(der[begin : begin + count]), begin + count
        return begin, begin + size

    at = element(element(0)[0])[0]  # what is signed, in the certificate
    if der[at] == 0xA0:  # the version, which may be left out
        at = element(at)[1]
    for _ in range(3):  # serial number, algorithm, issuer
        at = element(at)[1]
    begin, end = element(element(element(at)[0])[1])  # the second date of the validity
    text = der[begin:end].decode()
    return datetime.strptime(text, "%y%m%d%H%M%SZ" if len(text) == 13 else "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


# The client's own certificates: of a context, the file and its end.
_own_certificates: WeakKeyDictionary[ssl.SSLContext, tuple[str, datetime | None]] = WeakKeyDictionary()


def make_context(
    ca_certs: str | None,
    cert_reqs: str = "CERT_REQUIRED",
    cert_file: str | None = None,
    key_file: str | None = None,
    key_password: str | bytes | None = None,
    named: Callable[[str], str] = option_text,
) -> ssl.SSLContext:
    """Build the TLS context of a client. By default it trusts the system's CAs, and checks certificate and host name.

    Args:
        ca_certs: File, or directory in OpenSSL's layout, with the CAs to trust; None: the system's CAs.
        cert_reqs: ``CERT_REQUIRED`` or ``CERT_NONE``. ``CERT_OPTIONAL`` is the same as ``CERT_REQUIRED`` for a client.
        cert_file: The client's own certificate. If this file does not contain the key, key_file must be given.
        named: Returns what error texts call ``ca_certs``, ``certificate`` and ``key``.

    Raises:
        ValueError: If a file can't be used, or the key is encrypted and there is no key_password.
    """
    try:
        if ca_certs is not None and os.path.isdir(ca_certs):
            context = ssl.create_default_context(capath=ca_certs)
        else:
            context = ssl.create_default_context(cafile=ca_certs)
    except OSError as error:
        raise ValueError(f"{named('ca_certs')} {ca_certs!r} can't be used: {error}") from error
    if cert_reqs == "CERT_NONE":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file is None:
        return context
    try:
        context.load_cert_chain(cert_file, key_file, _no_prompt if key_password is None else key_password)
        text = Path(cert_file).read_text(errors="replace")
    except OSError as error:
        certificate, key = named("certificate"), named("key")
        _check_readable((certificate, cert_file), (key, key_file))
        raise ValueError(f"{certificate} {cert_file!r} with {key} {key_file!r} can't be used: {error}") from error
    # The client's own certificate comes before those of its CAs.
    own = text[text.find(ssl.PEM_HEADER) :].partition(ssl.PEM_FOOTER)
    der = ssl.PEM_cert_to_DER_cert("".join(own[:2])) if own[0].startswith(ssl.PEM_HEADER) and own[1] else b""
    _own_certificates[context] = cert_file, certificate_end(der)
    return context


def _check_readable(*files: tuple[str, str | None]) -> None:
    """Raise ValueError for the first file that can't be read: ssl does not say which of two it is."""
    for what, path in files:
        if path is not None:
            try:
                open(path, "rb").close()
            except OSError as error:
                raise ValueError(f"{what} {path!r} can't be read: {reason_of(error)}") from error


def _no_prompt() -> str:
    # Without this function OpenSSL would ask for the password at the terminal, and block the hub.
    raise ValueError("the key is encrypted: give its key_password where there is such an option, or decrypt it")


def client_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Return the TLS context of a connection: the option tls_context, or a new context from tls_options.

    Raises:
        TypeError: If tls_options has an unknown key, or a value has a wrong type.
        ValueError: If a file or another value of tls_options can't be used.
    """
    if options.tls_context is not None:
        return options.tls_context
    given: Mapping[str, Any] = options.tls_options or {}  # Any: each option has its own type, which ssl checks
    known = TlsOptionsDict.__annotations__
    unknown = sorted(set(given) - set(known))
    if unknown:
        meant = [_OTHER_NAMES.get(name, name) for name in unknown]
        raise TypeError(f"tls_options has no {', '.join(unknown)}{nearest(meant, known, 'it takes')}")
    check_hostname = given.get("check_hostname", True)
    if not isinstance(check_hostname, bool):
        raise TypeError(f"check_hostname of tls_options must be bool, not {check_hostname!r}")
    if given.get("keyfile") and not given.get("certfile"):
        raise ValueError("tls_options has a keyfile without its certfile")
    required = given.get("cert_reqs")
    try:
        context = make_context(
            given.get("ca_certs"),
            "CERT_REQUIRED" if required is None else ssl.VerifyMode(required).name,
            given.get("certfile"),
            given.get("keyfile"),
            given.get("key_password"),
        )
    except ValueError as error:
        raise ValueError(f"{option_text('tls_options')}: {error}") from error
    context.check_hostname = context.check_hostname and check_hostname
    version = _version(given.get("ssl_version"))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


def _version(given: object) -> ssl.TLSVersion | None:
    """Return the only TLS version that ssl_version allows; None if it allows all versions."""
    if given is None or (isinstance(given, int) and given in (ssl.PROTOCOL_TLS, ssl.PROTOCOL_TLS_CLIENT)):
        return None
    if isinstance(given, ssl.TLSVersion):
        return given
    if isinstance(given, int) and given in _VERSIONS:
        return _VERSIONS[given]
    raise ValueError(f"ssl_version {given!r} of tls_options is neither an ssl.PROTOCOL_ constant nor an ssl.TLSVersion")


# Names of the same in ssl, in the options of HTTP, and of gnsq's commands.
_OTHER_NAMES = {
    **dict.fromkeys(("ca", "ca_file", "cadata", "cafile", "capath", "tls_ca"), "ca_certs"),
    **dict.fromkeys(("cert", "cert_file", "tls_cert"), "certfile"),
    **dict.fromkeys(("key", "key_file", "tls_key"), "keyfile"),
    **dict.fromkeys(("password", "passphrase"), "key_password"),
    **dict.fromkeys(("verify", "verify_mode"), "cert_reqs"),
}
# The constants for ssl_version that allow only one version. PROTOCOL_TLS and PROTOCOL_TLS_CLIENT allow all.
_VERSIONS: dict[int, ssl.TLSVersion] = {
    ssl.PROTOCOL_TLSv1: ssl.TLSVersion.TLSv1,
    ssl.PROTOCOL_TLSv1_1: ssl.TLSVersion.TLSv1_1,
    ssl.PROTOCOL_TLSv1_2: ssl.TLSVersion.TLSv1_2,
}
