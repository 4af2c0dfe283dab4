import base64
import datetime as dt

import pytest

from gnsq.spark.pipeline.archive import LETTER_BYTES, ArchiveBatches
from tests.spark.pipeline.helpers import messages, published, rows_below

BODIES = [
    b'{"time": "2026-01-01T10:00:01Z", "user": "u1", "page": "/"}',
    b'{"time": "2026-01-01T10:00:59.5Z", "user": "u2", "page": "/", "more": [1]}',
    b'{"time": "2026-01-01T12:01:00+01:00", "user": "u2", "page": "/cart"}',
    b"not json",
    b'{"time": "2026-01-01T10:00:01Z", "user": "", "page": "/"}',
]


@pytest.mark.spark
@pytest.mark.subprocess
def test_events_are_kept_by_hour_and_others_are_dead_letters_with_their_reason(spark, fakensqd, config, tmp_path):
    ArchiveBatches(config)(messages(spark, config, BODIES), 0)

    hours = {path.name: rows_below(path) for path in (tmp_path / "output" / "archive").glob("hour=*")}
    letters = published(fakensqd, "clicks-dead", tmp_path)
    assert {hour: len(rows) for hour, rows in hours.items()} == {"hour=2026-01-01T10": 2, "hour=2026-01-01T11": 1}
    [cart] = hours["hour=2026-01-01T11"]
    assert cart["event_time"] == dt.datetime(2026, 1, 1, 11, 1, tzinfo=dt.UTC)
    assert (cart["page"], cart["user"], cart["body"]) == ("/cart", "u2", BODIES[2].decode())
    assert {base64.b64decode(letter["body_base64"]): letter["reason"] for letter in letters} == {
        BODIES[3]: "body is not a JSON object",
        BODIES[4]: "user is missing",
    }


@pytest.mark.spark
def test_body_too_long_for_a_letter_is_kept_whole_in_a_file(spark, fakensqd, config, tmp_path):
    long = b"x" * 1_000_000
    for _ in range(2):
        ArchiveBatches(config)(messages(spark, config, [long, b"not json"]), 3)

    [short, *_, letter] = sorted(published(fakensqd, "clicks-dead", tmp_path), key=lambda each: each.get("length", 0))
    assert base64.b64decode(letter["body_base64"]) == long[:LETTER_BYTES]
    assert (letter["truncated"], letter["length"]) == (True, len(long))
    assert not {"truncated", "length"} & set(short)
    [row] = rows_below(tmp_path / "output" / "dead")
    assert (row["body"], row["message_id"]) == (long, letter["message_id"])


@pytest.mark.spark
def test_batch_that_runs_again_overwrites_itself(spark, config, tmp_path):
    for batch_id, frame in (
        (7, messages(spark, config, BODIES).repartition(5)),
        (7, messages(spark, config, BODIES).coalesce(1)),
        (8, messages(spark, config, BODIES[:1])),
    ):
        # As after a restart.
        ArchiveBatches(config)(frame, batch_id)

    assert len(rows_below(tmp_path / "output" / "archive")) == 4
