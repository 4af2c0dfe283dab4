import pytest

from gnsq.spark.pipeline.config import PipelineConfig, load_config

GIVEN = {"topic": "clicks", "output": "/out", "work": "/data", "nsqd_tcp_addresses": ("a:4150",)}


def test_command_line_wins_over_the_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'topic = "views"\noutput = "/out"\nwork = "/data"\nwatermark_delay = 5\nnsqd_tcp_addresses = "a:4150"\n'
        "[spark]\n'spark.cores.max' = 2\n'spark.x' = true\n"
    )

    config = load_config(str(path), {"topic": "clicks", "watermark_delay": None, "lookupd_http_addresses": ()})

    assert (config.topic, config.watermark_delay, config.nsqd_tcp_addresses) == ("clicks", 5, ("a:4150",))
    assert config.spark == {"spark.cores.max": "2", "spark.x": "true"}


def test_topics_follow_the_topic():
    config = PipelineConfig(**GIVEN)

    assert (config.metrics_to, config.dead_letters_to) == ("clicks-metrics", "clicks-dead")
    assert PipelineConfig(**GIVEN, metrics_topic="m", dead_letter_topic="d").metrics_to == "m"


def test_each_query_has_its_own_spool():
    config = PipelineConfig(**GIVEN)
    archive, metrics = config.source_options("archive", "a"), config.source_options("metrics", "m")

    assert archive["spool"] == "/data/archive/spool"
    assert archive["spoolOwner"] == "/data/archive/checkpoint"
    assert not set(archive.values()) & {metrics["spool"], metrics["spoolOwner"], metrics["channel"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"topic": ""}, "setting topic is required", id="missing"),
        pytest.param({"nsqd_tcp_addresses": ()}, "no address", id="no address"),
        pytest.param({"output": "s3://bucket/x"}, "s3://bucket/x' is a URI", id="URI"),
        pytest.param({"work": "file:/x"}, "file:/x' is a URI", id="file URI"),
        pytest.param({"topic": "a b"}, "setting topic: ", id="bad topic"),
        pytest.param({"metrics_topic": "a b"}, "setting metrics_topic: ", id="bad metrics topic"),
        pytest.param({"archive_channel": "a b"}, "setting archive_channel: ", id="bad channel"),
        pytest.param({"archive_channel": "metrics"}, "each would get half", id="same channel"),
        pytest.param({"watermark_delay": -1.0}, "watermark_delay -1.0 must be at least 0 s", id="bound"),
        pytest.param({"max_rows_per_batch": 0}, "max_rows_per_batch 0 must be at least 1 rows", id="zero"),
        pytest.param({"watermark_delay": "1"}, "setting watermark_delay '1' is not a number", id="number"),
        pytest.param({"max_rows_per_batch": 1.5}, "max_rows_per_batch 1.5 is not a whole number", id="whole number"),
        pytest.param({"topic": 5}, "setting topic 5 is not a string", id="string"),
        pytest.param({"nsqd_tcp_addresses": [1]}, r"\[1\] is not a string or a list of strings", id="list"),
        pytest.param({"spark": "x"}, "setting spark 'x' is not a table", id="table"),
        pytest.param({"tpoic": "x"}, "setting tpoic is unknown; settings are topic", id="unknown"),
    ],
)
def test_bad_setting_is_named(changes, words):
    # As if it came from a file: nothing is left out for being empty.
    values = {**GIVEN, **changes}
    with pytest.raises(ValueError, match=words):
        load_config(None, values) if all(values.values()) else PipelineConfig(**values)


@pytest.mark.parametrize("text", [None, "topic = "], ids=["missing", "not TOML"])
def test_bad_file_is_named(tmp_path, text):
    path = tmp_path / "job.toml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ValueError, match=r"job\.toml"):
        load_config(str(path), {})
