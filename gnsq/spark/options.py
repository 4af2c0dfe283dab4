"""Options of the format ``nsq``: each field is one option. Connects to nothing and opens no file.

Spark passes options as strings, with names in lower case. parse() converts them, and errors name an option as users
write it. The fields also make the flags of ``python -m gnsq.spark.receiver`` and the tables of the documentation.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gnsq.localfiles import check_mode
from gnsq.options import Options, option
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.settings import Field, is_list, read_value
from gnsq.spark.uris import is_object_store
from gnsq.texts import duration_text, nearest, option_text

__all__ = [
    "ConnectOptions",
    "ReadOptions",
    "WriteOptions",
    "has_topic",
    "named",
    "ordered_fields",
    "shown",
    "spark_name",
]

MIB = 1024 * 1024
MAX_PARTITION_BYTES = 64 * MIB
# Seconds. The default of Spark's Kafka source.
DEFAULT_TRIGGER_DELAY = 900.0
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class ConnectOptions(Options):
    """Options of connections to nsqd and nsqlookupd. Each machine that connects reads the files that options name.

    An option without a meaning is for Spark or the ready-made job alone: no table and no error text lists it.

    A repr shows no secret. The name of each secret option contains "secret" or "password", so Spark's
    spark.redaction.regex hides its value in plans.
    """

    nsqd_tcp_addresses: tuple[str, ...] = option((), "addresses of nsqds, as host:port, separated by commas")
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "addresses of nsqlookupds, as URL or host:port, separated by commas"
    )
    lookupd_poll_interval: float = option(
        10.0, "time between two requests to each nsqlookupd", unit="s", minimum=0.01, maximum=86400
    )
    tls: bool = option(False, "encrypt the connections to nsqd, and refuse an nsqd that does not offer TLS")
    tls_ca: str = option("", "PEM file with the CAs to trust, also for https:// addresses; default: the system's CAs")
    tls_cert: str = option("", "PEM file with the client's certificate, also for https:// addresses")
    tls_key: str = option("", "PEM file with the certificate's key, not encrypted; default: in the certificate's file")
    tls_server_hostname: str = option("", "name that nsqd's certificate must have; default: the host of its address")
    tls_verify: bool = option(True, "check certificates; false accepts any certificate for any host name")
    compression: str = option(
        "none",
        "compression of connections to nsqd, if nsqd offers it",
        choices=("none", "snappy", "deflate"),
    )
    auth_secret: str = option("", "secret for AUTH, sent only to an nsqd that requires it", secret=True)
    auth_secret_file: str = option("", "file with the secret for AUTH; it must be on each machine that connects")

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Convert Spark's options.

        Raises:
            ValueError: If a name is unknown, a value is not valid, or options are missing or exclude each other.
        """
        fields = {spark_name(field).lower(): field for field in dataclasses.fields(cls)}
        given: dict[str, Any] = {}
        for name, text in values.items():
            field = fields.get(name.lower())
            if field is None:
                known = [spark_name(field) for field in fields.values() if field.metadata["meaning"]]
                raise ValueError(f"option {name!r} is unknown to the format nsq{nearest([name], known, 'options are')}")
            given[field.name] = _parse(field, text)
        return cls(**given)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise ValueError(
                f"no address: give {named('nsqd_tcp_addresses')}, such as 'host:4150', or "
                f"{named('lookupd_http_addresses')}"
            )
        for name in ("lookupd_http_addresses", "nsqd_http_addresses"):
            if any("@" in address for address in getattr(self, name, ())):
                raise ValueError(
                    f"{named(name)} holds a user or password (not shown), which Spark would show in its plans: "
                    f"leave it out; a certificate ({named('tls_cert')}) is another way to be known"
                )
        if self.auth_secret and self.auth_secret_file:
            raise ValueError(f"{named('auth_secret')} and {named('auth_secret_file')} are both given: one of them")
        if self.tls_key and not self.tls_cert:
            raise ValueError(f"{named('tls_key')} is given without {named('tls_cert')}")
        # Refuse options of TLS if TLS is off: a user who sets them expects encryption.
        of_tls: dict[str, object] = {"tls_server_hostname": self.tls_server_hostname}
        if not self.uses_https:
            of_tls |= {name: getattr(self, name) for name in ("tls_ca", "tls_cert")}
            of_tls["tls_verify"] = not self.tls_verify
        for name, is_given in of_tls.items():
            if is_given and not self.tls:
                raise ValueError(f"{named(name)} is given, but {named('tls')} is not true: nothing is encrypted")

    @property
    def uses_https(self) -> bool:
        """True if any HTTP address is an https:// address."""
        addresses = (*self.lookupd_http_addresses, *getattr(self, "nsqd_http_addresses", ()))
        return any(address.lower().startswith("https://") for address in addresses)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ConnectOptions):
    """Options of spark.read and spark.readStream, and of their receivers."""

    topic: str = option("", "topic to read, or several, separated by commas; required, unless a pattern is given")
    topic_pattern: str = option(
        "",
        "regular expression for whole names of topics; those that nsqlookupd gets later are added",
    )
    channel: str = option("", "channel to read; it is created if it does not exist; required")
    other_channels: str = option(
        "",
        "what other queries read, as TOPIC,TOPIC/CHANNEL or /PATTERN//CHANNEL, separated by blanks: their channels are "
        "created with this one in the topics that both read, and before a new topic of topicPattern is read, since "
        "nsqd gives what waits in a topic to its first channel alone",
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        "HTTP addresses of the nsqds, to ask for the depth of the channel; not needed with lookupdHttpAddresses",
    )
    spool: str = option(
        "",
        "directory of this query's own spool, a path or the URI of an object store; required for readStream",
    )
    # Name of the query, such as the URI of its checkpoint. The spool of another owner is refused. The job sets it.
    spool_owner: str = option("", "")
    spool_mode: str = option(
        "0700",
        "octal permissions of the spool's directories, and without x of its files, whatever the umask; 2770 if "
        "receivers, driver and executors are several users of one group",
    )
    receivers: str = option(
        "driver",
        "driver: the query's process on the driver receives the messages; external: programs python -m "
        "gnsq.spark.receiver receive them, on any hosts",
        choices=("driver", "external"),
    )
    max_in_flight: int = option(
        10_000,
        "most messages that are delivered and not yet in the spool, for all topics together; above an nsqd's "
        "max-rdy-count there are several connections to it",
        unit="messages",
        minimum=1,
    )
    segment_time: float | None = option(
        None,
        "longest wait of a message for its segment; up to 5 s while over 1,000 segments wait; default: 0.1, or 2 on an "
        "object store",
        unit="s",
        minimum=0.001,
    )
    max_spool_bytes: int = option(
        1024 * MIB,
        "unread bytes of the spool above which no more messages are received; a batch read that needs more fails",
        unit="bytes",
        minimum=1,
    )
    max_rows_per_batch: int | None = option(None, "most rows in one batch; default: no limit", unit="rows", minimum=1)
    max_bytes_per_batch: int = option(
        MAX_PARTITION_BYTES,
        "most bytes of the spool in one batch; the batch of Trigger.Once has neither limit",
        unit="bytes",
        minimum=1,
    )
    min_rows_per_batch: int | None = option(
        None,
        "number of rows for which a batch waits; it does not wait if it has maxBytesPerBatch already, if the spool is "
        "full, after maxTriggerDelay, or with Once and AvailableNow; default: no batch waits",
        unit="rows",
        minimum=1,
    )
    max_trigger_delay: float = option(
        DEFAULT_TRIGGER_DELAY,
        "with minRowsPerBatch: longest time since the last batch; the first batch of a run does not wait",
        unit="s",
        minimum=0.001,
    )
    num_partitions: int | None = option(
        None,
        "most tasks that read a batch; there are more if one would read over maxBytesPerBatch or 64 MiB, and fewer for "
        "a small batch; default: spark.sparkContext.defaultParallelism at the call of gnsq.spark.register(spark), "
        "which is the number of the executors' cores; without that call, and on Spark Connect, the number of the "
        "driver's CPUs",
        minimum=1,
    )
    # Lets AvailableNow and Once read all messages that exist, in one batch. PySpark 4.1 does not tell the trigger, so
    # the job sets it; later releases of PySpark tell it, and this is ignored.
    drain: bool = option(False, "")
    max_rows: int | None = option(
        None, "for spark.read only: most rows to read; default: until the channel is empty", minimum=1
    )
    idle_timeout: float = option(
        60.0,
        "time without a new message after which Once, AvailableNow and spark.read end: with a warning if messages may "
        "be left, with an error if no nsqd was reached; also their longest wait if an nsqd does not tell its depth",
        unit="s",
        minimum=0.1,
    )
    msg_timeout: float | None = option(
        None,
        "time after which nsqd delivers an unfinished message again; default: nsqd's",
        unit="s",
        minimum=1,
        maximum=2_147_483,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topic_pattern:
            self._check_pattern()
        elif not self.topics:
            raise ValueError(f"{named('topic')} is required, or {named('topic_pattern')}")
        for topic in self.topics:
            _check_name("topic", topic)
        if not self.channel:
            raise ValueError(f"{named('channel')} is required")
        _check_name("channel", self.channel)
        for other in self.other_channels.split():
            topics, _, channel = other.rpartition("/")
            if not topics:
                raise ValueError(f"{named('other_channels')} {other!r} has no topic: TOPIC/CHANNEL was due")
            _check_name("channel", channel, "other_channels")
        try:
            _ = self.spool_permissions
        except ValueError as error:
            raise ValueError(f"{named('spool_mode')} {self.spool_mode!r}: {error}") from None
        if self.msg_timeout is not None and self.segment_time is not None and self.segment_time >= self.msg_timeout:
            raise ValueError(
                f"{named('segment_time')} {duration_text(self.segment_time)} must be less than {named('msg_timeout')} "
                f"{duration_text(self.msg_timeout)}: nsqd would deliver every message twice"
            )
        least, most = self.min_rows_per_batch, self.max_rows_per_batch
        if least is None and self.max_trigger_delay != DEFAULT_TRIGGER_DELAY:
            raise ValueError(f"{named('max_trigger_delay')} is given without minRowsPerBatch: no batch waits")
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"{named('min_rows_per_batch')} {least} is more than maxRowsPerBatch {most}: give at most that"
            )

    def _check_pattern(self) -> None:
        pattern = f"{named('topic_pattern')} {self.topic_pattern!r}"
        if self.topics:
            raise ValueError(f"{named('topic')} and {named('topic_pattern')} are both given: one of them")
        if not self.lookupd_http_addresses:
            raise ValueError(
                f"{pattern} needs {named('lookupd_http_addresses')}: nsqlookupd knows which topics there are"
            )
        if self.nsqd_tcp_addresses or self.nsqd_http_addresses:
            raise ValueError(
                f"{pattern} finds nsqds through {named('lookupd_http_addresses')} alone: leave out "
                f"{named('nsqd_tcp_addresses')} and {named('nsqd_http_addresses')}"
            )
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise ValueError(f"{pattern} is not a regular expression: {error}") from error

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the option topic, each once. Empty if the option topicPattern is used."""
        return tuple(dict.fromkeys(part.strip() for part in self.topic.split(",") if part.strip()))

    @property
    def source(self) -> str:
        """Topics and channel: ``TOPIC,TOPIC/CHANNEL``, with sorted topics, or ``/PATTERN//CHANNEL``."""
        topics = f"/{self.topic_pattern}/" if self.topic_pattern else ",".join(sorted(self.topics))
        return f"{topics}/{self.channel}"

    def others_of(self, topic: str) -> list[str]:
        """List the other channels of a topic."""
        sources = (other.rpartition("/") for other in self.other_channels.split())
        return [channel for topics, _, channel in sources if has_topic(topics, topic)]

    @property
    def spool_permissions(self) -> int:
        """spool_mode as a number, with x for each r. ValueError if it is not octal, or check_mode() refuses it."""
        try:
            mode = int(self.spool_mode, 8)
        except ValueError:
            raise ValueError("this is not an octal number: give permissions such as 0700 or 2770") from None
        return check_mode(mode)

    @property
    def segment_wait(self) -> float:
        """Seconds that a message waits for its segment at most, if the query reads the spool at once."""
        if self.segment_time is not None:
            return self.segment_time
        return 2.0 if is_object_store(self.spool) else 0.1

    @property
    def receives_here(self) -> bool:
        """True if the process that plans batches also receives messages."""
        return self.receivers == "driver"

    @property
    def partitions(self) -> int:
        """Most tasks that read a batch, unless more are needed for max_partition_bytes."""
        return self.num_partitions or os.cpu_count() or 1

    @property
    def max_partition_bytes(self) -> int:
        """Bytes that a task may read, or one segment more, since some sinks hold all rows of a task in memory."""
        return min(self.max_bytes_per_batch, MAX_PARTITION_BYTES)


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ConnectOptions):
    """Options of df.write and df.writeStream."""

    topic: str = option("", "topic of rows without a value in the column topic; required if there is no such column")
    publish_timeout: float = option(
        60.0, "longest wait until nsqd has confirmed an MPUB", unit="s", minimum=0.001, maximum=86400
    )
    # Spark sets these; query_name if queryName() is called. path is not used.
    checkpoint_location: str = option("", "")
    query_name: str = option("", "")
    path: str = option("", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topic:
            _check_name("topic", self.topic)


def ordered_fields(options: type[ConnectOptions]) -> list[Field]:
    """List the fields of an options class that have a meaning. The fields of ConnectOptions come last."""
    fields = [field for field in dataclasses.fields(options) if field.metadata["meaning"]]
    return sorted(fields, key=lambda field: field.name in ConnectOptions.__dataclass_fields__)


def spark_name(field: Field) -> str:
    """Return the name of an option as users of Spark write it."""
    return _camel(field.name)


def named(name: str) -> str:
    """Return how an error text names the option of a field: ``option maxRows``, unless the program has its own names.

    A program gives them by gnsq.texts.option_names().
    """
    return option_text(f"option {_camel(name)}")


def shown(default: object) -> str:
    """Format a default as text for users; "" if there is none."""
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default in (None, "", ()) else str(default)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _check_name(kind: str, name: str, option: str = "") -> None:
    try:
        (assert_valid_topic_name if kind == "topic" else assert_valid_channel_name)(name)
    except ValueError as error:
        raise ValueError(f"{named(option or kind)}: {error}") from error


def has_topic(topics: str, topic: str) -> bool:
    """Return True if a topic is among those of a source: what is before the last slash of ReadOptions.source."""
    if topics.startswith("/"):
        return re.fullmatch(topics[1:-1], topic) is not None
    return topic in topics.split(",")


def _parse(field: Field, text: str) -> Any:  # Any: each option has its own type
    """Convert a string to the type of a field."""
    value: object = text.strip() if field.repr else text
    if is_list(field):
        value = tuple(part.strip() for part in text.split(",") if part.strip())
    elif field.metadata["choices"]:
        # In upper or lower case, as in Spark's own options.
        value = text.strip().lower()
    elif field.type == "bool":
        value = _TRUTH.get(text.strip().lower(), text)
    field = copy.copy(field)
    field.name = named(field.name)  # for error texts
    try:
        return read_value(field, value)
    except TypeError as error:
        raise ValueError(str(error)) from None
