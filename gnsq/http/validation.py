"""Check the arguments of HTTP clients, and convert urllib3's objects, which gnsq 1.0 took.

Pure: loads neither urllib3 nor ssl. No error text shows a value that may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

__all__ = [
    "PORTS",
    "check_header",
    "check_strings",
    "check_host",
    "check_path",
    "check_port",
    "check_scheme",
    "is_url",
    "convert_cert_reqs",
    "convert_retries",
    "convert_timeout",
]

# Default port of each scheme.
PORTS = {"http": 80, "https": 443}

_CERT_REQS = ("CERT_NONE", "CERT_OPTIONAL", "CERT_REQUIRED")
_HOST = re.compile(r"[^\s/?#@\[\]\\\x00-\x1f]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_host(host: object) -> str:
    """Return a host name or address, an IPv6 address without brackets."""
    if not isinstance(host, str):
        raise TypeError(f"host must be a str, not {host!r}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _HOST.fullmatch(bare):
        # Not shown: it may be a URL with a password.
        raise ValueError("host must be a name or an IP address; from_url() takes URLs")
    return bare


def check_path(path: object) -> str:
    """Return the prefix of each endpoint's path, without slashes around it."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {path!r}")
    if not path.isprintable() or any(character in path for character in "?# "):
        raise ValueError(f"path {path!r} must have neither spaces nor ? nor #")
    return path.strip("/")


def check_port(port: Any) -> int:  # Any: gnsq 1.0 took "4151", too
    """Return a port as an int."""
    if isinstance(port, bool) or not isinstance(port, (int, str)):
        raise TypeError(f"port must be an int, not {port!r}")
    if isinstance(port, str) and not port.isdecimal():
        raise ValueError(f"port {port!r} must be a number from 1 to 65535")
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"port {port} must be from 1 to 65535")
    return int(port)


def check_scheme(scheme: str) -> str:
    """Return the scheme if it is http or https."""
    if scheme not in PORTS:
        raise ValueError(f"scheme {scheme!r} must be http or https")
    return scheme


def check_strings(subject: str, mapping: Mapping[str, str] | None) -> None:
    """Raise TypeError for anything but a mapping of str to str."""
    if mapping is None:
        return
    if not isinstance(mapping, Mapping) or not all(isinstance(item, str) for pair in mapping.items() for item in pair):
        raise TypeError(f"{subject} must be a dict of str to str")


def check_header(name: str, value: str) -> None:
    """Raise ValueError for a header that is not valid or would become several. The value, a secret, is not shown."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header {name!r} has no valid name")
    if not value.isprintable() or value != value.strip() or not value.isascii():
        raise ValueError(f"value of header {name} must be printable ASCII, without spaces around it")


def is_url(text: str) -> bool:
    """Whether a text has a scheme, a host, and no impossible port."""
    try:
        parts = urlsplit(text)
        return bool(parts.scheme and parts.hostname) and parts.port != 0
    except ValueError:
        return False


def convert_timeout(timeout: Any) -> dict[str, Any]:  # Any: urllib3's, requests' or a number
    """Convert a number, a pair of connect and read, or an object that has both, such as urllib3's Timeout, to options.

    The sum of connect and read is the limit of a whole call.
    """
    if isinstance(timeout, tuple) and len(timeout) == 2:
        total, (connect, read) = None, timeout
    elif hasattr(timeout, "connect_timeout"):
        total, connect = _number(timeout.total), _number(timeout.connect_timeout)
        # With a total, urllib3's read_timeout raises until the Timeout was started.
        read = None if total is not None else _number(timeout.read_timeout)
    elif hasattr(timeout, "connect"):
        total, connect, read = getattr(timeout, "total", None), timeout.connect, getattr(timeout, "read", None)
    elif timeout is None:
        # urllib3 waits for ever; here every call has a limit.
        return {}
    else:
        return {"timeout": timeout}
    if total is None and connect is not None and read is not None:
        total = connect + read
    mapped = {"timeout": total, "connect_timeout": connect}
    return {name: value for name, value in mapped.items() if value is not None}


def _number(value: object) -> float | None:
    # urllib3 has an object of its own for "not given".
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def convert_retries(retries: Any) -> dict[str, Any]:  # Any: urllib3's Retry or a number
    """Convert a number, False, or an object that has counts, such as urllib3's Retry, to options: the first count that
    is given of total, connect and read."""
    if retries is None:
        return {}
    if hasattr(retries, "total"):
        counts = [getattr(retries, name, None) for name in ("total", "connect", "read")]
        given = [count for count in counts if count is not None]
        return {"retries": int(given[0])} if given else {}
    return {"retries": 0 if retries is False else retries}


def convert_cert_reqs(cert_reqs: object) -> str:
    """Convert a name, with or without CERT_, or a constant of ssl, to the name."""
    if cert_reqs is None:
        return "CERT_REQUIRED"
    if isinstance(cert_reqs, int) and not isinstance(cert_reqs, bool) and 0 <= cert_reqs < len(_CERT_REQS):
        return _CERT_REQS[cert_reqs]
    if isinstance(cert_reqs, str):
        name = cert_reqs if cert_reqs.startswith("CERT_") else f"CERT_{cert_reqs}"
        if name in _CERT_REQS:
            return name
    raise ValueError(f"cert_reqs {cert_reqs!r} must be one of {', '.join(_CERT_REQS)}")
