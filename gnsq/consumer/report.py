"""Report: what stats() tells of a consumer, put together from those who count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq.consumer.flow import Flow
from gnsq.consumer.handling import Handling
from gnsq.consumer.workers import Workers
from gnsq.discovery import TopicNodes
from gnsq.nsqd.connection import Connection
from gnsq.pool import ConnectionPool, Life
from gnsq.stats import ConnectionStats, ConsumerStats, Counts

if TYPE_CHECKING:
    from gnsq.consumer.consumer import Consumer

__all__ = ["Totals", "consumer_stats"]


class Totals:
    """What connections counted that are gone."""

    def __init__(self) -> None:
        self.counts = Counts()

    def add(self, connection: Connection) -> None:
        """Keep what a connection counted, which has ended."""
        self.counts += connection.answers.counts


def consumer_stats(
    consumer: Consumer,
    state: Life,
    totals: Totals,
    pool: ConnectionPool,
    flow: Flow,
    workers: Workers,
    handling: Handling,
    nodes: TopicNodes,
) -> ConsumerStats:
    """Put together the statistics of a consumer."""
    failures = {address: str(error) for address, error in pool.failures().items()}
    connections = tuple(map(connection_stats, list(pool.connections.values())))
    return ConsumerStats(
        topic=consumer.topic,
        channel=consumer.channel,
        state=state.value,
        max_in_flight=consumer.max_in_flight,
        connections=connections,
        counts=sum((connection.counts for connection in connections), totals.counts),
        given_up=handling.given_up,
        failed=handling.failed,
        waiting=len(workers.inbox),
        handling=len(workers.handled_now),
        backoff=flow.backoff.phase.value,
        backoff_failures=flow.backoff.failures,
        backoff_remaining=flow.backoff_remaining,
        latency=workers.latency.histogram(),
        handlers_overdue=len(handling.overdue()),
        handlers_timed_out=handling.handlers_timed_out,
        async_timed_out=handling.async_timed_out,
        failures=failures,
        lookupd_failures=dict(nodes.report.failures),
        not_ready=_why_not_ready(consumer, state, failures, nodes),
    )


def _why_not_ready(consumer: Consumer, state: Life, failures: dict[str, str], nodes: TopicNodes) -> str:
    if consumer.is_ready:
        return ""
    if state is not Life.RUNNING:
        return "not started" if state is Life.INIT else state.value
    reasons = [f"{address}: {text}" for address, text in failures.items()]
    connecting = sorted((consumer.nsqd_tcp_addresses | nodes.known) - failures.keys())
    reasons += [f"{address}: still connecting" for address in connecting]
    if not nodes.known:
        reasons += nodes.report.explanations(consumer.lookupds, consumer.topic)
    return "; ".join(reasons)


def connection_stats(connection: Connection) -> ConnectionStats:
    """Put together the statistics of a connection."""
    answers = connection.answers
    return ConnectionStats(
        address=connection.address,
        state=connection.state.value,
        version=connection.identity.version,
        rdy=connection.ready_count,
        in_flight=connection.in_flight,
        idle=answers.now() - connection.last_message if answers.received else None,
        counts=answers.counts,
        msg_timeout=answers.msg_timeout,
        max_rdy_count=connection.identity.max_rdy_count,
    )
