"""Before Spark starts: checks directories, checkpoints, and that an nsqd has the topic, and creates the channels."""

from __future__ import annotations

import difflib
import errno
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gnsq import LookupdClient, NsqdHTTPClient
from gnsq.errors import NSQException
from gnsq.localfiles import PRIVATE, make_directory
from gnsq.protocol.names import checked_names
from gnsq.spark.clients import connection_keywords, http_keywords
from gnsq.spark.errors import JobFailed, SpoolInUse
from gnsq.spark.offsets import decode_offset, may_follow
from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import check_store
from gnsq.spark.pipeline.durable import mend_checkpoint
from gnsq.spark.pipeline.layout import archive_tables, former_tables, note_layout, query_tables, topic_of
from gnsq.spark.pipeline.progress import checkpoint_id, last_batch, read_note
from gnsq.spark.pipeline.topics import is_topic
from gnsq.spark.pipeline.windows import Metric
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.spool.ownership import read_owner
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = [
    "Survey",
    "check_nsq",
    "check_places",
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
    if not config.is_remote:
        _check_writable("output", config.output)
    check_store(config.output)
    for query in config.queries:
        _check_spool(config, query)
        if (found := _read_checkpoint(config, query)) is not None:
            _check_checkpoint(config, query, is_new=found[0] is None)
    _check_tables(config, take_over=take_over)
    _tell_removed(config)
    note_layout(config)


def _check_tables(config: PipelineConfig, *, take_over: bool) -> None:
    """Check that the tables fit the settings and belong to this job's checkpoints. No query may run yet."""
    for query in config.queries:
        if (found := _read_checkpoint(config, query)) is not None:
            identity, committed = found
            for table in query_tables(config, query):
                if query == "archive" and config.entry_of(topic_of(config, table.name)) is None:
                    continue  # perhaps another job reads this topic now
                if query != "archive" or _is_made(config, table.name):
                    table.claim(identity, take_over=take_over, committed=committed)
                else:
                    # The tables of a topic are made with its first message. The tasks of a batch that was killed may
                    # have written files before: this batch runs again.
                    is_there = table.exists()
                    next_batch = None if identity is None else committed + 1
                    table.claim(identity if is_there else None, take_over=take_over, batch_id=next_batch)


def _read_checkpoint(config: PipelineConfig, query: str) -> tuple[str | None, int] | None:
    """Return the id and the last batch of a query's checkpoint; None if only Spark can open it."""
    location = config.checkpoint_of(query)
    try:
        mend_checkpoint(location)
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


def _is_made(config: PipelineConfig, table: str) -> bool:
    """Return True if a table archive or dead must be there if the checkpoint has a batch."""
    return table in config.placed.tables or topic_of(config, table) == config.placed.flat


def _tell_removed(config: PipelineConfig) -> None:
    """Log what the job has left behind of entries and metrics that it had at its last start."""
    placed, names = config.placed, [entry.name for entry in config.entries]
    added = [name for name in names if name not in placed.topics]
    if placed.topics and added:
        logger.info("topics added since the last start: %s", ", ".join(added))
    former = [name for name in config.former_outputs if config.entry_of(name) is not None]
    if former:
        logger.info(
            "the job has published to %s before, so these topics are not read, though they fit an expression: give "
            "them in [topics] by name if they are to be read",
            ", ".join(former),
        )
    for name in placed.topics:
        if name in names or config.entry_of(name) is not None:
            continue
        stays = "the tables and channels of its topics"
        if is_topic(name):
            tables = [redact_uri(table.location) for table in former_tables(config, name)]
            stays = f"tables {' and '.join(tables)}, {_left(config, name)}"
        logger.warning(
            "topic %s is gone from the settings. These stay: %s. Delete a channel that no job reads any more, since "
            "nsqd keeps its messages. Messages of the topic that are in the spool go to a table %s",
            *(name, stays, archive_tables(config, name)[-1].name if is_topic(name) else "left-JOB of the topic"),
        )
    read = {(each.topic, config.channel(query)): each.id for query, each in config.metric_queries.items()}
    for metric, channel in placed.metrics.items():
        topic, _, name = metric.rpartition("/")
        if metric in read.values():
            continue
        if (topic, channel) in read:
            logger.warning(
                "metric %s is gone from the settings. Its table stays, and %s goes on with its channel %s",
                *(metric, read[topic, channel], channel),
            )
        else:
            query = placed.query(Metric(name=name, topic=topic))
            places = redact_uri(config.checkpoint_of(query)), redact_uri(config.spool_of(query))
            logger.warning(
                "metric %s is gone from the settings. These stay: its table, checkpoint %s, spool %s, %s. Delete the "
                "channel if no job reads it any more, since nsqd keeps its messages",
                *(metric, *places, _left(config, topic, channel)),
            )


def _left(config: PipelineConfig, topic: str, channel: str = "") -> str:
    """Describe a channel that the job does not read any more, with its depth."""
    channel = channel or config.archive_channel
    options = replace(config.read_options("archive"), topic=topic, topic_pattern="", channel=channel)
    client = ChannelClient(options)
    try:
        depth = counted(client.depth().total, "message", spec=",")
    except NSQException as error:
        depth = f"depth unknown: {error}"
    finally:
        client.close()
    return f"channel {channel} of {topic} ({depth})"


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
            before = str(found.get(name, value))
            if before != value and not (name == "source" and may_follow(before, value)):
                raise SpoolInUse(
                    f"spool {spool.location} belongs to {name} {found[name]!r}, not to {value!r}: give this query a "
                    "spool of its own, or delete the spool if nothing in it is needed"
                )
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
    facts |= described if metric is None else {**described, "topic": metric.topic}
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
    """The number of nsqds and nsqlookupds asked over HTTP, the errors of those that failed, and all topics found."""

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
            found.topics |= set(checked_names(_topics(client), "topic"))
        except NSQException as error:
            found.failures.append(str(error))
        except ValueError as error:
            found.failures.append(f"{client.address}: {error}")
        finally:
            client.close()
    return found


def _topics(client: NsqdHTTPClient | LookupdClient) -> list[str]:
    if isinstance(client, LookupdClient):
        return [topic for node in client.nodes()["producers"] or () for topic in node["topics"] or ()]
    return [topic["topic_name"] for topic in client.stats()["topics"] or ()]


def check_nsq(config: PipelineConfig, found: Survey, *, once: bool, new_topic: bool = False) -> None:
    """Check that an nsqd or nsqlookupd answers and has the topics. Without once, only warn if none answers.

    A topic that the job has read before may be gone: then there is nothing to read of it.

    Args:
        new_topic: Accept topics that do not exist yet.

    Raises:
        JobFailed: If no nsqd has a topic, new_topic is False, and the job has not read the topic before (without
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
    missing = [topic for topic in config.named_topics if topic not in found.topics]
    if not found.asked or not missing:
        return
    unknown = [topic for topic in missing if not _has_begun(config, topic)]
    if unknown and not new_topic and (once or not found.failures):
        raise JobFailed(_unknown(config, unknown, found))
    logger.warning("no nsqd has the topic %s; waiting for it", ", ".join(missing))


def _unknown(config: PipelineConfig, topics: Sequence[str], found: Survey) -> str:
    close = [name for topic in topics for name in difflib.get_close_matches(topic, found.topics, 3)]
    near = f", near it are {', '.join(dict.fromkeys(close))}" if close else ""
    names = ("nsqd_http_addresses", "lookupd_http_addresses")
    places = " or ".join(name for name in names if getattr(config, name))
    return (
        f"no nsqd of {places} has the topic {', '.join(topics)}{near}: correct the setting topic, or give --new-topic "
        "if it is still to come"
    )


def create_channels(
    config: PipelineConfig, *, once: bool, wait: Callable[[float], bool], new_topic: bool = False
) -> None:
    """Create all channels before one is read: nsqd gives messages that wait in a topic only to its first channel.

    Without once, the first run of a job tries until they exist, but waits for no topic that only nsqlookupd could
    name if another one of the job exists. A topic that no nsqd has is created at configured nsqds only if new_topic is
    True or the job has read it before: a misspelled topic would stay there.

    Args:
        wait: Waits the given seconds; returns True if the job is to stop.

    Raises:
        JobFailed: If a topic does not exist and must not be created; with once, also if a channel can't be created.
    """
    client = ChannelClient(config.read_options("archive"))
    try:
        # A topic without metrics has only one channel, and SUB creates it in time.
        counted_topics = sorted({metric.topic for metric in config.all_metrics})
        shown = ", ".join(counted_topics or config.named_topics)
        if not client.has_http:
            if counted_topics:
                logger.warning(
                    "channels of %s not created: without nsqd_http_addresses or lookupd_http_addresses, what waits in "
                    "a topic that has no channel yet goes to one of them alone, and a topic that does not exist is "
                    "created",
                    shown,
                )
            return
        told = ""
        while reason := _try_create(config, client, counted_topics, once=once, new_topic=new_topic):
            if once:
                raise JobFailed(f"channels of {shown} not created: {reason}")
            if reason != told:
                logger.warning("channels of %s not created: %s", shown, reason)
                told = reason
            if all(_has_begun(config, topic) for topic in counted_topics) or wait(RETRY):
                return
    finally:
        client.close()


def _try_create(
    config: PipelineConfig, client: ChannelClient, counted_topics: Sequence[str], *, once: bool, new_topic: bool
) -> str:
    """Create all channels. Return the reason if that fails, otherwise ""."""
    new = [] if new_topic else [topic for topic in config.named_topics if not _has_begun(config, topic)]
    if new:
        found = survey(config)
        unknown = [topic for topic in new if topic not in found.topics]
        if unknown:
            if not found.failures:
                raise JobFailed(_unknown(config, unknown, found))
            return "; ".join(found.failures)
    channels: dict[str, list[str]] = {}
    for query, metric in config.metric_queries.items():
        channels.setdefault(metric.topic, []).append(config.channel(query))
    try:
        client.create(channels)
    except NSQException as error:
        return str(error)
    if config.nsqd_http_addresses:
        return ""
    # With nsqlookupd alone, create() does nothing for a topic that no nsqd has, so check that the topics exist. One
    # that the job has read before may be gone for ever, and must not stop the others.
    found = survey(config)
    missing = [topic for topic in counted_topics if topic not in found.topics and not _has_begun(config, topic)]
    if missing and not once and not found.failures and any(map(config.entry_of, found.topics - {*missing})):
        for topic in missing:
            logger.warning(
                "no nsqd has the topic %s; the job goes on with its other topics. nsqd gives what is published before "
                "all of the channels %s exist to the first of them alone: create the topic and these channels at nsqd "
                "before anything is published to it",
                *(topic, ", ".join([config.archive_channel, *channels[topic]])),
            )
        return ""
    return f"no nsqd has the topic {', '.join(missing)}" if missing else ""


def _has_begun(config: PipelineConfig, topic: str) -> bool:
    """Return True if all queries of a topic have locked their spools for it before: then its channels were created."""
    queries = ["archive", *(query for query, metric in config.metric_queries.items() if metric.topic == topic)]
    try:
        return all(_has_read(config, query, topic) for query in queries)
    except OSError:
        return False


def _has_read(config: PipelineConfig, query: str, topic: str) -> bool:
    source = str(read_owner(open_store(config.spool_of(query))).get("source", ""))
    topics, _, channel = source.rpartition("/")
    if channel != config.channel(query):
        return False
    if topics.startswith("/"):
        return re.fullmatch(topics[1:-1], topic) is not None
    return topic in topics.split(",")
