"""IDENTIFY: what a client may ask for, what is settled, and the answer.

Pure. Durations are milliseconds in the body and in the answer, seconds in Settings. Source: nsqd client_v2.go, Set*();
protocol_v2.go IDENTIFY.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fakensqd import gojson
from fakensqd.options import LATEST, NsqdOptions, Release
from gnsq.protocol.compression import DEFAULT_DEFLATE_LEVEL

__all__ = [
    "DEFAULT_HEARTBEAT_INTERVAL",
    "Identification",
    "IdentifyError",
    "Settings",
    "Upgrades",
    "decode_identify",
    "negotiated",
]

DEFAULT_HEARTBEAT_INTERVAL = 30.0
DEFAULT_OUTPUT_BUFFER_SIZE = 16384

_FIELDS = {
    "client_id": gojson.STRING,
    "hostname": gojson.STRING,
    "heartbeat_interval": gojson.INT,
    "output_buffer_size": gojson.INT,
    "output_buffer_timeout": gojson.INT,
    "feature_negotiation": gojson.BOOL,
    "tls_v1": gojson.BOOL,
    "deflate": gojson.BOOL,
    "deflate_level": gojson.INT,
    "snappy": gojson.BOOL,
    "sample_rate": gojson.INT32,
    "user_agent": gojson.STRING,
    "msg_timeout": gojson.INT,
}
# Of releases before 1.0.0; others ignore them.
_OLD_FIELDS = {"short_id": gojson.STRING, "long_id": gojson.STRING}
# The release in which a field came, where that is after 0.2.15; before, it is ignored.
_FIELDS_SINCE = {
    **dict.fromkeys(("heartbeat_interval",), (0, 2, 19)),
    **dict.fromkeys(("feature_negotiation",), (0, 2, 20)),
    **dict.fromkeys(("output_buffer_size", "output_buffer_timeout"), (0, 2, 21)),
    **dict.fromkeys(("tls_v1",), (0, 2, 22)),
    **dict.fromkeys(("deflate", "deflate_level", "snappy"), (0, 2, 23)),
    **dict.fromkeys(("sample_rate", "user_agent"), (0, 2, 25)),
    **dict.fromkeys(("client_id", "hostname", "msg_timeout"), (0, 2, 28)),
}
# Likewise of the answer.
_ANSWERS_SINCE = {
    **dict.fromkeys(("max_msg_timeout", "msg_timeout"), (0, 2, 21)),
    **dict.fromkeys(("tls_v1",), (0, 2, 22)),
    **dict.fromkeys(("deflate", "deflate_level", "max_deflate_level", "snappy"), (0, 2, 23)),
    **dict.fromkeys(("sample_rate",), (0, 2, 25)),
    **dict.fromkeys(("auth_required",), (0, 2, 29)),
    **dict.fromkeys(("output_buffer_size", "output_buffer_timeout"), (0, 3, 1)),
}


class IdentifyError(Exception):
    """What is asked for cannot be had; the text is nsqd's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """The body of an IDENTIFY. 0 means: as it was."""

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    user_agent: str = ""
    msg_timeout: int = 0


def decode_identify(body: bytes, release: Release = LATEST) -> Identification:
    """Read the body of an IDENTIFY, the fields that the release knows.

    Raises:
        ValueError: If Go would not take it.
    """
    fields = {name: kind for name, kind in _FIELDS.items() if release.since(*_FIELDS_SINCE.get(name, (0, 0, 0)))}
    old = {} if release.since(1, 0, 0) else _OLD_FIELDS
    values: dict[str, Any] = gojson.decode(body, {**fields, **old})  # Any: decode() has checked each type
    for name, old_name in (("client_id", "short_id"), ("hostname", "long_id")):
        old_value = values.pop(old_name, "")
        values[name] = values.get(name) or old_value
    return Identification(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrades:
    """What begins behind the answer, in this order. The level is shown even if deflate is not on."""

    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFAULT_DEFLATE_LEVEL


def negotiated(asked: Identification, options: NsqdOptions) -> Upgrades:
    """Choose what is both asked for and offered.

    Raises:
        IdentifyError: If that is both compressions.
    """
    snappy, deflate = asked.snappy and options.snappy, asked.deflate and options.deflate
    if snappy and deflate:
        raise IdentifyError("cannot enable both deflate and snappy compression")
    level = asked.deflate_level if deflate and asked.deflate_level > 0 else DEFAULT_DEFLATE_LEVEL
    return Upgrades(
        tls=asked.tls_v1 and options.tls_offered,
        snappy=snappy,
        deflate=deflate,
        deflate_level=min(level, options.max_deflate_level),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is in force on a connection. Durations in seconds; an interval or timeout of 0 is off."""

    heartbeat_interval: float
    output_buffer_size: int
    output_buffer_timeout: float
    sample_rate: int
    msg_timeout: float

    @classmethod
    def default(cls, options: NsqdOptions) -> Settings:
        """What holds for a client that never says IDENTIFY."""
        return cls(
            heartbeat_interval=DEFAULT_HEARTBEAT_INTERVAL,
            output_buffer_size=DEFAULT_OUTPUT_BUFFER_SIZE,
            output_buffer_timeout=options.output_buffer_timeout,
            sample_rate=0,
            msg_timeout=options.msg_timeout,
        )

    def identified(self, asked: Identification, options: NsqdOptions) -> Settings:
        """What is in force after an IDENTIFY; checked in nsqd's order.

        Raises:
            IdentifyError: If a field is out of its bounds.
        """
        heartbeat_interval = _bounded_time(
            "heartbeat interval",
            asked.heartbeat_interval,
            self.heartbeat_interval,
            (1.0, options.max_heartbeat_interval),
        )
        output_buffer_timeout = _bounded_time(
            "output buffer timeout",
            asked.output_buffer_timeout,
            self.output_buffer_timeout,
            (options.min_output_buffer_timeout, options.max_output_buffer_timeout),
        )
        output_buffer_size = self.output_buffer_size
        if asked.output_buffer_size == -1:
            output_buffer_size, output_buffer_timeout = 1, 0.0
        elif 64 <= asked.output_buffer_size <= options.max_output_buffer_size:
            output_buffer_size = asked.output_buffer_size
        elif asked.output_buffer_size:
            raise IdentifyError(f"output buffer size ({asked.output_buffer_size}) is invalid")
        if not 0 <= asked.sample_rate <= 99:
            raise IdentifyError(f"sample rate ({asked.sample_rate}) is invalid")
        if asked.msg_timeout == -1:
            raise IdentifyError("msg timeout (-1) is invalid")
        return Settings(
            heartbeat_interval=heartbeat_interval,
            output_buffer_size=output_buffer_size,
            output_buffer_timeout=output_buffer_timeout,
            sample_rate=asked.sample_rate,
            msg_timeout=_bounded_time(
                "msg timeout", asked.msg_timeout, self.msg_timeout, (1.0, options.max_msg_timeout)
            ),
        )

    def answer(self, upgrades: Upgrades, options: NsqdOptions) -> bytes:
        """Build the answer to an IDENTIFY with feature_negotiation."""
        release = options.emulated
        answer: dict[str, object] = {
            "max_rdy_count": options.max_rdy_count,
            "version": options.version,
            "max_msg_timeout": _milliseconds(options.max_msg_timeout),
            "msg_timeout": _milliseconds(self.msg_timeout),
            "tls_v1": upgrades.tls,
            "deflate": upgrades.deflate,
            "deflate_level": upgrades.deflate_level,
            "max_deflate_level": options.max_deflate_level,
            "snappy": upgrades.snappy,
            "sample_rate": self.sample_rate,
            "auth_required": bool(options.auth_http_addresses),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": _milliseconds(self.output_buffer_timeout),
        }
        return gojson.encode(
            {name: value for name, value in answer.items() if release.since(*_ANSWERS_SINCE.get(name, (0, 0, 0)))}
        )


def _bounded_time(subject: str, asked_ms: int, current: float, bounds: tuple[float, float]) -> float:
    """Choose between what a client asks for, what is in force (0), and off (-1). Seconds, but for asked_ms."""
    if asked_ms == 0:
        return current
    if asked_ms == -1:
        return 0.0
    if not _milliseconds(bounds[0]) <= asked_ms <= _milliseconds(bounds[1]):
        raise IdentifyError(f"{subject} ({asked_ms}) is invalid")
    return asked_ms / 1000


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
