import pytest

from gnsq.spark.options import ReadOptions, WriteOptions, option_rows

READ = {"topic": "clicks", "channel": "archive", "nsqdTcpAddresses": "a:4150"}


def test_names_are_case_insensitive():
    options = ReadOptions.parse({"TOPIC": "clicks", "channel": "archive", "nsqdtcpaddresses": "a:4150"})

    assert options.topic == "clicks"


def test_values_get_their_types():
    options = ReadOptions.parse(
        {**READ, "maxRowsPerBatch": "10", "segmentTime": "0.5", "lookupdHttpAddresses": "x, y,"}
    )

    assert options.max_rows_per_batch == 10
    assert options.segment_time == 0.5
    assert options.lookupd_http_addresses == ("x", "y")
    assert options.nsqd_tcp_addresses == ("a:4150",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"topic": ""}, "option topic is required", id="no topic"),
        pytest.param({"channel": ""}, "option channel is required", id="no channel"),
        pytest.param({"topic": "no good!"}, "option topic: .*no good!", id="bad topic"),
        pytest.param({"channel": "x" * 65}, "option channel: ", id="bad channel"),
        pytest.param({"nsqdTcpAddresses": " , "}, "nsqdTcpAddresses or lookupdHttpAddresses", id="no address"),
        pytest.param({"maxRows": "ten"}, "option maxRows 'ten' is not a whole number", id="no number"),
        pytest.param({"segmentTime": "fast"}, "option segmentTime 'fast' is not a number", id="no float"),
        pytest.param({"segmentTime": "nan"}, "option segmentTime nan must be at least 0.001 s", id="nan"),
        pytest.param({"maxInFlight": "0"}, "option maxInFlight 0 must be at least 1 messages", id="too small"),
        pytest.param({"segmentBytes": "9999999999"}, "segmentBytes 9999999999 must be within 1 to", id="too big"),
        pytest.param({"maxRowPerBatch": "1"}, "option 'maxRowPerBatch' is unknown.*maxRowsPerBatch", id="unknown"),
        pytest.param({"receivers": "executors:2"}, "executors:2.*not available in this version", id="executors"),
        pytest.param({"receivers": "moon"}, "receivers 'moon' is neither driver nor external", id="receivers"),
    ],
)
def test_bad_read_option_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        ReadOptions.parse({**READ, **changes})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"topic": "clicks"}, "give the option nsqdTcpAddresses", id="no address"),
        pytest.param({"topic": "a b", "nsqdTcpAddresses": "a:1"}, "option topic: ", id="bad topic"),
        pytest.param({"batchRows": "0", "nsqdTcpAddresses": "a:1"}, "batchRows 0 must be at least 1 rows", id="bound"),
    ],
)
def test_bad_write_option_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        WriteOptions.parse(given)


def test_write_needs_no_topic_option():
    assert WriteOptions.parse({"nsqdTcpAddresses": "a:4150"}).topic == ""


def test_partitions_default_to_the_cpus():
    assert ReadOptions.parse(READ).partitions >= 1
    assert ReadOptions.parse({**READ, "numPartitions": "7"}).partitions == 7


@pytest.mark.parametrize("options", [ReadOptions, WriteOptions])
def test_every_option_has_its_row(options):
    rows = {name: rest for name, *rest in option_rows(options)}

    assert "topic" in rows
    assert "nsqdTcpAddresses" in rows
    assert all(meaning for _, _, meaning in rows.values())
