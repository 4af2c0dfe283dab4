"""GET and PUT /config/OPTION: nsqd's options as it shows them, and the two that may be changed while it runs.

Pure. Source: nsqd http.go doConfig, options.go; internal/lg. Compared with the real nsqd.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Protocol

from fakensqd.http_api import HttpError
from fakensqd.options import LOG_LEVELS, NsqdOptions

__all__ = ["ConfigFacts", "option", "set_option"]

# Options that nsqd has under another name, or not at all.
_NO_FLAGS = (
    *["lookupd_tcp_addresses", "lookupd_ping_interval", "node_id"],
    *["scan_lateness", "release", "rdy_counts_down", "negotiates", "wrapped_answers"],
)
# What has no meaning here is shown as nsqd has it by default. Durations in nanoseconds.
_WITHOUT_MEANING: dict[str, Any] = {  # Any: options are of all types
    "log_prefix": "[nsqd] ",
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "sync_timeout": 2 * 10**9,
    "queue_scan_worker_pool_max": 4,
    "statsd_address": "",
    "statsd_interval": 60 * 10**9,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
}
# As they go over the wire.
_TLS_VERSIONS = {"tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}


class ConfigFacts(Protocol):
    """What is asked of the server."""

    options: NsqdOptions
    lookupd_tcp_addresses: tuple[str, ...]
    # One of LOG_LEVELS.
    log_level: str

    @property
    def tcp_port(self) -> int:
        """Where it listens for clients."""

    @property
    def http_port(self) -> int:
        """Where it listens for HTTP."""

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these nsqlookupds from now on, and with no other."""

    def set_log_level(self, level: str) -> None:
        """Log from this level on."""


def option(server: ConfigFacts, name: str) -> object:
    """Give back an option as nsqd would: durations in nanoseconds.

    Raises:
        HttpError: If there is none of that name.
    """
    options = server.options
    host = options.broadcast_address.replace(".", "_").replace(":", "_")
    values: dict[str, Any] = dataclasses.asdict(options)  # Any: options are of all types
    for own in _NO_FLAGS:
        del values[own]
    values |= _WITHOUT_MEANING | {
        "id": options.node_id,
        "broadcast_tcp_port": options.broadcast_tcp_port or server.tcp_port,
        "broadcast_http_port": options.broadcast_http_port or server.http_port,
        "log_level": LOG_LEVELS.index(server.log_level) + 1,
        "e2e_processing_latency_percentiles": list(options.e2e_processing_latency_percentiles),
        "nsqlookupd_tcp_addresses": list(server.lookupd_tcp_addresses),
        "statsd_prefix": f"nsq.{host}_{server.http_port}.",
        "tls_required": int(options.tls_policy),
        "tls_min_version": _TLS_VERSIONS[options.tls_min_version],
    }
    if name not in values:
        raise HttpError(400, "INVALID_OPTION")
    value = values[name]
    return round(value * 10**9) if isinstance(value, float) else value


def set_option(server: ConfigFacts, name: str, body: bytes) -> None:
    """Change an option.

    Raises:
        HttpError: If it can't be changed, or not to that.
    """
    match name:
        case "log_level":
            level = body.decode("latin-1").lower()
            if level not in LOG_LEVELS:
                raise HttpError(400, "INVALID_VALUE")
            server.set_log_level(level)
        case "nsqlookupd_tcp_addresses":
            server.set_lookupd_tcp_addresses(_addresses(body))
        case _:
            raise HttpError(400, "INVALID_OPTION")


def _addresses(body: bytes) -> tuple[str, ...]:
    try:
        addresses = json.loads(body)
    except ValueError:
        raise HttpError(400, "INVALID_VALUE") from None
    addresses = [] if addresses is None else addresses
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise HttpError(400, "INVALID_VALUE")
    return tuple(addresses)
