import dataclasses
import re

import pytest

from gnsq.spark.options import (
    ConnectOptions,
    ReadOptions,
    WriteOptions,
    ordered_fields,
    spark_name,
)
from tests.docs.pages import hooks

READ = {"topic": "clicks", "channel": "archive", "nsqdTcpAddresses": "a:4150"}


def test_names_may_have_any_case_and_values_get_their_types():
    options = ReadOptions.parse(
        {
            "TOPIC": "clicks",
            "channel": "archive",
            "nsqdtcpaddresses": "a:4150",
            "lookupdHttpAddresses": "x, y,",
            "maxRowsPerBatch": "10",
            "segmentTime": "0.5",
            "maxSpoolBytes": "1G",
            "receivers": "External",
        }
    )

    assert (options.topic, options.nsqd_tcp_addresses) == ("clicks", ("a:4150",))
    assert options.lookupd_http_addresses == ("x", "y")
    assert (options.max_rows_per_batch, options.segment_time, options.max_spool_bytes) == (10, 0.5, 1 << 30)
    assert not options.receives_here
    assert ReadOptions.parse(READ).receives_here


def test_defaults_and_what_https_needs():
    https = ReadOptions.parse({**READ, "lookupdHttpAddresses": "HTTPS://l", "tlsCa": "ca", "tlsVerify": "False"})

    assert (https.uses_https, https.tls) == (True, False)
    assert ReadOptions.parse(READ).partitions >= 1
    assert ReadOptions.parse({**READ, "numPartitions": "7"}).partitions == 7
    assert WriteOptions.parse({"nsqdTcpAddresses": "a:4150"}).topic == ""


def test_message_waits_longer_for_its_segment_on_an_object_store():
    for spool, more, seconds in ("/spool", {}, 0.1), ("s3://b/s", {}, 2.0), ("s3://b/s", {"segmentTime": "0.5"}, 0.5):
        assert ReadOptions.parse({**READ, "spool": spool, **more}).segment_wait == seconds


@pytest.mark.parametrize(
    ("text", "mode"), [(None, 0o700), ("0700", 0o700), ("770", 0o770), ("0660", 0o770), ("2750", 0o2750)]
)
def test_spool_mode_is_octal(text, mode):
    options = ReadOptions.parse({**READ} if text is None else {**READ, "spoolMode": text})

    assert options.spool_permissions == mode


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"topic": ""}, "option topic is required", id="no topic"),
        pytest.param({"channel": ""}, "option channel is required", id="no channel"),
        pytest.param({"otherChannels": "pages"}, "otherChannels 'pages' has no topic: TOPIC/CHANNEL", id="no source"),
        pytest.param({"topic": "no good!"}, "option topic: .*no good!", id="bad topic"),
        pytest.param({"nsqdTcpAddresses": " , "}, "nsqdTcpAddresses.*, or option lookupd", id="no address"),
        pytest.param({"maxInFlight": "0"}, "option maxInFlight 0 must be at least 1 message", id="too small"),
        pytest.param({"maxRowPerBatch": "1"}, r"'maxRowPerBatch' is unknown.*mean maxRowsPerBatch\?", id="unknown"),
        pytest.param({"topicPattern": "x"}, "topicPattern are both given", id="topic and pattern"),
        pytest.param({"topic": "", "topicPattern": "x"}, "needs option lookupdHttp", id="no lookupd"),
        pytest.param(
            {"topic": "", "topicPattern": "x", "lookupdHttpAddresses": "l"},
            "leave out option",
            id="pattern and nsqd",
        ),
        pytest.param(
            {"topic": "", "topicPattern": "(", "lookupdHttpAddresses": "l", "nsqdTcpAddresses": ""},
            r"option topicPattern '\(' is not a regular expression",
            id="bad pattern",
        ),
        pytest.param(
            {"minRowsPerBatch": "9", "maxRowsPerBatch": "8"},
            "minRowsPerBatch 9 is more than maxRowsPerBatch 8: give at most that",
            id="least and most rows",
        ),
        pytest.param({"maxTriggerDelay": "9"}, "maxTriggerDelay is given without minRowsPerBatch", id="delay alone"),
        pytest.param({"spoolMode": "rwx"}, "option spoolMode 'rwx': this is not an octal number", id="no mode"),
        # 0o770 as TOML and Python write it, turned into decimal.
        pytest.param({"spoolMode": "504"}, "option spoolMode '504': mode 0504 is not usable: .*0700", id="decimal"),
        pytest.param({"authSecret": "a", "authSecretFile": "b"}, "authSecretFile are both given", id="secrets"),
        pytest.param({"tlsKey": "k", "tls": "true"}, "without option tlsCert", id="key alone"),
        pytest.param({"tlsCa": "c"}, "tlsCa is given, but option tls is not true", id="CA without TLS"),
        pytest.param(
            {"tlsServerHostname": "h", "lookupdHttpAddresses": "https://l"}, "tlsServerHostname is given", id="hostname"
        ),
        pytest.param(
            {"segmentTime": "5", "msgTimeout": "5"},
            "5 s must be less than option msgTimeout",
            id="too late",
        ),
    ],
)
def test_bad_read_option_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        ReadOptions.parse({**READ, **changes})


def test_bad_write_option_is_named():
    with pytest.raises(ValueError, match="give option nsqdTcpAddresses"):
        WriteOptions.parse({"topic": "clicks"})


def test_secrets_are_not_in_texts_of_options():
    options = ReadOptions.parse({**READ, "authSecret": " hush", "tls": "TRUE"})

    assert options.auth_secret == " hush"
    assert "hush" not in repr(options) + str(options)
    with pytest.raises(ValueError, match="both given") as failure:
        ReadOptions.parse({**READ, "authSecret": "hush", "authSecretFile": "f"})
    assert "hush" not in str(failure.value)


@pytest.mark.parametrize("name", ["lookupdHttpAddresses", "nsqdHttpAddresses"])
def test_password_in_an_address_is_refused_since_spark_would_show_it(name):
    with pytest.raises(ValueError, match=f"option {name} holds a user or password") as failure:
        ReadOptions.parse({**READ, name: "http://u:hush@l"})
    assert "hush" not in str(failure.value)


def test_names_of_secrets_are_those_that_spark_hides():
    """Source: Spark's SECRET_REDACTION_PATTERN, the default of spark.redaction.regex."""
    hidden = re.compile("(?i)secret|password|token|access[.]?key")
    fields = [field for kind in (ReadOptions, WriteOptions) for field in dataclasses.fields(kind) if not field.repr]

    assert fields
    assert all(hidden.search(spark_name(field)) for field in fields)


def test_source_names_topics_and_channel():
    several = ReadOptions.parse({**READ, "topic": "b, a,b,"})
    patterned = {"topicPattern": "c.*", "topic": "", "nsqdTcpAddresses": "", "lookupdHttpAddresses": "l"}
    pattern = ReadOptions.parse({**READ, **patterned})

    assert (several.topics, several.source) == (("b", "a"), "a,b/archive")
    assert (pattern.topics, pattern.source) == ((), "/c.*//archive")


@pytest.mark.parametrize("options", [ReadOptions, WriteOptions])
def test_every_option_has_one_row_in_two_tables(options):
    own, shared = ({name: rest for name, *rest in hooks.option_rows(each)} for each in (options, ConnectOptions))

    assert [*own, *shared] == [spark_name(field) for field in ordered_fields(options)]
    assert not {"drain", "spoolOwner", "checkpointLocation"} & own.keys()
    assert all(meaning for rows in (own, shared) for _, _, meaning in rows.values())
    assert next(iter(own)) == "topic"
    assert shared["tlsVerify"][0] == "true"
