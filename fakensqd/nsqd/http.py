"""nsqd's HTTP API as a WSGI function over a Broker.

Pure: takes facts about its server from a structural type, knows no socket. Source: nsqd http.go.

GET and PUT /config/OPTION: nsqd's options as it shows them, and the two that may be changed while it runs.

Pure. Source: nsqd http.go doConfig, options.go; internal/lg. Compared with the real nsqd.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fakensqd.golang.text import int64
from fakensqd.http.router import (
    JSON_TYPE,
    NSQ_TYPE,
    HttpError,
    LegacyRouter,
    Request,
    Route,
    Router,
    profiling_routes,
    topic_and_channel_names,
)
from fakensqd.input_buffer import CommandError, InputBuffer
from fakensqd.nsqd.broker import Broker, Channel, Topic
from fakensqd.nsqd.session import Session
from fakensqd.nsqd.stats import statistics, statistics_text
from fakensqd.options import LOG_LEVELS, NsqdOptions

__all__ = [
    "ConfigFacts",
    "NsqdFacts",
    "nsqd_application",
    "option",
    "set_option",
    "tls_required_application",
]


# Options that nsqd has under another name, or not at all.
_NO_FLAGS = (
    *["lookupd_tcp_addresses", "lookupd_ping_interval", "node_id"],
    *["release", "rdy_counts_down", "negotiates", "wrapped_answers"],
)
# What has no meaning here is shown as nsqd has it by default. Durations in nanoseconds.
_WITHOUT_MEANING: dict[str, Any] = {  # Any: options are of all types
    "log_prefix": "[nsqd] ",
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "sync_timeout": 2 * 10**9,
    "queue_scan_selection_count": 20,
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


_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
# What is read of a body at a time.
_PIECE = 65536
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class NsqdFacts(ConfigFacts, Protocol):
    """What the API asks of the server it belongs to."""

    broker: Broker
    errors: list[BaseException]
    hostname: str
    # Seconds since 1970.
    start_time: int

    @property
    def https_port(self) -> int:
        """Where it listens for HTTPS; 0 if it does not."""

    @property
    def sessions(self) -> Iterable[Session]:
        """Those of the connections that are open."""

    def now(self) -> float:
        """The monotonic time, seconds."""


def nsqd_application(server: NsqdFacts) -> Router:
    """Build the WSGI function."""
    api = _Api(server)
    post = {
        "/pub": api.publish,
        "/mpub": api.multipublish,
        "/topic/create": api.create_topic,
        "/topic/delete": api.delete_topic,
        "/topic/empty": api.empty_topic,
        "/topic/pause": api.pause_topic,
        "/topic/unpause": api.unpause_topic,
        "/channel/create": api.create_channel,
        "/channel/delete": api.delete_channel,
        "/channel/empty": api.empty_channel,
        "/channel/pause": api.pause_channel,
        "/channel/unpause": api.unpause_channel,
    }
    routes = {path: {"POST": Route(handler)} for path, handler in post.items()}
    routes |= {
        "/ping": {"GET": Route(lambda request: "OK", plain=True)},
        "/info": {"GET": Route(api.info)},
        "/stats": {"GET": Route(api.stats)},
        "/config/:": {"GET": Route(api.config), "PUT": Route(api.set_config)},
        # These two do what they should in nsqd, and then fail to say so.
        "/debug/setblockrate": {"PUT": Route(_fail)},
        "/debug/freememory": {"POST": Route(_fail)},
    }
    routes |= profiling_routes("/debug/pprof/")
    options = server.options
    if options.wrapped_answers:
        return LegacyRouter(routes, server.errors.append, options.emulated if options.release else None)
    return Router(routes, server.errors.append)


def tls_required_application(server: NsqdFacts) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """Build the WSGI function of the plain port when HTTPS is required: it says where that is, and nothing else."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % server.https_port
        start_response("403 Forbidden", [JSON_TYPE, NSQ_TYPE, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return application


class _Api:
    """The handlers."""

    def __init__(self, server: NsqdFacts) -> None:
        self._server = server
        self._broker = server.broker
        self._options = server.options

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, request: Request) -> str:
        """POST /pub."""
        limit = self._options.max_msg_size
        if request.content_length > limit:
            raise HttpError(413, "MSG_TOO_BIG")
        body = request.read(limit + 1)
        if len(body) > limit:
            raise HttpError(413, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._publish_topic(request)
        delay = 0.0
        if "defer" in request.query:
            delay = self._delay(request.query["defer"])
        topic.publish([body], self._server.now(), delay)
        return "OK"

    def _delay(self, text: str) -> float:
        value = int(text) if _INTEGER.match(text) and len(text) < 30 else 2**63
        delay_ns = int64(value * 10**6)
        if not -(2**63) <= value < 2**63 or not 0 <= delay_ns <= round(self._options.max_req_timeout * 10**9):
            raise HttpError(400, "INVALID_DEFER")
        return delay_ns / 1e9

    def multipublish(self, request: Request) -> str:
        """POST /mpub."""
        limit = self._options.max_body_size
        if request.content_length > limit:
            raise HttpError(413, "BODY_TOO_BIG")
        topic = self._publish_topic(request)
        binary = request.query.get("binary")
        if binary is not None and _BOOLEANS.get(binary, True):
            bodies = self._binary_messages(request)
        else:
            bodies = self._lines(request)
        if bodies:
            topic.publish(bodies, self._server.now())
        return "OK"

    def _binary_messages(self, request: Request) -> list[bytes]:
        # nsqd reads on as far as count and sizes say, each within its own bounds, and leaves what is behind.
        source = InputBuffer()
        reading = source.read_messages(self._options.max_msg_size, self._options.max_body_size)
        try:
            while True:
                next(reading)
                data = request.read(_PIECE)
                source.decoder.feed(data)
                source.ended = not data
        except StopIteration as end:
            bodies: list[bytes] = end.value
            return bodies
        except CommandError as refusal:
            code = refusal.data.partition(b" ")[0].decode()
            raise HttpError(413, code.removeprefix("E_")) from None

    def _lines(self, request: Request) -> list[bytes]:
        limit = self._options.max_body_size
        body = request.read(limit + 1)
        if len(body) > limit:
            raise HttpError(413, "BODY_TOO_BIG")
        bodies = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._options.max_msg_size for line in bodies):
            raise HttpError(413, "MSG_TOO_BIG")
        return bodies

    def _publish_topic(self, request: Request) -> Topic:
        name = request.required("topic")
        if not self._options.emulated.is_topic_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        return self._broker.ensure_topic(name)

    # --- topics and channels ------------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> None:
        """POST /topic/create."""
        self._publish_topic(request)

    def delete_topic(self, request: Request) -> None:
        """POST /topic/delete."""
        self._broker.delete_topic(self._topic(request.required("topic")).name)

    def empty_topic(self, request: Request) -> None:
        """POST /topic/empty."""
        name = request.required("topic")
        if not self._options.emulated.is_topic_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        self._topic(name).empty()

    def pause_topic(self, request: Request) -> None:
        """POST /topic/pause."""
        self._topic(request.required("topic")).set_paused(True, self._server.now())

    def unpause_topic(self, request: Request) -> None:
        """POST /topic/unpause."""
        self._topic(request.required("topic")).set_paused(False, self._server.now())

    def create_channel(self, request: Request) -> None:
        """POST /channel/create."""
        topic, name = self._topic_and_channel_name(request)
        topic.ensure_channel(name, self._server.now())

    def delete_channel(self, request: Request) -> None:
        """POST /channel/delete."""
        topic, name = self._topic_and_channel_name(request)
        if name not in topic.channels:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        topic.delete_channel(name)

    def empty_channel(self, request: Request) -> None:
        """POST /channel/empty."""
        self._channel(request).empty()

    def pause_channel(self, request: Request) -> None:
        """POST /channel/pause."""
        self._channel(request).set_paused(True)

    def unpause_channel(self, request: Request) -> None:
        """POST /channel/unpause."""
        self._channel(request).set_paused(False)

    def _topic(self, name: str) -> Topic:
        if name not in self._broker.topics:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return self._broker.topics[name]

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic_name, channel_name = topic_and_channel_names(request, self._options.emulated)
        return self._topic(topic_name), channel_name

    def _channel(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel_name(request)
        if name not in topic.channels:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return topic.channels[name]

    # --- facts --------------------------------------------------------------------------------------------------------

    def info(self, request: Request) -> object:
        """GET /info."""
        return {
            "version": self._options.version,
            "broadcast_address": self._options.broadcast_address,
            "hostname": self._server.hostname,
            "http_port": self._server.http_port,
            "tcp_port": self._server.tcp_port,
            "start_time": self._server.start_time,
            "max_heartbeat_interval": _nanoseconds(self._options.max_heartbeat_interval),
            "max_output_buffer_size": self._options.max_output_buffer_size,
            "max_output_buffer_timeout": _nanoseconds(self._options.max_output_buffer_timeout),
            "max_deflate_level": self._options.max_deflate_level,
        }

    def stats(self, request: Request) -> object:
        """GET /stats."""
        query = request.query
        document = statistics(
            self._broker,
            self._server.sessions,
            start_time=self._server.start_time,
            topic=query.get("topic", ""),
            channel=query.get("channel", ""),
            now=self._server.now(),
            include_clients=_BOOLEANS.get(query.get("include_clients", ""), True),
            include_memory=_BOOLEANS.get(query.get("include_mem", ""), True),
        )
        if query.get("format") == "json":
            return document
        now_ns = self._broker.wall_ns(self._server.now())
        return statistics_text(document, uptime=now_ns / 1e9 - self._server.start_time, now_seconds=now_ns // 10**9)

    def config(self, request: Request) -> object:
        """GET /config/OPTION."""
        return option(self._server, request.argument)

    def set_config(self, request: Request) -> object:
        """PUT /config/OPTION: the two that nsqd lets be changed."""
        body = request.read(self._options.max_msg_size + 1)
        if not body or len(body) > self._options.max_msg_size:
            raise HttpError(413, "INVALID_VALUE")
        set_option(self._server, request.argument, body)
        return option(self._server, request.argument)


def _fail(request: Request) -> object:
    raise HttpError(500, "INTERNAL_ERROR")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 10**9)
