"""nsqd's HTTP API over a Broker.

Pure: uses only those members of its server that NsqdFacts has, and no socket. Source: nsqd http.go; for /config:
options.go, internal/lg, and responses of a real nsqd.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from fakensqd.effects import HttpResponse
from fakensqd.golang.text import int64
from fakensqd.input_buffer import CommandError, InputBuffer
from fakensqd.nsqd.broker import Broker, Channel, Topic
from fakensqd.nsqd.session import Session
from fakensqd.nsqd.stats import statistics, statistics_text
from fakensqd.options import IGNORED_OPTIONS, LOG_LEVELS, OWN_OPTIONS, NsqdOptions
from fakensqd.router import (
    JSON_TYPE,
    NSQ_TYPE,
    Application,
    HttpError,
    Request,
    Route,
    Router,
    make_router,
    topic_and_channel_names,
)
from gnsq.protocol.names import valid_topic_name

__all__ = ["NsqdFacts", "nsqd_application", "tls_required_application"]

_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
# How many bytes of a binary /mpub are read in one step.
_READ_SIZE = 65536
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

# Version numbers of the TLS protocol.
_TLS_VERSIONS = {"tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}


class NsqdFacts(Protocol):
    """The part of FakeNsqd that the API uses."""

    options: NsqdOptions
    broker: Broker
    errors: list[BaseException]
    hostname: str
    # Seconds since 1970.
    start_time: int
    lookupd_tcp_addresses: tuple[str, ...]
    # One of LOG_LEVELS.
    log_level: str

    @property
    def tcp_port(self) -> int: ...
    @property
    def http_port(self) -> int: ...
    @property
    def https_port(self) -> int: ...
    @property
    def sessions(self) -> Iterable[Session]: ...
    def now(self) -> float: ...
    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None: ...


def nsqd_application(server: NsqdFacts) -> Router:
    """Make the application."""
    api = _Api(server)
    now = server.now
    post: dict[str, Callable[[Request], object]] = {
        "/pub": api.publish,
        "/mpub": api.multipublish,
        "/topic/create": api.create_topic,
        "/topic/delete": api.delete_topic,
        "/topic/empty": api.empty_topic,
        "/topic/pause": lambda request: api.topic(request).set_paused(True, now()),
        "/topic/unpause": lambda request: api.topic(request).set_paused(False, now()),
        "/channel/create": api.create_channel,
        "/channel/delete": api.delete_channel,
        "/channel/empty": lambda request: api.channel(request).empty(),
        "/channel/pause": lambda request: api.channel(request).set_paused(True),
        "/channel/unpause": lambda request: api.channel(request).set_paused(False),
    }
    routes: dict[str, Mapping[str, Route]] = {path: {"POST": Route(handler)} for path, handler in post.items()}
    routes |= {
        "/ping": {"GET": Route(lambda request: "OK", plain=True)},
        "/info": {"GET": Route(api.info)},
        "/stats": {"GET": Route(api.stats)},
        "/config/:": {"GET": Route(api.config), "PUT": Route(api.set_config)},
    }
    return make_router(routes, server.errors.append, server.options)


def tls_required_application(server: NsqdFacts) -> Application:
    """Make the application of an HTTP port if clients must use HTTPS. Each response is a 403 with the HTTPS port."""

    def application(request: Request) -> HttpResponse:
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % server.https_port
        return HttpResponse(403, body, (JSON_TYPE, NSQ_TYPE))

    return application


class _Api:
    def __init__(self, server: NsqdFacts) -> None:
        self._server = server
        self._broker = server.broker
        self._options = server.options

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, request: Request) -> str:
        limit = self._options.max_msg_size
        if request.content_length > limit:
            raise HttpError(413, "MSG_TOO_BIG")
        body = request.read(limit + 1)
        if len(body) > limit:
            raise HttpError(413, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._ensure_topic(request)
        delay = self._delay(request.query["defer"]) if "defer" in request.query else 0.0
        topic.publish([body], self._server.now(), delay)
        return "OK"

    def _delay(self, text: str) -> float:
        value = int(text) if _INTEGER.match(text) and len(text) < 30 else 2**63
        delay_ns = int64(value * 10**6)
        if not -(2**63) <= value < 2**63 or not 0 <= delay_ns <= _nanoseconds(self._options.max_req_timeout):
            raise HttpError(400, "INVALID_DEFER")
        return delay_ns / 1e9

    def multipublish(self, request: Request) -> str:
        if request.content_length > self._options.max_body_size:
            raise HttpError(413, "BODY_TOO_BIG")
        topic = self._ensure_topic(request)
        binary = request.query.get("binary")
        is_binary = binary is not None and _BOOLEANS.get(binary, True)
        bodies = self._read_binary(request) if is_binary else self._read_lines(request)
        if bodies:
            topic.publish(bodies, self._server.now())
        return "OK"

    def _read_binary(self, request: Request) -> list[bytes]:
        # nsqd reads as many messages as their count says, checks each of them, and ignores the bytes after them.
        source = InputBuffer()
        reader = source.read_messages(self._options.max_msg_size, self._options.max_body_size)
        try:
            while True:
                next(reader)
                data = request.read(_READ_SIZE)
                source.decoder.feed(data)
                source.ended = not data
        except StopIteration as end:
            bodies: list[bytes] = end.value
            return bodies
        except CommandError as error:
            code = error.data.partition(b" ")[0].decode()
            raise HttpError(413, code.removeprefix("E_")) from None

    def _read_lines(self, request: Request) -> list[bytes]:
        limit = self._options.max_body_size
        body = request.read(limit + 1)
        if len(body) > limit:
            raise HttpError(413, "BODY_TOO_BIG")
        bodies = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._options.max_msg_size for line in bodies):
            raise HttpError(413, "MSG_TOO_BIG")
        return bodies

    # --- topics and channels ------------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> None:
        self._ensure_topic(request)

    def delete_topic(self, request: Request) -> None:
        self._broker.delete_topic(self.topic(request).name)

    def empty_topic(self, request: Request) -> None:
        self._valid_topic_name(request)
        self.topic(request).empty()

    def create_channel(self, request: Request) -> None:
        topic, name = self._topic_and_channel_name(request)
        topic.ensure_channel(name, self._server.now())

    def delete_channel(self, request: Request) -> None:
        channel = self.channel(request)
        self._broker.topics[channel.topic_name].delete_channel(channel.name)

    def topic(self, request: Request) -> Topic:
        return self._find_topic(request.required("topic"))

    def channel(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel_name(request)
        if name not in topic.channels:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return topic.channels[name]

    def _ensure_topic(self, request: Request) -> Topic:
        return self._broker.ensure_topic(self._valid_topic_name(request))

    def _valid_topic_name(self, request: Request) -> str:
        name = request.required("topic")
        if not valid_topic_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        return name

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic_name, channel_name = topic_and_channel_names(request)
        return self._find_topic(topic_name), channel_name

    def _find_topic(self, name: str) -> Topic:
        if name not in self._broker.topics:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return self._broker.topics[name]

    # --- facts --------------------------------------------------------------------------------------------------------

    def info(self, request: Request) -> object:
        return {
            "version": self._options.release,
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
        query = request.query
        document = statistics(
            self._broker,
            self._server.sessions,
            start_time=self._server.start_time,
            topic=query.get("topic", ""),
            channel=query.get("channel", ""),
            include_clients=_BOOLEANS.get(query.get("include_clients", ""), True),
            include_memory=_BOOLEANS.get(query.get("include_mem", ""), True),
        )
        if query.get("format") == "json":
            return document
        now_ns = self._broker.wall_ns(self._server.now())
        return statistics_text(document, uptime=now_ns / 1e9 - self._server.start_time, now_seconds=now_ns // 10**9)

    # --- /config ------------------------------------------------------------------------------------------------------

    def config(self, request: Request) -> object:
        """Respond with the value of an option; durations in nanoseconds."""
        server, options = self._server, self._options
        host = options.broadcast_address.replace(".", "_").replace(":", "_")
        values: dict[str, Any] = dataclasses.asdict(options)  # Any: options are of all types
        for name in (*OWN_OPTIONS, "lookupd_tcp_addresses", "node_id"):
            del values[name]
        values |= IGNORED_OPTIONS | {
            "id": options.node_id,
            "log_prefix": "[nsqd] ",
            "broadcast_tcp_port": options.broadcast_tcp_port or server.tcp_port,
            "broadcast_http_port": options.broadcast_http_port or server.http_port,
            "log_level": LOG_LEVELS.index(server.log_level) + 1,
            "nsqlookupd_tcp_addresses": list(server.lookupd_tcp_addresses),
            "statsd_prefix": f"nsq.{host}_{server.http_port}.",
            "tls_required": int(options.tls_policy),
            "tls_min_version": _TLS_VERSIONS[options.tls_min_version],
        }
        if request.argument not in values:
            raise HttpError(400, "INVALID_OPTION")
        value = values[request.argument]
        return _nanoseconds(value) if isinstance(value, float) else value

    def set_config(self, request: Request) -> object:
        """Change one of the two options that nsqd can change while it runs."""
        body = request.read(self._options.max_msg_size + 1)
        if not body or len(body) > self._options.max_msg_size:
            raise HttpError(413, "INVALID_VALUE")
        match request.argument:
            case "log_level":
                level = body.decode("latin-1").lower()
                if level not in LOG_LEVELS:
                    raise HttpError(400, "INVALID_VALUE")
                self._server.log_level = level
            case "nsqlookupd_tcp_addresses":
                self._server.set_lookupd_tcp_addresses(_addresses(body))
            case _:
                raise HttpError(400, "INVALID_OPTION")
        return self.config(request)


def _addresses(body: bytes) -> tuple[str, ...]:
    try:
        addresses = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_VALUE") from None
    addresses = [] if addresses is None else addresses
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise HttpError(400, "INVALID_VALUE")
    return tuple(addresses)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 10**9)
