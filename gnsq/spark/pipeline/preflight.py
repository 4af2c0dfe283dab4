"""Before Spark starts: checks directories, checkpoints, and that an nsqd has the topic, and creates the channels."""

from __future__ import annotations

import difflib
import errno
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gnsq import LookupdClient, NsqdHTTPClient
from gnsq.errors import NSQException
from gnsq.localfiles import PRIVATE, make_directory
from gnsq.spark.clients import connection_keywords, http_keywords
from gnsq.spark.errors import JobFailed, SpoolInUse
from gnsq.spark.offsets import decode_offset
from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.layout import query_tables
from gnsq.spark.pipeline.progress import checkpoint_id, last_batch, read_note, set_torn_aside
from gnsq.spark.pipeline.tables import check_store
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.spool.ownership import read_owner
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import redact_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Survey",
    "check_nsq",
    "check_places",
    "check_tables",
    "check_work",
    "create_channels",
    "note_partitions",
    "survey",
]

logger = logging.getLogger(__name__)

_MADE_WITH = "made-with.json"
# Seconds between tries to create the channels.
RETRY = 1.0


def check_work(config: PipelineConfig) -> None:
    """Make the work directory, which the job's lock needs, if it is local.

    Raises:
        JobFailed: If the directory can't be written.
    """
    if not config.is_work_remote:
        _check_writable("work", config.work)


def check_places(config: PipelineConfig, *, take_over: bool = False) -> None:
    """Make the directories, and check that they can be written and belong to this job. The caller holds the job's lock.

    Args:
        take_over: Accept tables that belong to other checkpoints.

    Raises:
        NSQException: If something is wrong (JobFailed, SpoolError); the text says what to do.
    """
    try:
        connection_keywords(config.read_options("archive"))
        connection_keywords(WriteOptions.parse(config.sink_options("")))
    except ValueError as error:
        raise JobFailed(f"setting nsq: {error}") from error
    try:
        if config.is_work_remote and not config.log_file:
            _make_own_directory(config.log.parent)
        config.log.parent.mkdir(parents=True, exist_ok=True)
        # Do not make the log file yet: its existence means that Spark was started.
        with open(config.log, "ab") if config.log.exists() else tempfile.TemporaryFile(dir=config.log.parent):
            pass
    except OSError as error:
        raise JobFailed(
            f"setting log_file {config.log} can't be written: {error.strerror}: give a file that can be"
        ) from error
    if not config.is_spark_writer:
        if not config.is_remote:
            _check_writable("output", config.output)
        check_store(config.output)
    for query in config.queries:
        _check_spool(config, query)
        if (found := _read_checkpoint(config, query)) is not None:
            _check_checkpoint(config, query, is_new=found[0] is None)
    if not config.is_spark_writer:
        check_tables(config, take_over=take_over)


def check_tables(config: PipelineConfig, spark: SparkSession | None = None, *, take_over: bool = False) -> None:
    """Check that the tables fit the settings and belong to this job's checkpoints. No query may run yet.

    Args:
        spark: For tables that Spark writes.
        take_over: Accept tables that belong to other checkpoints.

    Raises:
        JobFailed: If a table does not, or can't be read.
    """
    for query in config.queries:
        if (found := _read_checkpoint(config, query)) is not None:
            identity, committed = found
            for table in query_tables(config, query, spark):
                table.claim(identity, take_over=take_over, committed=committed)
                # A killed run may have left files of a batch.
                table.finish()


def _read_checkpoint(config: PipelineConfig, query: str) -> tuple[str | None, int] | None:
    """Return the id and the last batch of a query's checkpoint; None if only Spark can open it."""
    location = config.checkpoint_of(query)
    try:
        set_torn_aside(location)
        return checkpoint_id(location), last_batch(location)
    except ValueError as error:
        logger.debug("%s", error)
        return None
    except OSError as error:
        raise JobFailed(f"checkpoint {redact_uri(location)} can't be read: {error}") from error


def _make_own_directory(path: Path) -> None:
    """Make a directory in the temporary directory, in which other users could have made it before."""
    make_directory(path, PRIVATE)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "the directory belongs to another user")


def _check_writable(setting: str, path: str, mode: int | None = None) -> None:
    try:
        make_directory(Path(path), mode)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise JobFailed(
            f"setting {setting} {path} can't be written: {error.strerror}: give a directory that can be"
        ) from error


def _check_spool(config: PipelineConfig, query: str) -> None:
    location, options = config.spool_of(query), config.read_options(query)
    spool = Spool(location, options.spool_permissions)
    try:
        store = open_store(location)
        if isinstance(store, LocalStore):
            _check_writable("spool", str(store.root), options.spool_permissions)
            spool.prepare()
        # Compare the owner, but do not claim the spool yet: a later check may find that the topic is a mistake.
        found = read_owner(store)
        for name, value in (("owner", options.spool_owner), ("source", options.source)):
            if found.get(name, value) != value:
                raise SpoolInUse(
                    f"spool {spool.location} belongs to {name} {found[name]!r}, not to {value!r}: give this query a "
                    "spool of its own, or delete the spool if nothing in it is needed"
                )
        # listing() raises if the spool has an older layout.
        spool.listing()
    except OSError as error:
        raise JobFailed(f"spool {spool.location} can't be used: {error}: give a directory that can be") from error


def _check_checkpoint(config: PipelineConfig, query: str, *, is_new: bool) -> None:
    shown = redact_uri(config.checkpoint_of(query))
    if not is_new:
        try:
            offset = read_note(config, query).offset
            if offset is not None:
                decode_offset(offset, config.read_options(query).source)
        except ValueError as error:
            raise JobFailed(f"checkpoint {shown}: {error}") from error
    facts: dict[str, object] = {"deduplicate": config.deduplicate > 0}
    metric = config.metric_queries.get(query)
    described = {} if metric is None else metric.describe()
    facts |= described
    if not is_new:
        before = _made_with(config, query)
        if "window_length" in before:
            raise JobFailed(
                f"checkpoint {shown} is of an earlier release, which kept counts in another way: let that release work "
                f"off everything with --once, then {_move_away(config, query)}"
            )
        if config.state_partitions is not None:
            facts["state_partitions"] = config.state_partitions
        for name, value in facts.items():
            if before.get(name) not in (None, value):
                raise JobFailed(
                    f"checkpoint {shown} was made with {name} {before[name]!r}, and the setting is {value!r} now: "
                    "leave it as it was, or let the job work off everything with --once, "
                    f"{_move_away(config, query)}, and start with --take-over"
                    + (" and another name in [[metrics]]" if name in described else "")
                )
        # Keep the number of partitions that was noted before, or None: for a checkpoint it never changes.
        facts["state_partitions"] = before.get("state_partitions")
    _put_made_with(config, query, facts)


def _move_away(config: PipelineConfig, query: str) -> str:
    # Name the spool, too: its rows are in the tables already, but a new checkpoint would read them again.
    return f"move {redact_uri(config.checkpoint_of(query))} and {redact_uri(config.spool_of(query))} away"


def note_partitions(config: PipelineConfig, query: str, partitions: int) -> None:
    """Note the number of partitions of a query's state, if its checkpoint is new."""
    _put_made_with(config, query, {"state_partitions": partitions, **_made_with(config, query)})


def _made_with(config: PipelineConfig, query: str) -> dict[str, object]:
    store = open_store(config.notes_of(query), "work")
    if not store.exists(_MADE_WITH):
        return {}
    with store.open(_MADE_WITH) as file:
        found: dict[str, object] = json.loads(file.read())
    return found


def _put_made_with(config: PipelineConfig, query: str, facts: Mapping[str, object]) -> None:
    store = open_store(config.notes_of(query), "work")
    store.make_directory("")
    store.put(_MADE_WITH, json.dumps(facts).encode())


# --- nsqd and nsqlookupd


@dataclass(slots=True)
class Survey:
    """How many nsqds and nsqlookupds were asked over HTTP, the errors of those that failed, and all topics found."""

    asked: int = 0
    failures: list[str] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)


def survey(config: PipelineConfig) -> Survey:
    """Ask all nsqds and nsqlookupds of the configuration for their topics."""
    http = http_keywords(config.read_options("archive"))
    found = Survey()
    clients: list[NsqdHTTPClient | LookupdClient] = [
        *(NsqdHTTPClient.from_url(address, **http) for address in config.nsqd_http_addresses),
        *(LookupdClient.from_url(address, **http) for address in config.lookupd_http_addresses),
    ]
    for client in clients:
        found.asked += 1
        try:
            found.topics |= set(_topics(client))
        except NSQException as error:
            found.failures.append(str(error))
        finally:
            client.close()
    return found


def _topics(client: NsqdHTTPClient | LookupdClient) -> Iterable[str]:
    if isinstance(client, LookupdClient):
        return [topic for node in client.nodes()["producers"] or () for topic in node["topics"] or ()]
    return [topic["topic_name"] for topic in client.stats()["topics"] or ()]


def check_nsq(config: PipelineConfig, found: Survey, *, once: bool, new_topic: bool = False) -> None:
    """Check that an nsqd or nsqlookupd answers and has the topic. Without once, only warn if none answers.

    Args:
        new_topic: Accept a topic that does not exist yet.

    Raises:
        JobFailed: If no nsqd has the topic, new_topic is False, and the job has not read the topic before (without
            once: only if all answer); with once, also if none answers.
    """
    if found.failures and len(found.failures) == found.asked:
        reason = f"neither nsqd nor nsqlookupd answers: {'; '.join(found.failures)}"
        if once:
            raise JobFailed(reason)
        logger.warning("%s; waiting for them", reason)
        return
    for failure in found.failures:
        logger.warning("%s", failure)
    if not found.asked or config.topic in found.topics:
        return
    if not new_topic and not _has_begun(config) and (once or not found.failures):
        raise JobFailed(_unknown(config, found))
    logger.warning("no nsqd has the topic %s; waiting for it", config.topic)


def _unknown(config: PipelineConfig, found: Survey) -> str:
    close = difflib.get_close_matches(config.topic, found.topics, 3)
    near = f", near it are {', '.join(close)}" if close else ""
    names = ("nsqd_http_addresses", "lookupd_http_addresses")
    places = " or ".join(name for name in names if getattr(config, name))
    return (
        f"no nsqd of {places} has the topic {config.topic}{near}: correct the setting topic, or give --new-topic if it "
        "is still to come"
    )


def create_channels(
    config: PipelineConfig, *, once: bool, wait: Callable[[float], bool], new_topic: bool = False
) -> None:
    """Create all channels before one is read: nsqd gives messages that wait in a topic only to its first channel.

    Without once, the first run of a job tries until they exist. A topic that no nsqd has is created at configured
    nsqds only if new_topic is True or the job has read it before: a misspelled topic would stay there.

    Args:
        wait: Waits the given seconds; returns True if the job is to stop.

    Raises:
        JobFailed: If the topic does not exist and must not be created; with once, also if a channel can't be created.
    """
    client = ChannelClient(config.read_options("archive"))
    try:
        if not client.has_http:
            # With raw there is only one channel, and SUB creates it in time.
            if not config.raw:
                logger.warning(
                    "channels of %s not created: without nsqd_http_addresses or lookupd_http_addresses, what waits in "
                    "a topic that has no channel yet goes to one of them alone, and a topic that does not exist is "
                    "created",
                    config.topic,
                )
            return
        told = ""
        while reason := _try_create(config, client, may_be_new=new_topic or _has_begun(config)):
            if once:
                raise JobFailed(f"channels of {config.topic} not created: {reason}")
            if reason != told:
                logger.warning("channels of %s not created: %s", config.topic, reason)
                told = reason
            if _has_begun(config) or wait(RETRY):
                return
    finally:
        client.close()


def _try_create(config: PipelineConfig, client: ChannelClient, *, may_be_new: bool) -> str:
    """Create all channels. Return the reason if that fails, otherwise ""."""
    if not may_be_new:
        found = survey(config)
        if config.topic not in found.topics:
            if not found.failures:
                raise JobFailed(_unknown(config, found))
            return "; ".join(found.failures)
    try:
        client.create(*map(config.channel, config.queries[1:]))
    except NSQException as error:
        return str(error)
    if config.nsqd_http_addresses:
        return ""
    # With nsqlookupd alone, create() does nothing for a topic that no nsqd has, so check that the topic exists.
    found = survey(config)
    return "" if config.topic in found.topics else f"no nsqd has the topic {config.topic}"


def _has_begun(config: PipelineConfig) -> bool:
    """Return True if all queries have locked their spools for this topic before: then their channels were created."""
    try:
        return all(
            read_owner(open_store(config.spool_of(query))).get("source") == config.read_options(query).source
            for query in config.queries
        )
    except OSError:
        return False
