"""Configuration of the job. Each field is a setting, for the command line, the environment and the TOML file.

Checks the settings and reads fields_file; connects to nothing, writes nothing. loading.py reads the settings.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gnsq.addresses import parse_address
from gnsq.options import check_bounds, option
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.spark.options import ReadOptions, WriteOptions, spark_name
from gnsq.spark.pipeline.places import below, check_apart, check_object_store, is_uri, resolved
from gnsq.spark.pipeline.schema import EventSchema, parse_fields
from gnsq.spark.pipeline.topics import (
    DEFAULT_FIELDS,
    FLAT_TABLES,
    Layout,
    TopicEntry,
    TopicSettings,
    topic_pattern,
)
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
    "drain": "--once",
    "topicpattern": "setting topic",
    "rowkey": "nothing: versions tell the counts apart",
    "checkpointlocation": "setting checkpoint",
    "path": "setting output",
}
_TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """All settings of the job.

    Raises:
        ValueError: If a setting is missing or can't be used; the text names it.
    """

    topic: str = option("", "topic with the events, or several topics with commas; required, or [topics]")
    topics: Mapping[str, TopicSettings] | None = option(
        None, "topics, or regular expressions for whole names of topics, each with settings of its own"
    )
    output: str = option(
        "", "directory for archive/, metrics/ and dead/, a path or the URI of an object store; required"
    )
    work: str = option(
        "",
        "directory for notes, spools and checkpoints, a path or the URI of an object store; always the same for one "
        "job; required",
    )
    spool: str = option("", "base of the spools, a path or any URI of pyarrow.fs; default: in work")
    checkpoint: str = option(
        "", "base of the checkpoints, a path or any URI that Spark knows; default: in work, unless that is a URI"
    )
    nsqd_tcp_addresses: tuple[str, ...] = option((), "host:port of an nsqd to read from")
    nsqd_http_addresses: tuple[str, ...] = option((), "its HTTP address, for the backlog and for --once", secret=True)
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "URL or host:port of an nsqlookupd; finds the above", secret=True
    )
    publish_addresses: tuple[str, ...] = option((), "host:port of an nsqd to publish to; default: those read from")
    nsq: Mapping[str, str] = option(None, "further options of the source and the sink, such as tls", secret=True)
    receivers: str = option("driver", "where messages are received: driver or external")
    archive_channel: str = option("archive", "channel of the query archive")
    metrics_channel: str = option("metrics", "channel of the query metrics; that of a further metric has -NAME added")
    metrics_topic: str = option("", "topic for the counts of the query metrics; default: TOPIC-metrics")
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
    metrics: tuple[Metric, ...] | None = option(
        None,
        "what is counted: name, topic, window and slide in seconds, keys and aggregates with commas; default: with one "
        "topic, the events of each minute and page",
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
    metrics_address: str = option(
        "", "host:port at which the job answers GET /metrics, for Prometheus; default: nowhere"
    )
    log_file: str = option(
        "", "local file for Spark's messages; default: WORK/spark.log; if work is a URI, in the temporary directory"
    )
    spark: Mapping[str, str] = option(None, "Spark's own settings")
    # No setting: what was decided at the first start of the job; None: it has not started yet.
    layout: Layout | None = None

    def __post_init__(self) -> None:
        for name in ("nsq", "spark", "topics"):
            object.__setattr__(self, name, dict(getattr(self, name) or {}))
        if not self.topics and not self._names:
            raise ValueError("setting topic is required, or [topics]")
        if self.topics and self._names:
            raise ValueError("settings topic and [topics] are both given: name all topics in one of them")
        if not self.work.strip():
            raise ValueError("setting work is required")
        if not self.output.strip():
            raise ValueError("setting output is required")
        if self.raw and not self.topics:
            self._check_raw()
        self._check_locations()
        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise ValueError("no address: give nsqd_tcp_addresses or lookupd_http_addresses")
        self._check_addresses()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)):
                check_bounds(f"setting {field.name}", value, field)
        self._take_fields()
        self._check_topics()
        self._check_metrics()
        self._check_names()
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

    def _take_fields(self) -> None:
        """Set fields and required_fields as fields_file or the defaults say, also those of [topics]. Then clear
        fields_file, so that replace() reads no file."""
        topics = {}
        for name, given in (self.topics or {}).items():
            try:
                time_field = self.time_field if given.time_field is None else given.time_field
                path = given.fields_file or ""
                fields, required = _fields_of(given.fields, path, given.required_fields, time_field)
            except ValueError as error:
                raise ValueError(f"setting topics.{name}: {str(error).removeprefix('setting ')}") from error
            if path and not (self.raw if given.raw is None else given.raw):
                given = dataclasses.replace(given, fields=fields, required_fields=required, fields_file=None)
            topics[name] = given
        object.__setattr__(self, "topics", topics)
        if self.raw and not self.topics:
            object.__setattr__(self, "fields", {})
            return
        fields, required = _fields_of(self.fields, self.fields_file, self.required_fields, self.time_field)
        for name, value in (("fields", fields or DEFAULT_FIELDS), ("required_fields", required), ("fields_file", "")):
            object.__setattr__(self, name, value)

    def _check_topics(self) -> None:
        for entry in self.entries:
            if entry.is_expression and (self.nsqd_tcp_addresses or self.nsqd_http_addresses):
                raise ValueError(
                    f"setting topics: {entry.name!r} is an expression, and nsqlookupd knows which topics fit it: give "
                    "lookupd_http_addresses alone, without nsqd_tcp_addresses and nsqd_http_addresses"
                )
        flat, names = self.placed.flat, [entry.name for entry in self.entries if not entry.is_expression]
        for name in names:
            if name != flat and (name in (".", "..") or name.endswith("#ephemeral")):
                raise ValueError(
                    f"setting topics: {name!r} can't be a directory in output, which it needs beside other topics: run "
                    "a job for it alone"
                )
            if flat and name != flat and name in FLAT_TABLES:
                raise ValueError(
                    f"setting topics: the directory of {name!r} would be in the place of a table of {flat}, whose "
                    f"tables are in output itself: run a job for {name} alone"
                )

    def _check_metrics(self) -> None:
        ids = [metric.id for metric in self.all_metrics]
        for twice in sorted({each for each in ids if ids.count(each) > 1}):
            raise ValueError(f"setting metrics: {twice} is there twice: give each a name of its own")
        for metric in self.all_metrics:
            try:
                entry = self.entry_of(metric.topic)
                if entry is None or entry.raw:
                    reason = "is none of the job's topics" if entry is None else "is raw, so its bodies are not parsed"
                    raise ValueError(f"topic {metric.topic!r} of {metric.name} {reason}")
                metric.check(entry.schema.fields)
            except ValueError as error:
                # A text of EventSchema has the setting already.
                raise ValueError(f"setting metrics: {str(error).removeprefix('setting metrics: ')}") from error
            kept = self.windows_kept(metric)
            if not 0 <= kept <= YEAR:
                raise ValueError(f"setting metrics: keep_windows {kept} must be within 0 to {YEAR} s")
            if self.deduplicate > kept:
                raise ValueError(
                    f"setting deduplicate {self.deduplicate} s is more than keep_windows {kept} s, for which a query "
                    "of metrics keeps message ids: raise keep_windows, or lower deduplicate"
                )
        if self.metrics_topic and self.all_metrics and "metrics" not in self.metric_queries:
            raise ValueError("setting metrics_topic is for one metric: give output_topic in each [[metrics]]")

    def _check_locations(self) -> None:
        if self.is_work_remote:
            check_object_store("work", self.work)
            if not self.checkpoint:
                raise ValueError(
                    f"setting work {redact_uri(self.work)!r} is a URI, and Spark may write it in another way: give "
                    "checkpoint, too, as this Spark knows it (s3a: with Hadoop's S3A, s3: on EMR and Databricks)"
                )
        if is_uri(self.output):
            check_object_store("output", self.output)

    def _check_addresses(self) -> None:
        for field in dataclasses.fields(self):
            if field.name.endswith("_addresses") and any(set(", ;") & set(each) for each in getattr(self, field.name)):
                # Do not show the addresses: they may contain a password.
                raise ValueError(
                    f"setting {field.name} has several addresses in one: give a list in TOML, repeat the option, or "
                    "put blanks between them in the environment"
                )
        if self.metrics_address:
            _checked("metrics_address", _check_has_port, self.metrics_address)

    def _check_places(self) -> None:
        """Check that no table, spool or checkpoint is at or in the place of another one, which would use its files."""
        places: dict[str, str] = {}
        if flat := self.placed.flat:
            names = [*FLAT_TABLES, *(name for name in self.named_topics if name != flat)]
            places |= {f"output/{name}": join_uri(self.output, name) for name in names}
        else:
            places["output"] = self.output
        for query in self.queries:
            places |= {f"spool of {query}": self.spool_of(query), f"checkpoint of {query}": self.checkpoint_of(query)}
        output = resolved(self.output)
        for name, location in places.items():
            place = resolved(location)
            if self.placed.flat and not name.startswith("output/") and output in place.parents:
                topic = place.relative_to(output).parts[0]
                entry = self.entry_of(topic)
                if entry is not None and entry.is_expression:
                    raise ValueError(
                        f"directories overlap: {name} ({redact_uri(places[name])}) is where the tables of a topic "
                        f"{topic!r} would be, which fits {entry.name!r}: let the expression not fit it"
                    )
        check_apart(places)

    def _check_names(self) -> None:
        _checked("archive_channel", assert_valid_channel_name, self.archive_channel)
        taken: set[str] = set()
        outputs: dict[str, str] = {}
        for query, metric in self.metric_queries.items():
            channel, to = self.channel(query), self.metrics_to(query)
            channel_setting = "metrics: channel" if metric.channel else "metrics_channel"
            topic_setting = "metrics: output_topic" if metric.output_topic else "metrics_topic"
            _checked(channel_setting, assert_valid_channel_name, channel)
            _checked(topic_setting, assert_valid_topic_name, to)
            if channel == self.archive_channel:
                raise ValueError(f"archive_channel and {channel_setting} are both {channel!r}: each would get half")
            for what, key in (("channel", f"{metric.topic}/{channel}"), ("output_topic", to)):
                if key in taken:
                    raise ValueError(f"setting metrics: two metrics have the {what} {key}: give each its own")
                taken.add(key)
            outputs[to] = topic_setting
        for entry in self.entries:
            for to in filter(
                None, [entry.dead_letter_topic, "" if entry.is_expression else entry.dead_letters_to(entry.name)]
            ):
                _checked("dead_letter_topic", assert_valid_topic_name, to)
                if outputs.get(to, "dead_letter_topic") != "dead_letter_topic":
                    raise ValueError(f"{outputs[to]} and dead_letter_topic are both {to!r}: give each its own")
                outputs[to] = "dead_letter_topic"
        for name in self.named_topics:
            if name in outputs or (self.topic_pattern and re.fullmatch(self.topic_pattern, name) is None):
                raise ValueError(
                    f"metrics_topic or dead_letter_topic is {name!r}, the topic that is read: a job can't read what it "
                    "publishes"
                )

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
            source, sink = self.read_options("archive"), WriteOptions.parse(self.sink_options(""))
        except ValueError as error:
            raise ValueError(f"setting nsq: {error}") from error
        _check_form(source, "nsqd_tcp_addresses")
        _check_form(sink, "publish_addresses" if self.publish_addresses else "nsqd_tcp_addresses")

    # --- topics and queries

    @property
    def _names(self) -> tuple[str, ...]:
        """The topics of the setting topic, each once."""
        return tuple(dict.fromkeys(part.strip() for part in self.topic.split(",") if part.strip()))

    @functools.cached_property
    def entries(self) -> tuple[TopicEntry, ...]:
        """Topics and expressions, in the order of the settings. A topic belongs to the first that fits."""
        if not self.topics:
            return tuple(self._entry("topic", name, TopicSettings()) for name in self._names)
        return tuple(self._entry(f"topics.{name}", name, settings) for name, settings in self.topics.items())

    @functools.cached_property
    def rules(self) -> tuple[TopicEntry, ...]:
        """The entries, with those of topics that have metrics before the expression that the topic fits."""
        rules: list[TopicEntry] = []
        special: dict[str, tuple[str, ...]] = {}
        for metric in self.all_metrics:
            special[metric.topic] = tuple(dict.fromkeys([*special.get(metric.topic, ()), *metric.keys]))
        for entry in self.entries:
            fitting = [topic for topic in special if entry.fits(topic)]
            # A metric of a raw topic is refused later, in words.
            rules += [entry.of_topic(topic, () if entry.raw else special.pop(topic)) for topic in fitting]
            if entry.name not in fitting:
                rules.append(entry)
        return tuple(rules)

    def entry_of(self, topic: str) -> TopicEntry | None:
        """Return the entry that a topic belongs to; None if it fits none."""
        return next((entry for entry in self.rules if entry.fits(topic)), None)

    def schema_of(self, topic: str) -> EventSchema:
        """Return the fields of the events of a topic, which fits an entry."""
        entry = self.entry_of(topic)
        assert entry is not None  # the caller knows it
        return entry.schema

    @functools.cached_property
    def all_metrics(self) -> tuple[Metric, ...]:
        """The metrics, each with its topic."""
        only = self.entries[0].name if len(self.entries) == 1 and not self.entries[0].is_expression else ""
        if self.metrics is None:
            return (Metric(topic=only),) if only and not self.entries[0].raw else ()
        missing = [metric.name for metric in self.metrics if not metric.topic and not only]
        if missing:
            raise ValueError(f"setting metrics: {', '.join(missing)} needs its topic, since the job has several")
        return tuple(dataclasses.replace(metric, topic=metric.topic or only) for metric in self.metrics)

    @functools.cached_property
    def placed(self) -> Layout:
        """The layout: as it was decided, or as it will be at the first start."""
        return self.layout or Layout.first([entry.name for entry in self.entries], self.all_metrics)

    @functools.cached_property
    def metric_queries(self) -> dict[str, Metric]:
        """The queries that count, and what each counts."""
        return {self.placed.query(metric): metric for metric in self.all_metrics}

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the queries: archive, and one for each metric."""
        return ("archive", *self.metric_queries)

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics whose names are known without nsqlookupd."""
        names = [entry.name for entry in self.entries if not entry.is_expression]
        return tuple(dict.fromkeys([*names, *(metric.topic for metric in self.all_metrics)]))

    @functools.cached_property
    def topic_pattern(self) -> str:
        """The expression for all topics that are read, without the job's output topics; "" if all are named."""
        if not any(entry.is_expression for entry in self.entries):
            return ""
        return topic_pattern(self.entries, {*self.outputs, *self.former_outputs}, self.placed.flat)

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The topics that the job publishes to, without TOPIC-dead of topics that fit an expression."""
        dead = [
            entry.dead_letter_topic if entry.is_expression else entry.dead_letters_to(entry.name)
            for entry in self.entries
        ]
        return tuple(dict.fromkeys([*filter(None, dead), *map(self.metrics_to, self.metric_queries)]))

    @property
    def former_outputs(self) -> tuple[str, ...]:
        """The topics that the job has published to with other settings. They are read only if they are named."""
        return tuple(name for name in self.placed.outputs if name not in {*self.outputs, *self.named_topics})

    def letters_to(self, topic: str) -> str:
        """Return the topic for dead letters of a topic; "" with raw, or if the job does not read the topic."""
        # External receivers may have an expression of their own, which fits more. If they read what the job publishes,
        # each dead letter would make another one.
        entry = self.entry_of(topic)
        is_read = not self.topic_pattern or re.fullmatch(self.topic_pattern, topic) is not None
        letters = entry.dead_letters_to(topic) if entry is not None and is_read else ""
        return "" if letters == topic else letters

    def _entry(self, setting: str, name: str, given: TopicSettings) -> TopicEntry:
        inherited = TopicSettings(
            raw=self.raw,
            fields=self.fields,
            time_field=self.time_field,
            required_fields=self.required_fields,
            partition_by=self.partition_by,
            max_ahead=self.max_ahead,
            dead_letter_topic=self.dead_letter_topic,
        )
        try:
            if not self.topics:
                assert_valid_topic_name(name)
            return TopicEntry.make(name, given, inherited)
        except ValueError as error:
            text = str(error)
            is_own = text.startswith("setting ") and not self.topics
            raise ValueError(text if is_own else f"setting {setting}: {text.removeprefix('setting ')}") from error

    def windows_kept(self, metric: Metric) -> float:
        """Return the seconds for which the windows of a metric are kept after their end."""
        kept = self.keep_windows if metric.keep_windows is None else metric.keep_windows
        if kept is not None:
            return kept
        return max(HOUR, self.deduplicate) if self.deduplicate else DAY

    @property
    def is_remote(self) -> bool:
        """True if output is on an object store."""
        return is_uri(self.output)

    def metrics_to(self, query: str) -> str:
        """Return the topic that a query of metrics publishes to."""
        metric = self.metric_queries[query]
        if query == "metrics":
            return metric.output_topic or self.metrics_topic or f"{metric.topic}-metrics"
        return metric.output_topic or f"{metric.topic}-metrics-{metric.name}"

    @property
    def is_work_remote(self) -> bool:
        """True if work is on an object store."""
        return is_uri(self.work)

    @property
    def log(self) -> Path:
        """The local file that Spark's messages are written to."""
        if self.log_file or not self.is_work_remote:
            return Path(self.log_file or f"{self.work}/spark.log")
        name = hashlib.sha256(self.work.encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir(), f"gnsq-{os.getuid()}", f"{name}.log")

    def channel(self, query: str) -> str:
        """Return the channel that a query reads."""
        if query == "archive":
            return self.archive_channel
        metric = self.metric_queries[query]
        return metric.channel or self.metrics_channel + ("" if query == "metrics" else f"-{metric.name}")

    def source_options(self, query: str) -> dict[str, str]:
        """Build the options of the source for one query."""
        if query != "archive":
            topics = {"topic": self.metric_queries[query].topic}
        elif self.topic_pattern:
            topics = {"topicPattern": self.topic_pattern}
        else:
            topics = {"topic": ",".join(entry.name for entry in self.entries)}
        return {
            **self._options(ReadOptions),
            **topics,
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
        return below(self.spool, query) if self.spool else below(self.work, f"{query}/spool")

    def checkpoint_of(self, query: str) -> str:
        """Return the location of a query's checkpoint."""
        if self.checkpoint:
            return below(self.checkpoint, query)
        return below(self.work, f"{query}/checkpoint")

    def notes_of(self, query: str) -> str:
        """Return the location of the job's notes about a query."""
        return below(self.work, query)

    def _options(self, kind: type[ReadOptions] | type[WriteOptions]) -> dict[str, str]:
        known = option_names(kind)
        return {known[_plain(name)]: value for name, value in self.nsq.items() if _plain(name) in known}


def _fields_of(
    fields: Mapping[str, str] | None, path: str, required: tuple[str, ...] | None, time_field: str
) -> tuple[Mapping[str, str], tuple[str, ...] | None]:
    """Return the fields and the required fields that settings or a file say."""
    if not path:
        return fields or {}, required
    if fields:
        raise ValueError("settings fields and fields_file are both given: leave one out")
    try:
        found, found_required = parse_fields(Path(path).read_text(encoding="utf-8-sig"), time_field)
        EventSchema(found, time_field, ())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"setting fields_file {path}: {str(error).removeprefix('setting fields: ')}") from error
    if required is None:
        return found, found_required or ()
    if found_required is None:
        return found, required
    raise ValueError(f"setting required_fields: fields_file {path} says it, too: leave one out")


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


def _check_has_port(address: str) -> None:
    if not parse_address(address, 0)[1]:
        raise ValueError(f"address {address!r} has no port: give host:port, such as 127.0.0.1:9100")


def _checked(setting: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"setting {setting}: {error}") from error
