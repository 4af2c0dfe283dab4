from dataclasses import replace

import pytest

from gnsq.spark.pipeline.config import _OWN_OPTIONS, PipelineConfig
from gnsq.spark.pipeline.windows import Metric

GIVEN = {"topic": "clicks", "output": "/out", "work": "/data", "nsqd_tcp_addresses": ("a:4150",)}


def config(**changes):
    return PipelineConfig(**{**GIVEN, **changes})


@pytest.mark.parametrize(
    ("address", "words"),
    [
        pytest.param("127.0.0.1", "'127.0.0.1' has no port: give host:port, such as 127.0.0.1:9100", id="no port"),
        pytest.param("/run/metrics", "'/run/metrics' has no port", id="path"),
        pytest.param("a:b", "port 'b' of address 'a:b' is not a number", id="no number"),
    ],
)
def test_metrics_address_needs_host_and_port(address, words):
    with pytest.raises(ValueError, match=f"^setting metrics_address: .*{words}"):
        config(metrics_address=address)


def test_options_that_the_job_sets_are_refused_in_nsq():
    made = config()

    assert {name.lower() for name in made.source_options("archive") | made.sink_options("t")} <= set(_OWN_OPTIONS)


def test_topics_follow_the_topic():
    given = config(metrics_topic="m", dead_letter_topic="d")
    assert [each.metrics_to("metrics") for each in (config(), given)] == ["clicks-metrics", "m"]
    assert [each.entries[0].dead_letters_to("clicks") for each in (config(), given)] == ["clicks-dead", "d"]


def test_events_are_clicks_unless_described():
    schema = config().schema_of("clicks")

    assert schema.fields == {"user": "string", "page": "string"}
    assert (schema.time_field, schema.required) == ("time", ("page", "user"))
    assert config(fields={"host": "string"}, metrics=(Metric(keys=("host",)),)).fields == {"host": "string"}


def test_fields_of_a_file_are_part_of_the_configuration(tmp_path):
    path = tmp_path / "click.ddl"
    path.write_text("user STRING NOT NULL, page STRING, ms INT")
    made = config(fields_file=str(path), metrics=(Metric(keys=()),))
    path.unlink()

    for each in (made, replace(made, topic="views")):
        assert each.fields == {"user": "STRING", "page": "STRING", "ms": "INT"}
        assert each.schema_of(each.topic).required == ("user",)


def test_file_without_required_fields_leaves_them_to_the_setting(tmp_path):
    path = tmp_path / "click.ddl"
    path.write_text("user STRING, page STRING")

    assert config(fields_file=str(path)).schema_of("clicks").required == ("page",)
    assert config(fields_file=str(path), required_fields=("user",)).schema_of("clicks").required == ("page", "user")


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        pytest.param(None, {}, r"setting fields_file .*/click\.ddl: .*No such file", id="missing"),
        pytest.param(
            "a TIMESTAMP_NTZ", {}, r"fields_file .*/click\.ddl: a has the type 'TIMESTAMP_NTZ', which", id="ntz"
        ),
        pytest.param("hour INT", {}, "click.ddl: 'hour' is a column of the job's own", id="reserved"),
        pytest.param("a INT", {"fields": {"b": "int"}}, "fields and fields_file are both given: leave one", id="both"),
        pytest.param(
            "a INT NOT NULL", {"required_fields": ()}, "required_fields: fields_file .* says it, too", id="required"
        ),
    ],
)
def test_bad_fields_file_is_named(tmp_path, text, changes, words):
    path = tmp_path / "click.ddl"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ValueError, match=words):
        config(fields_file=str(path), **changes)


def test_raw_bodies_need_one_query_and_no_topic_to_publish_to():
    raw = config(raw=True, topic="a" * 64, deduplicate=7200, partition_by="hour")

    assert (raw.queries, config().queries) == (("archive",), ("archive", "metrics"))
    assert replace(raw, topic="b").fields == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"time_field": "at", "fields": {"a": "int"}}, "leave out fields, time_field$", id="fields"),
        pytest.param({"fields_file": "/x", "required_fields": ()}, "out fields_file, required_fields$", id="file"),
        pytest.param(
            {"metrics": (), "metrics_topic": "m", "metrics_channel": "c", "keep_windows": 0.0, "max_ahead": 0.0},
            "leave out max_ahead, metrics, keep_windows, metrics_channel, metrics_topic$",
            id="metrics",
        ),
        pytest.param(
            {"dead_letter_topic": "d", "publish_addresses": ("a:1",)},
            "setting raw: bodies are not parsed, so leave out dead_letter_topic, publish_addresses$",
            id="dead letters",
        ),
        pytest.param({"partition_by": "page"}, "'page' is neither day, hour nor none, and raw has no fields", id="by"),
    ],
)
def test_settings_that_make_no_sense_for_raw_bodies_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        config(raw=True, **changes)


def test_windows_are_kept_for_a_day_and_with_message_ids_for_an_hour():
    assert config().windows_kept(Metric()) == 86_400
    assert [config(deduplicate=seconds).windows_kept(Metric()) for seconds in (60, 7200)] == [3600, 7200]
    assert config(deduplicate=60, keep_windows=90).windows_kept(Metric()) == 90
    assert config(keep_windows=90).windows_kept(Metric(keep_windows=5.0)) == 5


def test_each_query_has_its_own_spool():
    archive, metrics = config().source_options("archive"), config().source_options("metrics")

    assert archive["spool"] == "/data/archive/spool"
    assert archive["spoolOwner"] == "/data/archive/checkpoint"
    for name in ("spool", "spoolOwner", "channel"):
        assert archive[name] != metrics[name]


def test_spool_and_checkpoint_may_be_elsewhere():
    elsewhere = config(spool="s3://bucket/spools/", checkpoint="hdfs://name/checkpoints")

    assert elsewhere.spool_of("archive") == "s3://bucket/spools/archive"
    assert elsewhere.checkpoint_of("metrics") == "hdfs://name/checkpoints/metrics"
    assert config(spool="/spools").spool_of("archive") == "/spools/archive"
    assert config(spool="s3://b/x?region=y").spool_of("archive") == "s3://b/x/archive?region=y"


def test_options_reach_source_and_sink():
    options = {"tls": "true", "tls_ca_file": "/ca.pem", "maxInFlight": "9", "publishTimeout": "5", "auth_secret": "x"}
    both = config(nsq=options)
    held = config(nsq={"minRowsPerBatch": "100", "maxTriggerDelay": "9.5"})

    source, sink = both.source_options("archive"), both.sink_options("t")
    assert (source["tls"], source["tlsCaFile"], source["maxInFlight"], source["authSecret"]) == (
        *("true", "/ca.pem", "9", "x"),
    )
    assert held.read_options("metrics").min_rows_per_batch == 100
    assert held.read_options("metrics").max_trigger_delay == 9.5
    assert sink == {
        "tls": "true",
        "tlsCaFile": "/ca.pem",
        "publishTimeout": "5",
        "authSecret": "x",
        "topic": "t",
        "nsqdTcpAddresses": "a:4150",
    }


def test_sink_publishes_where_it_is_told_else_where_is_read():
    looked_up = config(nsqd_tcp_addresses=(), lookupd_http_addresses=("l:4161",))

    assert looked_up.sink_options("t") == {"topic": "t", "lookupdHttpAddresses": "l:4161"}
    assert config(publish_addresses=("p:4150",)).sink_options("t")["nsqdTcpAddresses"] == "p:4150"


def test_certificates_for_http_alone_are_not_the_sinks():
    https = config(nsqd_http_addresses=("https://a:4152",), nsq={"tlsCaFile": "/ca.pem"})

    assert https.source_options("archive")["tlsCaFile"] == "/ca.pem"
    assert "tlsCaFile" not in https.sink_options("t")


def test_secrets_are_not_shown():
    secret = config(nsq={"authSecret": "hush"})

    assert "hush" not in repr(secret)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"topic": ""}, "setting topic is required", id="missing"),
        pytest.param({"nsqd_tcp_addresses": ()}, "no address", id="no address"),
        pytest.param({"work": "s3://b/x"}, "work 's3://b/x' is a URI, and Spark .*: give checkpoint, too", id="URI"),
        pytest.param({"work": "hdfs://h/x", "checkpoint": "/c"}, "work 'hdfs://h/x' is not an object store", id="HDFS"),
        pytest.param(
            {"output": "hdfs://k:hush@h/x"}, r"hdfs://\*\*\*@h/x' is not an object store \(s3, ", id="no store"
        ),
        pytest.param(
            {"output": "s3://b/x?region=a", "spool": "s3://b/x/dead"}, "is in output/dead", id="output and spool"
        ),
        pytest.param({"work": "file:/x"}, "file:/x' is not an object store", id="file URI"),
        pytest.param({"output": " "}, "setting output is required", id="blank"),
        pytest.param({"nsqd_tcp_addresses": ("a:x",)}, "setting nsqd_tcp_addresses: port 'x'", id="port"),
        pytest.param({"publish_addresses": ("a:x",)}, "setting publish_addresses: port 'x'", id="port to publish to"),
        pytest.param({"lookupd_http_addresses": ("a:x",)}, "setting lookupd_http_addresses: 'a:x'", id="HTTP port"),
        pytest.param({"topic": "a b"}, "setting topic: ", id="bad topic"),
        pytest.param({"metrics_topic": "a b"}, "setting metrics_topic: ", id="bad metrics topic"),
        pytest.param({"topic": "a" * 60}, "setting metrics_topic: ", id="metrics topic too long"),
        pytest.param({"dead_letter_topic": "clicks"}, "'clicks', the topic that is read", id="circle"),
        pytest.param({"dead_letter_topic": "clicks-metrics"}, "both 'clicks-metrics': give each", id="one topic"),
        pytest.param({"nsqd_tcp_addresses": ("a:1,b:1",)}, "several addresses in one: give a list", id="addresses"),
        pytest.param({"keep_windows": 1e300}, "must be within 0 to 31536000 s", id="kept"),
        pytest.param({"deduplicate": 1e-9}, "must be within 0.001 to 31536000 or 0 s", id="deduplicate"),
        pytest.param({"work": "/out"}, r"\(/out/archive/spool\) is in output/archive", id="work is output"),
        pytest.param({"spool": "/s", "checkpoint": "/x/../s"}, "directories overlap: spool of archive", id="spool"),
        pytest.param(
            {"spool": "s3://u:hush@b/s", "checkpoint": "s3://u:hush@b/s"}, r"archive \(s3://\*\*\*@b/s", id="URIs"
        ),
        pytest.param({"archive_channel": "a b"}, "setting archive_channel: ", id="bad channel"),
        pytest.param({"archive_channel": "metrics"}, "each would get half", id="same channel"),
        pytest.param({"keep_windows": -1.0}, "keep_windows -1.0 must be within 0 to 31536000 s", id="bound"),
        pytest.param({"max_rows_per_batch": 0}, "max_rows_per_batch 0 must be at least 1 row", id="zero"),
        pytest.param({"partition_by": "week"}, "partition_by 'week' is neither day, hour nor none, nor", id="week"),
        pytest.param(
            {"partition_by": "page", "fields": {"page": "double"}},
            "partition_by 'page' has the type double: a field to partition by is one of bigint, boolean, date",
            id="partition of doubles",
        ),
        pytest.param(
            {"fields": {"page": "string", "day": "string"}},
            "partition_by 'day' makes a column of that name, and so does the setting fields: give another",
            id="two columns day",
        ),
        pytest.param({"state_partitions": 0}, "state_partitions 0 must be at least 1 partition", id="state"),
        pytest.param(
            {"metrics": (Metric(keys=("host",)),)}, "metrics: key 'host' is none of fields: user, page", id="key"
        ),
        pytest.param(
            {"metrics": (Metric.parse({"aggregates": "sum(user)"}),)},
            r"setting metrics: sum\(user\) needs a number, the field is a string",
            id="no number",
        ),
        pytest.param(
            {"deduplicate": 90, "keep_windows": 60}, "deduplicate 90 s is more than keep_windows 60 s", id="ids"
        ),
        pytest.param({"receivers": "moon"}, "receivers 'moon' must be one of driver", id="receivers"),
        pytest.param({"nsq": {"tlsCaFiel": "x"}}, "option tlsCaFiel is unknown; did you mean tlsCaFile", id="option"),
        pytest.param({"nsq": {"spool": "x"}}, "nsq: spool is the job's own: use setting spool", id="own option"),
        pytest.param({"nsq": {"max_in_flight": "many"}}, "nsq: option maxInFlight must be a whole number", id="value"),
        pytest.param({"nsq": {"tlsCaFile": "/x"}}, "nothing is encrypted", id="TLS that is not used"),
        pytest.param(
            {"spark": {"spark.sql.session.timeZone": "Asia/Tokyo"}}, "hours and windows are UTC's", id="time zone"
        ),
    ],
)
def test_bad_setting_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        config(**changes)
