"""Configuration of the job. Each field is a setting, for the command line, the environment and the TOML file.

Checks the settings and reads fields_file; connects to nothing, writes nothing. loading.py reads the settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from gnsq.options import check_bounds, option
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.spark.options import ReadOptions, WriteOptions, spark_name
from gnsq.spark.pipeline.schema import DIVIDING, EventSchema, parse_fields, plain_type
from gnsq.spark.pipeline.windows import Metric
from gnsq.spark.uris import join_uri, redact_uri
from gnsq.texts import nearest

__all__ = ["GONE", "PipelineConfig"]

# Seconds.
YEAR = 31_536_000
DAY, HOUR = 86_400.0, 3_600.0
# Settings of earlier releases, and what to give instead.
GONE = {
    "window_length": "give window in [[metrics]], or --metrics window=SECONDS",
    "key_field": "give keys in [[metrics]], or --metrics keys=FIELD",
    "watermark_delay": "give keep_windows: what is late raises its count as long as the window is kept",
    "max_open_counts": "leave it out: counts are kept on disk",
    "compact_files": "give maintain_every: maintenance merges the files of tables",
}
# Settings that can't be given with raw: a job with raw parses, counts and publishes nothing.
_NOT_RAW = (
    *("fields", "fields_file", "required_fields", "time_field", "max_ahead", "metrics", "keep_windows"),
    *("metrics_channel", "metrics_topic", "dead_letter_topic", "publish_addresses"),
)
# Options of the source and the sink that the setting nsq can't have, and what to give instead.
_OWN_OPTIONS = {
    "topic": "setting topic",
    "channel": "settings archive_channel and metrics_channel",
    "nsqdtcpaddresses": "setting nsqd_tcp_addresses",
    "lookupdhttpaddresses": "setting lookupd_http_addresses",
    "nsqdhttpaddresses": "setting nsqd_http_addresses",
    "spool": "setting spool",
    "spoolowner": "setting checkpoint",
    "receivers": "setting receivers",
    "maxrowsperbatch": "setting max_rows_per_batch",
    "maxrows": "setting max_rows_per_batch",
    "topicpattern": "setting topic",
    "rowkey": "nothing: versions tell the counts apart",
    "checkpointlocation": "setting checkpoint",
    "path": "setting output",
}
_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")
_TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """All settings of the job.

    Raises:
        ValueError: If a setting is missing or can't be used; the text names it.
    """

    topic: str = option("", "topic with the events; required")
    output: str = option(
        "", "directory for archive/, metrics/ and dead/, a path or the URI of an object store; required"
    )
    work: str = option(
        "", "directory for spools and checkpoints, local or mounted; always the same for one job; required"
    )
    spool: str = option("", "base of the spools, a path or any URI of pyarrow.fs; default: in work")
    checkpoint: str = option("", "base of the checkpoints, a path or any URI that Spark knows; default: in work")
    nsqd_tcp_addresses: tuple[str, ...] = option((), "host:port of an nsqd to read from")
    nsqd_http_addresses: tuple[str, ...] = option((), "its HTTP address, for the backlog and for --once", secret=True)
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "URL or host:port of an nsqlookupd; finds the above", secret=True
    )
    publish_addresses: tuple[str, ...] = option((), "host:port of an nsqd to publish to; default: those read from")
    nsq: Mapping[str, str] = option(None, "further options of the source and the sink, such as tls", secret=True)
    receivers: str = option("driver", "where messages are received: driver or external")
    archive_channel: str = option("archive", "channel of the query archive")
    metrics_channel: str = option("metrics", "channel of the query metrics")
    metrics_topic: str = option("", "topic for the counts; default: TOPIC-metrics")
    dead_letter_topic: str = option("", "topic for malformed bodies; default: TOPIC-dead")
    raw: bool = option(False, "archive the bodies as they came, as bytes; no dead letters and no metrics")
    fields: Mapping[str, str] = option(None, "columns of the archive and their Spark SQL types; default: user, page")
    time_field: str = option("time", "field with the event's time, ISO 8601")
    fields_file: str = option(
        "", "file with the columns, in place of fields: Spark DDL (NOT NULL: a required field) or JSON Schema"
    )
    required_fields: tuple[str, ...] | None = option(
        None, "fields that every event must have; default: all, with fields_file those that it requires"
    )
    partition_by: str = option("day", "how the archive is divided: day or hour of the events' time, a field, or none")
    metrics: tuple[Metric, ...] = option(
        (Metric(),), "what is counted: name, window and slide in seconds, keys and aggregates with commas"
    )
    keep_windows: float | None = option(
        None,
        "windows are kept so long after their end, and events that are later are left out; default: 86400, with "
        "deduplicate 3600",
        unit="s",
        minimum=0,
        maximum=YEAR,
    )
    max_ahead: float = option(
        600.0, "events whose time is further ahead of their publishing are malformed", unit="s", minimum=0
    )
    state_partitions: int | None = option(
        None,
        "parts of the state of a query; default: the cores of a local master, else spark.sql.shuffle.partitions",
        unit="partitions",
        minimum=1,
    )
    deduplicate: float = option(
        0.0,
        "leave out what nsqd delivers again within this time; 0: nothing",
        unit="s",
        minimum=0.001,
        maximum=YEAR,
        special=(0,),
    )
    maintain_every: int = option(
        100,
        "merge small files of the tables and delete old ones after so many batches; 0: never",
        unit="batches",
        minimum=1,
        special=(0,),
    )
    max_rows_per_batch: int = option(50_000, "largest batch", unit="rows", minimum=1)
    trigger_interval: float = option(0.0, "between batches; 0: as they come", unit="s", minimum=0, maximum=YEAR)
    master: str = option("", "Spark master; default: spark-submit's, else local[*]")
    log_file: str = option("", "where Spark's messages go; default: WORK/spark.log")
    spark: Mapping[str, str] = option(None, "Spark's own settings")

    def __post_init__(self) -> None:
        for name in ("nsq", "spark"):
            object.__setattr__(self, name, dict(getattr(self, name) or {}))
        for name in ("topic", "output", "work"):
            if not getattr(self, name).strip():
                raise ValueError(f"setting {name} is required")
        if self.raw:
            self._check_raw()
        self._check_locations()
        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise ValueError("no address: give nsqd_tcp_addresses or lookupd_http_addresses")
        self._check_addresses()
        self._check_names()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)):
                check_bounds(f"setting {field.name}", value, field)
        if self.raw:
            object.__setattr__(self, "fields", {})
        else:
            self._check_events()
        self._check_partition()
        if self.spark.get(_TIME_ZONE, "UTC") != "UTC":
            raise ValueError(f"setting spark: {_TIME_ZONE} {self.spark[_TIME_ZONE]!r}: hours and windows are UTC's")
        self._check_options()
        self._check_places()

    def _check_raw(self) -> None:
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        # In a copy of a configuration with raw, made by replace(), the value of fields is {}.
        given = [name for name in _NOT_RAW if values[name][0] not in (values[name][1], {})]
        if given:
            raise ValueError(f"setting raw: bodies are not parsed, so leave out {', '.join(given)}")

    def _check_events(self) -> None:
        if len(self.metrics) != 1:
            raise ValueError(f"setting metrics has {len(self.metrics)} definitions: one is possible")
        if self.fields_file:
            self._read_fields()
        # self.schema checks the fields. If none are given, it has the default fields.
        object.__setattr__(self, "fields", dict(self.schema.fields))
        try:
            self.metric.check(self.fields)
        except ValueError as error:
            raise ValueError(f"setting metrics: {error}") from error
        if self.deduplicate > self.windows_kept:
            raise ValueError(
                f"setting deduplicate {self.deduplicate} s is more than keep_windows {self.windows_kept} s, for which "
                "the query metrics keeps message ids: raise keep_windows, or lower deduplicate"
            )

    def _read_fields(self) -> None:
        """Set fields and required_fields from fields_file. Then clear fields_file, so that replace() reads no file."""
        path = self.fields_file
        if self.fields:
            raise ValueError("settings fields and fields_file are both given: leave one out")
        try:
            fields, required = parse_fields(Path(path).read_text(encoding="utf-8-sig"), self.time_field)
            EventSchema(fields, self.time_field, ())
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"setting fields_file {path}: {str(error).removeprefix('setting fields: ')}") from error
        if self.required_fields is None:
            required = required or ()
        elif required is None:
            required = self.required_fields
        else:
            raise ValueError(f"setting required_fields: fields_file {path} says it, too: leave one out")
        for name, value in (("fields", fields), ("required_fields", required), ("fields_file", "")):
            object.__setattr__(self, name, value)

    def _check_locations(self) -> None:
        if _is_uri(self.work):
            raise ValueError(
                f"setting work {redact_uri(self.work)!r} is a URI: give a local or mounted directory (output, spool "
                "and checkpoint may be URIs)"
            )
        if _is_uri(self.output) and urlsplit(self.output).scheme not in _OBJECT_STORES:
            raise ValueError(
                f"setting output {redact_uri(self.output)!r} is not an object store ({', '.join(_OBJECT_STORES)}): "
                "give one, or a local or mounted directory as a path"
            )

    def _check_partition(self) -> None:
        by = self.partition_by
        if by in ("day", "hour", "none"):
            if by in {name.lower() for name in self.fields}:
                raise ValueError(
                    f"setting partition_by {by!r} makes a column of that name, and so does the setting fields: give "
                    "another one, or rename the field"
                )
        elif by not in self.fields:
            other = f", nor one of fields: {', '.join(self.fields)}" if self.fields else ", and raw has no fields"
            raise ValueError(f"setting partition_by {by!r} is neither day, hour nor none{other}")
        elif plain_type(self.fields[by]) not in DIVIDING:
            raise ValueError(
                f"setting partition_by {by!r} has the type {self.fields[by]}: a field to partition by is one of "
                f"{', '.join(sorted(DIVIDING))}"
            )

    def _check_addresses(self) -> None:
        for field in dataclasses.fields(self):
            if field.name.endswith("_addresses") and any(set(", ;") & set(each) for each in getattr(self, field.name)):
                # Do not show the addresses: they may contain a password.
                raise ValueError(
                    f"setting {field.name} has several addresses in one: give a list in TOML, repeat the option, or "
                    "put blanks between them in the environment"
                )

    def _check_places(self) -> None:
        """Check that no table, spool or checkpoint is at or in the place of another one, which would use its files."""
        places = {f"output/{name}": join_uri(self.output, name) for name in ("archive", "metrics", "dead")}
        for query in self.queries:
            places |= {f"spool of {query}": self.spool_of(query), f"checkpoint of {query}": self.checkpoint_of(query)}
        found = {name: _resolved(place) for name, place in places.items()}
        for name, place in found.items():
            for other, outer in found.items():
                if name != other and place.is_relative_to(outer):
                    raise ValueError(
                        f"directories overlap: {name} ({redact_uri(places[name])}) is in {other} "
                        f"({redact_uri(places[other])}): give output, work, spool and checkpoint places of their own"
                    )

    def _check_names(self) -> None:
        if "," in self.topic:
            raise ValueError(f"setting topic {self.topic!r} is several topics: run one job for each")
        for name in ("topic",) if self.raw else ("topic", "metrics_to", "dead_letters_to"):
            _checked(name, assert_valid_topic_name, getattr(self, name))
        for query in self.queries:
            _checked(f"{query}_channel", assert_valid_channel_name, self.channel(query))
        if self.raw:
            return
        if self.archive_channel == self.metrics_channel:
            raise ValueError(
                f"archive_channel and metrics_channel are both {self.archive_channel!r}: each would get half"
            )
        if self.topic in (self.metrics_to, self.dead_letters_to):
            raise ValueError(f"metrics_topic or dead_letter_topic is {self.topic!r}, the topic that is read")
        if self.metrics_to == self.dead_letters_to:
            raise ValueError(f"metrics_topic and dead_letter_topic are both {self.metrics_to!r}: give each its own")

    def _check_options(self) -> None:
        known = option_names(ReadOptions) | option_names(WriteOptions)
        for name in self.nsq:
            plain = _plain(name)
            if plain in _OWN_OPTIONS:
                raise ValueError(f"setting nsq: {name} is the job's own: use {_OWN_OPTIONS[plain]}")
            if plain not in known:
                usable = [known[each] for each in sorted(known) if each not in _OWN_OPTIONS]
                raise ValueError(f"setting nsq: option {name} is unknown{nearest([name], usable)}")
        try:
            source, sink = self.read_options("archive"), WriteOptions.parse(self.sink_options(self.topic))
        except ValueError as error:
            raise ValueError(f"setting nsq: {error}") from error
        _check_form(source, "nsqd_tcp_addresses")
        _check_form(sink, "publish_addresses" if self.publish_addresses else "nsqd_tcp_addresses")

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the queries."""
        return ("archive",) if self.raw else ("archive", "metrics")

    @property
    def schema(self) -> EventSchema:
        """The fields of an event, and which of them are required."""
        return EventSchema(
            self.fields or {"user": "string", "page": "string"},
            self.time_field,
            self.metric.keys,
            self.required_fields,
        )

    @property
    def metric(self) -> Metric:
        """What the query metrics counts."""
        return self.metrics[0]

    @property
    def windows_kept(self) -> float:
        """Seconds for which windows are kept after their end."""
        if self.keep_windows is not None:
            return self.keep_windows
        return max(HOUR, self.deduplicate) if self.deduplicate else DAY

    @property
    def is_remote(self) -> bool:
        """Whether output is on an object store."""
        return _is_uri(self.output)

    @property
    def metrics_to(self) -> str:
        """The topic of the counts."""
        return self.metrics_topic or f"{self.topic}-metrics"

    @property
    def dead_letters_to(self) -> str:
        """The topic of malformed bodies."""
        return self.dead_letter_topic or f"{self.topic}-dead"

    @property
    def log(self) -> Path:
        """The file that Spark's messages are written to."""
        return Path(self.log_file or f"{self.work}/spark.log")

    def channel(self, query: str) -> str:
        """Return the channel that a query reads."""
        return self.archive_channel if query == "archive" else self.metrics_channel

    def source_options(self, query: str) -> dict[str, str]:
        """Build the options of the source for one query."""
        return {
            **self._options(ReadOptions),
            "topic": self.topic,
            "channel": self.channel(query),
            "nsqdTcpAddresses": ",".join(self.nsqd_tcp_addresses),
            "lookupdHttpAddresses": ",".join(self.lookupd_http_addresses),
            "nsqdHttpAddresses": ",".join(self.nsqd_http_addresses),
            "spool": self.spool_of(query),
            "spoolOwner": self.checkpoint_of(query),
            "receivers": self.receivers,
            "maxRowsPerBatch": str(self.max_rows_per_batch),
        }

    def read_options(self, query: str) -> ReadOptions:
        """Build the options of the source for one query as checked ReadOptions."""
        return ReadOptions.parse(self.source_options(query))

    def sink_options(self, topic: str) -> dict[str, str]:
        """Build the options of the sink for one topic."""
        options = self._options(WriteOptions)
        addresses = self.publish_addresses or self.nsqd_tcp_addresses
        if addresses:
            options["nsqdTcpAddresses"] = ",".join(addresses)
        else:
            options["lookupdHttpAddresses"] = ",".join(self.lookupd_http_addresses)
        https = not addresses and any(url.lower().startswith("https://") for url in self.lookupd_http_addresses)
        if options.get("tls", "").lower() != "true" and not https:
            # Leave out the TLS options: here they are only for HTTPS, which the source uses and the sink does not.
            options = {name: value for name, value in options.items() if not name.startswith("tls")}
        return {**options, "topic": topic}

    def spool_of(self, query: str) -> str:
        """Return the location of a query's spool."""
        return _below(self.spool, query) if self.spool else str(Path(self.work, query, "spool").absolute())

    def checkpoint_of(self, query: str) -> str:
        """Return the location of a query's checkpoint."""
        if self.checkpoint:
            return _below(self.checkpoint, query)
        return str(Path(self.work, query, "checkpoint").absolute())

    def _options(self, kind: type[ReadOptions] | type[WriteOptions]) -> dict[str, str]:
        known = option_names(kind)
        return {known[_plain(name)]: value for name, value in self.nsq.items() if _plain(name) in known}


def _below(base: str, query: str) -> str:
    return join_uri(base, query) if _is_uri(base) else str(Path(base, query).absolute())


def _is_uri(place: str) -> bool:
    return ":/" in place


def _resolved(place: str) -> PurePath:
    # Drop the query of a URI: it has options of the connection, and is not part of the place.
    return PurePath(place.partition("?")[0]) if _is_uri(place) else Path(place).resolve()


def _check_form(options: ReadOptions | WriteOptions, tcp: str) -> None:
    """Check the form of the addresses; tcp is the name of the setting that nsqdTcpAddresses is made from."""
    from gnsq.spark.clients import check_addresses  # slow to load, and --help does not need it

    try:
        check_addresses(options)
    except ValueError as error:
        text = str(error).replace("option nsqdTcpAddresses", f"setting {tcp}")
        for name in ("lookupdHttpAddresses", "nsqdHttpAddresses"):
            text = text.replace(f"option {name}", _OWN_OPTIONS[_plain(name)])
        raise ValueError(text) from error


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def option_names(kind: type[ReadOptions] | type[WriteOptions]) -> dict[str, str]:
    """Map the names of options, in lower case and without underscores, to the names that Spark's users write."""
    return {_plain(field.name): spark_name(field) for field in dataclasses.fields(kind)}


def _checked(name: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except ValueError as error:
        setting = {"metrics_to": "metrics_topic", "dead_letters_to": "dead_letter_topic"}.get(name, name)
        raise ValueError(f"setting {setting}: {error}") from error
