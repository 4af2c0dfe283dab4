"""Report: what stats() tells of a producer, put together from those who count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq.pool import Life
from gnsq.stats import LinkStats, ProducerStats

if TYPE_CHECKING:
    from gnsq.nsqd.latency import Latency
    from gnsq.producer.outcomes import Totals
    from gnsq.producer.running import Running

__all__ = ["producer_stats"]


def producer_stats(state: str, totals: Totals, latency: Latency, running: Running | None) -> ProducerStats:
    """Put it together; may be called in any thread."""
    dispatcher = None if running is None else running.dispatcher
    links = [] if dispatcher is None else [(link, False) for link in dispatcher.links]
    links += [] if dispatcher is None else [(link, True) for link in dispatcher.aside]
    not_ready = "not started" if state == Life.INIT.value else state
    if running is not None and state == Life.RUNNING.value:
        not_ready = running.why_not_ready()
    return ProducerStats(
        state=state,
        confirmed=totals.confirmed,
        refused=totals.refused,
        not_sent=totals.not_sent,
        unknown=totals.unknown,
        sent_again=totals.sent_again,
        repeated=totals.repeated,
        pending=0 if dispatcher is None else dispatcher.pending,
        pending_bytes=0 if dispatcher is None else dispatcher.pending_bytes,
        latency=latency.histogram(),
        connections=tuple(LinkStats(link.address, link.pending, link.confirmed, stalled) for link, stalled in links),
        failures={} if running is None else {address: str(error) for address, error in running.failures().items()},
        lookupd_failures={} if running is None else running.lookup_failures,
        not_ready=not_ready,
    )
