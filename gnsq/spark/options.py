"""Options of the format ``nsq``: one field is one option. Checks only: connects to nothing, touches no file.

Spark hands them over as strings, with names in lower case; here they get their types, and errors that name the option
as users write it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gnsq.options import check_bounds, option
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["ReadOptions", "WriteOptions", "option_rows"]

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class _Options:
    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Read Spark's options.

        Raises:
            ValueError: If a name is unknown, or a value is not one of the option's.
        """
        fields = {_spark_name(field).lower(): field for field in dataclasses.fields(cls)}
        given: dict[str, Any] = {}
        for name, text in values.items():
            field = fields.get(name.lower())
            # Spark adds "path" when load() and save() are given one.
            if field is None:
                names = ", ".join(_spark_name(each) for each in fields.values())
                raise ValueError(f"option {name!r} is unknown to the format nsq; options are {names}")
            given[field.name] = _parse(field, text)
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(_Options):
    """Options of spark.read and spark.readStream."""

    topic: str = option("", "topic to read; required")
    channel: str = option("", "channel to read, created if missing; required")
    nsqd_tcp_addresses: tuple[str, ...] = option((), "nsqds as host:port, separated by commas")
    lookupd_http_addresses: tuple[str, ...] = option((), "nsqlookupds as URL or host:port, separated by commas")
    nsqd_http_addresses: tuple[str, ...] = option(
        (), "HTTP addresses of the nsqds, for the channel's depth; found through nsqlookupd if that is given"
    )
    spool: str = option("", "directory of the spool, a path or URI; required for readStream, one for each query")
    spool_owner: str = option("", "what tells this query from others, such as its checkpoint's URI")
    receivers: str = option("driver", "where messages are received: driver, or external (gnsq.spark.receiver)")
    max_in_flight: int = option(5000, "delivered and not yet in the spool", unit="messages", minimum=1)
    segment_rows: int = option(10_000, "largest segment of the spool", unit="rows", minimum=1)
    segment_bytes: int = option(8 * MIB, "the same", unit="bytes", minimum=1, maximum=1024 * MIB)
    segment_time: float = option(0.1, "longest that a message waits for its segment", unit="s", minimum=0.001)
    max_spool_bytes: int = option(1024 * MIB, "above this no more is received", unit="bytes", minimum=1)
    max_rows_per_batch: int | None = option(None, "largest batch; default: no limit", unit="rows", minimum=1)
    max_bytes_per_batch: int | None = option(None, "the same, in bytes of the spool", unit="bytes", minimum=1)
    num_partitions: int | None = option(None, "tasks that read a batch; default: the driver's CPUs", minimum=1)
    max_rows: int | None = option(None, "spark.read only: rows to take; default: until the channel is empty", minimum=1)
    idle_timeout: float = option(
        60.0,
        "AvailableNow and spark.read: without a new message for so long, what is left is left",
        unit="s",
        minimum=1,
    )
    msg_timeout: float | None = option(
        None, "until nsqd takes an unfinished message back; default: nsqd's", unit="s", minimum=1
    )
    heartbeat_interval: float = option(30.0, "between nsqd's heartbeats", unit="s", minimum=1)

    def __post_init__(self) -> None:
        _check_name("topic", self.topic)
        _check_name("channel", self.channel)
        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise ValueError("no address: give the option nsqdTcpAddresses or lookupdHttpAddresses")
        if self.receivers.lower().startswith("executors"):
            raise ValueError(
                f"option receivers {self.receivers!r} is not available in this version; use driver, or external with "
                "python -m gnsq.spark.receiver"
            )
        if self.receivers not in ("driver", "external"):
            raise ValueError(f"option receivers {self.receivers!r} is neither driver nor external")

    @property
    def partitions(self) -> int:
        """Tasks that read a batch, at most."""
        return self.num_partitions or os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class WriteOptions(_Options):
    """Options of df.write and df.writeStream."""

    topic: str = option("", "topic for rows that name none; else the column topic is required")
    nsqd_tcp_addresses: tuple[str, ...] = option((), "nsqds as host:port, separated by commas; required")
    batch_rows: int = option(1000, "most messages in one MPUB", unit="rows", minimum=1)
    batch_bytes: int = option(MIB, "most bytes of bodies in one MPUB, of more than one", unit="bytes", minimum=1)
    publish_timeout: float = option(60.0, "for nsqd to confirm an MPUB", unit="s", minimum=0.001)
    checkpoint_location: str = option("", "Spark's own")
    path: str = option("", "Spark's own; not used")

    def __post_init__(self) -> None:
        if self.topic:
            _check_name("topic", self.topic)
        if not self.nsqd_tcp_addresses:
            raise ValueError("no address: give the option nsqdTcpAddresses, such as 'host:4150'")


def option_rows(options: type[_Options]) -> list[tuple[str, str, str, str]]:
    """List name, default, unit and meaning of each option, for the README's table."""
    return [
        (_spark_name(field), _shown(field.default), field.metadata["unit"], field.metadata["meaning"])
        for field in dataclasses.fields(options)
    ]


def _shown(default: object) -> str:
    return "" if default in (None, "", ()) else str(default)


def _spark_name(field: dataclasses.Field[Any]) -> str:
    first, *rest = field.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _check_name(option: str, name: str) -> None:
    if not name:
        raise ValueError(f"option {option} is required")
    try:
        assert_valid_topic_name(name) if option == "topic" else assert_valid_channel_name(name)
    except ValueError as error:
        raise ValueError(f"option {option}: {error}") from error


def _parse(field: dataclasses.Field[Any], text: str) -> object:
    """Turn a string into the field's type; annotations are strings here, so they are compared as such."""
    name, kind = _spark_name(field), str(field.type)
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind == "str":
        return text.strip()
    try:
        value = int(text) if kind.startswith("int") else float(text)
    except ValueError:
        what = "a whole number" if kind.startswith("int") else "a number"
        raise ValueError(f"option {name} {text!r} is not {what}") from None
    check_bounds(f"option {name}", value, field)
    return value
