"""Options of the emulated daemons: nsqd's and nsqlookupd's flags with underscores. Durations are in seconds."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from gnsq.options import Options, option

__all__ = [
    "DaemonOptions",
    "IGNORED_OPTIONS",
    "LOG_LEVELS",
    "LookupdOptions",
    "NSQ_VERSION",
    "NsqdOptions",
    "OWN_OPTIONS",
    "TLS_VERSIONS",
    "TlsRequired",
]

# The emulated version.
NSQ_VERSION = "1.3.0"

# From the level that logs the most to the level that logs the least.
LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
# Options that are no flags of the programs.
OWN_OPTIONS = ("lookupd_ping_interval", "release", "record", "seed")
# Options of nsqd that have no effect here, with their values in /config: durations in nanoseconds.
IGNORED_OPTIONS: dict[str, str | int | tuple[()]] = {
    "data_path": "",
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "sync_timeout": 2 * 10**9,
    "e2e_processing_latency_percentiles": (),
    "e2e_processing_latency_window_time": 600 * 10**9,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "statsd_address": "",
    "statsd_interval": 60 * 10**9,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
}
TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")


class TlsRequired(enum.IntEnum):
    """Which clients must use TLS. nsqd shows these numbers in /config."""

    NOBODY = 0
    TCP = 1
    TCP_AND_HTTP = 2


# With Go's other words for false and true.
_TLS_REQUIRED = {
    **dict.fromkeys(("false", "f", "0"), TlsRequired.NOBODY),
    "tcp-https": TlsRequired.TCP,
    **dict.fromkeys(("true", "t", "1"), TlsRequired.TCP_AND_HTTP),
}


@dataclass(frozen=True, kw_only=True)
class DaemonOptions(Options):
    """Options of both daemons: addresses, and what the real programs do not have."""

    tcp_address: str = option("127.0.0.1:0", "address for the TCP protocol; port 0 takes a free port")
    http_address: str = option("127.0.0.1:0", "address for HTTP; port 0 takes a free port")
    broadcast_address: str = option("127.0.0.1", "address that nsqlookupd gives to consumers")
    release: str = option(NSQ_VERSION, "emulated release, 0.2.15 to 1.3.0, for clients that also work with old ones")
    record: bool = option(False, "keep a transcript")
    seed: int | None = option(None, "seed for the random numbers of faults; default: a random seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        known = re.fullmatch(r"\d+\.\d+\.\d+", self.release) is not None
        if not known or not self.since(0, 2, 15) or not _numbers(self.release) <= _numbers(NSQ_VERSION):
            raise ValueError(f"release {self.release!r} must be one of nsqd's, from 0.2.15 to {NSQ_VERSION}")

    def since(self, *release: int) -> bool:
        """Return True if the emulated release is this one or a later one."""
        return _numbers(self.release) >= release


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@dataclass(frozen=True, kw_only=True)
class NsqdOptions(DaemonOptions):
    """Flags of nsqd 1.3.0 that have an effect here, and lookupd_ping_interval. Source: nsqd --help."""

    https_address: str = option(
        "127.0.0.1:0", 'address for HTTPS, if there is a tls_cert; port 0: a free port; "": off'
    )
    broadcast_tcp_port: int = option(0, "TCP port that nsqlookupd gives to consumers; 0: the real one")
    broadcast_http_port: int = option(0, "HTTP port that nsqlookupd gives to consumers; 0: the real one")
    lookupd_tcp_addresses: tuple[str, ...] = option((), "nsqlookupds to register with")
    lookupd_ping_interval: float = option(
        15.0,
        "time between PINGs to nsqlookupd, and between attempts to reconnect (a constant of nsqd)",
        unit="s",
        minimum=0.01,
    )
    log_level: str = option(
        "info",
        f"programs log from this level on: {', '.join(LOG_LEVELS)}",
        choices=LOG_LEVELS,
    )
    node_id: int = option(0, "number of this nsqd, which is a part of each message id", minimum=0, maximum=1023)
    mem_queue_size: int = option(
        10000, "messages of a topic or channel in memory; more are on disk, or dropped if ephemeral"
    )
    max_msg_size: int = option(1048576, "largest body of a message", unit="bytes")
    max_body_size: int = option(5242880, "largest body of a command", unit="bytes")
    msg_timeout: float = option(60.0, "default time that a client has to answer a message", unit="s", minimum=0.001)
    max_msg_timeout: float = option(
        900.0, "longest time that a client may have to answer a message, with its touches", unit="s", minimum=0.001
    )
    max_req_timeout: float = option(3600.0, "longest delay of a REQ or DPUB", unit="s", minimum=0)
    max_rdy_count: int = option(2500, "highest RDY count of a client")
    max_heartbeat_interval: float = option(60.0, "longest heartbeat interval of a client", unit="s")
    max_output_buffer_size: int = option(65536, "largest output_buffer_size of a client", unit="bytes")
    max_output_buffer_timeout: float = option(
        30.0, "longest output_buffer_timeout of a client", unit="s", minimum=0.001
    )
    min_output_buffer_timeout: float = option(
        0.025, "shortest output_buffer_timeout of a client", unit="s", minimum=0.001
    )
    output_buffer_timeout: float = option(0.25, "default output_buffer_timeout", unit="s", minimum=0)
    max_channel_consumers: int = option(0, "highest number of consumers of a channel; 0: no limit")
    tls_cert: str = option("", "file of the certificate; with it and tls_key, TLS is offered")
    tls_key: str = option("", "file of the key of tls_cert")
    tls_root_ca_file: str = option("", "file of the CAs that sign certificates of clients and auth servers")
    tls_client_auth_policy: str = option(
        "", '"require" or "require-verify" certificates of clients; any value but "" requires TLS'
    )
    tls_required: str | bool = option(
        "false", '"true": clients must use TLS; "tcp-https": not for HTTP', choices=tuple(_TLS_REQUIRED)
    )
    tls_min_version: str = option("tls1.0", f"lowest version of TLS: {', '.join(TLS_VERSIONS)}", choices=TLS_VERSIONS)
    snappy: bool = option(True, "offer compression with snappy")
    deflate: bool = option(True, "offer compression with deflate")
    max_deflate_level: int = option(6, "highest level of deflate that a client gets", minimum=1, maximum=9)
    auth_http_addresses: tuple[str, ...] = option(
        (), "auth servers, host:port or URL; if there are any, AUTH is required", secret=True
    )
    http_client_connect_timeout: float = option(
        2.0, "longest time to connect to an auth server", unit="s", minimum=0.001
    )
    http_client_request_timeout: float = option(
        5.0, "longest time for the response of an auth server", unit="s", minimum=0.001
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be given together")
        if self.tls_policy and not self.tls_offered:
            raise ValueError("clients are required to use TLS, but there is no tls_cert and tls_key")

    @property
    def tls_offered(self) -> bool:
        """True if a client may ask for TLS."""
        return bool(self.tls_cert)

    @property
    def tls_policy(self) -> TlsRequired:
        """Which clients must use TLS. With tls_client_auth_policy, "false" means TCP_AND_HTTP. Source: nsqd.go New."""
        required = _TLS_REQUIRED[str(self.tls_required).lower()]
        return required or (TlsRequired.TCP_AND_HTTP if self.tls_client_auth_policy else required)


@dataclass(frozen=True, kw_only=True)
class LookupdOptions(DaemonOptions):
    """Flags of nsqlookupd 1.3.0 that have an effect here. Source: nsqlookupd --help."""

    inactive_producer_timeout: float = option(
        300.0, "an nsqd is not listed after this time without a PING", unit="s", minimum=0
    )
    tombstone_lifetime: float = option(45.0, "time that a tombstone hides an nsqd", unit="s", minimum=0)
