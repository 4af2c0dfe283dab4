"""Parse and format addresses. Resolves no names and opens no connections."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gnsq.options import check_unix
from gnsq.texts import option_text, shown_argument

__all__ = [
    "Addresses",
    "check_no_pair",
    "check_single",
    "checked_address",
    "format_address",
    "is_host",
    "is_port",
    "is_unix",
    "parse_address",
    "parse_addresses",
]

DEFAULT_TCP_PORT = 4150
# Limit of the characters of a host name, by RFC 1035. An IP address has fewer.
_MAX_HOST_LENGTH = 255
_NAME_OR_IPV4 = re.compile(r"[^\s:,;/?#@\[\]\\]+")
# Two colons at least: with one, it is a host with its port.
_IPV6 = re.compile(r"[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?")

# Type of constructor arguments: one address or several, each as "host:port" or, of an nsqlookupd, as a URL.
Addresses = str | Iterable[str]


def parse_address(address: str, default_port: int = DEFAULT_TCP_PORT) -> tuple[str, int]:
    """Split ``host:port``, ``host``, ``[ipv6]:port`` or ``[ipv6]`` into host and port.

    The path of a unix socket begins with a slash. For such a path, the host is the path, and the port is 0.

    Raises:
        TypeError: If the address is not a str.
        ValueError: If the format is wrong, the host is empty, the port is not 1 to 65535, or a path is too long.
    """
    if not isinstance(address, str):
        raise TypeError(f"address must be a str such as 'host:4150', not {shown_argument(address)}")
    if is_unix(address):
        check_unix(address)
        return address, 0
    check_single(address, "'host:port'")
    if "://" in address:
        raise ValueError(
            f"{_shown(address)} is a URL; nsqd's TCP port is given as 'host:port', and only nsqlookupd as a URL, in "
            f"{option_text('lookupd_http_addresses')}"
        )
    if "@" in address:
        raise ValueError(f"{_shown(address)} is not 'host:port'")
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"address {address!r} is not '[ipv6]:port'")
        port_text = rest[1:]
    elif address.count(":") > 1:
        raise ValueError(f"address {address!r} is not 'host:port'; IPv6 is written in brackets, as '[::1]:4150'")
    else:
        host, _, port_text = address.partition(":")
    if not host:
        raise ValueError(f"address {address!r} has no host")
    if not is_host(host):
        raise ValueError(f"address {address!r} has no host name or IP address before its port")
    if not port_text and not address.endswith(":"):
        return host, default_port
    if not port_text.isdecimal() or not is_port(int(port_text)):
        hint = "; a server that takes any free port has its port after its start" if port_text == "0" else ""
        raise ValueError(f"port {port_text!r} of address {address!r} is not a number from 1 to 65535{hint}")
    return host, int(port_text)


def check_no_pair(addresses: Addresses) -> None:
    """Raise TypeError if addresses, or one of them, are a host and a port, as Python's sockets take them."""
    for pair in (addresses, *addresses):
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) and is_port(pair[1]):
            raise TypeError(
                f"an address is one str: give {shown_argument(format_address(*pair))} in place of a host and a port"
            )


def check_single(text: str, form: str) -> None:
    """Raise ValueError if a text looks like several addresses, such as ``a:1,b:2``.

    Args:
        form: What one address looks like, for the error text.
    """
    rest = text.partition("://")[2] or text
    if re.search(r"[,;\s]", rest.strip().partition("/")[0].rpartition("@")[2]):
        raise ValueError(f"{_shown(text)} is not one {form}: give several as a list")


def is_host(host: str) -> bool:
    """Return True if this can be a host name or an IP address; IPv6 has no brackets here."""
    found = _IPV6.fullmatch(host) if ":" in host else _NAME_OR_IPV4.fullmatch(host)
    return len(host) <= _MAX_HOST_LENGTH and host.isprintable() and found is not None


def _shown(address: str) -> str:
    shown = shown_argument(address)
    return f"address {shown}" if shown == repr(address) else shown.replace("a text", "an address", 1)


def is_port(port: object) -> bool:
    """Return True if an object is an int from 1 to 65535."""
    return isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= 65535


def parse_addresses(addresses: Addresses) -> list[str]:
    """Return the addresses of a constructor argument as format_address() writes them, in order, without duplicates.

    A set is sorted. Raises the errors of parse_address(), and TypeError if it is not a str, list, tuple or set.
    """
    if not isinstance(addresses, (str, list, tuple, set, frozenset)):
        raise TypeError(
            f"nsqd_tcp_addresses must be 'host:port' or a list, tuple or set of them, not {shown_argument(addresses)}"
        )
    check_no_pair(addresses)
    items = [addresses] if isinstance(addresses, str) else addresses
    found = dict.fromkeys(format_address(*parse_address(item)) for item in items)
    return sorted(found) if isinstance(addresses, (set, frozenset)) else list(found)


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 host in brackets, or the path of a unix socket."""
    if not isinstance(host, str):
        raise TypeError(f"host of an address must be a str, not {shown_argument(host)}")
    if is_unix(host):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked_address(host: str, port: int) -> str:
    """Return the address of a host and a port as format_address() does. Raises the errors of parse_address()."""
    return format_address(*parse_address(format_address(host, port)))


def is_unix(host: str) -> bool:
    """Return True if a host is the path of a unix socket."""
    return host.startswith("/")
