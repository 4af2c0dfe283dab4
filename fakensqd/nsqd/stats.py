"""nsqd's /stats, as JSON and as text.

Pure: reads a Broker and the sessions. Source: nsqd stats.go, http.go printStats and client_v2.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fakensqd.golang.text import duration
from fakensqd.nsqd.broker import Broker, Channel, Topic
from fakensqd.nsqd.session import Session

if TYPE_CHECKING:
    from fakensqd.nsqd.auth import Authorization

__all__ = ["statistics", "statistics_text"]

Document = dict[str, Any]  # Any: JSON

# nsqd without --e2e-processing-latency-percentile. The emulator ignores this flag.
_NO_LATENCIES: Document = {"count": 0, "percentiles": None}
# Values about Go's memory. The emulator has no Go heap, so all of them are 0.
_MEMORY = (
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
)


def statistics(
    broker: Broker,
    sessions: Iterable[Session],
    *,
    start_time: int,
    topic: str = "",
    channel: str = "",
    include_clients: bool = True,
    include_memory: bool = True,
) -> Document:
    """Make the document of /stats.

    Args:
        start_time: Time at which the server started, in seconds since 1970.
        topic: Include only this topic; "": all topics.
        channel: Include only this channel, and topics that have it; "": all channels.
    """
    topics = [
        _topic_statistics(each, topic, channel, include_clients)
        for name, each in sorted(broker.topics.items())
        if topic in ("", name) and (not channel or channel in each.channels)
    ]
    known = not topic or topic in broker.topics
    producers = [client_statistics(session, topic) for session in sessions if session.published_by_topic]
    document: Document = {
        "version": broker.options.release,
        "health": "OK",
        "start_time": start_time,
        "topics": topics if known else None,
    }
    if include_memory:
        document["memory"] = dict.fromkeys(_MEMORY, 0)
    document["producers"] = producers if producers and include_clients and known else None
    return document


def _topic_statistics(topic: Topic, only_topic: str, only_channel: str, include_clients: bool) -> Document:
    return {
        "topic_name": topic.name,
        "channels": [
            _channel_statistics(channel, only_topic, include_clients)
            for name, channel in sorted(topic.channels.items())
            if not only_channel or name == only_channel
        ],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": dict(_NO_LATENCIES),
    }


def _channel_statistics(channel: Channel, only_topic: str, include_clients: bool) -> Document:
    clients = [client_statistics(client, only_topic) for client in channel.subscribers if isinstance(client, Session)]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.subscribers),
        "clients": clients if include_clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": dict(_NO_LATENCIES),
    }


def client_statistics(session: Session, only_topic: str = "") -> Document:
    """Make the document of one connection. It names at most one topic that the client has published to."""
    handshake = session.handshake
    document: Document = {
        "client_id": handshake.client_id,
        "hostname": handshake.hostname,
        "version": "V2",
        "remote_address": session.remote_address,
        "state": int(session.state),
        "ready_count": session.ready_count,
        "in_flight_count": session.in_flight_count,
        "message_count": session.message_count,
        "finish_count": session.finish_count,
        "requeue_count": session.requeue_count,
        "connect_ts": session.connected_ns // 10**9,
        "sample_rate": handshake.settings.sample_rate,
        "deflate": handshake.deflate,
        "snappy": handshake.snappy,
        "user_agent": handshake.user_agent,
    }
    document |= _authorization_statistics(handshake.authorization)
    published = [
        {"topic": topic, "count": count}
        for topic, count in session.published_by_topic.items()
        if not only_topic or topic == only_topic
    ]
    if published:
        document["pub_counts"] = published[:1]
    tls = handshake.tls
    return document | {
        "tls": tls is not None,
        "tls_cipher_suite": tls.cipher_suite if tls else "",
        "tls_version": tls.version if tls else "",
        "tls_negotiated_protocol": "",
        # In Go this value is true for every connection with TLS.
        "tls_negotiated_protocol_is_mutual": tls is not None,
    }


def _authorization_statistics(authorization: Authorization | None) -> Document:
    """Make the values about AUTH, without those that are empty or false."""
    if authorization is None:
        return {}
    facts = {
        "authed": bool(authorization.grants),
        "auth_identity": authorization.identity,
        "auth_identity_url": authorization.identity_url,
    }
    return {name: value for name, value in facts.items() if value}


def statistics_text(document: Document, *, uptime: float, now_seconds: int) -> str:
    """Format a document of statistics() as nsqd's text.

    Args:
        uptime: Seconds since the server started.
        now_seconds: The time, seconds since 1970.
    """
    started = datetime.fromtimestamp(document["start_time"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = [
        f"nsqd v{document['version']} (built w/go1.27.3)",
        f"start_time {started}",
        f"uptime {duration(uptime)}",
        "",
    ]
    lines += [f"Health: {document['health']}", ""]
    if "memory" in document:
        lines += ["Memory:", *(f"   {name:<25}\t{value}" for name, value in document["memory"].items()), ""]
    lines += _topic_lines(document["topics"] or [], now_seconds)
    lines += ["Producers: None"] if not document["producers"] else ["Producers:"]
    lines += [f"   {_client_line(client, now_seconds)}" for client in document["producers"] or []]
    return "\n".join(lines) + "\n"


def _topic_lines(topics: list[Document], now_seconds: int) -> list[str]:
    if not topics:
        return ["Topics: None", ""]
    lines = ["Topics:"]
    for topic in topics:
        lines.append(
            f"{'*P ' if topic['paused'] else '   '}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
            f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: "
        )
        for channel in topic["channels"]:
            lines.append(
                f"{'   *P ' if channel['paused'] else '      '}[{channel['channel_name']:<25}] "
                f"depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5} "
                f"inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4} "
                f"re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5} "
                f"msgs: {channel['message_count']:<8} e2e%: "
            )
            lines += [f"        {_client_line(client, now_seconds)}" for client in channel["clients"] or []]
        lines.append("")
    return lines


def _client_line(client: Document, now_seconds: int) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"[V2 {client['hostname'] + ':' + port + ' ' + client['user_agent']:<21}]"
    connected = duration(float(max(0, now_seconds - client["connect_ts"])))
    if "pub_counts" in client:
        topics = ",".join(f"{count['topic']}={count['count']}" for count in client["pub_counts"])
        total = sum(count["count"] for count in client["pub_counts"])
        return f"{name} msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"{name} state: {client['state']} inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4} "
        f"fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} "
        f"msgs: {client['message_count']:<8} connected: {connected}"
    )
