"""Formats other than JSON, and masks: the settings of formats.md and deletion.md read messages."""

import gzip
import html
import json
import re

import pytest
from pyspark.sql import types as T

from gnsq.spark.pipeline import load_settings
from gnsq.spark.pipeline.archive import archive_schema
from gnsq.spark.pipeline.events import plan
from gnsq.spark.pipeline.functions import SetupSession
from gnsq.spark.pipeline.types import EventColumn, Shape, rescued
from tests.docs.pages import example, table
from tests.kit import run_program
from tests.spark.pipeline.helpers import MESSAGES, messages


@pytest.fixture
def events(spark, tmp_path):
    """What the table of some settings gets: rows, kept columns, and how many messages are wrong."""
    spark = spark.newSession()
    spark.conf.set("spark.sql.ansi.enabled", "false")

    def parsed(text, name, bodies):
        (tmp_path / "job.toml").write_text(text)
        settings = load_settings(str(tmp_path / "job.toml")).tables[name]
        events = plan(spark.createDataFrame(messages(bodies), MESSAGES), settings)
        names = [name for name in archive_schema(events, settings).names if not name.startswith("_")]
        kept = [name for name in archive_schema(events, settings).names if name == "_body"]
        found = events.frame.collect()
        right = [tuple(row[name] for name in names) for row in found if row["_wrong"] is None]
        return sorted(right), kept, len(found) - len(right)

    parsed.spark = spark
    return parsed


def functions(spark):
    """Run formats.py of the page. In __main__, so that the workers need not import it."""
    names = {"__name__": "__main__"}
    exec(example("pipeline/formats.md", "Other formats: parse"), names)
    names["setup"](SetupSession(spark))


RAW = example("pipeline/formats.md", "Raw bodies", language="toml")
FORMATS = example("pipeline/formats.md", "Other formats: parse", 1, language="toml")


@pytest.mark.spark
def test_zipped_json_is_read_by_a_function_of_setup(events):
    functions(events.spark)
    bodies = [gzip.compress(b'{"user": "ann", "page": "/"}'), gzip.compress(b'{"user"'), b"not zipped", b""]

    assert events(FORMATS, "zipped", bodies) == ([("ann", "/")], [], 3)


@pytest.mark.spark
def test_messagepack_is_read_by_a_function_of_setup(events):
    msgpack = pytest.importorskip("msgpack")
    functions(events.spark)
    bodies = [msgpack.packb({"device": "a", "celsius": 1.5}), msgpack.packb(7), b"\xc1"]

    assert events(FORMATS, "packed", bodies) == ([("a", 1.5)], ["_body"], 2)


@pytest.mark.spark
def test_csv_is_read_by_spark(events):
    text = example("pipeline/formats.md", "Other formats: parse", language="toml")

    assert events(text, "readings", [b"a,1.5", b'"b, c",-2', b"a,hot"]) == ([("a", 1.5), ("b, c", -2.0)], ["_body"], 1)


@pytest.mark.spark
def test_raw_bodies_are_described_by_expressions(events):
    assert events(RAW, "frames", [b"\x01\xfe\x00", b""]) == ([("", 0), ("01FE", 3)], ["_body"], 0)


@pytest.mark.spark
def test_hashed_name_is_nowhere_in_the_table(events):
    text = example("pipeline/deletion.md", "Keep names out", language="toml")

    [(page, user_hash)], kept, wrong = events(text, "clicks", [b'{"user": "ann", "page": "/", "email": "a@b.de"}'])

    assert (page, kept, wrong) == ("/", [], 0)
    assert len(user_hash) == 64


CLICK = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "ms": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "tags": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
        "more": {},
    },
    "required": ["user", "ms"],
    "$defs": {
        "item": {"type": "object", "properties": {"sku": {"type": "string"}, "price": {"type": "number"}}},
    },
}


@pytest.mark.spark
def test_script_makes_a_schema_of_a_json_schema(events, tmp_path):
    (tmp_path / "click.json").write_text(json.dumps(CLICK))
    code = example("pipeline/formats.md", "From a JSON Schema")
    # Some editors begin a file with a byte order mark.
    (tmp_path / "click.ddl").write_text("\ufeff" + run_program(code, str(tmp_path / "click.json")).stdout)
    text = RAW.partition("[tables")[0] + '[tables.clicks]\nschema_file = "click.ddl"\n'
    bodies = [
        b'{"user": "ann", "ms": null, "items": [{"sku": "a", "price": 1}]}',
        b'{"user": null}',
        b'{"user": "", "ms": 1.5}',
    ]

    [(user, at, ms, [item], tags, more)], _, wrong = events(text, "clicks", bodies)

    assert (user, at, ms, item.asDict(), wrong) == ("ann", None, None, {"sku": "a", "price": 1.0}, 2)
    assert (tags, more) == (None, None)


# --- the table of right values

TYPES = {
    "TINYINT": T.ByteType(),
    "SMALLINT": T.ShortType(),
    "INT": T.IntegerType(),
    "BIGINT": T.LongType(),
    "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(),
    "DECIMAL(18,2)": T.DecimalType(18, 2),
    "BOOLEAN": T.BooleanType(),
    "STRING": T.StringType(),
    "BINARY": T.BinaryType(),
    "DATE": T.DateType(),
    "TIMESTAMP": T.TimestampType(),
    "TIMESTAMP_NTZ": T.TimestampNTZType(),
    "ARRAY<INT>": T.ArrayType(T.IntegerType()),
    "MAP<STRING, INT>": T.MapType(T.StringType(), T.IntegerType()),
    "STRUCT<x: INT>": T.StructType([T.StructField("x", T.IntegerType())]),
}
ROWS = [
    (name, *(re.findall("`(.*?)`", cell) for cell in cells))
    for names, *cells in table("pipeline/formats.md", "Right values", "type")
    for name in re.split(r", (?![^(<]*[)>])", html.unescape(names))
]


def test_table_of_right_values_has_all_types():
    assert [name for name, _, _ in ROWS] == sorted(TYPES, key=[name for name, _, _ in ROWS].index)


@pytest.mark.parametrize(("name", "accepted", "refused"), ROWS, ids=[name for name, _, _ in ROWS])
def test_table_of_right_values_is_true(name, accepted, refused):
    shape = Shape((EventColumn("x", ("x",), TYPES[name]),))

    fit = {value: rescued(b'{"x": %s}' % value.encode(), shape) is None for value in (*accepted, *refused)}

    assert fit == dict.fromkeys(accepted, True) | dict.fromkeys(refused, False)
