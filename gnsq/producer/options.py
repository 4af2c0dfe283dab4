"""How a Producer waits, shares out and bounds what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnsq.discovery import MAX_NSQDS
from gnsq.nsqd.pool import ReconnectOptionsDict
from gnsq.options import ConnectionOptionsDict, Options, option

__all__ = ["ProducerOptions", "ProducerOptionsDict"]


class ProducerOptionsDict(ReconnectOptionsDict, ConnectionOptionsDict, total=False):
    """All options of a Producer as typed keywords, but for those that are parameters of its own."""

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
    stalled_after: float
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    max_nsqds: int
    close_timeout: float


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(Options):
    """How a Producer waits, shares out and bounds what it is given."""

    publish_timeout: float = option(
        60.0, "for room, a connection, sending and nsqd's answer, unless publish() says otherwise", unit="s", minimum=0
    )
    allow_duplicates: bool = option(
        False, "publish again, within the deadline, what was sent and lost its connection before the answer"
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
        64 * 1024 * 1024, "of publishes without an answer; more wait for room", unit="bytes", minimum=1
    )
    max_msg_size: int | None = option(
        None, "longer bodies are refused before they are sent; default: nsqd decides", unit="bytes", minimum=1
    )
    max_body_size: int | None = option(
        None, "the same of a whole multipublish, sizes included", unit="bytes", minimum=1
    )
    batch_messages: int | None = option(
        None, "publishes to one topic that are sent as one MPUB, each with its own answer; default: none", minimum=1
    )
    batch_bytes: int = option(1024 * 1024, "the same, in bytes, sizes included", unit="bytes", minimum=1)
    batch_linger: float = option(0.002, "longest wait for a batch to fill", unit="s", minimum=0)
    stalled_after: float = option(
        5.0, "without an answer that is due until an nsqd is left out, as long as others answer", unit="s", minimum=0.01
    )
    lookupd_poll_interval: float = option(60.0, "between rounds of asking all nsqlookupds", unit="s", minimum=0.01)
    lookupd_poll_jitter: float = option(0.3, "share of the interval that is random", minimum=0, maximum=1)
    max_nsqds: int = option(
        MAX_NSQDS, "that nsqlookupds may name; more are left out, with a warning", unit="nsqds", minimum=1
    )
    close_timeout: float = option(30.0, "for what has no answer yet when close() is called", unit="s", minimum=0)
