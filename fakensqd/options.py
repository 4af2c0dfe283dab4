"""Options of the emulated daemons: nsqd's and nsqlookupd's flags with underscores. Durations in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from gnsq.options import Options, option

__all__ = ["NSQ_VERSION", "LookupdOptions", "NsqdOptions"]

# The version that is emulated.
NSQ_VERSION = "1.3.0"


@dataclass(frozen=True, kw_only=True)
class NsqdOptions(Options):
    """Flags of nsqd 1.3.0 that mean something here. Source: nsqd --help."""

    tcp_address: str = option("127.0.0.1:0", "where to listen for clients; port 0 takes a free one")
    http_address: str = option("127.0.0.1:0", "where to listen for HTTP; port 0 takes a free one")
    broadcast_address: str = option("127.0.0.1", "address that nsqlookupd gives to consumers")
    broadcast_tcp_port: int = option(0, "TCP port that nsqlookupd gives out; 0: the real one", minimum=0, maximum=65535)
    broadcast_http_port: int = option(
        0, "HTTP port that nsqlookupd gives out; 0: the real one", minimum=0, maximum=65535
    )
    lookupd_tcp_addresses: tuple[str, ...] = option((), "nsqlookupds to register with")
    lookupd_ping_interval: float = option(
        15.0, "between PINGs, and attempts to reconnect, to nsqlookupd (a constant of nsqd)", unit="s", minimum=0.01
    )
    node_id: int = option(0, "part of every message id", minimum=0, maximum=1023)
    mem_queue_size: int = option(
        10000,
        "messages per topic or channel beyond which an ephemeral one drops, others count them as on disk",
        minimum=0,
    )
    max_msg_size: int = option(1048576, "largest message", unit="bytes", minimum=1)
    max_body_size: int = option(5242880, "largest body of a command", unit="bytes", minimum=1)
    msg_timeout: float = option(60.0, "default time to answer a message", unit="s", minimum=0.001)
    max_msg_timeout: float = option(
        900.0, "longest time to answer a message, touches included", unit="s", minimum=0.001
    )
    max_req_timeout: float = option(3600.0, "longest delay of REQ and DPUB", unit="s", minimum=0)
    max_rdy_count: int = option(2500, "highest RDY", minimum=1)
    max_heartbeat_interval: float = option(60.0, "longest heartbeat interval of a client", unit="s", minimum=1)
    max_output_buffer_size: int = option(65536, "largest output_buffer_size of a client", unit="bytes", minimum=64)
    max_output_buffer_timeout: float = option(
        30.0, "longest output_buffer_timeout of a client", unit="s", minimum=0.001
    )
    min_output_buffer_timeout: float = option(
        0.025, "shortest output_buffer_timeout of a client", unit="s", minimum=0.001
    )
    output_buffer_timeout: float = option(0.25, "default output_buffer_timeout", unit="s", minimum=0)
    max_channel_consumers: int = option(0, "consumers of one channel; 0: no limit", minimum=0)
    max_deflate_level: int = option(6, "announced only: compression is not offered", minimum=1, maximum=9)


@dataclass(frozen=True, kw_only=True)
class LookupdOptions(Options):
    """Flags of nsqlookupd 1.3.0 that mean something here. Source: nsqlookupd --help."""

    tcp_address: str = option("127.0.0.1:0", "where to listen for nsqds; port 0 takes a free one")
    http_address: str = option("127.0.0.1:0", "where to listen for HTTP; port 0 takes a free one")
    broadcast_address: str = option("127.0.0.1", "address told to nsqds")
    inactive_producer_timeout: float = option(300.0, "silence after which an nsqd is left out", unit="s", minimum=0)
    tombstone_lifetime: float = option(45.0, "how long a tombstone hides an nsqd", unit="s", minimum=0)
