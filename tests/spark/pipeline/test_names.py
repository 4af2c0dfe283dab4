"""Columns with the names that the world has: dots, slashes, accents, a dollar, backticks."""

import contextlib
import dataclasses
import json

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from gnsq.spark.pipeline import run
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.events import plan
from gnsq.spark.pipeline.expressions import quoted
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.replay import rebuild, replay_dead
from gnsq.spark.pipeline.tables import SettingError
from tests.spark.helpers import publish
from tests.spark.pipeline.helpers import MESSAGES, delta_table, table_rows
from tests.spark.pipeline.jobs import addresses, job, metric, table
from tests.spark.pipeline.test_readers import READERS

pytestmark = pytest.mark.spark

LEVEL, LABEL, SIZE, SCHEMA, WEIRD = NAMES = ("log.level", "app.kubernetes.io/name", "größe", "$schema", "we`ird")
DDL = "`t.s` TIMESTAMP, " + ", ".join(f"{quoted(name)} {'BIGINT' if name == SIZE else 'STRING'}" for name in NAMES)
EVENT = {"t.s": "2026-01-01T00:00:00Z", LEVEL: "warn", LABEL: "a/b", SIZE: 5, SCHEMA: "s", "inner": {"w.x": "w"}}


def test_a_job_takes_columns_of_any_names_and_all_readers_have_them(spark, fakensqd, tmp_path):
    events = table(
        "events",
        schema=DDL,
        time="`t.s`",
        columns={WEIRD: "$.inner['w.x']"},
        where=f"{quoted(LEVEL)} <> 'debug' AND {quoted(WEIRD)} IS NOT NULL",
        select=("*", f"upper({quoted(SCHEMA)}) AS {quoted('a.b')}"),
        partition_by=(LEVEL, SCHEMA),
    )
    aggregates = ("count(*)", f"max({quoted(SIZE)})", f"min({quoted(WEIRD)}) AS {quoted('least.w')}")
    counts = metric("counts", table="events", keys=(quoted(LEVEL), quoted(SIZE)), aggregates=aggregates)
    settings = job(tmp_path, events, counts, **addresses(fakensqd))
    dead = {**EVENT, SIZE: "5"}
    publish(fakensqd, "events", [json.dumps(body).encode() for body in (EVENT, EVENT, dead, {**EVENT, LEVEL: "debug"})])

    run(spark, settings, once=True)
    # The dead letter is an event now.
    changed = job(tmp_path, dataclasses.replace(events, mismatch="rescue"), counts, **addresses(fakensqd))
    replay_dead(changed, "events", lambda: contextlib.nullcontext(spark))
    rebuild(changed, "counts", lambda: contextlib.nullcontext(spark))
    location = changed.queries[0].location
    merged = maintain_table(location, retention=0.0, quiet=0.0)

    row = {LEVEL: "warn", LABEL: "a/b", SCHEMA: "s", WEIRD: "w", "a.b": "S"}
    assert merged == 2
    for reader in READERS:
        found = reader(location)
        assert [{name: each[name] for name in row} for each in found] == [row] * 3, reader.__name__
        assert sorted(str(each[SIZE]).rstrip(".0") for each in found) in (["5", "5", "None"], ["5", "5", "nan"])
    found = table_rows(changed.location_of("counts"))
    assert [
        [each[name] for name in (LEVEL, SIZE, "count", f"max_{SIZE}", "least.w")]
        for each in sorted(found, key=lambda each: each["count"])
    ] == [["warn", None, 1, None, "w"], ["warn", 5, 2, 5, "w"]]
    assert delta_table(location).delete(f"\"{LABEL}\" = 'a/b'")["num_deleted_rows"] == 3


def test_a_name_that_readers_do_not_find_in_a_path_does_not_divide_a_table(tmp_path):
    with pytest.raises(
        ValueError, match=r"partition_by 'app\.kubernetes\.io/name' has a character that not every reader"
    ):
        Table("t", str(tmp_path), pa.schema([(LABEL, pa.string()), ("n", pa.int64())]), (LABEL,))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"where": "log.level = 'warn'"}, LEVEL),
        ({"select": ("app.kubernetes.io/name",)}, LABEL),
        ({"where": "größe > 1"}, SIZE),
        ({"time": "$schema"}, SCHEMA),
    ],
)
def test_an_expression_that_needs_backticks_is_told_so(spark, settings, name):
    with pytest.raises(SettingError) as refused:
        plan(
            spark.createDataFrame([], MESSAGES).withColumn("received_at", F.current_timestamp()),
            table(schema=DDL, **settings),
        )

    assert str(refused.value).endswith(
        f"; write the name of a column with other characters than a-z, 0-9 and _ as {quoted(name)}"
    )
