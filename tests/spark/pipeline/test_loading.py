import click
import pytest
from click.testing import CliRunner

from gnsq.spark.pipeline.config import GONE
from gnsq.spark.pipeline.loading import load_config, setting_options
from gnsq.spark.pipeline.windows import Aggregate, Metric

GIVEN = {"topic": "clicks", "output": "/out", "work": "/data", "nsqd_tcp_addresses": ("a:4150",)}
FILE = """
topic = "views"
output = "/out"
work = "/data"
keep_windows = 5
nsqd_tcp_addresses = "a:4150"
required_fields = []
[fields]
host = "string"
bytes = "bigint"
[nsq]
tls = true
msgTimeout = 30
[[metrics]]
keys = "host"
aggregates = ["count", "sum(bytes)"]
[spark]
'spark.cores.max' = 2
'spark.x' = true
"""


def load(arguments, environ=None, path=None):
    """What the command line makes of arguments."""
    loaded = []

    @click.command(context_settings={"auto_envvar_prefix": "GNSQ_PIPELINE"})
    @setting_options
    def command(**settings):
        loaded.append(load_config(path, settings))

    done = CliRunner().invoke(command, arguments, env=environ)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return loaded[0]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(FILE)
    return str(file)


def test_file_has_all_settings(path):
    config = load_config(path, {})

    assert (config.topic, config.keep_windows, config.nsqd_tcp_addresses) == ("views", 5, ("a:4150",))
    assert config.spark == {"spark.cores.max": "2", "spark.x": "true"}
    assert config.nsq == {"tls": "true", "msgTimeout": "30"}
    assert (config.fields, config.required_fields) == ({"host": "string", "bytes": "bigint"}, ())
    assert config.metrics == (Metric(keys=("host",), aggregates=(Aggregate("sum", "bytes"),)),)


def test_command_line_wins_over_the_file_and_tables_are_merged(path):
    config = load(
        ["--topic", "clicks", "--nsq", "msgTimeout=5", "--field", "bytes=int", "--nsqd-tcp-address", "b:4150"],
        path=path,
    )

    assert (config.topic, config.nsqd_tcp_addresses) == ("clicks", ("b:4150",))
    assert config.nsq == {"tls": "true", "msgTimeout": "5"}
    assert config.fields == {"host": "string", "bytes": "int"}


def test_environment_has_all_settings(path):
    environ = {
        "GNSQ_PIPELINE_TOPIC": "clicks",
        "GNSQ_PIPELINE_LOOKUPD_HTTP_ADDRESSES": "l:4161 m:4161",
        "GNSQ_PIPELINE_NSQ": "maxInFlight=7",
        "GNSQ_PIPELINE_MAX_ROWS_PER_BATCH": "9",
    }

    config = load(["--topic", "mine"], environ, path)

    assert config.topic == "mine"
    assert config.lookupd_http_addresses == ("l:4161", "m:4161")
    assert (config.nsq["maxInFlight"], config.max_rows_per_batch) == ("7", 9)


def test_one_metric_may_come_from_the_command_line(path):
    given = ["--metrics", "window=300", "--metrics", "aggregates=mean(bytes),count"]

    assert load(given, path=path).metrics == (
        Metric("counts", 300, 300, ("host",), (Aggregate("count", "bytes"), Aggregate("mean", "bytes"))),
    )
    environ = {"GNSQ_PIPELINE_METRICS": "window=300 keys=page,user"}
    given = [f"--{name.replace('_', '-')}={GIVEN[name]}" for name in ("topic", "output", "work")]
    [metric] = load([*given, "--nsqd-tcp-address", "a:4150"], environ).metrics
    assert (metric.window, metric.keys) == (300, ("page", "user"))


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        pytest.param(["--raw"], {"GNSQ_PIPELINE_RAW": "false"}, id="command line"),
        pytest.param([], {"GNSQ_PIPELINE_RAW": "true"}, id="environment"),
    ],
)
def test_truth_may_come_from_all_places(tmp_path, arguments, environ):
    path = tmp_path / "job.toml"
    path.write_text("topic = 't'\noutput = '/out'\nwork = '/data'\nnsqd_tcp_addresses = ['a:1']\nraw = true")

    assert load_config(str(path), {}).raw
    assert not load(["--no-raw"], path=str(path)).raw
    path.write_text(path.read_text().replace("raw = true", ""))
    assert load(arguments, environ, str(path)).raw


@pytest.mark.parametrize("place", ["file", "command line", "environment"])
def test_fields_may_come_from_a_file(tmp_path, place):
    (tmp_path / "click.json").write_text('{"properties": {"page": {"type": "string"}, "ms": {"type": "integer"}}}')
    name, path = str(tmp_path / "click.json"), tmp_path / "job.toml"
    path.write_text(
        "\n".join(f"{key} = {list(value) if isinstance(value, tuple) else value!r}" for key, value in GIVEN.items())
        + (f"\nfields_file = {name!r}" if place == "file" else "")
    )

    config = load(
        ["--fields-file", name] if place == "command line" else [],
        {"GNSQ_PIPELINE_FIELDS_FILE": name} if place == "environment" else None,
        str(path),
    )

    assert config.fields == {"page": "string", "ms": "bigint"}


@pytest.mark.parametrize("name", sorted(GONE))
def test_setting_that_is_gone_names_its_successor_wherever_it_is_given(name):
    @click.command(context_settings={"auto_envvar_prefix": "GNSQ_PIPELINE"})
    @setting_options
    def command(**settings):
        load_config(None, settings)

    for given in ({"args": [f"--{name.replace('_', '-')}", "5"]}, {"env": {f"GNSQ_PIPELINE_{name.upper()}": "5"}}):
        done = CliRunner().invoke(command, **given)
        assert str(done.exception) == f"setting {name} is gone: {GONE[name]}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"keep_windows": "1"}, "setting keep_windows '1' is not a number", id="number"),
        pytest.param({"max_rows_per_batch": True}, "max_rows_per_batch True is not a whole number", id="truth"),
        pytest.param({"max_rows_per_batch": 1.5}, "max_rows_per_batch 1.5 is not a whole number", id="whole number"),
        pytest.param({"raw": "yes"}, "setting raw 'yes' is not true or false", id="no truth"),
        pytest.param({"state_partitions": 1.5}, "state_partitions 1.5 is not a whole number", id="half"),
        pytest.param({"topic": 5}, "setting topic 5 is not a string", id="string"),
        pytest.param({"nsqd_tcp_addresses": [1]}, r"\[1\] is not a string or a list of strings", id="list"),
        pytest.param({"spark": "x"}, "setting spark 'x' is not a table", id="table"),
        pytest.param({"nsq": {"tls": {}}}, "setting nsq: tls is a dict; a string or a number was due", id="nested"),
        pytest.param({"metrics": 5}, r"setting metrics 5 is not a list of tables: write \[\[metrics\]\]", id="metrics"),
        pytest.param({"metrics": ("window=x",)}, "setting metrics: window 'x' is not a whole number", id="window"),
        pytest.param({"window_length": "60"}, r"window_length is gone: give window in \[\[metrics\]\]", id="gone"),
        pytest.param({"nsq": ("hush",)}, "nsq has an item without a name or '=': NAME=VALUE", id="pair"),
    ],
)
def test_bad_setting_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        load_config(None, {**GIVEN, **changes})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(None, r"configuration .*job\.toml: .*No such file", id="missing"),
        pytest.param("topic = ", r"configuration .*job\.toml: ", id="not TOML"),
        pytest.param("tpoic = 'x'", r"job\.toml: setting tpoic is unknown; did you mean topic\?", id="unknown"),
        pytest.param("max_open_counts = 5", "setting max_open_counts is gone: leave it out", id="gone"),
        pytest.param("layout = 'x'", "setting layout is unknown", id="no setting"),
        pytest.param("zzzzzz = 'x'", r"setting zzzzzz is unknown; known are topic, ", id="unlike any"),
    ],
)
def test_bad_file_is_named(tmp_path, text, words):
    path = tmp_path / "job.toml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ValueError, match=words):
        load_config(str(path), {})
