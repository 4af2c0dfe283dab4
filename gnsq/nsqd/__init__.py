"""Clients of one nsqd, and the connections that Consumer and Producer use."""

import importlib
import socket
from typing import TYPE_CHECKING, Any

# Consumer and Producer use neither, and without both they load in half of the time.
if TYPE_CHECKING:
    from gnsq.nsqd.http import NsqdHTTPClient
    from gnsq.nsqd.tcp import NsqdTCPClient

__all__ = ["HOSTNAME", "NsqdHTTPClient", "NsqdTCPClient", "SHORTNAME"]

# Default hostname and client_id of a client.
HOSTNAME = socket.gethostname()
SHORTNAME = HOSTNAME.split(".")[0]


_MODULES = {"NsqdHTTPClient": "gnsq.nsqd.http", "NsqdTCPClient": "gnsq.nsqd.tcp", "Nsqd": "gnsq"}


def __getattr__(name: str) -> Any:  # Any: each has its own type
    """Load a class, also the deprecated Nsqd, which gnsq 1.0 had here. Source: PEP 562."""
    if name not in _MODULES:
        raise AttributeError(f"module 'gnsq.nsqd' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
