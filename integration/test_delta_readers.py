"""Tables of the pipeline in Delta's own reader, on Spark.

PIPELINE_DELTA_PYTHON names a Python with a PySpark that Delta supports, and PIPELINE_DELTA_JARS Delta's jars with
commas; without jars, Spark gets the package. tests/spark/pipeline/test_readers.py tries the other readers.
"""

import datetime as dt
import json
import os

import pyarrow as pa
import pytest

from tests.kit import run
from tests.spark.pipeline.test_readers import EVOLVED, NOON, ODD, TEXTS, put, put_values

PACKAGE = "io.delta:delta-spark_{}_2.13:4.4.0"
LIMIT = 600
# Reads {directory: [columns and filters]} from standard input; prints [filter: rows as JSON] for each.
PROGRAM = """
import json, os, sys
import pyspark
from pyspark.sql import SparkSession

build = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
jars = os.environ.get("PIPELINE_DELTA_JARS")
package = {package!r}.format(pyspark.__version__.rpartition(".")[0])
build = build.config("spark.jars", jars) if jars else build.config("spark.jars.packages", package)
for name, value in {{
    "extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "session.timeZone": "UTC",
    "shuffle.partitions": "1",
}}.items():
    build = build.config("spark.sql." + name, value)
build = build.config("spark.databricks.delta.snapshotPartitions", "1")
spark = build.getOrCreate()
found = []
for location, query in json.load(sys.stdin):
    spark.read.format("delta").load(location).createOrReplaceTempView("t")
    found.append([json.loads(row[0]) for row in spark.sql(query).collect()])
print("FOUND", json.dumps(found))
"""


@pytest.fixture
def ask():
    """Runs SQL over tables, each as the view t; gives the rows, which are one JSON text each."""
    python = os.environ.get("PIPELINE_DELTA_PYTHON")
    if not python:
        pytest.skip("PIPELINE_DELTA_PYTHON names no Python with a PySpark that Delta supports")

    def ask(questions):
        environment = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        # The tests' own Spark is another release.
        environment.pop("SPARK_HOME", None)
        done = run(
            *[python, "-c", PROGRAM.format(package=PACKAGE)], given=json.dumps(questions), limit=LIMIT, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.partition("FOUND ")[2])

    return ask


def literal(kind, value):
    """Write a value as SQL's."""
    if pa.types.is_binary(kind):
        return f"X'{value.hex()}'"
    if pa.types.is_string(kind):
        return f"decode(X'{value.encode().hex()}', 'UTF-8')"
    text = value.isoformat() if isinstance(value, dt.date) else value
    sql = {pa.float64(): "double", pa.date32(): "date", pa.bool_(): "boolean", pa.int64(): "bigint"}
    name = sql.get(kind) or ("timestamp" if pa.types.is_timestamp(kind) else f"decimal({kind.precision},{kind.scale})")
    return f"CAST('{text}' AS {name})"


@pytest.mark.timeout(LIMIT)
def test_delta_on_spark_reads_what_other_readers_read(ask, tmp_path):
    questions, expected = [], []

    def expect(location, query, rows):
        questions.append((str(location), query))
        expected.append(rows)

    put(
        tmp_path / "texts", ["key", "_month"], [{"event_time": NOON, "key": key, "n": n} for n, key in enumerate(TEXTS)]
    )
    every = "SELECT to_json(named_struct('n', n, 'key', key, 'month', _month)) FROM t ORDER BY n"
    rows = [{"n": n, "key": key, "month": "2026-11"} for n, key in enumerate(TEXTS)]
    expect(tmp_path / "texts", every, [{name: each for name, each in row.items() if each is not None} for row in rows])
    expect(tmp_path / "texts", "SELECT to_json(named_struct('n', n)) FROM t WHERE key = 'a/b'", [{"n": 2}])
    for case in EVOLVED:
        narrow, wide, values = case.values
        put_values(str(tmp_path / case.id), 0, narrow, values)
        put_values(str(tmp_path / case.id), 1, wide, values)
        expect(
            tmp_path / case.id,
            "SELECT to_json(named_struct('same', count(DISTINCT to_json(struct(x))), 'rows', count(*))) FROM t",
            [{"same": len(values), "rows": 2 * len(values)}],
        )
    for case in ODD:
        kind, values = case.values
        schema = pa.schema([("n", pa.int64()), ("x", kind), ("a.b, `ü", kind), ("o", pa.struct([("y z", kind)]))])
        queries = []
        for n, value in enumerate(values):
            row = {"n": n, "x": value, "a.b, `ü": value, "o": {"y z": value}}
            put(tmp_path / "odd" / case.id, [], [row], schema=schema, first=n)
            same = [f"{column} = {literal(kind, value)}" for column in ("x", "`a.b, ``ü`", "o.`y z`")]
            queries.append(f"SELECT to_json(named_struct('n', n)) FROM t WHERE {' AND '.join(same)} AND n = {n}")
        # Delta chooses the files of each part by the statistics.
        expect(tmp_path / "odd" / case.id, " UNION ALL ".join(queries), [{"n": n} for n in range(len(values))])

    assert list(zip(questions, ask(questions), strict=True)) == list(zip(questions, expected, strict=True))
