"""Options of the format ``nsq``: each field is one option. Connects to nothing and opens no file.

Spark passes options as strings, with names in lower case. parse() converts them, and errors name an option as users
write it. The fields also make the flags of ``python -m gnsq.spark.receiver`` and the tables of the documentation.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gnsq.localfiles import check_mode
from gnsq.options import check_bounds, option
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.spark.uris import is_object_store
from gnsq.texts import nearest

__all__ = [
    "QUERY_ONLY_OPTIONS",
    "ConnectOptions",
    "ReadOptions",
    "WriteOptions",
    "ordered_fields",
    "shown",
    "spark_name",
]

MIB = 1024 * 1024
MAX_PARTITION_BYTES = 64 * MIB
# Seconds. The default of Spark's Kafka source.
DEFAULT_TRIGGER_DELAY = 900.0
COMPRESSIONS = ("none", "snappy", "deflate")
_READER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TRUTH = {"true": True, "false": False}
# Options with a fixed set of values, in upper or lower case, as in Spark's own options.
_WORDS = frozenset({"receivers", "compression"})
# Options of ReadOptions that a receiver does not use, so that ``python -m gnsq.spark.receiver`` has no flags for them.
QUERY_ONLY_OPTIONS = frozenset(
    [
        *["nsqd_http_addresses", "spool_owner", "receivers", "max_rows_per_batch", "max_bytes_per_batch"],
        *["min_rows_per_batch", "max_trigger_delay", "num_partitions", "fail_on_data_loss", "max_rows"],
        *["drain", "idle_timeout", "starting_timestamp", "spool_retention", "spool_retention_bytes", "spool_reader"],
    ]
)


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """Options of connections to nsqd and nsqlookupd. Each machine that connects reads the files that options name.

    A repr shows no secret. The name of each secret option contains "secret" or "password", so Spark's
    spark.redaction.regex hides its value in plans.
    """

    nsqd_tcp_addresses: tuple[str, ...] = option((), "nsqds to connect to, as host:port, separated by commas")
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "nsqlookupds that name the nsqds, as URL or host:port, separated by commas"
    )
    lookupd_poll_interval: float = option(
        10.0, "time between two requests to each nsqlookupd", unit="s", minimum=0.01, maximum=86400
    )
    lookupd_timeout: float = option(5.0, "longest wait for a response over HTTP", unit="s", minimum=0.001, maximum=3600)
    heartbeat_interval: float = option(
        30.0, "time between two heartbeats of nsqd", unit="s", minimum=1, maximum=2_147_483
    )
    tls: bool = option(False, "true encrypts the connections to nsqd, and refuses an nsqd that does not offer TLS")
    tls_ca_file: str = option(
        "", "PEM file with the CAs to trust, also for https:// addresses; default: the system's CAs"
    )
    tls_cert_file: str = option("", "PEM file with the client's certificate, also for https:// addresses")
    tls_key_file: str = option("", "PEM file with the certificate's key, unless tlsCertFile has it")
    tls_key_password: str = option("", "password of the key, if it is encrypted", secret=True)
    tls_server_hostname: str = option("", "name that nsqd's certificate must have; default: the host of its address")
    tls_verify: bool = option(True, "false accepts any certificate for any host name")
    compression: str = option("none", "compression of connections to nsqd, if nsqd offers it: none, snappy or deflate")
    deflate_level: int | None = option(None, "1 is fastest, 9 compresses most; default: 6", minimum=1, maximum=9)
    auth_secret: str = option("", "secret for AUTH, sent only to an nsqd that requires it", secret=True)
    auth_secret_file: str = option(
        "", "file with the secret for AUTH, in place of authSecret; it must be on each machine that connects"
    )

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
                hint = nearest([name], map(spark_name, fields.values()), "options are")
                raise ValueError(f"option {name!r} is unknown to the format nsq{hint}")
            given[field.name] = _parse(field, text)
        return cls(**given)

    def __post_init__(self) -> None:
        if self.needs_address and not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise ValueError("no address: give option nsqdTcpAddresses, such as 'host:4150', or lookupdHttpAddresses")
        for name in ("lookupd_http_addresses", "nsqd_http_addresses"):
            if any("@" in address for address in getattr(self, name, ())):
                raise ValueError(
                    f"option {_camel(name)} holds a user or password (not shown), which Spark would show in its plans: "
                    "leave it out; a certificate (tlsCertFile) is another way to be known"
                )
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"option compression {self.compression!r} is none of {', '.join(COMPRESSIONS)}")
        if self.deflate_level is not None and self.compression != "deflate":
            raise ValueError("option deflateLevel is given, but option compression is not deflate")
        if self.auth_secret and self.auth_secret_file:
            raise ValueError("options authSecret and authSecretFile are both given: one of them")
        for name in ("tls_key_file", "tls_key_password"):
            if getattr(self, name) and not self.tls_cert_file:
                raise ValueError(f"option {_camel(name)} is given without tlsCertFile")
        # Refuse options of TLS if TLS is off: a user who sets them expects encryption.
        for name in ("tls_ca_file", "tls_cert_file", "tls_server_hostname"):
            if getattr(self, name) and not self.tls and (name == "tls_server_hostname" or not self.uses_https):
                raise ValueError(f"option {_camel(name)} is given, but option tls is not true: nothing is encrypted")
        if not self.tls_verify and not self.tls and not self.uses_https:
            raise ValueError("option tlsVerify is given, but option tls is not true: nothing is encrypted")

    @property
    def needs_address(self) -> bool:
        """True if addresses of nsqd or nsqlookupd are required."""
        return True

    @property
    def uses_https(self) -> bool:
        """True if any HTTP address is an https:// address."""
        addresses = (*self.lookupd_http_addresses, *getattr(self, "nsqd_http_addresses", ()))
        return any(address.lower().startswith("https://") for address in addresses)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ConnectOptions):
    """Options of spark.read and spark.readStream, and of their receivers."""

    topic: str = option("", "topic to read, or several topics, separated by commas; required, or topicPattern")
    topic_pattern: str = option(
        "",
        "regular expression for the whole names of the topics to read; topics that nsqlookupd gets later are added",
    )
    channel: str = option("", "channel to read; it is created if it does not exist; required")
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        "HTTP addresses of the nsqds, to ask for the depth of the channel; not needed with lookupdHttpAddresses",
    )
    spool: str = option(
        "",
        "directory of the spool, as a path or URI; required for readStream; each query needs its own, "
        "except with spoolReader",
    )
    spool_owner: str = option(
        "", "name of this query, such as the URI of its checkpoint; the spool of another owner is refused"
    )
    spool_mode: str = option(
        "0700",
        "octal permissions of the spool's directories on local and mounted file systems; files have the same without "
        "x; the umask has no effect; use 2770 if receivers, driver and executors are several users of one group",
    )
    receivers: str = option(
        "driver",
        "driver: the query's process on the driver receives the messages; external: programs python -m "
        "gnsq.spark.receiver receive them, on any hosts",
    )
    max_in_flight: int = option(
        10_000,
        "most messages that are delivered and not yet in the spool, for all topics together; above an nsqd's "
        "max-rdy-count there are several connections to it",
        unit="messages",
        minimum=1,
    )
    segment_rows: int = option(10_000, "most rows in one segment of the spool", unit="rows", minimum=1)
    segment_bytes: int = option(
        8 * MIB,
        "most bytes in one segment of the spool; at most eight such segments wait in memory",
        unit="bytes",
        minimum=1,
        maximum=1024 * MIB,
    )
    segment_time: float | None = option(
        None,
        "longest time that a message waits for its segment; up to 5 s while more than 1,000 segments wait in the "
        "spool; default: 0.1, or 2 if the spool is on an object store",
        unit="s",
        minimum=0.001,
    )
    max_spool_bytes: int = option(
        1024 * MIB,
        "size of the unread segments of the spool above which no more messages are received; spark.read fails if it "
        "needs more",
        unit="bytes",
        minimum=1,
    )
    spool_retention: float | None = option(
        None,
        "segments that all queries have read are kept so long after they were received, for further queries and for "
        "replays; default: not kept, unless spoolRetentionBytes is given",
        unit="s",
        minimum=1,
    )
    spool_retention_bytes: int | None = option(
        None,
        "most bytes of segments that are kept after all queries have read them; default: no limit",
        unit="bytes",
        minimum=1,
    )
    spool_reader: str = option(
        "",
        "name of this query if it reads the spool of another query, which receives the messages: it has offsets of its "
        "own, and needs no addresses",
    )
    starting_timestamp: int | None = option(
        None,
        "for a query without a checkpoint: the first segments that it reads are those received at this time or later, "
        "in milliseconds since 1970; default: it reads all that the spool has",
        unit="ms",
        # A time in seconds would be refused.
        minimum=1_000_000_000_000,
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
    max_trigger_delay: float | None = option(
        None,
        "with minRowsPerBatch: time since the last batch after which a batch has what is there; after a restart, since "
        f"the first waiting message was received; default: {DEFAULT_TRIGGER_DELAY:g}",
        unit="s",
        minimum=0.001,
    )
    num_partitions: int | None = option(
        None,
        "number of tasks that read a batch; there are more if one would read over maxBytesPerBatch or 64 MiB; default: "
        "spark.sparkContext.defaultParallelism at the call of gnsq.spark.register(spark), which is the number of the "
        "executors' cores; without that call, and on Spark Connect, the number of the driver's CPUs",
        minimum=1,
    )
    fail_on_data_loss: bool = option(
        True,
        "true ends the query if segments of a batch are gone, for example because the spool was deleted; false logs a "
        "warning and goes on without them",
    )
    drain: bool = option(
        False,
        "for PySpark 4.1, which does not ask for it: true lets AvailableNow and Once read all messages that exist, in "
        "one batch; later releases of PySpark ignore it",
    )
    max_rows: int | None = option(
        None, "for spark.read only: most rows to read; default: until the channel is empty", minimum=1
    )
    idle_timeout: float = option(
        60.0,
        "time without a new message after which Once, AvailableNow and spark.read end: with a warning if messages may "
        "be left, with an error if no nsqd was reached; also their longest wait if an nsqd does not tell its depth",
        unit="s",
        minimum=1,
    )
    msg_timeout: float | None = option(
        None,
        "time after which nsqd delivers an unfinished message again; default: nsqd's",
        unit="s",
        minimum=1,
        maximum=2_147_483,
    )

    def __post_init__(self) -> None:
        if self.topic_pattern:
            self._check_pattern()
        elif not self.topics:
            raise ValueError("option topic is required, or topicPattern")
        for topic in self.topics:
            _check_name("topic", topic)
        if not self.channel:
            raise ValueError("option channel is required")
        _check_name("channel", self.channel)
        try:
            _ = self.spool_permissions
        except ValueError as error:
            raise ValueError(f"option spoolMode {self.spool_mode!r}: {error}") from None
        if self.receivers not in ("driver", "external"):
            raise ValueError(
                f"option receivers {self.receivers!r} is neither driver nor external: to receive on other hosts, run "
                "python -m gnsq.spark.receiver there, with receivers=external here"
            )
        if self.msg_timeout is not None and self.segment_time is not None and self.segment_time >= self.msg_timeout:
            raise ValueError(
                f"option segmentTime {self.segment_time:g} s must be less than msgTimeout {self.msg_timeout:g} s: nsqd "
                "would deliver every message twice"
            )
        self._check_min_rows()
        self._check_reader()
        super().__post_init__()

    def _check_min_rows(self) -> None:
        least, most = self.min_rows_per_batch, self.max_rows_per_batch
        if least is None:
            if self.max_trigger_delay is not None:
                raise ValueError("option maxTriggerDelay is given without minRowsPerBatch: no batch waits")
        elif most is not None and least > most:
            raise ValueError(f"option minRowsPerBatch {least} is more than maxRowsPerBatch {most}: give at most that")

    def _check_reader(self) -> None:
        if not self.spool_reader:
            return
        if not _READER_NAME.fullmatch(self.spool_reader):
            raise ValueError(
                f"option spoolReader {self.spool_reader!r} is not a name: give up to 64 letters, digits, - and _"
            )
        for name in ("spool_retention", "spool_retention_bytes"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"option {_camel(name)} is given with spoolReader: give it to the query that owns the spool"
                )

    def _check_pattern(self) -> None:
        if self.topics:
            raise ValueError("options topic and topicPattern are both given: one of them")
        if self.needs_address and not self.lookupd_http_addresses:
            raise ValueError("option topicPattern needs lookupdHttpAddresses: nsqlookupd knows which topics there are")
        if self.nsqd_tcp_addresses or self.nsqd_http_addresses:
            raise ValueError(
                "option topicPattern finds nsqds through lookupdHttpAddresses alone: leave out nsqdTcpAddresses and "
                "nsqdHttpAddresses"
            )
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise ValueError(
                f"option topicPattern {self.topic_pattern!r} is not a regular expression: {error}"
            ) from error

    @property
    def needs_address(self) -> bool:
        """False for a reader of another query's spool, since it receives nothing."""
        return not self.spool_reader

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the option topic, each once. Empty if the option topicPattern is used."""
        return tuple(dict.fromkeys(part.strip() for part in self.topic.split(",") if part.strip()))

    @property
    def source(self) -> str:
        """Topics and channel: ``TOPIC,TOPIC/CHANNEL``, with sorted topics, or ``/PATTERN//CHANNEL``."""
        topics = f"/{self.topic_pattern}/" if self.topic_pattern else ",".join(sorted(self.topics))
        return f"{topics}/{self.channel}"

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
        return self.receivers == "driver" and not self.spool_reader

    @property
    def trigger_delay(self) -> float:
        """max_trigger_delay, or its default."""
        return DEFAULT_TRIGGER_DELAY if self.max_trigger_delay is None else self.max_trigger_delay

    @property
    def partitions(self) -> int:
        """Number of tasks that read a batch: fewer if it has fewer segments, more if needed for max_partition_bytes."""
        return self.num_partitions or os.cpu_count() or 1

    @property
    def max_partition_bytes(self) -> int:
        """Bytes that a task may read, or one segment more, since some sinks hold all rows of a task in memory."""
        return min(self.max_bytes_per_batch, MAX_PARTITION_BYTES)


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ConnectOptions):
    """Options of df.write and df.writeStream."""

    topic: str = option("", "topic of rows without a value in the column topic; required if there is no such column")
    row_key: bool = option(
        False,
        "true appends a zero byte and QUERY/BATCH/PARTITION/ROW to each body, for consumers that deduplicate: both are "
        "the same if the task runs again; gnsq.spark.rowkey.split() removes them",
    )
    batch_rows: int = option(1000, "most rows in one MPUB", unit="rows", minimum=1)
    batch_bytes: int = option(
        MIB,
        "most bytes in one MPUB of several rows, with 4 bytes for each row; nsqd's max-body-size allows 5 MiB",
        unit="bytes",
        minimum=1,
        maximum=5 * MIB,
    )
    max_msg_size: int | None = option(
        None,
        "nsqd's max-msg-size: a longer body is an error before it is sent; default: nsqd decides",
        unit="bytes",
        minimum=1,
    )
    publish_timeout: float = option(
        60.0, "longest wait until nsqd has confirmed an MPUB", unit="s", minimum=0.001, maximum=86400
    )
    checkpoint_location: str = option("", "set by Spark")
    query_name: str = option("", "set by Spark, if queryName() is called")
    path: str = option("", "set by Spark; not used")

    def __post_init__(self) -> None:
        if self.topic:
            _check_name("topic", self.topic)
        super().__post_init__()


def ordered_fields(options: type[ConnectOptions]) -> list[dataclasses.Field[Any]]:
    """List the fields of an options class. The fields of ConnectOptions come last."""
    return sorted(dataclasses.fields(options), key=lambda field: field.name in ConnectOptions.__dataclass_fields__)


def spark_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of an option as users of Spark write it."""
    return _camel(field.name)


def shown(default: object) -> str:
    """Format a default as text for users; "" if there is none."""
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default in (None, "", ()) else str(default)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _check_name(option: str, name: str) -> None:
    try:
        (assert_valid_topic_name if option == "topic" else assert_valid_channel_name)(name)
    except ValueError as error:
        raise ValueError(f"option {option}: {error}") from error


def _parse(field: dataclasses.Field[Any], text: str) -> object:
    """Convert a string to the type of a field. field.type is a string, such as "int"."""
    name, kind = spark_name(field), str(field.type)
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if field.name in _WORDS:
        return text.strip().lower()
    if kind == "str":
        return text.strip() if field.repr else text
    if kind == "bool":
        if text.strip().lower() not in _TRUTH:
            raise ValueError(f"option {name} {text!r} is neither true nor false")
        return _TRUTH[text.strip().lower()]
    convert, noun = (int, "a whole number") if kind.startswith("int") else (float, "a number")
    try:
        value = convert(text)
    except ValueError:
        raise ValueError(f"option {name} {text!r} is not {noun}") from None
    check_bounds(f"option {name}", value, field)
    return value
