"""TLS contexts for clients, of nsqd's TCP port and of HTTPS. Loads ssl, which is slow: imported where it is needed.

Layers over a transport: TLS, then compression; and what a client is told of TLS, as a context.

Each is a transport itself, so nothing above asks which are on. Both sides use them. Knows no command.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Mapping
from typing import Any

from gevent.lock import BoundedSemaphore

from gnsq.concurrency.greenlets import CooperativeYield
from gnsq.errors import NSQConnectionClosed, NSQSocketError
from gnsq.options import ConnectionOptions
from gnsq.protocol.compression import Codec
from gnsq.texts import nearest
from gnsq.transport import READ_SIZE, Transport

__all__ = [
    "CompressedTransport",
    "TlsTransport",
    "client_context",
    "make_context",
]


def make_context(
    ca_certs: str | None,
    cert_reqs: str = "CERT_REQUIRED",
    cert_file: str | None = None,
    key_file: str | None = None,
    key_password: str | bytes | None = None,
) -> ssl.SSLContext:
    """Build a client's context: the system's CAs unless others are given, certificate and host name checked.

    Args:
        ca_certs: A file, or a directory as OpenSSL wants them, with the CAs to trust in place of the system's.
        cert_reqs: ``CERT_REQUIRED`` or ``CERT_NONE`` (``CERT_OPTIONAL`` means the first to a client).
        cert_file: The client's own certificate; with key_file, unless it holds the key, too.

    Raises:
        ValueError: If a file can't be used; names it.
    """
    try:
        if ca_certs is not None and os.path.isdir(ca_certs):
            context = ssl.create_default_context(capath=ca_certs)
        else:
            context = ssl.create_default_context(cafile=ca_certs)
    except OSError as error:
        raise ValueError(f"ca_certs {ca_certs!r} can't be used: {error}") from error
    if cert_reqs == "CERT_NONE":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file is None:
        return context
    try:
        context.load_cert_chain(cert_file, key_file, _no_prompt if key_password is None else key_password)
    except OSError as error:
        raise ValueError(f"certificate {cert_file!r} with key {key_file!r} can't be used: {error}") from error
    return context


def _no_prompt() -> str:
    # Without this OpenSSL would ask at the terminal, and the hub would wait for the answer.
    raise ValueError("the key is encrypted: give its key_password")


# Kept of what came first, bytes.
CLEAR_TEXT = 4096


class CompressedTransport:
    """A stream of compressed bytes.

    Args:
        inner: Where the compressed bytes go.
        first: Those that were received already.
    """

    def __init__(self, inner: Transport, codec: Codec, first: bytes = b"") -> None:
        self._inner = inner
        self._codec = codec
        self._first = first
        self._cooperative_yield = CooperativeYield()

    def recv(self, size: int) -> bytes:
        decompress = self._codec.decompress
        received, self._first = self._first, b""
        while True:
            data = decompress(received, size)
            if data:
                return data
            if received:
                # What holds nothing, such as padding, must not keep others from running.
                self._cooperative_yield()
            received = self._inner.recv(READ_SIZE)
            if not received:
                return b""

    def sendall(self, data: bytes) -> None:
        self._inner.sendall(self._codec.compress(data))

    def shutdown_write(self) -> None:
        self._inner.shutdown_write()

    def close(self) -> None:
        self._inner.close()


class TlsTransport:
    """A stream inside TLS. The TLS library works on memory, so that only the greenlet that needs bytes waits.

    Args:
        inner: Where the ciphertext goes.
        context: Any ``ssl.SSLContext``.
        server_side: Whether this is the server.
        server_hostname: The name that the server's certificate must have, if the context checks it; sent as SNI.
        peer: Address, for error texts.

    Attributes:
        first: What came first, up to a few KiB: an answer in clear text, where TLS did not begin.
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
        """Agree on keys; checks the peer's certificate if the context says so.

        Raises:
            NSQSocketError: If the peer does not speak TLS, or one of the two refuses; the cause is the TLS library's
                error. The alert that tells the peer was sent.
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
                raise self._translated(error) from error
            self._flush()
            return

    def recv(self, size: int) -> bytes:
        pieces: list[bytes] = []
        held = 0
        # One record holds 16 KiB at most; those that are here already are taken together.
        while held < size:
            try:
                piece = self.object.read(size - held)
            except ssl.SSLWantReadError:
                if pieces:
                    break
                # Only a change of keys has an answer; if the writer is at work, it sends that, too.
                if self._outgoing.pending and not self._sending.locked():
                    self._flush()
                self._feed()
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                break
            except ssl.SSLError as error:
                raise self._translated(error) from error
            if not piece:
                break
            pieces.append(piece)
            held += len(piece)
            if not self._incoming.pending and not self.object.pending():
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sendall(self, data: bytes) -> None:
        if data:  # to write nothing is an error of its own to the TLS library
            try:
                self.object.write(data)
            except ssl.SSLError as error:
                raise self._translated(error) from error
        self._flush()

    def shutdown_write(self) -> None:
        # It wants the peer's answer, which recv() sees as the end.
        with contextlib.suppress(ssl.SSLError):
            self.object.unwrap()
        self._flush()
        self._inner.shutdown_write()

    def close(self) -> None:
        self._inner.close()

    def _feed(self) -> None:
        data = self._inner.recv(READ_SIZE)
        if not self.first:
            self.first = data[:CLEAR_TEXT]
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        with self._sending:
            while self._outgoing.pending:
                self._inner.sendall(self._outgoing.read())

    def _translated(self, error: ssl.SSLError) -> NSQSocketError:
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return NSQConnectionClosed(f"{self._peer}: the peer closed the connection inside TLS")
        # Without the errno, which is the TLS library's and means another thing to the system.
        return NSQSocketError(f"{self._peer}: TLS failed: {_explained(error)}")


def _explained(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"nsqd's certificate was not accepted: {error.verify_message.rstrip('.')}. Name the CA's file as ca_certs "
            "in tls_options (default: the system's CAs), the name in the certificate as server_hostname, or switch the "
            "check off with cert_reqs=ssl.CERT_NONE"
        )
    reason = error.reason or str(error)
    if reason == "WRONG_VERSION_NUMBER":
        return f"{reason}: the peer does not answer in TLS"
    if "ALERT" in reason:
        return (
            f"{reason}: nsqd refused; perhaps it wants a client certificate (certfile and keyfile in tls_options; its "
            "flag --tls-client-auth-policy) or another version of TLS (--tls-min-version)"
        )
    return reason


# What tls_options of gnsq 1.0 could hold, and two more: it never checked a host name, nor knew a password.
_TLS_OPTIONS = ("keyfile", "certfile", "cert_reqs", "ca_certs", "ssl_version", "check_hostname", "key_password")


def client_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Make the context that a connection uses: tls_context as it is, or one from the dictionary of gnsq 1.0.

    Raises:
        TypeError: If tls_options holds what is unknown.
        ValueError: If a file it names can't be read as what it should be.
    """
    if options.tls_context is not None:
        return options.tls_context
    given: Mapping[str, Any] = options.tls_options or {}  # Any: each has its own type, which ssl checks
    unknown = sorted(set(given) - set(_TLS_OPTIONS))
    if unknown:
        raise TypeError(f"tls_options has no {', '.join(unknown)}{nearest(unknown, _TLS_OPTIONS, 'it takes')}")
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
        raise ValueError(f"tls_options can't be used: {error}") from error
    context.check_hostname = context.check_hostname and check_hostname
    version = _version(given.get("ssl_version"))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


def _version(given: object) -> ssl.TLSVersion | None:
    """Read the one version of TLS that ssl_version asks for; None for any."""
    if given is None or (isinstance(given, int) and given in (ssl.PROTOCOL_TLS, ssl.PROTOCOL_TLS_CLIENT)):
        return None
    if isinstance(given, ssl.TLSVersion):
        return given
    if isinstance(given, int) and given in _VERSIONS:
        return _VERSIONS[given]
    raise ValueError(f"ssl_version {given!r} of tls_options is neither an ssl.PROTOCOL_ constant nor an ssl.TLSVersion")


# Those of the ssl_version constants that mean one version; PROTOCOL_TLS and its kin mean any.
_VERSIONS: dict[int, ssl.TLSVersion] = {
    ssl.PROTOCOL_TLSv1: ssl.TLSVersion.TLSv1,
    ssl.PROTOCOL_TLSv1_1: ssl.TLSVersion.TLSv1_1,
    ssl.PROTOCOL_TLSv1_2: ssl.TLSVersion.TLSv1_2,
}
