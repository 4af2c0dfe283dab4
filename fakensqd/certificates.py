"""Certificates for tests: a CA, and the certificates of servers and clients that it signs.

Owns a directory of PEM files. Needs cryptography, an optional dependency.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
except ImportError as error:
    raise ImportError(f"certificates need cryptography: pip install 'gnsq[fakensqd]' ({error})") from error

__all__ = ["CertificateFiles", "Certificates"]

_LIFETIME = timedelta(days=30)
_EXPIRED_FOR = timedelta(hours=1)
# Key usages that the CA's certificate does not have: its key only signs certificates and CRLs.
_OTHER_KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)


class CertificateFiles(NamedTuple):
    """Paths of a certificate and its key, for nsqd's tls_cert and tls_key, or for an SSLContext."""

    certificate: str
    key: str


class Certificates:
    """A CA that signs certificates for tests.

    Args:
        directory: Directory for the files; made if it does not exist.

    Attributes:
        ca: Path of the CA's certificate. With it, a peer can verify the certificates that the CA has signed.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self._key = _new_key()
        self._certificate = _sign(self._key, "fakensqd CA", (), None, expired=False)
        self.ca = self._write("ca.pem", self._certificate.public_bytes(Encoding.PEM))

    def server(
        self, names: str | Iterable[str] = ("localhost", "127.0.0.1"), *, expired: bool = False
    ) -> CertificateFiles:
        """Make the certificate of a server with these host names and IP addresses.

        Args:
            names: One name as a str, or several names.

        Raises:
            ValueError: If there is no name.
        """
        alternatives = [names] if isinstance(names, str) else list(names)
        if not alternatives:
            raise ValueError("a server's certificate needs at least 1 name")
        return self._make("server", alternatives[0], alternatives, expired=expired)

    def client(self, common_name: str = "client", *, expired: bool = False) -> CertificateFiles:
        """Make the certificate of a client. nsqd sends the common name of the certificate to the auth server."""
        return self._make("client", common_name, (), expired=expired)

    def _make(self, kind: str, common_name: str, names: Iterable[str], *, expired: bool) -> CertificateFiles:
        key = _new_key()
        certificate = _sign(key, common_name, names, (self._key, self._certificate), expired=expired)
        self._count += 1
        stem = f"{kind}-{self._count}"
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return CertificateFiles(
            self._write(f"{stem}.pem", certificate.public_bytes(Encoding.PEM)), self._write(f"{stem}.key", key_pem)
        )

    def _write(self, name: str, data: bytes) -> str:
        path = self._directory / name
        path.write_bytes(data)
        return str(path)


def _new_key() -> ec.EllipticCurvePrivateKey:
    # Making a key of this elliptic curve is much faster than making an RSA key.
    return ec.generate_private_key(ec.SECP256R1())


def _sign(
    key: ec.EllipticCurvePrivateKey,
    common_name: str,
    names: Iterable[str],
    issuer: tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None,
    *,
    expired: bool,
) -> x509.Certificate:
    """Make and sign a certificate. Without an issuer, make the CA's certificate, signed with its own key."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    signer_key, signer = (key, subject) if issuer is None else (issuer[0], issuer[1].subject)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFETIME)
        .not_valid_after(now - _EXPIRED_FOR if expired else now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        # Since Python 3.13, ssl.create_default_context() makes contexts that require the next two extensions.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False)
    )
    if issuer is None:
        usage = dict.fromkeys(_OTHER_KEY_USAGES, False)
        builder = builder.add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
    if alternatives := [_general_name(name) for name in names]:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(signer_key, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
