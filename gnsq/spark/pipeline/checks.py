"""Before Spark starts: checks directories and spools, and that an nsqd has the topics, and creates the channels."""

from __future__ import annotations

import difflib
import json
import logging
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gnsq.census import Census, Poll
from gnsq.errors import NSQException
from gnsq.localfiles import make_directory
from gnsq.spark.clients import connection_keywords, http_keywords
from gnsq.spark.errors import JobFailed, SpoolInUse
from gnsq.spark.offsets import may_follow
from gnsq.spark.options import has_topic
from gnsq.spark.pipeline.settings import JobSettings, Query, is_uri
from gnsq.spark.scratch import make_user_directory
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.spool.ownership import read_owner
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted, reason_of, without_secrets

__all__ = ["check_nsq", "check_places", "check_work", "create_channels", "note_queries", "survey"]

logger = logging.getLogger(__name__)

# In the work directory: what the job's queries have read, and by which name.
_SOURCES = "queries.json"
# Seconds between tries to create the channels.
RETRY = 1.0


# --- places


def check_work(settings: JobSettings) -> None:
    """Make the work directory, which the job's lock needs, if it is local.

    Raises:
        JobFailed: If the directory can't be written.
    """
    if not is_uri(settings.work):
        _check_writable("setting work", settings.work)


def check_places(settings: JobSettings) -> None:
    """Make the directories, and check that they can be written and belong to this job. The caller holds the job's lock.

    Raises:
        NSQException: If something is wrong (JobFailed, SpoolError); the text says what to do.
    """
    try:
        connection_keywords(settings.queries[0].read_options)
    except ValueError as error:
        raise JobFailed(f"setting nsq: {error}") from error
    _check_log(settings)
    if is_uri(settings.output):
        from gnsq.spark.pipeline.delta import check_store  # slow to load, and a local directory does not need it

        check_store(settings.output)
    elif settings.output:
        _check_writable("setting output", settings.output)
    for query in settings.queries:
        _check_spool(query)
    _tell_left(settings)


def _check_log(settings: JobSettings) -> None:
    log = settings.log
    try:
        if is_uri(settings.work):
            make_user_directory()
        # Do not make the log file yet: its existence means that Spark was started.
        with open(log, "ab") if log.exists() else tempfile.TemporaryFile(dir=log.parent):
            pass
    except OSError as error:
        raise JobFailed(f"log {log} can't be written: {reason_of(error)}: make room for a file there") from error


def _check_writable(subject: str, path: str, mode: int | None = None) -> None:
    try:
        make_directory(Path(path), mode)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise JobFailed(
            f"{subject} {path} can't be written: {reason_of(error)}: give a directory that can be"
        ) from error


def _check_spool(query: Query) -> None:
    options = query.read_options
    spool = Spool(query.spool, options.spool_permissions)
    try:
        store = open_store(query.spool)
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
        # listing() raises if the spool has an older layout.
        spool.listing()
    except OSError as error:
        raise JobFailed(f"spool {spool.location} can't be used: {error}: give a directory that can be") from error


# --- what former queries have left


def note_queries(settings: JobSettings, former: Mapping[str, str] | None = None) -> None:
    """Note which channels the queries read, so that a later start can tell which are read no more; keep former ones."""
    former = _noted(settings) if former is None else former
    store = open_store(settings.work, "work")
    store.make_directory("")
    sources = {**former, **{query.read_options.source: query.name for query in settings.queries}}
    store.put(_SOURCES, json.dumps(sources).encode())


def _noted(settings: JobSettings) -> dict[str, str]:
    """Return the sources that queries of the job have read, and the names of the queries."""
    try:
        with open_store(settings.work, "work").open(_SOURCES) as file:
            found: dict[str, str] = json.loads(file.read())
            return found
    except FileNotFoundError:
        return {}


def _tell_left(settings: JobSettings) -> None:
    """Log which channels of the job are read no more, and how to delete them. Forget those that are gone."""
    now = {query.read_options.source for query in settings.queries}
    former = {source: name for source, name in _noted(settings).items() if source not in now}
    if not former:
        return
    channels, is_complete = _channels(settings)
    for source, name in list(former.items()):
        left = [each for each in channels if _reads(source, *each) and not any(_reads(one, *each) for one in now)]
        for topic, channel in left:
            logger.warning(
                "query %s does not read topic %s any more, and the messages in channel %s (%s now) become more: unless "
                "another job reads it, delete it: gnsq channel delete %s %s %s",
                *(name, topic, channel, counted(channels[topic, channel], "message", spec=",")),
                *(shlex.quote(topic), shlex.quote(channel), _servers(settings)),
            )
        if is_complete and not left:
            del former[source]
            continue
        if not left:
            logger.warning(
                "query %s has read %s before, and nobody does now: if its channel is still there, its messages become "
                "more: unless another job reads it, delete it: gnsq channel delete TOPIC CHANNEL %s",
                *(name, source, _servers(settings)),
            )
        if name not in {query.name for query in settings.queries}:
            logger.warning(
                "query %s is gone from the settings; its table stays, and messages that are only in its spool %s are "
                "in no table: give the query back and start with --once to write them",
                *(name, redact_uri(settings.spool_of(name))),
            )
    note_queries(settings, former)


def _reads(source: str, topic: str, channel: str) -> bool:
    topics, _, its_channel = source.rpartition("/")
    return channel == its_channel and has_topic(topics, topic)


def _servers(settings: JobSettings) -> str:
    """Return the servers of the job as options of the command gnsq, which also deletes a channel at nsqlookupd: from
    there an nsqd that gets the topic later would make it again."""
    given = {"nsqd": settings.nsqd_tcp_addresses, "nsqd-http": settings.nsqd_http_addresses}
    if settings.lookupd_http_addresses:
        given = {"lookupd": settings.lookupd_http_addresses}
    words = [f"--{flag}={without_secrets(address)}" for flag, addresses in given.items() for address in addresses]
    return shlex.join(words)


def _channels(settings: JobSettings) -> tuple[dict[tuple[str, str], int], bool]:
    """Return the depths of the channels of all nsqds, by topic and channel. The second value is False if an nsqd may be
    missing."""
    with closing(_census(settings)) as census:
        found = census.poll()
    for failure in found.failures:
        logger.warning("%s", failure)
    depths: dict[tuple[str, str], int] = {}
    for node in found.reached:
        for key, counts in node.counts.items():
            if key[1]:
                depths[key] = depths.get(key, 0) + counts["depth"]
    return depths, settings.is_asked and not found.failures


# --- nsqd and nsqlookupd


def _census(settings: JobSettings) -> Census:
    http = http_keywords(settings.queries[0].read_options)
    return Census(settings.nsqd_http_addresses, settings.lookupd_http_addresses, http)


def survey(settings: JobSettings) -> Poll:
    """Ask all nsqds and nsqlookupds of the settings for their topics."""
    with closing(_census(settings)) as census:
        return census.poll(is_wanted=lambda topics: False)


def check_nsq(settings: JobSettings, found: Poll, *, once: bool, new_topic: bool = False) -> None:
    """Check that an nsqd or nsqlookupd answers and has the topics. Without once, only warn if none answers.

    A topic that the job has read before may be gone: then there is nothing to read of it.

    Args:
        new_topic: Accept topics that do not exist yet.

    Raises:
        JobFailed: If no nsqd has a topic, new_topic is False, and the job has not read the topic before (without
            once: only if all answer); with once, also if none answers.
    """
    has_answered = bool(found.reached) or not all(found.lookupds.values())
    if found.failures and not has_answered:
        failures = "; ".join(found.failures)
        reason = f"no answer of {_asked(settings)}: {failures}: start what is down, or correct the addresses"
        if once:
            raise JobFailed(reason)
        logger.warning("%s; waiting for them", reason)
        return
    for failure in found.failures:
        logger.warning("%s", failure)
    missing = [topic for topic in _named_topics(settings) if topic not in found.topic_names]
    if not (has_answered and missing):
        return
    unknown = [topic for topic in missing if not _has_begun(settings, topic)]
    if unknown and not new_topic and (once or not found.failures):
        raise JobFailed(_unknown(settings, unknown, found))
    logger.warning("no nsqd has the topic %s; waiting for it", ", ".join(missing))


def _named_topics(settings: JobSettings) -> list[str]:
    return list(dict.fromkeys(topic for table in settings.tables.values() for topic in table.topics))


def _unknown(settings: JobSettings, topics: Sequence[str], found: Poll) -> str:
    close = [name for topic in topics for name in difflib.get_close_matches(topic, found.topic_names, 3)]
    near = f", near it are {', '.join(dict.fromkeys(close))}" if close else ""
    tables = [f"[tables.{table.name}]" for table in settings.tables.values() if {*topics} & {*table.topics}]
    return (
        f"no nsqd of {_asked(settings)} has the topic {', '.join(topics)}{near}: correct topics of "
        f"{' and '.join(tables)}, or give --new-topic if it is still to come"
    )


def _asked(settings: JobSettings) -> str:
    names = ("nsqd_http_addresses", "lookupd_http_addresses")
    return " or ".join(name for name in names if getattr(settings, name))


def create_channels(
    settings: JobSettings, *, once: bool, wait: Callable[[float], bool], new_topic: bool = False
) -> None:
    """Create all channels before one is read: nsqd gives messages that wait in a topic only to its first channel.

    Without once, the first run of a job tries until they exist. A topic that no nsqd has is created at configured nsqds
    only if new_topic is True or the job has read it before: a misspelled topic would stay there.

    Args:
        wait: Waits the given seconds; returns True if the job is to stop.

    Raises:
        JobFailed: If a topic does not exist and must not be created; with once, also if a channel can't be created.
    """
    shared = [topic for topic in _named_topics(settings) if len(_readers(settings, topic)) > 1]
    shown = ", ".join(shared) or "the job"
    if not settings.is_asked:
        if shared:
            logger.warning(
                "channels of %s not created: without nsqd_http_addresses or lookupd_http_addresses, what waits in "
                "a topic that has no channel yet goes to one of them alone, and a topic that does not exist is "
                "created",
                shown,
            )
        return
    told = ""
    while reason := _try_create(settings, new_topic=new_topic):
        if once:
            raise JobFailed(f"channels of {shown} not created: {reason}")
        if reason != told:
            logger.warning("channels of %s not created: %s", shown, reason)
            told = reason
        if all(_has_begun(settings, topic) for topic in shared) or wait(RETRY):
            return


def _try_create(settings: JobSettings, *, new_topic: bool) -> str:
    """Create the channels. Return the reason if that fails, otherwise ""."""
    found = survey(settings)
    new = [topic for topic in _named_topics(settings) if not (new_topic or _has_begun(settings, topic))]
    if unknown := [topic for topic in new if topic not in found.topic_names]:
        if not found.failures:
            raise JobFailed(_unknown(settings, unknown, found))
        return "; ".join(found.failures)
    for query in settings.queries:
        client = ChannelClient(query.read_options)
        try:
            client.create()
        except NSQException as error:
            return str(error)
        finally:
            client.close()
    return ""


def _readers(settings: JobSettings, topic: str) -> list[Query]:
    """List the queries that read a topic."""
    return [query for query in settings.queries if has_topic(query.read_options.source.rpartition("/")[0], topic)]


def _has_begun(settings: JobSettings, topic: str) -> bool:
    """Return True if all queries of a topic have locked their spools for it before: then its channels were created."""
    try:
        for query in _readers(settings, topic):
            topics, _, channel = str(read_owner(open_store(query.spool)).get("source", "")).rpartition("/")
            if channel != query.channel or not has_topic(topics, topic):
                return False
    except OSError:
        return False
    return True
