"""What is an event, and why a body is none."""

import datetime as dt
import json

import pytest

from gnsq.spark.pipeline.events import by_topic, malformed, parse, parse_topics, well_formed
from gnsq.spark.pipeline.topics import TopicSettings
from tests.spark.pipeline.helpers import config_for, messages

TIME = b'"time": "2026-01-01T10:00:01Z"'
FIELDS = {
    "page": "string",
    "user": "string",
    "ms": "int",
    "ok": "boolean",
    "price": "decimal(6,2)",
    "day": "date",
    "ratio": "double",
    "at": "timestamp",
}
GOOD = [
    b"{%s, " % TIME + rest + b"}"
    for rest in (
        b'"page": "/", "ms": 5, "ok": true, "price": 12.34, "day": "2026-01-02", "ratio": 0.5, '
        b'"at": "2026-01-02T10:00:00Z", "more": {"a": [1]}',
        b'"page": "/"',
        b'"page": 7, "user": null, "ms": null',
        b'"page": "}{", "more": {"a": [{}, "}", NaN]}',
        b'"page": "%s"' % (b"k" * 4096),
    )
]
BAD = [
    (b'{%s, "page": "/", "ms": "5x"}' % TIME, "ms is not of type int"),
    (b'{%s, "page": "/", "ms": 3000000000}' % TIME, "ms is not of type int"),
    (b'{%s, "page": "/", "ms": 1.5}' % TIME, "ms is not of type int"),
    (b'{%s, "page": "/", "ms": {"a": 1}}' % TIME, "ms is not of type int"),
    (b'{%s, "page": "/", "ok": "maybe"}' % TIME, "ok is not of type boolean"),
    (b'{%s, "page": "/", "price": "much"}' % TIME, "price is not of type decimal(6,2)"),
    (b'{%s, "page": "/", "day": "someday"}' % TIME, "day is not of type date"),
    (b'{%s, "page": "/", "day": "12345-01-01"}' % TIME, "day is not of type date"),
    (b'{%s, "page": "/", "day": "-0001-01-01"}' % TIME, "day is not of type date"),
    (b'{%s, "page": "/", "ok": 1, "ms": 1}' % TIME, "ok is not of type boolean"),
    (b'{%s, "page": "/", "at": "10:00"}' % TIME, "at is not of type timestamp"),
    (b'{%s, "page": "/", "at": "T10:00:01Z"}' % TIME, "at is not of type timestamp"),
    (b'{%s, "page": "/", "at": "soon"}' % TIME, "at is not of type timestamp"),
    (b'{%s, "ms": 1}' % TIME, "page is missing"),
    (b'{%s, "page": null}' % TIME, "page is missing"),
    (b'{"page": "/"}', "time is missing"),
    (b'{"page": "/", "time": "2026"}', "time can't be read as ISO 8601"),
    (b'{"page": "/", "time": "10:00"}', "time can't be read as ISO 8601"),
    (b'{"page": "/", "time": 1767261600}', "time can't be read as ISO 8601"),
    (b'{"page": "/", "time": "0001-01-01T00:00:00Z"}', "time is before 1970"),
    (b'{"page": "/", "time": "2026-06-01T01:00:01Z"}', "time is in the future"),
    (b'{%s, "page": "/"' % TIME, "body is not a JSON object"),
    *(
        (b'{%s, "page": "/"' % TIME + end, "body is more than a JSON object")
        for end in (b'}{"page": "/"}', b"} garbage", b"}}", b"}]", b'},{"page": "/"}', b', "a": {}} {}', b"}],[1")
    ),
    (b'{%s, "page": "%s"}' % (TIME, "é".encode() * 2049), "page is longer than 4096 bytes"),
    (b"[]", "body is not a JSON object"),
    (b"12", "body is not a JSON object"),
    (b"null", "body is not a JSON object"),
    (b'{"page": "\xff"}', "body is not UTF-8"),
    (b'{%s, "page": "/", "price": 1234567.8}' % TIME, "price is not of type decimal(6,2)"),
]


@pytest.mark.spark
def test_each_malformed_body_has_the_reason_that_names_the_field(spark, tmp_path):
    config = config_for(tmp_path, fields=FIELDS, required_fields=(), partition_by="none")

    bodies = messages(spark, [*GOOD, *(body for body, _ in BAD)])
    parsed = parse(bodies, config.schema_of("clicks"), config.max_ahead)
    good = well_formed(parsed).orderBy("message_id").collect()
    for each in (parsed, parse_topics(bodies, config.rules)):
        reasons = {bytes(row["body"]): row["reason"] for row in malformed(each).select("body", "reason").collect()}
        assert reasons == dict(BAD)
    assert [row["ms"] for row in good] == [5, None, None, None, None]
    assert [row["page"] for row in good] == ["/", "/", "7", "}{", "k" * 4096]
    assert (good[0]["day"], str(good[0]["price"]), good[0]["ok"]) == (dt.date(2026, 1, 2), "12.34", True)


@pytest.mark.spark
def test_iso_8601_is_read_as_others_write_it(spark, tmp_path):
    given = {
        "2026-01-01T10:00Z": 0,
        "2026-01-01T11:00+01:00": 0,
        "2026-01-01t10:00:01z": 1,
        "2026-01-01T10:00:01,5Z": 1.5,
        "2026-01-01 10:00:01.5": 1.5,
        "2026-01-01T05:00:01-0500": 1,
    }
    bodies = [json.dumps({"page": "/", "user": "u", "time": time}).encode() for time in given]

    rows = parse_topics(messages(spark, bodies), config_for(tmp_path).rules).orderBy("message_id").collect()

    start = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC).timestamp()
    assert [row["event_time"] and row["event_time"].timestamp() - start for row in rows] == list(given.values())


@pytest.mark.spark
def test_expressions_fit_the_same_topics_in_spark_and_in_python(spark, tmp_path):
    expressions = [
        "click.*",
        r"(?:eu|us)\.[a-z]+",
        r"v\d{1,2}(?!-old)\w*",
        r"[^\d.]+\-x?",
        "a|ab|b{2,}?c??",
        "[a-c.-]*?#*",
        "orders",
    ]
    names = ["click", "clicks", "a-click", "eu.orders", "eu.", "v1", "v12_a", "v1-old", "a-", "1-", "ab", "bbc", "bbbb"]
    names += ["b", "a.b-c", "c#", "orders", "Orders", "_x-x", "a" * 64]
    topics = {expression: TopicSettings() for expression in expressions}
    config = config_for(tmp_path, topic="", topics=topics, lookupd_http_addresses=("a:1",))

    frame = spark.createDataFrame([(name,) for name in names], "topic string")
    rows = frame.select("topic", by_topic(config.rules, [each.name for each in config.rules]).alias("entry"))

    found = {name: config.entry_of(name) for name in names}
    assert {row.topic: row.entry for row in rows.collect()} == {
        name: entry and entry.name for name, entry in found.items()
    }
