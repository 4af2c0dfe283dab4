"""Options of a Producer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnsq.discovery import MAX_NSQDS
from gnsq.nsqd.pool import ReconnectOptionsDict
from gnsq.options import ConnectionOptionsDict, Options, option

__all__ = ["ProducerOptions", "ProducerOptionsDict"]


class ProducerOptionsDict(ReconnectOptionsDict, ConnectionOptionsDict, total=False):
    """All options of a Producer as typed keywords, except the parameters of its constructor."""

    publish_timeout: float
    allow_duplicates: bool
    strategy: str | Callable[..., Any]  # Any: as the option's
    connections_per_nsqd: int
    http_requests_at_once: int
    max_pending_bytes: int
    max_msg_size: int | None
    max_body_size: int | None
    batch_messages: int | None
    batch_bytes: int
    batch_linger: float
    busy_poll: bool
    stalled_after: float
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    max_nsqds: int
    close_timeout: float


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(Options):
    """Options of a Producer: how it waits, routes, batches and limits publishes."""

    publish_timeout: float = option(
        60.0,
        "for capacity, a connection, sending and nsqd's response, unless publish() has another timeout",
        unit="s",
        minimum=0,
    )
    allow_duplicates: bool = option(
        False, "publish again, within the deadline, messages whose connection was lost before the response"
    )
    strategy: str | Callable[..., Any] = option(  # Any: one of the links it was given
        "round_robin",
        "which nsqd takes a publish: `round_robin`, `least_pending`, `primary` (the first given that is there), "
        "`consistent` (by `key=`), or a function of (links, key)",
    )
    connections_per_nsqd: int = option(1, "to each nsqd", unit="connections", minimum=1, maximum=100)
    http_requests_at_once: int = option(
        8, "to each nsqd that is published to over HTTP", unit="requests", minimum=1, maximum=1000
    )
    max_pending_bytes: int = option(
        64 * 1024 * 1024, "of publishes without a response; further publishes wait", unit="bytes", minimum=1
    )
    max_msg_size: int | None = option(
        None, "longer bodies are refused before they are sent; default: nsqd decides", unit="bytes", minimum=1
    )
    max_body_size: int | None = option(
        None, "the same for a whole multipublish, sizes included", unit="bytes", minimum=1
    )
    batch_messages: int | None = option(
        None, "publishes to one topic that are sent as one MPUB, each with its own outcome; default: none", minimum=1
    )
    batch_bytes: int = option(1024 * 1024, "the same, in bytes, sizes included", unit="bytes", minimum=1)
    batch_linger: float = option(0.002, "longest wait for a batch to fill", unit="s", minimum=0)
    busy_poll: bool = option(
        True,
        "after a publish that follows another one at once, wait for the response without sleeping, 0.1 ms at most: "
        "such publishes are faster, and cost up to that much CPU time each",
    )
    stalled_after: float = option(
        5.0,
        "without a response to a pending publish, after which an nsqd is not used while others respond",
        unit="s",
        minimum=0.01,
    )
    lookupd_poll_interval: float = option(60.0, "between rounds of asking all nsqlookupds", unit="s", minimum=0.01)
    lookupd_poll_jitter: float = option(0.3, "share of the interval that is random", minimum=0, maximum=1)
    max_nsqds: int = option(
        MAX_NSQDS, "that nsqlookupds may name; further ones are not used, with a warning", unit="nsqds", minimum=1
    )
    close_timeout: float = option(30.0, "that close() waits for publishes without a response", unit="s", minimum=0)
