import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.pipeline.settings import _OWN_OPTIONS, SESSION, JobSettings, load_settings
from gnsq.spark.pipeline.tables import MetricSettings, SettingError, TableSettings, named_expression, options_of
from tests.spark.pipeline.jobs import job, metric, table
from tests.strategies import json_values, texts, toml

FILE = """
work = "/data"
output = "/out"
nsqd_tcp_addresses = "a:4150"
trigger_interval = "5 seconds"
[nsq]
tls = true
msgTimeout = 30
[spark]
'spark.cores.max' = 2
[tables.clicks]
schema = "user STRING, ms INT"
columns = { user = "$.who.name" }
select = "*"
partition_by = []
[tables.frames]
topics = ["frames.1", "frames.2"]
format = "raw"
[metrics.pages]
table = "clicks"
window = "5 minutes"
keys = "page"
aggregates = ["count(*)", "sum(ms)"]
"""


def load(path, text, overrides=None):
    file = path / "job.toml"
    file.write_text(text)
    return load_settings(str(file), overrides or {})


def test_overrides_win_over_the_file_and_mappings_are_merged_without_a_secret_in_an_error(tmp_path):
    given = {"work": "/w", "nsq": ("msgTimeout=5", "compression = snappy"), "nsqd_tcp_addresses": ("b:4150",)}
    settings = load(tmp_path, FILE, {**given, "output": None, "lookupd_http_addresses": ()})

    assert (settings.work, settings.output, settings.nsqd_tcp_addresses) == ("/w", "/out", ("b:4150",))
    assert settings.nsq == {"tls": "true", "msgTimeout": "5", "compression": "snappy"}
    with pytest.raises(SettingError, match=r"^setting nsq has an item without a name or '=': NAME=VALUE was due$"):
        load(tmp_path, FILE, {"nsq": ("hush",)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(None, r"^configuration .*job\.toml: .*No such file", id="missing"),
        pytest.param("work = ", r"^configuration .*job\.toml: ", id="not TOML"),
        pytest.param("wrok = 'x'", "^setting wrok is unknown; did you mean work\\?", id="unknown"),
        pytest.param("[table.clicks]", "^setting table is unknown; did you mean tables", id="table"),
        pytest.param("[tables.a]\nshcema = 'x'", r"^\[tables.a\] shcema is unknown; did you mean schema\?", id="in it"),
        pytest.param("[tables.a.b]\n", r'or quote a name with dots: \[tables."a.b"\]$', id="dots"),
        pytest.param("[[metrics]]\n", r"^setting metrics must be a table of tables: write \[metrics.NAME\]", id="list"),
        pytest.param("trigger_interval = 'soon'", "^setting trigger_interval must be .* not 'soon'$", id="duration"),
        pytest.param("spark = 'x'", "^setting spark must be a table of names and values, not a str", id="no mapping"),
        pytest.param("[nsq.tls]", "^setting nsq: tls is a dict; a string or a number was due", id="nested"),
        pytest.param(
            "[tables.a]\nschema_file = 'no.ddl'", r"^\[tables.a\] schema_file .*/no.ddl can't be read: ", id="no file"
        ),
    ],
)
def test_bad_file_is_named(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        load(tmp_path, text) if text is not None else load_settings(str(tmp_path / "job.toml"))


# --- tables


def test_body_is_kept_unless_columns_are_selected():
    assert (table().keep, table(select="user").keep, table(select="user", keep="body").keep) == ("body", "none", "body")
    assert table(format="raw", select="_topic").keep == "body"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"schema": ""}, "schema is missing: give the columns", id="no schema"),
        pytest.param({"schema": "a INT", "schema_file": "x"}, "schema and schema_file are both given", id="both"),
        pytest.param({"format": "avro"}, "format 'avro' must be one of json, raw", id="format"),
        pytest.param(
            {"format": "raw", "schema": "a INT", "columns": {"a": "$.b"}, "parse": "x", "mismatch": "rescue"},
            "format raw: bodies are not parsed, so leave out schema, columns, mismatch, parse$",
            id="raw",
        ),
        pytest.param(
            {"parse": "f(body)", "schema": "a INT", "mismatch": "rescue"},
            "parse gives the columns, and bodies need not be JSON, so leave out schema, mismatch$",
            id="parse",
        ),
        pytest.param({"topics": "a b"}, "topics: ", id="topic"),
        pytest.param({"topic_pattern": "a("}, "topic_pattern: 'a\\(' is not a regular expression", id="pattern"),
        pytest.param({"topic_pattern": "a| b"}, "topic_pattern: 'a| b' has a blank", id="blank"),
        pytest.param({"partition_by": ("a", "A")}, "partition_by: a column is there twice", id="twice"),
        pytest.param({"sink": "upsert"}, "sink: 'upsert' is not a function as module:name", id="sink"),
        pytest.param({"sink": "m:f", "partition_by": ()}, "partition_by is for tables, and sink takes", id="no table"),
    ],
)
def test_bad_setting_of_a_table_is_named(settings, words):
    with pytest.raises(SettingError, match=rf"^\[tables.clicks\] {words}") as caught:
        table(**settings)

    assert caught.value.section == "tables.clicks"


# --- metrics


COLUMNS = {
    "page": ("page", "page"),
    "`a b`": ("a b", "`a b`"),
    "count(*)": ("count", "count(*)"),
    "SUM( ms )": ("sum_ms", "SUM( ms )"),
    "sum(ms) AS total": ("total", "sum(ms)"),
    "cast(a as int) as b": ("b", "cast(a as int)"),
    "avg(ms * 2)\nAs `x y`": ("x y", "avg(ms * 2)"),
}


def test_expression_names_its_column():
    assert {text: named_expression(text) for text in COLUMNS} == COLUMNS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"table": ""}, "table is missing", id="table"),
        pytest.param(
            {"window": 0.5}, "window 0.5 s must be a whole number of seconds, and at most 31 days", id="short"
        ),
        pytest.param({"aggregates": ()}, "aggregates is empty", id="none"),
        pytest.param({"aggregates": "sum(a + b)"}, r"'sum\(a \+ b\)' needs a name for its column: write", id="name"),
        pytest.param({"keys": ("a", "upper(b) AS A")}, r"column A is there twice: write upper\(b\) AS", id="twice"),
    ],
)
def test_bad_setting_of_a_metric_is_named(settings, words):
    with pytest.raises(SettingError, match=rf"^\[metrics.pages\] .*{words}"):
        metric(**settings)


# --- the job


def test_spool_and_checkpoint_may_be_elsewhere_and_a_sink_needs_no_output(tmp_path):
    [clicks] = job(tmp_path, spool="s3://b/x?region=y", checkpoint="hdfs://name/checkpoints").queries
    assert clicks.spool == "s3://b/x/clicks?region=y"
    assert clicks.checkpoint == "hdfs://name/checkpoints/clicks"

    [clicks] = job(tmp_path, table(sink="m:f"), output="").queries
    assert (clicks.location, clicks.dead_location) == ("", "")
    assert job(tmp_path, table(sink="m:f")).queries[0].dead_location == f"{tmp_path}/output/clicks_dead"


def test_queries_of_patterns_know_the_channels_that_a_new_topic_needs(tmp_path):
    web, app, views = job(
        tmp_path,
        *(table("web", topic_pattern="web-.*"), table("app", topic_pattern=".*-1"), table("views", topics=("web-2",))),
        lookupd_http_addresses=("l:4161",),
        channel_prefix="x-",
    ).queries

    def others(query, topic):
        return sorted(query.read_options.others_of(topic))

    assert (web.channel, web.source["channel"]) == ("x-web", "x-web")
    assert others(web, "web-1") == ["x-app"]
    assert others(app, "web-1") == ["x-web"]
    assert others(app, "app-1") == []
    assert others(views, "web-2") == ["x-web"]


def test_options_reach_the_source(tmp_path):
    options = {"tls": "true", "tls_ca": "/ca.pem", "maxInFlight": "9", "auth_secret": "x"}
    made = job(tmp_path, nsq=options)
    [clicks] = made.queries

    assert [clicks.source[name] for name in ("tls", "tlsCa", "maxInFlight", "authSecret")] == [
        *("true", "/ca.pem", "9", "x"),
    ]
    assert {name.lower() for name in clicks.source} - set(_OWN_OPTIONS) == {
        *("tls", "tlsca", "maxinflight", "authsecret", "minrowsperbatch", "maxtriggerdelay"),
    }
    assert "'x'" not in repr(made)
    assert "'x'" not in repr(clicks)


def test_batch_waits_until_it_is_full_or_for_trigger_interval(tmp_path):
    for settings, least, delay in (
        ({}, 200_000, 10),
        ({"max_rows_per_batch": 9, "trigger_interval": "1 minute"}, 9, 60),
        ({"nsq": {"min_rows_per_batch": "7"}}, 7, 10),
    ):
        options = job(tmp_path, table(), **settings).queries[0].read_options
        assert (options.min_rows_per_batch, options.max_trigger_delay) == (least, delay)
    assert job(tmp_path, table(), trigger_interval=0).queries[0].read_options.min_rows_per_batch is None


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        pytest.param((table("a"), metric("A", table="a")), r"\[metrics.A\] name: its name is taken by", id="case"),
        pytest.param(
            (table("a_dead"), table("a")),
            r"\[tables.a\] name: a_dead, which its malformed events have, is taken by \[tables.a_dead\]",
            id="dead",
        ),
        pytest.param((table("a" * 62),), r"name with channel_prefix: .*'pre-a*'", id="long"),
        pytest.param((table(".."),), "name: .* can't begin with . or _", id="path"),
        pytest.param((table("a.json"),), "nor end with .json, .log", id="file"),
    ],
)
def test_names_are_those_of_channels_and_directories(tmp_path, tables, words):
    with pytest.raises(SettingError, match=words):
        job(tmp_path, *tables, channel_prefix="pre-")


PAGES = metric()


@pytest.mark.parametrize(
    ("queries", "settings", "words"),
    [
        pytest.param((PAGES,), {}, "setting tables is required", id="no table"),
        pytest.param((table("a"), PAGES), {}, r"\[metrics.pages\] table 'clicks' is unknown; .*known are a", id="name"),
        pytest.param(
            (table(sink="m:f"), PAGES),
            {},
            r"\[metrics.pages\] table 'clicks' has a sink, so .*: count in the",
            id="sink",
        ),
        pytest.param(
            (table(topic_pattern="a.*"),),
            {},
            r"\[tables.clicks\] topic_pattern: nsqlookupd knows .* lookupd_http_addresses alone",
            id="pattern",
        ),
        pytest.param((), {"work": " "}, "work is required", id="work"),
        pytest.param((), {"output": ""}, "output is required", id="output"),
        pytest.param((), {"nsqd_tcp_addresses": ()}, "nsqd_tcp_addresses is required, or lookupd", id="no address"),
        pytest.param((), {"work": "s3://b/x"}, "work 's3://b/x' is a URI, and Spark .*: give checkpoint", id="URI"),
        pytest.param((), {"output": "hdfs://k:hush@h/x"}, r"hdfs://\*\*\*@h/x' is not an object store", id="store"),
        pytest.param((), {"nsqd_tcp_addresses": ("a:x",)}, "setting nsqd_tcp_addresses: port 'x'", id="port"),
        pytest.param((), {"nsqd_tcp_addresses": ("a:1,b:1",)}, "several addresses in one", id="addresses"),
        pytest.param((), {"metrics_address": "127.0.0.1"}, "metrics_address: address .* has no port", id="no port"),
        pytest.param((), {"work": "/o", "output": "/o"}, r"\(/o/clicks/spool\) is in table of clicks", id="places"),
        pytest.param(
            (), {"spool": "s3://u:hush@b/s", "checkpoint": "s3://u:hush@b/s"}, r"\(s3://\*\*\*@b/s", id="secret"
        ),
        pytest.param((), {"nsq": {"tlsAc": "x"}}, "option tlsAc is unknown; did you mean tlsCa", id="nsq"),
        pytest.param((), {"nsq": {"spool": "x"}}, "nsq: spool is the job's own: use spool", id="own option"),
        pytest.param((), {"nsq": {"tlsCa": "/x"}}, "nothing is encrypted", id="TLS that is not used"),
    ],
)
def test_bad_setting_of_a_job_is_named(tmp_path, queries, settings, words):
    with pytest.raises(SettingError, match=words):
        job(tmp_path, *queries, **settings)


@pytest.mark.parametrize("name", SESSION)
def test_setting_of_spark_on_which_events_rest_is_refused_with_another_value(tmp_path, name):
    job(tmp_path, spark={name: SESSION[name].upper()})
    for other, needed in (name, SESSION[name]), ("spark.sql.legacy.x", "Spark's default"):
        with pytest.raises(SettingError, match=rf"^setting spark: {other} 'x': .* rests on {needed},.*: leave it out$"):
            job(tmp_path, spark={other: "x"})


def test_job_for_python_takes_the_values_of_the_file(tmp_path):
    settings = load(tmp_path, FILE)
    clicks = TableSettings(
        name="clicks", schema="user STRING, ms INT", columns={"user": "$.who.name"}, select=("*",), partition_by=()
    )
    frames = TableSettings(name="frames", topics=("frames.1", "frames.2"), format="raw")
    pages = MetricSettings(name="pages", table="clicks", window=300, keys=("page",), aggregates=("count(*)", "sum(ms)"))

    assert settings == JobSettings(
        work="/data",
        output="/out",
        nsqd_tcp_addresses=("a:4150",),
        trigger_interval=5.0,
        nsq={"tls": "true", "msgTimeout": "30"},
        spark={"spark.cores.max": "2"},
        tables={"clicks": clicks, "frames": frames},
        metrics={"pages": pages},
    )


JOB, TABLE, METRIC = (
    st.sampled_from([*options_of(kind), "a"]) for kind in (JobSettings, TableSettings, MetricSettings)
)


def section(head, names):
    given = st.dictionaries(names, texts | json_values(names), max_size=3)
    return given.map(lambda found: head + "".join(f"{name} = {toml(value)}\n" for name, value in found.items()))


@given(
    section('work = "/data"\noutput = "/out"\nnsqd_tcp_addresses = "a:4150"\n', JOB.filter(lambda name: name != "work"))
    | section("", JOB),
    section("[tables.clicks]\n", TABLE) | st.sampled_from(["", "[tables]\nclicks = 1", "x = " + "[" * 5000]),
    section('[metrics.pages]\ntable = "clicks"\naggregates = "count(*)"\n', METRIC) | st.just(""),
)
def test_any_file_is_a_job_or_an_error_in_words(tmp_path_factory, settings, tables, metrics):
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_bytes("\n".join([settings, tables, metrics]).encode("utf-8", "surrogateescape"))

    with contextlib.suppress(ValueError):
        load_settings(str(path))
