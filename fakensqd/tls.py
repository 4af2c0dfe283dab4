"""TLS of nsqd: contexts from its flags, the handshake as server, and the handshake's outcome in Go's words.

Owns no connection. The contexts are gevent's, so that the HTTPS port can use them. Source: nsqd nsqd.go buildTLSConfig,
buildClientTLSConfig; client_v2.go prettyConnectionState; Go's crypto/tls.
"""

from __future__ import annotations

import ssl
import warnings
from typing import Any

from gevent.ssl import SSLContext

from fakensqd.effects import TlsEstablished, TlsFailed
from fakensqd.options import NsqdOptions
from gnsq.errors import NSQConnectionClosed, NSQProtocolError, NSQSocketError
from gnsq.texts import reason_of
from gnsq.tls import TlsTransport
from gnsq.transport import Transport

__all__ = ["client_context", "handshake", "server_context"]

_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
# Cipher suites in Go's order of preference, since /stats shows which is used; then those that only OpenSSL has. Level 0
# allows versions before 1.2 and short keys: certificates of old test suites have short keys. Source: Go crypto/tls.
_CIPHERS = "ECDHE+AES128+AESGCM:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES128+SHA1:ECDHE+AES256+SHA1:DEFAULT:@SECLEVEL=0"
_CERTIFICATE_POLICIES = ("require", "require-verify")


def server_context(options: NsqdOptions) -> ssl.SSLContext:
    """Make the context of the TCP and the HTTPS port.

    Raises:
        OSError: If a file cannot be loaded.
        ValueError: If tls_client_auth_policy requires certificates, but there is no tls_root_ca_file.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, options)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except OSError as error:
        # Python's errors do not name the file, so this text names both files.
        files = f"tls_cert {options.tls_cert!r} and tls_key {options.tls_key!r}"
        raise OSError(f"{files} cannot be loaded: {reason_of(error)}") from error
    if options.tls_client_auth_policy in _CERTIFICATE_POLICIES:
        if not options.tls_root_ca_file:
            # nsqd's "require" accepts any certificate; Python's ssl verifies each certificate that it asks for.
            raise ValueError(
                f"tls_client_auth_policy {options.tls_client_auth_policy!r} needs tls_root_ca_file here: Python's ssl "
                "accepts no certificate that it cannot verify"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    # As with Go, a client that ends its TCP side without TLS's close_notify still gets responses. OpenSSL 1 does so.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    return context


def client_context(options: NsqdOptions) -> ssl.SSLContext:
    """Make the context for auth servers over HTTPS.

    Raises:
        OSError: If the file of CAs cannot be loaded.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, options)
    if not options.tls_root_ca_file:
        context.load_default_certs()
    return context


def _context(protocol: int, options: NsqdOptions) -> ssl.SSLContext:
    context: ssl.SSLContext = SSLContext(protocol)
    with warnings.catch_warnings():
        # Python warns about versions before 1.2, which nsqd accepts.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = _VERSIONS[options.tls_min_version]
    context.set_ciphers(_CIPHERS)
    if options.tls_root_ca_file:
        try:
            context.load_verify_locations(options.tls_root_ca_file)
        except OSError as error:
            text = f"tls_root_ca_file {options.tls_root_ca_file!r} cannot be loaded: {reason_of(error)}"
            raise OSError(text) from error
    return context


def handshake(transport: Transport, context: ssl.SSLContext) -> tuple[TlsTransport, TlsEstablished] | TlsFailed:
    """Do the handshake with a client; return the encrypted transport and the negotiated parameters, or the failure."""
    guarded = _GuardedTransport(transport)
    tls = TlsTransport(guarded, context, server_side=True)
    try:
        tls.handshake()
    except (NSQSocketError, NSQProtocolError) as error:
        return TlsFailed(_failure_text(error))
    guarded.handshake_done = True
    return tls, _negotiated(tls.object, context)


class _GuardedTransport:
    """A transport that raises if the data ends before the handshake is complete.

    OpenSSL would then send an alert, but Go sends none.
    """

    def __init__(self, inner: Transport) -> None:
        self.handshake_done = False
        self._inner = inner
        self.sendall = inner.sendall
        self.shutdown_write = inner.shutdown_write
        self.close = inner.close

    def recv(self, size: int) -> bytes:
        data = self._inner.recv(size)
        if not data and not self.handshake_done:
            raise NSQConnectionClosed("EOF")
        return data


def _failure_text(error: NSQSocketError | NSQProtocolError) -> str:
    """Return OpenSSL's reason; the text of the error itself says what a client should do."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and cause.reason:
        return f"tls: {cause.reason.lower().replace('_', ' ')}"
    return str(error)


# Names of cipher suites in nsqd's prettyConnectionState, without those that OpenSSL no longer has. Source: IANA.
_SUITES = {
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}
_VERSION_NAMES = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}


def _negotiated(connection: ssl.SSLObject, context: ssl.SSLContext) -> TlsEstablished:
    suite = connection.cipher()
    version = connection.version()
    assert suite is not None  # the handshake is done
    assert version is not None
    # OpenSSL's number of a suite has a prefix; the lower 16 bits are IANA's number.
    number = next(cipher["id"] & 0xFFFF for cipher in context.get_ciphers() if cipher["name"] == suite[0])
    return TlsEstablished(
        version=_VERSION_NAMES[version],
        cipher_suite=_SUITES.get(number, f"Unknown {number}"),
        common_name=_common_name(connection.getpeercert() or {}),
    )


def _common_name(certificate: dict[str, Any]) -> str:  # Any: the fields have different shapes
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    # Go takes the last common name.
    return str(names[-1]) if names else ""
