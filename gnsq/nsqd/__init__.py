"""Clients of one nsqd: over TCP by hand, over HTTP, and the connection that Consumer and Producer use."""

from gnsq.nsqd.http import NsqdHTTPClient
from gnsq.nsqd.tcp import NsqdTCPClient

__all__ = ["NsqdHTTPClient", "NsqdTCPClient"]
