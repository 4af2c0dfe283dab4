"""Clients of one nsqd, and the connections that Consumer and Producer use."""

import socket
from typing import Any

from gnsq.nsqd.http import NsqdHTTPClient
from gnsq.nsqd.tcp import NsqdTCPClient

__all__ = ["HOSTNAME", "NsqdHTTPClient", "NsqdTCPClient", "SHORTNAME"]

# Default hostname and client_id of a client.
HOSTNAME = socket.gethostname()
SHORTNAME = HOSTNAME.split(".")[0]


def __getattr__(name: str) -> Any:  # Any: type checkers learn of no class, since to import it would be a circle
    """Load the deprecated Nsqd, which gnsq 1.0 had here. Source: PEP 562."""
    if name == "Nsqd":
        import gnsq

        return gnsq.Nsqd
    raise AttributeError(f"module 'gnsq.nsqd' has no attribute {name!r}")
