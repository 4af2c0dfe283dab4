"""Checks addresses, and converts options to keyword arguments of gnsq's clients. Reads the files that options name.

Errors show no secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnsq import LookupdClient, NsqdHTTPClient, Producer
from gnsq.spark.options import ConnectOptions, named
from gnsq.texts import reason_of

if TYPE_CHECKING:
    import ssl

__all__ = ["ADDRESS_FORMS", "check_addresses", "connection_keywords", "http_keywords"]

# Names of options with addresses; the function refuses an address that has another form, and connects to nothing.
ADDRESS_FORMS: dict[str, Callable[[str], object]] = {
    "nsqd_tcp_addresses": Producer,
    "lookupd_http_addresses": LookupdClient.from_url,
    "nsqd_http_addresses": NsqdHTTPClient.from_url,
}

# Seconds. Longest wait for a response over HTTP.
HTTP_TIMEOUT = 5.0


def check_addresses(options: ConnectOptions) -> None:
    """Check the form of addresses without connecting. Raise a ValueError that names the option and the address."""
    for name, make in ADDRESS_FORMS.items():
        for address in getattr(options, name, ()):
            try:
                make(address)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{named(name)}: {error}") from error


def connection_keywords(options: ConnectOptions) -> dict[str, Any]:  # Any: each option has its own type
    """Build the keywords of a Consumer or a Producer for connections to nsqd and nsqlookupd.

    Raises:
        ValueError: If a file that an option names can't be used.
    """
    keywords: dict[str, Any] = {
        "nsqd_tcp_addresses": list(options.nsqd_tcp_addresses),
        "lookupd_http_addresses": list(options.lookupd_http_addresses),
        "lookupd_poll_interval": options.lookupd_poll_interval,
        "lookupd_options": http_keywords(options),
        "snappy": options.compression == "snappy",
        "deflate": options.compression == "deflate",
        "auth_secret": _auth_secret(options),
        "server_hostname": options.tls_server_hostname or None,
    }
    if options.tls:
        keywords["tls_context"] = _context(options)
    return keywords


def http_keywords(options: ConnectOptions) -> dict[str, Any]:  # Any: each option has its own type
    """Build the keywords of HTTP clients. Raise ValueError if an address has https:// and a TLS file can't be used."""
    keywords: dict[str, Any] = {"timeout": HTTP_TIMEOUT}
    if options.uses_https:
        keywords["ssl_context"] = _context(options)
    return keywords


def _auth_secret(options: ConnectOptions) -> bytes | None:
    if not options.auth_secret_file:
        return options.auth_secret.encode() or None
    named_file = f"{named('auth_secret_file')} {options.auth_secret_file!r}"
    try:
        with open(options.auth_secret_file, "rb") as file:
            secret = file.read().strip()
    except OSError as error:
        raise ValueError(
            f"{named_file} can't be read: {reason_of(error)}; it must be on each machine that connects"
        ) from error
    if not secret:
        raise ValueError(f"{named_file} is empty: it must hold the secret")
    return secret


def _context(options: ConnectOptions) -> ssl.SSLContext:
    from gnsq.tls import make_context  # imports ssl, which takes 8 ms to load

    names = {"ca_certs": named("tls_ca"), "certificate": named("tls_cert"), "key": named("tls_key")}
    verify = "CERT_REQUIRED" if options.tls_verify else "CERT_NONE"
    files = (options.tls_ca or None, verify, options.tls_cert or None, options.tls_key or None)
    return make_context(*files, named=lambda name: names.get(name, name))
