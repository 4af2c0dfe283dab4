import re
from dataclasses import replace
from pathlib import Path

import pytest

from gnsq.spark.errors import JobFailed, SpoolInUse
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.layout import archive_tables, note_layout, note_tables, query_tables, with_layout
from gnsq.spark.pipeline.loading import load_config
from gnsq.spark.pipeline.preflight import Survey, check_nsq, check_places, create_channels
from gnsq.spark.pipeline.topics import Layout, TopicSettings, check_expression
from gnsq.spark.pipeline.windows import Metric
from gnsq.spark.spool.spool import Spool
from tests.spark.helpers import channel_stats, publish
from tests.spark.pipeline.helpers import config_for, put_batch, put_checkpoint

OURS = TopicSettings()
RAW = TopicSettings(raw=True)
OUTPUTS = ("clicks-metrics", "clicks-dead")
PAGES = Metric("pages", topic="clicks")


def config(**changes):
    given = {"output": "/out", "work": "/data", "lookupd_http_addresses": ("a:4161",)}
    return PipelineConfig(**{**given, **changes})


# --- which topics


@pytest.mark.parametrize(
    ("expression", "fitting", "others"),
    [
        pytest.param("click.*", ["click", "clicks", "click.eu"], ["a-click", "Click"], id="any"),
        pytest.param(r"(?:eu|us)\.[a-z]+", ["eu.orders"], ["eu", "eu.", "eu.Orders", "asia.orders"], id="groups"),
        pytest.param(r"v\d{1,2}(?!-old)\w*", ["v1", "v12_a"], ["v", "v1-old"], id="lookahead"),
        pytest.param(r"[^\d.]+\-x?", ["a-", "a-x"], ["1-", "a.-x"], id="class"),
    ],
)
def test_expression_fits_whole_names(expression, fitting, others):
    job = config(topics={expression: OURS})

    assert [name for name in [*fitting, *others] if re.fullmatch(job.topic_pattern, name)] == fitting
    assert job.entry_of(fitting[0]).name == expression
    assert job.entry_of(others[0]) is None


@pytest.mark.parametrize(
    "expression",
    [
        "a$",
        "^a",
        r"a\b",
        "(?i)a",
        "(?P<n>a)",
        r"(a)\1",
        "a*+",
        "a{,3}",
        "[[a]",
        "[a&&b]",
        "a b",
        r"\s",
        "(?<=a)b",
        "ä*",
    ],
)
def test_syntax_in_which_python_and_java_may_differ_is_refused(expression):
    with pytest.raises(ValueError, match=r"expression .* is not understood at .*: usable are letters"):
        check_expression(expression)
    with pytest.raises(ValueError, match="is not a regular expression"):
        check_expression("a(")


def test_first_entry_that_fits_wins():
    job = config(topics={"clicks": RAW, "click.*": TopicSettings(max_ahead=5.0), ".*": OURS})

    assert [job.entry_of(topic).max_ahead for topic in ("clicked", "other")] == [5, 600]
    assert job.entry_of("clicks").raw


def test_what_the_job_publishes_and_what_can_have_no_directory_is_never_read():
    outputs = {"letters": TopicSettings(dead_letter_topic="lost"), ".*": OURS}
    job = config(topics=outputs, metrics=(PAGES, Metric("b", topic="views", output_topic="changes")))
    long = "a" * 62
    not_read = ["lost", "clicks-dead", f"{long[:59]}-dead", "clicks-metrics-pages", "changes", ".", "..", "a#ephemeral"]

    assert not [name for name in not_read if re.fullmatch(job.topic_pattern, name)]
    assert re.fullmatch(job.topic_pattern, "letters-dead") is None
    assert re.fullmatch(job.topic_pattern, "metrics")
    assert job.entry_of(long).dead_letters_to(long) == f"{long[:59]}-dead"


def test_topic_whose_tables_are_flat_is_read_whatever_its_name_is():
    job = config(topics={"archive": OURS, ".*": OURS}, layout=Layout("archive"))

    assert [name for name in ("archive", "dead", "metrics") if re.fullmatch(job.topic_pattern, name)] == ["archive"]


def test_topics_are_given_to_the_source_as_they_are_known():
    several = config(topic="clicks, views,clicks")
    some = config(topics={"clicks": OURS, "v.*": OURS})

    assert several.source_options("archive")["topic"] == "clicks,views"
    options = some.source_options("archive")
    assert "topic" not in options
    assert re.fullmatch(options["topicPattern"], "clicks")
    assert config(topics={"v.*": OURS}, metrics=(Metric(topic="vx"),)).source_options("metrics")["topic"] == "vx"


def test_entry_has_what_it_says_and_else_what_the_job_says(tmp_path):
    path = tmp_path / "order.ddl"
    path.write_text("id BIGINT NOT NULL, day_of DATE")
    order = TopicSettings(fields_file=str(path), partition_by="day_of", max_ahead=1.0, time_field="at")
    job = config(
        topics={"clicks": OURS, "orders": order}, fields={"page": "string"}, required_fields=(), max_ahead=60.0
    )
    path.unlink()

    clicks, orders = (replace(job, receivers="external").entry_of(name) for name in ("clicks", "orders"))
    assert (clicks.schema.fields, clicks.schema.required, clicks.max_ahead) == ({"page": "string"}, (), 60)
    assert (orders.schema.fields, orders.schema.required) == ({"id": "BIGINT", "day_of": "DATE"}, ("id",))
    assert (orders.partition_by, orders.max_ahead, orders.schema.time_field) == ("day_of", 1, "at")


def test_keys_of_a_metric_are_required_in_its_topic_alone():
    job = config(topics={"click.*": OURS}, required_fields=(), metrics=(Metric(topic="clicks"),))

    assert [job.entry_of(topic).schema.required for topic in ("clicks", "clicked")] == [("page",), ()]
    assert job.entry_of("clicks").division != job.entry_of("clicked").division
    assert job.entry_of("clicked").division == config(topic="x", required_fields=(), metrics=()).entries[0].division


# --- layout


def test_job_of_one_topic_has_flat_tables_and_keeps_them_when_others_come(tmp_path):
    one = config_for(tmp_path, topic="views")
    assert [table.name for table in query_tables(one, "archive")] == ["archive", "dead"]
    note_layout(one)

    more = with_layout(replace(one, topic="clicks,views", metrics=(replace(PAGES, topic="views"),)))

    names = [table.name for query in more.queries for table in query_tables(more, query)]
    assert names == ["clicks/archive", "clicks/dead", "archive", "dead", "metrics/pages"]
    assert query_tables(more, "archive")[0].location == f"{tmp_path}/output/clicks/archive"


def test_job_of_several_topics_has_tables_by_topic(tmp_path):
    several = config_for(tmp_path, topic="clicks,views", metrics=(PAGES,))

    assert [query_tables(several, query)[0].name for query in several.queries] == [
        *("clicks/archive", "clicks/metrics/pages"),
    ]


def test_first_metric_keeps_its_query_when_others_come_before_it(tmp_path):
    one = config_for(tmp_path)
    note_layout(one)
    users = Metric("users", keys=("user",))

    two = with_layout(replace(one, metrics=(users, Metric())))

    assert list(two.metric_queries) == ["metrics.clicks.users", "metrics"]
    assert [two.channel(query) for query in two.metric_queries] == ["metrics-users", "metrics"]
    assert [two.metrics_to(query) for query in two.metric_queries] == ["clicks-metrics-users", "clicks-metrics"]
    assert two.checkpoint_of("metrics") == one.checkpoint_of("metrics")
    # Its query stays its own, also while it is not in the settings.
    put_checkpoint(tmp_path / "work/metrics/checkpoint")
    note_layout(two)
    assert list(with_layout(replace(one, metrics=(users,))).metric_queries) == ["metrics.clicks.users"]


def test_metric_with_a_new_name_gets_the_query_if_the_checkpoint_was_moved_away(tmp_path):
    one = config_for(tmp_path)
    note_layout(one)
    other = replace(one, metrics=(Metric("pages"),))
    put_checkpoint(tmp_path / "work/metrics/checkpoint")
    assert list(with_layout(other).metric_queries) == ["metrics.clicks.pages"]

    (tmp_path / "work/metrics/checkpoint").rename(tmp_path / "away")

    assert list(with_layout(other).metric_queries) == ["metrics"]


def test_two_metrics_at_the_first_start_have_names(tmp_path):
    two = config_for(tmp_path, metrics=(Metric(), Metric("users", keys=("user",))))

    assert two.queries == ("archive", "metrics.clicks.counts", "metrics.clicks.users")
    assert list(reversed(two.queries[1:])) == list(replace(two, metrics=two.metrics[::-1]).queries[1:])


def test_job_of_an_earlier_release_keeps_its_places(tmp_path):
    """Without a layout that is noted: the spool names the topic, and the note beside the checkpoint the metric."""
    spool = Spool(config_for(tmp_path).spool_of("archive"))
    spool.prepare()
    spool.lock("/work/archive/checkpoint", "clicks/archive").release()
    (tmp_path / "work/metrics").mkdir()
    (tmp_path / "work/metrics/made-with.json").write_text('{"name": "pages", "window": 60}')

    both = with_layout(config_for(tmp_path, topic="views,clicks", metrics=(replace(PAGES, name="a"), PAGES)))

    assert both.placed == Layout(
        "clicks", "clicks/pages", ("clicks",), {"clicks/pages": "metrics"}, ("archive",), OUTPUTS
    )
    assert both.queries == ("archive", "metrics.clicks.a", "metrics")


def test_layout_that_is_damaged_is_named(tmp_path):
    (tmp_path / "work").mkdir()
    for text in ("[]", "{", '{"v": 2}', '{"v": 1, "x": 2}'):
        (tmp_path / "work/layout.json").write_text(text)
        with pytest.raises(ValueError, match=r"/layout\.json can't be used: .*: bring it back from a copy"):
            with_layout(config_for(tmp_path))


def test_topics_that_have_tables_are_noted(tmp_path):
    some = config_for(tmp_path, nsqd_tcp_addresses=(), lookupd_http_addresses=("a:1",), topic="", topics={"v.*": OURS})
    note_layout(some)
    for topic in ("views", "visits", "views"):
        note_tables(some, topic)

    found = with_layout(some)
    assert found.placed.tables == ("views/archive", "views/dead", "visits/archive", "visits/dead")
    assert tuple(table.name for table in query_tables(found, "archive")) == found.placed.tables


def test_topic_that_is_not_read_gets_no_dead_letters():
    """Receivers that the user has started may read it."""
    some = config(topics={"raw": RAW, ".*": OURS}, metrics=(PAGES,), receivers="external")

    assert some.letters_to("clicks") == "clicks-dead"
    assert not any(map(some.letters_to, ["clicks-dead", "clicks-metrics", "raw", "a#ephemeral"]))
    assert not config(topics={".*": OURS}, layout=Layout(outputs=("former",))).letters_to("former")
    assert not config(topics={"a.*": OURS}).letters_to("clicks")
    assert not config(topics={"a.*": OURS}).letters_to(f"{'a' * 59}-dead")


# --- settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({}, r"setting topic is required, or \[topics\]", id="none"),
        pytest.param({"topic": "a", "topics": {"b": OURS}}, "are both given: name all topics in one", id="both"),
        pytest.param({"topic": "a,b c"}, "setting topic: topic name 'b c' is not valid", id="bad name"),
        pytest.param({"topics": {"a$": OURS}}, r"setting topics.a\$: expression 'a\$' is not understood", id="syntax"),
        pytest.param(
            {"topics": {"a.*": OURS}, "nsqd_tcp_addresses": ("a:1",)},
            r"'a\.\*' is an expression, .*: give lookupd_http_addresses alone",
            id="no nsqlookupd",
        ),
        pytest.param(
            {"topics": {"a": TopicSettings(raw=True, fields={"a": "int"})}},
            "setting topics.a: raw: bodies are not parsed, so leave out fields",
            id="raw",
        ),
        pytest.param(
            {"raw": True, "topics": {"a": TopicSettings(time_field="at")}},
            "setting topics.a: raw: bodies are not parsed, so leave out time_field, or give raw = false",
            id="raw by the job",
        ),
        pytest.param(
            {"topics": {"a": TopicSettings(fields={"a": "map"})}}, "setting topics.a: fields: a has the type", id="type"
        ),
        pytest.param(
            {"topics": {"a": TopicSettings(partition_by="x")}}, "setting topics.a: partition_by 'x' is", id="partition"
        ),
        pytest.param(
            {"topics": {"a": TopicSettings(max_ahead=-1.0)}},
            "topics.a: max_ahead -1.0 must be at least 0 s",
            id="bound",
        ),
        pytest.param({"topic": "a,a-dead"}, "is 'a-dead', the topic that is read", id="dead letters"),
        pytest.param(
            {"topic": "a,b", "metrics": (Metric(topic="a", output_topic="b"),)}, "is 'b', the topic that", id="changes"
        ),
        pytest.param({"topics": {".*": OURS, "a-dead": OURS}}, "is 'a-dead', the topic", id="dead letters of others"),
        pytest.param({"topic": "a,b#ephemeral"}, "'b#ephemeral' can't be a directory", id="ephemeral"),
        pytest.param({"topic": "a,.."}, r"'\.\.' can't be a directory", id="parent"),
        pytest.param(
            {"topic": "a,dead", "layout": Layout("a")}, "directory of 'dead' would be in the place of", id="table"
        ),
        pytest.param({"topic": "a,b", "metrics": (Metric(),)}, "counts needs its topic, since the job", id="no topic"),
        pytest.param({"topic": "a", "metrics": (Metric(topic="b"),)}, "'b' of counts is none of the job's", id="other"),
        pytest.param(
            {"topics": {"a": RAW}, "metrics": (Metric(topic="a"),)}, "topic 'a' of counts is raw", id="raw metric"
        ),
        pytest.param({"topic": "a", "metrics": (Metric(), Metric())}, "a/counts is there twice", id="twice"),
        pytest.param(
            {"topic": "a", "metrics": (Metric("x", channel="c"), Metric("y", channel="c"))},
            "two metrics have the channel a/c: give each its own",
            id="channel",
        ),
        pytest.param(
            {"topic": "a", "metrics": (Metric("x", output_topic="c"), Metric("y", output_topic="c"))},
            "two metrics have the output_topic c: give",
            id="output topic",
        ),
        pytest.param(
            {"topic": "a", "metrics": (Metric(channel="archive"),)},
            "archive_channel and metrics: channel are both 'archive'",
            id="channel of archive",
        ),
        pytest.param(
            {"topic": "a", "metrics": (Metric("x"), Metric("y")), "metrics_topic": "m"},
            "metrics_topic is for one metric: give output_topic in each",
            id="one topic for two",
        ),
        pytest.param(
            {"topic": "a", "metrics": (Metric(keep_windows=-1.0),)}, "keep_windows -1.0 must be within 0", id="kept"
        ),
        pytest.param({"topic": "a,b", "work": "/out/a/work"}, r"spool of archive .* is in output", id="places"),
        pytest.param(
            {"topic": "a,b", "work": "/out/b", "layout": Layout("a")},
            r"spool of archive \(/out/b/archive/spool\) is in output/b",
            id="work in the place of a topic",
        ),
        pytest.param(
            {"topics": {"a": OURS, "w.*": OURS}, "work": "/out/work", "layout": Layout("a")},
            r"spool of archive .* would be, which fits 'w\.\*': let the expression",
            id="work in the place of a topic that fits",
        ),
        pytest.param({"topics": {"": OURS}}, "setting topics.: its name is empty: give the name of", id="empty name"),
    ],
)
def test_bad_setting_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        config(**changes)


def test_work_may_lie_in_the_output_of_a_job_with_flat_tables_beside_all_topics():
    given = {"work": "/out/work", "layout": Layout("a")}

    assert config(topic="a,b", **given).queries == config(topics={"a": OURS, "b.*": OURS}, **given).queries


def test_topics_without_metrics_count_nothing():
    assert config(topic="a,b").queries == config(topics={"a.*": OURS}).queries == ("archive",)
    assert config(topics={"a": RAW}).queries == config(topic="a", metrics=()).queries == ("archive",)


FILE = """
output = "/out"
work = "/data"
lookupd_http_addresses = ["a:4161"]
[topics.clicks]
[topics."order.*"]
partition_by = "country"
max_ahead = 5
[topics."order.*".fields]
country = "string"
[topics.frames]
raw = true
[[metrics]]
name = "pages"
topic = "clicks"
keep_windows = 5
"""


def test_topics_come_from_the_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(FILE)

    job = load_config(str(path))

    assert [entry.name for entry in job.entries] == ["clicks", "order.*", "frames"]
    assert job.entry_of("orders").schema.fields == {"country": "string"}
    assert (job.entry_of("orders").partition_by, job.entry_of("frames").raw) == ("country", True)
    assert job.all_metrics == (Metric("pages", topic="clicks", keep_windows=5.0),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("topics = ['a']", r"\['a'\] is not a table of tables: write \[topics.NAME\]", id="list"),
        pytest.param(
            "[topics.a]\ntime_feild = 'x'", "topics.a: time_feild is unknown; did you mean time_field", id="name"
        ),
        pytest.param("[topics.a]\nraw = 5", "setting topics.a: raw 5 is not true or false", id="type"),
        pytest.param("[topics.a.b]\nraw = true", r'b is unknown.*\[topics\."a\.b"\]', id="dots"),
    ],
)
def test_bad_topics_of_a_file_are_named(tmp_path, text, words):
    path = tmp_path / "job.toml"
    path.write_text(text)

    with pytest.raises(ValueError, match=words):
        load_config(str(path))


# --- adding and removing


def begin(job, *queries):
    """As queries do that have run."""
    for query in queries or job.queries:
        spool = Spool(job.spool_of(query))
        spool.prepare()
        spool.lock(job.checkpoint_of(query), job.read_options(query).source).release()


def test_topic_may_be_added_and_removed_if_one_stays(tmp_path):
    both = config_for(tmp_path, topic="clicks,views")
    note_layout(both)
    begin(both)

    check_places(with_layout(config_for(tmp_path, topic="views,orders")))
    with pytest.raises(SpoolInUse, match=r"belongs to source 'clicks,views/archive', not to 'orders/archive'"):
        check_places(config_for(tmp_path, topic="orders"))


def test_what_is_gone_from_the_settings_is_told_with_what_it_leaves(fakensqd, tmp_path, caplog):
    nsqd = {"nsqd_tcp_addresses": (fakensqd.tcp_address,), "nsqd_http_addresses": (fakensqd.http_address,)}
    both = config_for(tmp_path, topic="clicks,views", metrics=(PAGES,), **nsqd)
    check_places(both)
    create_channels(both, once=True, wait=pytest.fail, new_topic=True)
    publish(fakensqd, "clicks", [b"1", b"2"])

    check_places(with_layout(replace(both, topic="views", metrics=())))

    [topic, metric] = caplog.messages
    assert re.search("topic clicks is gone .*channel archive of clicks .2 messages", topic)
    assert re.search(
        r"metric clicks/pages is gone .*/metrics/checkpoint, .*/metrics/spool, channel metrics of clicks .2 m",
        metric,
    )
    caplog.clear()
    check_places(with_layout(replace(both, topic="views", metrics=())))
    assert not caplog.messages


def test_topic_and_its_tables_may_go_on_in_another_job(tmp_path):
    both = config_for(tmp_path, topic="clicks,views")
    for table in archive_tables(both, "views"):
        table.claim("a", take_over=False)
        table.claim("of the other job", take_over=True)
    note_layout(replace(both, layout=Layout(tables=("views/archive", "views/dead"))))
    put_checkpoint(tmp_path / "work/archive/checkpoint")

    check_places(with_layout(replace(both, topic="clicks")))
    # What is left of the topic in the spool goes to a table of this job alone.
    [left] = archive_tables(with_layout(replace(both, topic="clicks")), "views")
    left.claim("a", take_over=False)
    [others] = archive_tables(with_layout(replace(both, topic="clicks", work=f"{tmp_path}/others")), "views")
    others.claim("of the other job", take_over=False)
    assert re.fullmatch(r"views/left-\w{8}", left.name)
    assert left.name != others.name
    with pytest.raises(JobFailed, match="views/archive belongs to the checkpoint of the other job"):
        check_places(with_layout(both))


def test_metric_of_an_earlier_release_that_is_gone_with_the_upgrade_is_told(tmp_path, caplog):
    one = config_for(tmp_path, metrics_channel="counting")
    begin(one)
    (tmp_path / "work/metrics").mkdir(exist_ok=True)
    (tmp_path / "work/metrics/made-with.json").write_text('{"name": "counts"}')

    check_places(with_layout(config_for(tmp_path, topic="clicks,views")))

    assert re.search("metric clicks/counts is gone .*/metrics/spool, channel counting of clicks", caplog.text)


def test_channel_that_another_metric_goes_on_with_is_not_called_left(tmp_path, caplog):
    one = config_for(tmp_path)
    check_places(one)

    check_places(with_layout(replace(one, metrics=(Metric("pages"),))))

    assert caplog.messages == [
        "metric clicks/counts is gone from the settings. Its table stays, and clicks/pages goes on with its channel "
        "metrics"
    ]


def test_topic_that_the_job_has_published_to_is_read_only_by_its_name(tmp_path, caplog):
    caplog.set_level("INFO")
    lookupd = {"nsqd_tcp_addresses": (), "lookupd_http_addresses": ("127.0.0.1:1",)}
    lost = replace(OURS, dead_letter_topic="lost")
    counting = config_for(tmp_path, topic="", topics={".*": lost}, metrics=(PAGES,), **lookupd)
    note_layout(counting)

    some = with_layout(replace(counting, topics={".*": OURS}, metrics=()))

    assert not [name for name in ("lost", "clicks-metrics") if re.fullmatch(some.topic_pattern, name)]
    check_places(some)
    assert "published to lost, clicks-metrics before, so these topics are not read" in caplog.text
    named = with_layout(replace(some, topics={"lost": OURS, ".*": OURS}))
    assert re.fullmatch(named.topic_pattern, "lost")


def test_expression_that_comes_with_the_upgrade_does_not_read_what_the_job_has_published(tmp_path):
    begin(config_for(tmp_path))
    (tmp_path / "work/metrics/made-with.json").write_text('{"name": "counts"}')
    lookupd = {"nsqd_tcp_addresses": (), "lookupd_http_addresses": ("127.0.0.1:1",)}

    some = with_layout(config_for(tmp_path, topic="", topics={".*": OURS}, **lookupd))

    assert not [name for name in OUTPUTS if re.fullmatch(some.topic_pattern, name)]


def test_layout_that_is_gone_is_not_guessed(tmp_path):
    job = config_for(tmp_path, topic="clicks,views")
    begin(job)

    with pytest.raises(ValueError, match=r"/layout\.json is missing, and the job has read clicks,views/archive"):
        with_layout(job)


def put_commit(job, batch_id):
    put_checkpoint(Path(job.checkpoint_of("archive")))
    put_batch(Path(job.checkpoint_of("archive")), batch_id + 1, 'v1\n{"a": 1}\n{"b": 1}')
    Path(job.checkpoint_of("archive"), f"commits/{batch_id}").write_text('v1\n{"a": 1}')
    for path in Path(job.checkpoint_of("archive")).glob("*/.*.crc"):
        path.unlink()


def test_job_that_was_killed_in_the_first_batch_of_a_topic_starts_again(tmp_path):
    job = config_for(tmp_path, topic="clicks,views")
    check_places(job)
    put_commit(job, 4)
    Path(tmp_path, "output/views/archive/part-000000000005-a.parquet").touch()

    check_places(with_layout(job))

    Path(tmp_path, "output/views/archive/part-000000000004-a.parquet").touch()
    with pytest.raises(JobFailed, match="has files that belong to no table, such as part-000000000004-a"):
        check_places(with_layout(job))


def test_entry_may_come_back_after_messages_of_its_topic_went_to_another_table(tmp_path):
    job = config_for(tmp_path, topic="clicks,views")
    check_places(job)
    put_commit(job, 4)
    note_tables(job, "orders")
    query_tables(with_layout(job), "archive")[-1].claim("a", take_over=False)
    more = config_for(tmp_path, topic="clicks,views,orders")

    check_places(with_layout(more))

    note_tables(more, "orders")
    with pytest.raises(JobFailed, match="orders/archive is missing, and its checkpoint has 5 batches"):
        check_places(with_layout(more))


def test_flat_topic_without_a_table_dead_may_be_removed(tmp_path):
    raw = config_for(tmp_path, raw=True)
    check_places(raw)
    query_tables(raw, "archive")[0].claim("a", take_over=False)
    note_tables(raw, "clicks")
    put_commit(raw, 4)
    check_places(with_layout(config_for(tmp_path, topic="", topics={"clicks": RAW, "views": OURS})))

    check_places(with_layout(config_for(tmp_path, topic="", topics={"views": OURS})))


def test_one_new_topic_that_nobody_has_is_refused_and_one_that_was_read_may_be_gone(tmp_path, caplog):
    job = config_for(tmp_path, topic="clicks,views,orders", nsqd_http_addresses=("a:4151",))
    begin(replace(job, topic="clicks,views"))

    with pytest.raises(JobFailed, match=r"^no nsqd of nsqd_http_addresses has the topic orders: correct"):
        check_nsq(job, Survey(1, [], {"clicks"}), once=True)
    check_nsq(job, Survey(1, [], {"clicks", "orders"}), once=True)
    assert "no nsqd has the topic views; waiting for it" in caplog.text


def test_channels_of_each_topic_are_created_together(fakensqd, tmp_path):
    for topic in ("clicks", "views"):
        publish(fakensqd, topic, [b"1", b"2"])
    nsqd = {"nsqd_tcp_addresses": (fakensqd.tcp_address,), "nsqd_http_addresses": (fakensqd.http_address,)}
    metrics = (PAGES, Metric("users", topic="clicks", keys=("user",)))

    create_channels(config_for(tmp_path, topic="clicks,views", metrics=metrics, **nsqd), once=True, wait=pytest.fail)

    depths = [
        channel_stats(fakensqd, "clicks", name)["depth"] for name in ("archive", "metrics-pages", "metrics-users")
    ]
    assert depths == [2, 2, 2]
    assert channel_stats(fakensqd, "views", "archive")["depth"] == 2
    assert channel_stats(fakensqd, "views", "metrics-pages") is None
