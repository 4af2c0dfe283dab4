"""Options of a Producer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gnsq.nsqd.pool import ReconnectOptionsDict
from gnsq.options import ConnectionOptionsDict, Options, option
from gnsq.producer.routing import StrategyOption

__all__ = ["ProducerOptions", "ProducerOptionsDict"]


class ProducerOptionsDict(ReconnectOptionsDict, ConnectionOptionsDict, total=False):
    """All options of a Producer as typed keywords, except the parameters of its constructor."""

    publish_timeout: float | timedelta
    allow_duplicates: bool
    strategy: StrategyOption
    connections_per_nsqd: int
    max_pending_bytes: int
    max_msg_size: int | None
    max_body_size: int | None
    batch_messages: int | None
    batch_bytes: int
    batch_linger: float | timedelta
    lookupd_poll_interval: float | timedelta
    close_timeout: float | timedelta


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(Options):
    """Options of a Producer: how it waits, routes, batches and limits publishes."""

    max_backoff_duration: float = option(
        128,
        "limit of the time until an nsqd is tried again, but not more than a quarter of publish_timeout, nor less than "
        "0.1; reconnect_maximum replaces these limits",
        unit="s",
        minimum=0,
    )
    publish_timeout: float = option(
        60.0,
        "time that a publish has for capacity, a connection, sending and the response; publish() may be given another",
        unit="s",
        minimum=0,
        common=True,
    )
    allow_duplicates: bool = option(
        False, "publishes whose connection was lost before the response are sent again, until their deadline"
    )
    strategy: StrategyOption = option(
        "round_robin",
        "chooses the nsqd for each publish: `round_robin`, or a function that returns one of the links that it gets",
    )
    connections_per_nsqd: int = option(
        1, "number of the connections to each nsqd", unit="connections", minimum=1, maximum=100
    )
    max_pending_bytes: int = option(
        64 * 1024 * 1024, "limit of the publishes without a response; further publishes wait", unit="bytes", minimum=1
    )
    max_msg_size: int | None = option(
        None, "limit of a message, checked before it is sent; default: nsqd decides", unit="bytes", minimum=1
    )
    max_body_size: int | None = option(
        None, "limit of the body of a multipublish, which has the size of each message, too", unit="bytes", minimum=1
    )
    batch_messages: int | None = option(
        None,
        "limit of the publishes to one topic that are sent as one MPUB; each has its own outcome; default: no batches",
        minimum=1,
    )
    batch_bytes: int = option(1024 * 1024, "limit of the body of such an MPUB", unit="bytes", minimum=1)
    batch_linger: float = option(0.002, "time after which a batch is sent that is not full", unit="s", minimum=0)
    lookupd_poll_interval: float = option(
        60.0, "time between two lookups at all nsqlookupds, up to 30 % less", unit="s", minimum=0.01
    )
    close_timeout: float = option(30.0, "time that close() waits for publishes without a response", unit="s", minimum=0)
