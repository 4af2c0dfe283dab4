"""Settings of a job, and its queries. Each option() is a setting of the TOML file; those of JobSettings are also flags
and environment variables.

Checks all that needs neither Spark nor a connection; connects to nothing, and writes nothing. tables.py has the
settings of one table and of one metric.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TypeVar

from gnsq.addresses import parse_address
from gnsq.options import option
from gnsq.protocol.names import assert_valid_channel_name
from gnsq.spark.options import ReadOptions, spark_name
from gnsq.spark.pipeline.tables import (
    YEAR,
    MetricSettings,
    SettingError,
    Settings,
    TableSettings,
    check_function,
    is_mapping,
    options_of,
)
from gnsq.spark.scratch import user_directory
from gnsq.spark.uris import is_object_store, join_uri, redact_uri
from gnsq.texts import nearest

__all__ = ["LEGACY", "SESSION", "JobSettings", "Query", "is_uri", "load_settings"]

# Options of the source that the setting nsq can't have, and what to give instead.
_OWN_OPTIONS = {
    "topic": "topics of a table",
    "topicpattern": "topic_pattern of a table",
    "channel": "channel_prefix, and the names of tables",
    "otherchannels": "the names of tables",
    "nsqdtcpaddresses": "nsqd_tcp_addresses",
    "lookupdhttpaddresses": "lookupd_http_addresses",
    "nsqdhttpaddresses": "nsqd_http_addresses",
    "spool": "spool",
    "spoolowner": "checkpoint",
    "receivers": "receivers",
    "maxrowsperbatch": "max_rows_per_batch",
    "maxrows": "max_rows_per_batch",
    "drain": "--once",
}
# Settings of Spark's session that decide which events are right, and what SQL means. The job sets them for its own
# session, whatever the defaults of this Spark are.
SESSION = {
    # Most expressions that can't be computed are null.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.executorEnv.TZ": "UTC",  # of Python's functions
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # A row with a value that does not fit is null as a whole, so it is parsed once more.
    "spark.sql.json.enablePartialResults": "false",
    # Of a key that is there twice, the last one counts, as in from_json and in Python.
    "spark.sql.variant.allowDuplicateKeys": "true",
    # Spark's own defaults: how JSON is read and written,
    "spark.sql.columnNameOfCorruptRecord": "_corrupt_record",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.variant.validateUnicodeInJsonParsing": "true",
    # how a column is named and a constant is written in SQL,
    "spark.sql.caseSensitive": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # and what SQL gives.
    "spark.sql.chunkBase64String.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.function.eltOutputAsString": "false",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.preserveCharVarcharTypeInfo": "false",
    "spark.sql.retainGroupColumns": "true",
}
# Spark's settings that begin so bring back what an earlier release did. The job's session has none of them.
LEGACY = "spark.sql.legacy."


@dataclass(frozen=True)
class Query:
    """All that one query needs.

    Attributes:
        name: Name of the table.
        events: Where its events come from.
        source: Options of the format nsq.
        checkpoint: Spark's checkpoint.
        location: The table; "" with sink.
        dead_location: The table of malformed events; "" for raw, and with sink if there is no output.
    """

    name: str
    events: TableSettings
    channel: str
    source: Mapping[str, str] = dataclasses.field(repr=False)
    spool: str
    checkpoint: str
    notes: str
    location: str
    dead_location: str
    deduplicate: float

    @property
    def section(self) -> str:
        """The table of the TOML file, such as "tables.clicks"."""
        return self.events._section

    @functools.cached_property
    def read_options(self) -> ReadOptions:
        """The options of the source, parsed."""
        return ReadOptions.parse(self.source)


@dataclass(frozen=True, kw_only=True)
class JobSettings(Settings):
    """All settings of a job.

    Raises:
        SettingError: If a setting is missing or can't be used.
    """

    work: str = option(
        "",
        "the job's own directory for notes, spools and checkpoints, a path or the URI of an object store; required",
    )
    output: str = option("", "directory of the tables, a path or the URI of an object store; required")
    spool: str = option("", "base of the spools, a path or the URI of an object store; default: in work")
    checkpoint: str = option(
        "", "base of the checkpoints, a path or a URI of Spark; default: in work, unless that is a URI"
    )
    nsqd_tcp_addresses: tuple[str, ...] = option((), "host:port of an nsqd to read from")
    nsqd_http_addresses: tuple[str, ...] = option((), "its HTTP address, for the backlog and for --once", secret=True)
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "URL or host:port of an nsqlookupd; finds the above", secret=True
    )
    nsq: Mapping[str, str] = option(None, "further options of the source, such as tls", secret=True)
    receivers: str = option("driver", "where messages are received: driver or external", choices=("driver", "external"))
    channel_prefix: str = option("", "what the name of each channel begins with; the name of the query follows")
    setup: str = option("", "module:name of a function that is called with the Spark session before the queries start")
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
        "merge small files and delete old ones after so many batches; 0: never",
        unit="batches",
        minimum=1,
        special=(0,),
    )
    max_rows_per_batch: int = option(200_000, "largest batch", unit="rows", minimum=1)
    trigger_interval: float = option(
        10.0,
        "longest time since the last batch for which a batch waits for max_rows_per_batch; 0: no batch waits",
        unit="s",
        minimum=0.001,
        maximum=YEAR,
        special=(0,),
    )
    count_every: float = option(
        60.0,
        "metrics are counted so often, at most; with --once at the end",
        unit="s",
        minimum=1,
        maximum=YEAR,
    )
    metrics_address: str = option(
        "", "host:port at which the job answers GET /metrics, for Prometheus; default: nowhere"
    )
    spark: Mapping[str, str] = option(None, "Spark's own settings, spark.master among them", secret=True)
    tables: Mapping[str, TableSettings] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, MetricSettings] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.work.strip():
            raise self._wrong("work is required")
        if not self.tables:
            raise self._wrong("tables is required: give a table [tables.NAME] for events")
        self._check_names()
        self._check_metrics()
        self._check_locations()
        self._check_addresses()
        self._check_patterns()
        if self.setup:
            self._checked("setup", check_function, self.setup)
        for name, given in self.spark.items():
            needed = "Spark's default" if name.startswith(LEGACY) else SESSION.get(name, given)
            if given.lower() != needed.lower():
                raise self._wrong(
                    f"spark: {name} {given!r}: which events are right rests on {needed}, which the job sets: leave it "
                    "out"
                )
        self._check_options()
        self._check_places()

    def _check_names(self) -> None:
        # Directories of some file systems do not tell names apart that differ in case only.
        taken: dict[str, str] = {}
        named: list[tuple[str, TableSettings | MetricSettings]] = [*self.tables.items(), *self.metrics.items()]
        for name, each in named:
            if each.name != name:
                raise each._wrong(f"name {each.name!r} is not the name {name!r} by which it is given")
            each._checked("name", assert_valid_channel_name, name)
            each._checked("name with channel_prefix", assert_valid_channel_name, self.channel_prefix + name)
            if name.startswith((".", "_")) or name.lower().endswith((".json", ".log", "#ephemeral")):
                raise each._wrong(
                    "name: directories and a channel are called so: it can't begin with . or _, which readers of "
                    "tables skip, nor end with .json, .log or #ephemeral"
                )
            used = [name, f"{name}_dead"] if isinstance(each, TableSettings) else [name]
            for place in used:
                if other := taken.get(place.lower()):
                    what = "its name" if place == name else f"{place}, which its malformed events have,"
                    raise each._wrong(f"name: {what} is taken by [{other}]: give one of them another name")
                taken[place.lower()] = each._section

    def _check_metrics(self) -> None:
        for metric in self.metrics.values():
            table = self.tables.get(metric.table)
            if table is None:
                raise metric._wrong(f"table {metric.table!r} is unknown{nearest([metric.table], self.tables)}")
            if table.sink:
                raise metric._wrong(
                    f"table {metric.table!r} has a sink, so there are no files to count from: count in the sink, or "
                    "give the topics to a second table, without sink, and count that"
                )

    def _check_locations(self) -> None:
        if not self.output.strip() and any(not table.sink for table in self.tables.values()):
            raise self._wrong("output is required")
        for name in ("work", "output", "spool"):
            place = getattr(self, name)
            if is_uri(place) and not is_object_store(place):
                raise self._wrong(
                    f"{name} {redact_uri(place)!r} is not an object store (s3, gs, gcs, abfs, abfss): give one, or a "
                    "local or mounted directory as a path"
                )
        if is_uri(self.work) and not self.checkpoint:
            raise self._wrong(
                f"work {redact_uri(self.work)!r} is a URI, and Spark may write it in another way: give checkpoint, "
                "too, as this Spark knows it (s3a: with Hadoop's S3A, s3: on EMR and Databricks)"
            )

    def _check_addresses(self) -> None:
        from gnsq.spark.clients import ADDRESS_FORMS  # slow to load, and --help does not need it

        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise self._wrong("nsqd_tcp_addresses is required, or lookupd_http_addresses")
        for name, check in ADDRESS_FORMS.items():
            for address in getattr(self, name):
                if set(", ;") & set(address):
                    # Do not show the address: it may contain a password.
                    raise self._wrong(
                        f"{name} has several addresses in one: give a list in TOML, repeat the option, or put blanks "
                        "between them in the environment"
                    )
                self._checked(name, check, address)
        if self.metrics_address:
            self._checked("metrics_address", _check_has_port, self.metrics_address)

    def _check_patterns(self) -> None:
        for table in self.tables.values():
            if table.topic_pattern and (
                not self.lookupd_http_addresses or self.nsqd_tcp_addresses or self.nsqd_http_addresses
            ):
                raise table._wrong(
                    "topic_pattern: nsqlookupd knows which topics fit it: give lookupd_http_addresses alone, without "
                    "nsqd_tcp_addresses and nsqd_http_addresses"
                )

    def _check_options(self) -> None:
        for name in self.nsq:
            plain = _plain(name)
            if plain in _OWN_OPTIONS:
                raise self._wrong(f"nsq: {name} is the job's own: use {_OWN_OPTIONS[plain]}")
            if plain not in _SOURCE_OPTIONS:
                usable = [name for each, name in sorted(_SOURCE_OPTIONS.items()) if each not in _OWN_OPTIONS]
                raise self._wrong(f"nsq: option {name} is unknown{nearest([name], usable)}")
        try:
            for query in self.queries:
                _ = query.read_options
        except ValueError as error:
            raise self._wrong(f"nsq: {error}") from error

    def _check_places(self) -> None:
        """Check that no table, spool or checkpoint is at or in the place of another one, which would use its files."""
        places = {f"table of {name}": self.location_of(name) for name in self.metrics}
        for query in self.queries:
            places |= {f"spool of {query.name}": query.spool, f"checkpoint of {query.name}": query.checkpoint}
            tables = {"table": query.location, "table of malformed events": query.dead_location}
            places |= {f"{what} of {query.name}": place for what, place in tables.items() if place}
        found = {name: _comparable(place) for name, place in places.items()}
        for name, place in found.items():
            for other, outer in found.items():
                if name != other and place.is_relative_to(outer):
                    raise self._wrong(
                        f"directories overlap: {name} ({redact_uri(places[name])}) is in {other} "
                        f"({redact_uri(places[other])}): give output, work, spool and checkpoint places of their own"
                    )

    @functools.cached_property
    def queries(self) -> tuple[Query, ...]:
        """The queries of the tables, in the order of the settings."""
        return tuple(map(self._query, self.tables.values()))

    @property
    def locations(self) -> list[str]:
        """The locations of all tables."""
        places = [place for query in self.queries for place in (query.location, query.dead_location) if place]
        return [*places, *map(self.location_of, self.metrics)]

    @property
    def is_asked(self) -> bool:
        """True if nsqd's HTTP interface is known, so that the backlog can be asked for."""
        return bool(self.nsqd_http_addresses or self.lookupd_http_addresses)

    @property
    def log(self) -> Path:
        """The local file that Spark's messages are written to."""
        if not is_uri(self.work):
            return Path(self.work, "spark.log")
        name = hashlib.sha256(self.work.encode()).hexdigest()[:12]
        return user_directory() / f"{name}.log"

    def spool_of(self, name: str) -> str:
        """Return the location of the spool of a query of this name, which the settings need not have any more."""
        return _below(self.spool, name) if self.spool else _below(self.work, f"{name}/spool")

    def location_of(self, name: str) -> str:
        """Return the location of a table of this name, which may be that of a metric."""
        return _below(self.output, name)

    def notes_of(self, name: str) -> str:
        """Return the location of the notes of a query or metric."""
        return _below(self.work, name)

    def _query(self, table: TableSettings) -> Query:
        name = table.name
        channel = self.channel_prefix + name
        spool = self.spool_of(name)
        checkpoint = _below(self.checkpoint, name) if self.checkpoint else _below(self.work, f"{name}/checkpoint")
        has_dead = table.format != "raw" and self.output
        return Query(
            name=name,
            events=table,
            channel=channel,
            source=self._source_options(table, channel, spool, checkpoint),
            spool=spool,
            checkpoint=checkpoint,
            notes=self.notes_of(name),
            location="" if table.sink else self.location_of(name),
            dead_location=_below(self.output, f"{name}_dead") if has_dead else "",
            deduplicate=self.deduplicate,
        )

    def _source_options(self, table: TableSettings, channel: str, spool: str, checkpoint: str) -> dict[str, str]:
        topics = {"topic": ",".join(table.topics)}
        if table.topic_pattern:
            topics = {"topicPattern": table.topic_pattern}
        sources = {self.channel_prefix + name: _topics(each) for name, each in self.tables.items()}
        waiting = {"minRowsPerBatch": str(self.max_rows_per_batch), "maxTriggerDelay": str(self.trigger_interval)}
        return {
            **(waiting if self.trigger_interval else {}),
            **{_SOURCE_OPTIONS[_plain(name)]: value for name, value in self.nsq.items()},
            **topics,
            "channel": channel,
            "otherChannels": " ".join(f"{source}/{each}" for each, source in sources.items() if each != channel),
            "nsqdTcpAddresses": ",".join(self.nsqd_tcp_addresses),
            "lookupdHttpAddresses": ",".join(self.lookupd_http_addresses),
            "nsqdHttpAddresses": ",".join(self.nsqd_http_addresses),
            "spool": spool,
            "spoolOwner": checkpoint,
            "receivers": self.receivers,
            "maxRowsPerBatch": str(self.max_rows_per_batch),
        }


def _topics(table: TableSettings) -> str:
    """Return the topics of a table, as ReadOptions.source has them."""
    return f"/{table.topic_pattern}/" if table.topic_pattern else ",".join(table.topics)


# --- reading the TOML file, and what the command line and the environment say


def load_settings(path: str | None, overrides: Mapping[str, object] = MappingProxyType({})) -> JobSettings:
    """Read a TOML file, if any. Overrides (command line, environment) win over the file. Mappings are merged.

    Args:
        overrides: By the names of settings. None and () are no override. A mapping is a tuple of texts NAME=VALUE.

    Raises:
        ValueError: If the file can't be read; SettingError if a setting is unknown, or has the wrong type or value.
    """
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"configuration {path}: {error}") from error
    known = options_of(JobSettings)
    _check_known(values, (*known, "tables", "metrics"))
    _check_known(overrides, known)
    for name, value in overrides.items():
        if value in (None, ()):
            continue
        before = values.get(name)
        given = _split(name, value) if is_mapping(known[name]) and isinstance(value, tuple) else value
        values[name] = {**before, **given} if isinstance(before, dict) and isinstance(given, dict) else given
    base = Path(path or ".").absolute().parent
    tables = _sections(TableSettings, "tables", values.pop("tables", {}), base)
    metrics = _sections(MetricSettings, "metrics", values.pop("metrics", {}), base)
    # __post_init__() checks the type of each value, which mypy can't see.
    return JobSettings(**values, tables=tables, metrics=metrics)  # type: ignore[arg-type]


_Section = TypeVar("_Section", TableSettings, MetricSettings)


def _sections(kind: type[_Section], name: str, tables: object, base: Path) -> dict[str, _Section]:
    """Read the TOML tables [tables.NAME] or [metrics.NAME]."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingError(f"{name} must be a table of tables: write [{name}.NAME]")
    found = {}
    for each, table in tables.items():
        _check_known(table, options_of(kind), f"{name}.{each}")
        if isinstance(table.get("schema_file"), str) and table["schema_file"]:
            table = {**table, "schema_file": str(base / table["schema_file"])}
        found[each] = kind(name=each, **table)
    return found


def _check_known(values: Mapping[str, object], known: Iterable[str], section: str = "") -> None:
    for name, value in values.items():
        if name not in known:
            kind, _, table = section.partition(".")
            hint = f'; or quote a name with dots: [{kind}."{table}.{name}"]' if isinstance(value, dict) and kind else ""
            raise SettingError(f"{name} is unknown{nearest([name], known)}{hint}", section)


def _split(name: str, items: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            # Do not show the item: it may be a secret.
            raise SettingError(f"{name} has an item without a name or '=': NAME=VALUE was due")
        pairs[key.strip()] = value.strip()
    return pairs


# --- names of options, places, functions


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


# Options of the source, in lower case and without underscores -> as Spark's users write them.
_SOURCE_OPTIONS = {_plain(field.name): spark_name(field) for field in dataclasses.fields(ReadOptions)}


def is_uri(place: str) -> bool:
    """Return True for a URI, False for a path."""
    return ":/" in place


def _below(base: str, path: str) -> str:
    return join_uri(base, path) if is_uri(base) else str(Path(base, path).absolute())


def _comparable(place: str) -> PurePath:
    """Return a path by which two places can be compared."""
    # Drop the query of a URI: it has options of the connection, and is not part of the place.
    return PurePath(place.partition("?")[0]) if is_uri(place) else Path(place).resolve()


def _check_has_port(address: str) -> None:
    if not parse_address(address, 0)[1]:
        raise ValueError(f"address {address!r} has no port: give host:port, such as 127.0.0.1:9100")
