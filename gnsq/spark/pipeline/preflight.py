"""What is checked before Spark starts: directories, checkpoints, and whether there is anybody to read from."""

from __future__ import annotations

import difflib
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gnsq import LookupdClient, NsqdHTTPClient
from gnsq.errors import NSQException
from gnsq.localfiles import make_directory
from gnsq.spark.clients import connection_keywords, http_keywords
from gnsq.spark.errors import JobFailed, SpoolInUse
from gnsq.spark.offsets import decode_offset
from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import QUERIES, PipelineConfig
from gnsq.spark.pipeline.layout import archive_tables, metrics_table
from gnsq.spark.pipeline.progress import checkpoint_id, read_note
from gnsq.spark.pipeline.tables import check_store
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.spool.ownership import read_owner
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import redact_uri

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
    """Make the work directory, for the lock in it.

    Raises:
        JobFailed: If it can't be written.
    """
    _check_writable("work", config.work)


def check_places(config: PipelineConfig, *, take_over: bool = False) -> None:
    """Make the directories, and see that they can be written and are this job's. Call with the job locked.

    Args:
        take_over: The tables may belong to other checkpoints.

    Raises:
        JobFailed: If something is wrong; the text says what to do.
    """
    try:
        connection_keywords(config.read_options("archive"))
        connection_keywords(WriteOptions.parse(config.sink_options(config.metrics_to)))
    except ValueError as error:
        raise JobFailed(f"setting nsq: {error}") from error
    try:
        config.log.parent.mkdir(parents=True, exist_ok=True)
        # Not made yet: that it is there says that Spark was started.
        with open(config.log, "ab") if config.log.exists() else tempfile.TemporaryFile(dir=config.log.parent):
            pass
    except OSError as error:
        raise JobFailed(
            f"setting log_file {config.log} can't be written: {error.strerror}: give a file that can be"
        ) from error
    if not config.is_remote:
        _check_writable("output", config.output)
    check_store(config.output)
    for query in QUERIES:
        _check_spool(config, query)
        try:
            identity = checkpoint_id(config.checkpoint_of(query))
        except ValueError as error:
            # Only Spark knows the way to it.
            logger.debug("%s", error)
        except OSError as error:
            raise JobFailed(f"checkpoint {redact_uri(config.checkpoint_of(query))} can't be read: {error}") from error
        else:
            _check_checkpoint(config, query, is_new=identity is None)
            for table in archive_tables(config) if query == "archive" else (metrics_table(config),):
                table.claim(identity, take_over=take_over)


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
        # Whose it is; not claimed yet: the topic may be a mistake that is only seen later.
        found = read_owner(store)
        for name, value in (("owner", options.spool_owner), ("source", options.source)):
            if found.get(name, value) != value:
                raise SpoolInUse(
                    f"spool {spool.location} belongs to {name} {found[name]!r}, not to {value!r}: give this query a "
                    "spool of its own, or delete the spool if nothing in it is needed"
                )
        # One of an older layout is told of here.
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
    if query == "metrics":
        facts |= config.metric.describe()
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
                    + (" and another name in [[metrics]]" if name in config.metric.describe() else "")
                )
        # Kept, even if it is not known: that of a checkpoint stays.
        facts["state_partitions"] = before.get("state_partitions")
    _put_made_with(config, query, facts)


def _move_away(config: PipelineConfig, query: str) -> str:
    # What is left in the spool is in the tables already, which only the old checkpoint knows.
    return f"move {redact_uri(config.checkpoint_of(query))} and {redact_uri(config.spool_of(query))} away"


def note_partitions(config: PipelineConfig, query: str, partitions: int) -> None:
    """Note the number of partitions of a query's state, if its checkpoint is new."""
    _put_made_with(config, query, {"state_partitions": partitions, **_made_with(config, query)})


def _made_with(config: PipelineConfig, query: str) -> dict[str, object]:
    store = open_store(f"{config.work}/{query}")
    if not store.exists(_MADE_WITH):
        return {}
    with store.open(_MADE_WITH) as file:
        found: dict[str, object] = json.loads(file.read())
    return found


def _put_made_with(config: PipelineConfig, query: str, facts: Mapping[str, object]) -> None:
    store = open_store(f"{config.work}/{query}")
    store.make_directory("")
    store.put(_MADE_WITH, json.dumps(facts).encode())


# --- nsqd and nsqlookupd


@dataclass(slots=True)
class Survey:
    """Who answers over HTTP, and what topics they have."""

    asked: int = 0
    failures: list[str] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)

    @property
    def answered(self) -> int:
        """How many have answered."""
        return self.asked - len(self.failures)


def survey(config: PipelineConfig) -> Survey:
    """Ask all nsqds and nsqlookupds of the configuration."""
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
    """See whether there is anybody to read from. A job that goes on for ever waits for those that do not answer.

    Args:
        new_topic: The topic may be one that is still to come.

    Raises:
        JobFailed: If nobody has the topic, and neither is it to come nor has the job read it before; once, also if
            nobody answers.
    """
    if found.asked and not found.answered:
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
    """Have both channels before either is read: nsqd gives what waits in a topic to its first channel alone.

    A job that goes on for ever waits for nsqd, if it has not begun before. A topic that nobody has is created on the
    nsqds that were named, but only where check_nsq() lets it pass: what a typing error creates stays there, and fills.

    Args:
        wait: Waits so many seconds, and says whether the job is to stop.

    Raises:
        JobFailed: As check_nsq(), for those that did not answer then; once, if they can't be created.
    """
    client = ChannelClient(config.read_options("archive"))
    try:
        if not client.has_http:
            logger.warning(
                "channels of %s not created: without nsqd_http_addresses or lookupd_http_addresses, what waits in a "
                "topic that has no channel yet goes to one of them alone, and a topic that does not exist is created",
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
    """Create both; returns why that is not done."""
    if not may_be_new:
        found = survey(config)
        if config.topic not in found.topics:
            if not found.failures:
                raise JobFailed(_unknown(config, found))
            return "; ".join(found.failures)
    try:
        client.create(config.metrics_channel)
    except NSQException as error:
        return str(error)
    if config.nsqd_http_addresses:
        return ""
    # Those that are only known by nsqlookupd have nothing to create, where there is no topic.
    found = survey(config)
    return "" if config.topic in found.topics else f"no nsqd has the topic {config.topic}"


def _has_begun(config: PipelineConfig) -> bool:
    """Whether both queries have read this topic: then they have had their channels."""
    try:
        return all(
            read_owner(open_store(config.spool_of(query))).get("source") == config.read_options(query).source
            for query in QUERIES
        )
    except OSError:
        return False
