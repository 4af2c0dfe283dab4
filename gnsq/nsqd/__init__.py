"""Clients of one nsqd: over TCP by hand, over HTTP, and the connection that Consumer and Producer use."""

import socket

from gnsq.nsqd.http import NsqdHTTPClient
from gnsq.nsqd.tcp import NsqdTCPClient

__all__ = ["HOSTNAME", "NsqdHTTPClient", "NsqdTCPClient", "SHORTNAME"]

# What a client is called by default.
HOSTNAME = socket.gethostname()
SHORTNAME = HOSTNAME.split(".")[0]


def __getattr__(name: str) -> object:
    """Load the deprecated Nsqd, which gnsq 1.0 had here. Source: PEP 562."""
    if name == "Nsqd":
        import gnsq

        return gnsq.Nsqd
    raise AttributeError(f"module 'gnsq.nsqd' has no attribute {name!r}")
