import json
import logging
import re
import stat
from dataclasses import replace

import pytest

from gnsq.spark.errors import JobFailed, SpoolInUse
from gnsq.spark.offsets import encode_offset
from gnsq.spark.pipeline.layout import archive_tables, metrics_table
from gnsq.spark.pipeline.preflight import (
    Survey,
    check_nsq,
    check_places,
    check_work,
    create_channels,
    note_partitions,
    survey,
)
from gnsq.spark.pipeline.windows import Metric
from gnsq.spark.spool.spool import Spool
from tests.spark.helpers import channel_stats, publish, wait_for
from tests.spark.pipeline.helpers import config_for, put_checkpoint, put_note


@pytest.fixture
def config(tmp_path):
    return config_for(tmp_path)


def test_directories_are_made(config, tmp_path):
    check_work(config)
    check_places(config)
    check_places(config)

    assert (tmp_path / "output").is_dir()
    assert (tmp_path / "work" / "metrics" / "spool").is_dir()


@pytest.mark.parametrize(("before", "after"), [("string", "binary"), ("binary", "string")])
def test_raw_bodies_and_parsed_ones_do_not_share_a_table(config, before, after):
    made, other = sorted(
        (config, replace(config, raw=True, fields={})), key=lambda each: each.raw, reverse=before == "binary"
    )
    [archive, *_] = archive_tables(made, "clicks")
    archive.claim("a", take_over=False)

    with pytest.raises(
        JobFailed,
        match=rf"column body of type {before}, and its type is {after} now, in which",
    ):
        check_places(other, take_over=True)


def test_raw_bodies_have_the_places_of_one_query(fakensqd, tmp_path):
    config = config_for(tmp_path, raw=True, **addresses(fakensqd))
    check_places(config)
    create_channels(config, once=True, wait=pytest.fail, new_topic=True)

    assert sorted(path.name for path in (tmp_path / "work").iterdir() if path.is_dir()) == ["archive"]
    assert channel_stats(fakensqd, "clicks", "archive") is not None
    assert channel_stats(fakensqd, "clicks", "metrics") is None


def test_spools_have_the_permissions_that_the_settings_say(tmp_path):
    config = config_for(tmp_path, nsq={"spoolMode": "2770"})
    check_places(config)

    assert [stat.S_IMODE((tmp_path / f"work/{query}/spool").stat().st_mode) for query in config.queries] == [0o2770] * 2


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("output", "setting output .* can't be written: .*: give a directory that can be"),
        ("work/archive/spool", "setting spool .* can't be written"),
    ],
)
def test_place_that_can_not_be_written_is_named(config, tmp_path, place, words):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("no directory")

    with pytest.raises(JobFailed, match=words):
        check_places(config)


def test_work_that_can_not_be_written_is_named(config, tmp_path):
    (tmp_path / "work").write_text("no directory")

    with pytest.raises(JobFailed, match=r"setting work .* can't be written"):
        check_work(config)


def test_log_that_can_not_be_written_is_named(config, tmp_path):
    (tmp_path / "file").write_text("no directory")

    with pytest.raises(JobFailed, match=r"setting log_file .*/file/log can't be written: .*: give a file that can be"):
        check_places(replace(config, log_file=str(tmp_path / "file" / "log")))


def test_spool_of_another_query_is_refused(config):
    spool = Spool(config.spool_of("metrics"))
    spool.prepare()
    spool.lock("/another", "clicks/metrics").release()

    with pytest.raises(SpoolInUse, match="belongs to owner '/another'"):
        check_places(config)


def test_check_claims_nothing(config, tmp_path):
    check_places(config_for(tmp_path, topic="clcks"))

    check_places(config)
    assert not list(tmp_path.rglob("owner.json"))
    assert not list((tmp_path / "output").rglob("_delta_log"))


def test_checkpoint_of_another_topic_is_refused(config, tmp_path):
    put_checkpoint(tmp_path / "work/archive/checkpoint")
    put_note(config, offset=encode_offset({"r": 1}, "views/archive"))

    with pytest.raises(JobFailed, match=r"the checkpoint is of 'views/archive', this query reads 'clicks/archive'"):
        check_places(config)


def test_corrupt_checkpoint_is_told(config, tmp_path):
    put_checkpoint(tmp_path / "work/archive/checkpoint")
    (tmp_path / "work/archive/checkpoint/metadata").write_text("")

    with pytest.raises(JobFailed, match="metadata can't be read"):
        check_places(config)


def test_checkpoint_that_only_spark_can_read_is_left_to_it(tmp_path):
    config = config_for(tmp_path, checkpoint="viewfs://cluster/checkpoints")

    check_places(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deduplicate": 60.0}, "archive/checkpoint was made with deduplicate False, and the setting is True now"),
        ({"metrics": (Metric(window=300),)}, "metrics/checkpoint was made with window 60, and the setting is 300 now"),
        (
            {"metrics": (Metric(keys=("user",)),)},
            r"made with keys \['page'\], and the setting is \['user'\] now: leave it as it was, or let the job work "
            r"off everything with --once, move .*/work/metrics/checkpoint and .*/work/metrics/spool away, and start "
            r"with --take-over and another name in \[\[metrics\]\]",
        ),
    ],
)
def test_settings_that_a_checkpoint_depends_on_stay(config, tmp_path, changes, words):
    check_places(config)
    # Nothing has run yet: what was noted may change.
    check_places(config_for(tmp_path, **changes))
    check_places(config)
    begin(tmp_path)
    check_places(config)

    with pytest.raises(JobFailed, match=words):
        check_places(config_for(tmp_path, **changes))


def test_number_of_partitions_of_a_state_stays(config, tmp_path):
    check_places(config)
    for query in config.queries:
        note_partitions(config, query, 3)
    begin(tmp_path)
    # As at each start: what was noted first stays.
    check_places(config)
    for query in config.queries:
        note_partitions(config, query, 8)

    check_places(config_for(tmp_path, state_partitions=3))
    with pytest.raises(JobFailed, match="was made with state_partitions 3, and the setting is 8 now: leave it as it"):
        check_places(config_for(tmp_path, state_partitions=8))


def test_number_of_partitions_that_is_not_known_is_not_guessed(config, tmp_path):
    begin(tmp_path)
    check_places(config)
    for query in config.queries:
        note_partitions(config, query, 3)

    check_places(config_for(tmp_path, state_partitions=8))


def test_counts_of_an_earlier_release_are_refused(config, tmp_path):
    begin(tmp_path)
    (tmp_path / "work/metrics").mkdir(exist_ok=True)
    (tmp_path / "work/metrics/made-with.json").write_text('{"window_length": 60, "key_field": "page"}')

    with pytest.raises(JobFailed, match=r"is of an earlier release, .* with --once, then move .* away$"):
        check_places(config)


def begin(path):
    for query in ("archive", "metrics"):
        put_checkpoint(path / "work" / query / "checkpoint")


def test_table_of_another_checkpoint_is_refused(config, tmp_path):
    for table in (*archive_tables(config, "clicks"), metrics_table(config, "metrics")):
        table.claim("theirs", take_over=False)

    with pytest.raises(JobFailed, match=r"archive belongs to the checkpoint theirs; this job's checkpoint is new"):
        check_places(config)
    begin(tmp_path)
    with pytest.raises(JobFailed, match="belongs to the checkpoint theirs; this job's checkpoint is a, so"):
        check_places(config)

    check_places(config, take_over=True)
    check_places(config)


def test_table_that_is_gone_is_not_made_anew_unless_that_is_meant(config, tmp_path):
    """As after a start without the disk of the output."""
    begin(tmp_path)
    check_places(config)
    commits = tmp_path / "work/metrics/checkpoint/commits"
    commits.mkdir()
    for batch_id in (1, 2):
        (commits / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (tmp_path / "output").rename(tmp_path / "mounted elsewhere")

    with pytest.raises(JobFailed, match=r"/counts is missing, and its checkpoint has 3 batches: mount .*--take-over"):
        check_places(config)

    assert not list((tmp_path / "output").rglob("metrics/*/_delta_log"))
    check_places(config, take_over=True)


def test_missing_secret_file_is_named(tmp_path):
    config = config_for(tmp_path, nsq={"authSecretFile": str(tmp_path / "none")})

    with pytest.raises(JobFailed, match=r"setting nsq: option authSecretFile '.*none' can't be read"):
        check_places(config)


# --- nsqd and nsqlookupd


def claim_spools(config):
    """As queries do that have run."""
    for query in ("archive", "metrics"):
        spool = Spool(config.spool_of(query))
        spool.prepare()
        spool.lock(config.checkpoint_of(query), f"clicks/{query}").release()


def test_topics_are_found_at_nsqd_and_nsqlookupd(fakecluster, tmp_path):
    publish(fakecluster.nsqds[0], "here", [b"1"])
    publish(fakecluster.nsqds[1], "there", [b"1"])
    lookupds = tuple(fakecluster.lookupd_http_addresses)
    config = config_for(
        tmp_path,
        nsqd_http_addresses=(fakecluster.nsqds[0].http_address, "127.0.0.1:1"),
        lookupd_http_addresses=lookupds,
    )

    wait_for(lambda: survey(config).topics == {"here", "there"})
    found = survey(config)
    assert (found.asked, len(found.failures)) == (2 + len(lookupds), 1)


NOBODY = Survey(1, ["127.0.0.1:1: refused"])


def test_run_for_ever_waits_for_who_does_not_answer_and_one_that_ends_fails(config, caplog):
    check_nsq(config, NOBODY, once=False)
    assert "neither nsqd nor nsqlookupd answers: 127.0.0.1:1: refused; waiting for them" in caplog.text
    with pytest.raises(JobFailed, match="neither nsqd nor nsqlookupd answers: 127"):
        check_nsq(config, NOBODY, once=True)


@pytest.mark.parametrize("once", [False, True])
def test_topic_that_nobody_has_is_refused_unless_it_is_still_to_come(tmp_path, caplog, once):
    config = config_for(tmp_path, nsqd_http_addresses=("a:4151",), lookupd_http_addresses=("b:4161",))
    others = Survey(2, [], {"click", "orders"})

    with pytest.raises(
        JobFailed,
        match=r"^no nsqd of nsqd_http_addresses or lookupd_http_addresses has the topic clicks, near it are click: "
        r"correct the setting topic, or give --new-topic if it is still to come$",
    ):
        check_nsq(config, others, once=once)
    with pytest.raises(JobFailed, match="has the topic clicks: correct"):
        check_nsq(config, Survey(2), once=once)
    check_nsq(config, others, once=once, new_topic=True)

    assert "no nsqd has the topic clicks; waiting for it" in caplog.text


@pytest.mark.parametrize("once", [False, True])
def test_topic_that_the_job_has_read_before_may_be_gone(config, once):
    claim_spools(config)

    check_nsq(config, Survey(1), once=once)
    with pytest.raises(JobFailed, match=r"no nsqd of .* has the topic clcks"):
        check_nsq(replace(config, topic="clcks", nsqd_http_addresses=("a:4151",)), Survey(1), once=once)


def test_nsqd_that_does_not_answer_may_have_the_topic(config):
    check_nsq(config, Survey(2, ["a: gone"], {"orders"}), once=False)
    with pytest.raises(JobFailed, match="no nsqd"):
        check_nsq(config, Survey(2, ["a: gone"], {"orders"}), once=True)


def test_all_is_well(config, caplog):
    caplog.set_level(logging.DEBUG)
    check_nsq(config, Survey(1, [], {"clicks"}), once=True)
    check_nsq(config, Survey(), once=False)
    assert caplog.text == ""
    check_nsq(config, Survey(2, ["a: gone"], {"clicks"}), once=True)

    assert "a: gone" in caplog.text


def test_notes_beside_a_checkpoint_are_json(config, tmp_path):
    check_places(config)

    assert json.loads((tmp_path / "work/metrics/made-with.json").read_text())["keys"] == ["page"]


# --- channels


def addresses(nsqd):
    return {"nsqd_tcp_addresses": (nsqd.tcp_address,), "nsqd_http_addresses": (nsqd.http_address,)}


def test_first_start_waits_for_nsqd_so_that_both_queries_get_everything(fakensqd, tmp_path, caplog):
    publish(fakensqd, "clicks", [b"1", b"2"])
    config = config_for(tmp_path, **addresses(fakensqd))
    fakensqd.stop()
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            fakensqd.start()
        return False

    create_channels(config, once=False, wait=wait)

    assert len(waits) == 2
    assert caplog.text.count("channels of clicks not created") == 1
    assert [channel_stats(fakensqd, "clicks", query)["depth"] for query in ("archive", "metrics")] == [2, 2]


def test_topic_that_only_nsqlookupd_could_tell_of_is_waited_for(fakecluster, tmp_path):
    config = config_for(tmp_path, lookupd_http_addresses=tuple(fakecluster.lookupd_http_addresses))

    def wait(seconds):
        publish(fakecluster.nsqds[0], "clicks", [b"1"])
        wait_for(lambda: "clicks" in survey(config).topics)
        return False

    create_channels(config, once=False, wait=wait, new_topic=True)

    assert channel_stats(fakecluster.nsqds[0], "clicks", "metrics")["depth"] == 1


def test_topic_that_is_still_to_come_does_not_keep_others_waiting(fakecluster, tmp_path, caplog):
    lookupds = tuple(fakecluster.lookupd_http_addresses)
    metrics = (Metric("pages", topic="clicks"),)
    config = config_for(tmp_path, topic="clicks,views", metrics=metrics, lookupd_http_addresses=lookupds)
    publish(fakecluster.nsqds[0], "views", [b"x"])
    wait_for(lambda: "views" in survey(config).topics)

    create_channels(config, once=False, wait=pytest.fail, new_topic=True)

    assert channel_stats(fakecluster.nsqds[0], "views", "archive")["depth"] == 1
    assert re.search("no nsqd has the topic clicks; .* all of the channels archive, metrics exist", caplog.text)
    with pytest.raises(JobFailed, match="channels of clicks not created: no nsqd has the topic clicks"):
        create_channels(config, once=True, wait=pytest.fail, new_topic=True)


def test_topic_that_nobody_has_is_not_created_even_if_that_shows_later(fakensqd, tmp_path):
    config = config_for(tmp_path, **addresses(fakensqd))
    fakensqd.stop()

    def wait(seconds):
        fakensqd.start()
        return False

    with pytest.raises(JobFailed, match="has the topic clicks: correct"):
        create_channels(config, once=False, wait=wait)

    assert channel_stats(fakensqd, "clicks", "archive") is None
    create_channels(config, once=False, wait=pytest.fail, new_topic=True)
    assert channel_stats(fakensqd, "clicks", "archive")["depth"] == 0


GONE = {"nsqd_http_addresses": ("127.0.0.1:1",)}


def test_channels_that_can_not_be_created_fail_a_job_that_ends(tmp_path):
    with pytest.raises(JobFailed, match=r"channels of clicks not created: .*127\.0\.0\.1:1"):
        create_channels(config_for(tmp_path, **GONE), once=True, wait=lambda seconds: False)


def test_wait_for_channels_ends_when_it_is_told_to_or_both_queries_have_begun(config, tmp_path, caplog):
    gone = config_for(tmp_path, **GONE)
    create_channels(gone, once=False, wait=lambda seconds: True)
    claim_spools(gone)

    create_channels(gone, once=False, wait=pytest.fail)
    create_channels(config, once=False, wait=pytest.fail)

    assert "goes to one of them alone" in caplog.text
