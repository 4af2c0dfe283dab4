"""TLS contexts for clients, of nsqd's TCP port and of HTTPS. Loads ssl, which is slow: imported where it is needed."""

from __future__ import annotations

import os
import ssl

__all__ = ["make_context"]


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
