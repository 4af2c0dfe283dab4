import json
import logging
import re
import shlex
import stat
from dataclasses import replace

import pytest

from gnsq.census import Node, NodeStats, Poll
from gnsq.spark.errors import JobFailed, SpoolInUse
from gnsq.spark.pipeline.checks import (
    check_nsq,
    check_places,
    check_work,
    create_channels,
    note_queries,
    survey,
)
from gnsq.spark.spool.spool import Spool
from tests.kit.commands import invoke
from tests.spark.helpers import channel_stats, publish, wait_for
from tests.spark.pipeline.jobs import addresses, job, table

# Two queries of one topic.
BOTH = (table(), table("pages", topics=("clicks",)))


def check_both(settings):
    check_work(settings)
    check_places(settings)


def claim_spools(settings):
    """As queries do that have run."""
    for query in settings.queries:
        spool = Spool(query.spool)
        spool.prepare()
        spool.lock(query.checkpoint, query.read_options.source).release()


# --- places


def test_directories_are_made_with_the_permissions_that_the_settings_say(tmp_path):
    settings = job(tmp_path, *BOTH, nsq={"spoolMode": "2770"})
    check_both(settings)
    check_both(settings)

    assert (tmp_path / "output").is_dir()
    for name in ("clicks", "pages"):
        assert stat.S_IMODE((tmp_path / f"work/{name}/spool").stat().st_mode) == 0o2770
    assert not list(tmp_path.rglob("owner.json"))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("output", "setting output .* can't be written: .*: give a directory that can be"),
        ("work/clicks/spool", "spool .* can't be written"),
        ("work", r"setting work .* can't be written"),
    ],
)
def test_place_that_can_not_be_written_is_named(tmp_path, place, words):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("no directory")
    settings = job(tmp_path)

    with pytest.raises(JobFailed, match=words):
        check_both(settings)


def test_what_can_not_be_used_is_named(tmp_path):
    (tmp_path / "work" / "spark.log").mkdir(parents=True)
    with pytest.raises(JobFailed, match=r"log .*/work/spark.log can't be written: "):
        check_places(job(tmp_path))
    (tmp_path / "work" / "spark.log").rmdir()
    with pytest.raises(JobFailed, match=r"setting nsq: option authSecretFile '.*none' can't be read"):
        check_places(job(tmp_path, nsq={"authSecretFile": str(tmp_path / "none")}))

    settings = job(tmp_path)
    spool = Spool(settings.queries[0].spool)
    spool.prepare()
    spool.lock("/another", "clicks/clicks").release()
    with pytest.raises(SpoolInUse, match="belongs to owner '/another'"):
        check_places(settings)


# --- what former queries have left


def start(settings):
    """What a start does before Spark."""
    check_work(settings)
    check_places(settings)
    if settings.is_asked:
        create_channels(settings, once=True, wait=pytest.fail, new_topic=True)
    note_queries(settings)


def test_channel_of_a_renamed_query_is_told_until_it_is_deleted(fakensqd, tmp_path, caplog):
    start(job(tmp_path, table(), table("views"), **addresses(fakensqd)))
    publish(fakensqd, "views", [b"1", b"2"])
    renamed = job(tmp_path, table(), table("seen", topics=("views",)), **addresses(fakensqd))
    assert caplog.text == ""
    start(renamed)

    said = r"query views does not read topic views any more, .* channel views \(2 messages now\) .*delete it: (.*)"
    assert re.search(r"query views is gone from the settings; its table stays, and .*/work/views/spool ", caplog.text)
    # Not of caplog.text, whose form a PySparkLogger changes to JSON in this process.
    [program, *words] = shlex.split(re.search(said, "\n".join(caplog.messages))[1])
    caplog.clear()
    start(renamed)
    assert re.search(said, caplog.text)
    assert (program, invoke(*words, "--yes").exit_code) == ("gnsq", 0)
    caplog.clear()
    start(renamed)
    assert "channel views" not in caplog.text
    assert set(json.loads((tmp_path / "work/queries.json").read_text())) == {"clicks/clicks", "views/seen"}


def test_channel_of_a_topic_that_was_removed_is_told_also_if_no_nsqd_can_be_asked(fakensqd, tmp_path, caplog):
    start(job(tmp_path, table(topics=("a", "b")), **addresses(fakensqd)))
    start(job(tmp_path, table(topics=("a", "c")), **addresses(fakensqd)))

    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("query clicks does not read topic b any more, and the messages in channel clicks (0 ")
    start(job(tmp_path / "other", table("views")))
    start(job(tmp_path / "other"))
    assert "query views has read views/views before, and nobody does now" in caplog.text


# --- nsqd and nsqlookupd


def answers(*topics, failing=()):
    """Make the answers of an nsqd with these topics, and of others that fail."""
    counts = {(topic, ""): {} for topic in topics}
    failed = [Node(address, error=error) for address, error in failing]
    return Poll((Node("http://b:4151/", NodeStats("", "", None, counts)), *failed), {})


NOBODY = Poll((Node("http://127.0.0.1:1/", error="refused"),), {})
GONE = [("http://a:4151/", "gone")]


def test_run_for_ever_waits_for_who_does_not_answer_and_one_that_ends_fails(tmp_path, caplog):
    settings = job(tmp_path, nsqd_http_addresses=("127.0.0.1:1",))
    check_nsq(settings, NOBODY, once=False)
    assert "no answer of nsqd_http_addresses: nsqd 127.0.0.1:1: refused: start what is down, or correct" in caplog.text
    with pytest.raises(JobFailed, match="no answer of nsqd_http_addresses: nsqd 127"):
        check_nsq(settings, NOBODY, once=True)


def test_topic_that_nobody_has_is_refused_unless_it_is_still_to_come(tmp_path, caplog):
    settings = job(tmp_path, nsqd_http_addresses=("a:4151",), lookupd_http_addresses=("b:4161",))
    others = answers("click", "orders")

    with pytest.raises(
        JobFailed,
        match=r"^no nsqd of nsqd_http_addresses or lookupd_http_addresses has the topic clicks, near it are click: "
        r"correct topics of \[tables.clicks\], or give --new-topic if it is still to come$",
    ):
        check_nsq(settings, others, once=False)
    with pytest.raises(JobFailed, match="has the topic clicks: correct"):
        check_nsq(settings, answers(), once=True)
    check_nsq(settings, others, once=True, new_topic=True)

    assert "no nsqd has the topic clicks; waiting for it" in caplog.text


def test_topic_that_the_job_has_read_before_may_be_gone(tmp_path):
    settings = job(tmp_path, *BOTH, nsqd_http_addresses=("a:4151",))
    claim_spools(settings)

    check_nsq(settings, answers(), once=True)
    with pytest.raises(JobFailed, match=r"no nsqd of .* has the topic clcks"):
        check_nsq(job(tmp_path, table(topics=("clcks",)), nsqd_http_addresses=("a:4151",)), answers(), once=True)


def test_all_is_well_or_an_nsqd_that_does_not_answer_may_have_the_topic(tmp_path, caplog):
    check_nsq(job(tmp_path), answers("orders", failing=GONE), once=False)
    with pytest.raises(JobFailed, match="no nsqd"):
        check_nsq(job(tmp_path), answers("orders", failing=GONE), once=True)
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    check_nsq(job(tmp_path), answers("clicks"), once=True)
    check_nsq(job(tmp_path), Poll((), {}), once=False)
    assert caplog.text == ""
    check_nsq(job(tmp_path), answers("clicks", failing=GONE), once=True)

    assert "nsqd a:4151: gone" in caplog.text


# --- channels


def test_first_start_waits_for_nsqd_so_that_all_queries_get_everything(fakensqd, tmp_path, caplog):
    publish(fakensqd, "clicks", [b"1", b"2"])
    settings = job(tmp_path, *BOTH, **addresses(fakensqd))
    fakensqd.stop()
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            fakensqd.start()
        return False

    create_channels(settings, once=False, wait=wait)

    assert len(waits) == 2
    assert caplog.text.count("channels of clicks not created") == 1
    assert [channel_stats(fakensqd, "clicks", query.channel)["depth"] for query in settings.queries] == [2, 2]


def test_all_queries_get_all_of_a_topic_that_an_nsqd_gets_later(fakecluster, tmp_path):
    lookupds = tuple(fakecluster.lookupd_http_addresses)
    settings = job(tmp_path, *BOTH, table("views"), lookupd_http_addresses=lookupds)
    wait_for(lambda: not survey(settings).failures)

    create_channels(settings, once=False, wait=pytest.fail, new_topic=True)

    for nsqd in fakecluster.nsqds:
        publish(nsqd, "clicks", [b"1"])
        wait_for(lambda nsqd=nsqd: channel_stats(nsqd, "clicks", "pages"))
        assert [channel_stats(nsqd, "clicks", name)["depth"] for name in ("clicks", "pages")] == [1, 1]
        assert channel_stats(nsqd, "clicks", "views") is None


def test_topic_that_nobody_has_is_not_created_even_if_that_shows_later(fakensqd, tmp_path):
    settings = job(tmp_path, *BOTH, **addresses(fakensqd))
    fakensqd.stop()

    def wait(seconds):
        fakensqd.start()
        return False

    with pytest.raises(JobFailed, match="has the topic clicks: correct"):
        create_channels(settings, once=False, wait=wait)

    assert channel_stats(fakensqd, "clicks", "clicks") is None
    create_channels(settings, once=False, wait=pytest.fail, new_topic=True)
    assert channel_stats(fakensqd, "clicks", "clicks")["depth"] == 0


def test_wait_for_channels_ends_when_it_is_told_to_or_all_queries_have_begun(tmp_path, caplog):
    gone = job(tmp_path, *BOTH, nsqd_http_addresses=("127.0.0.1:1",))
    create_channels(gone, once=False, wait=lambda seconds: True)
    with pytest.raises(JobFailed, match=r"channels of clicks not created: .*127\.0\.0\.1:1"):
        create_channels(gone, once=True, wait=pytest.fail)
    claim_spools(gone)

    create_channels(gone, once=False, wait=pytest.fail)
    create_channels(replace(gone, nsqd_http_addresses=()), once=False, wait=pytest.fail)

    assert "goes to one of them alone" in caplog.text
