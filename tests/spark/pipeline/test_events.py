"""From messages to events, in Spark."""

import base64
import bz2
import datetime as dt
import itertools
import json
import re
import ssl
import struct
from decimal import Decimal

import pytest
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import types as T
from pyspark.sql.functions import udf

from gnsq.spark.pipeline.events import check_streaming, deduplicated, plan
from gnsq.spark.pipeline.functions import SetupSession
from gnsq.spark.pipeline.tables import SettingError
from gnsq.spark.pipeline.types import SCALARS, Wrong, explain, rescued
from tests.spark.pipeline.helpers import MESSAGES
from tests.spark.pipeline.helpers import PUBLISHED_AT as PUBLISHED
from tests.spark.pipeline.helpers import messages as messages_of
from tests.spark.pipeline.jobs import parsed, table
from tests.spark.pipeline.rightvalues import RIGHT_VALUES
from tests.strategies import drawn

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def messages(spark):
    def make(*bodies):
        encoded = [body if isinstance(body, bytes) else body.encode() for body in bodies]
        return spark.createDataFrame(messages_of(encoded), MESSAGES)

    return make


def rows(frame):
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["_message_id"])


@pytest.fixture
def run(messages):
    """Take bodies through the plan of a table; return its rows, in the bodies' order, with the reason."""

    def run(*bodies, **given):
        events = plan(messages(*bodies), table(**given))
        found = rows(events.frame)
        for row in found:
            row["reason"] = row["_wrong"] and explain(row["_body"], row["_wrong"], events.shape)
        return found

    return run


@pytest.fixture(scope="module")
def empty(messages):
    return messages("{}")


# Right values

VALUES = [(kind, text, value) for kind, right, _ in RIGHT_VALUES for text, value in right.items()]
OTHERS = [(kind, text) for kind, _, others in RIGHT_VALUES for text in others]
# Each type is a column, so that one plan has all of them.
KINDS = {kind: f"c{index}" for index, (kind, _, _) in enumerate(RIGHT_VALUES)}
SCHEMA = ", ".join(f"{name} {kind}" for kind, name in KINDS.items())


def test_each_scalar_type_is_in_the_table_of_right_values(spark):
    assert {type(field.dataType) for field in T.StructType.fromDDL(SCHEMA)} >= {*SCALARS}


# Values of all kinds, compared with what Python says of them

digits = st.text("0123456789", min_size=1, max_size=24)
integers = st.one_of(
    st.integers(-300, 300),
    st.sampled_from([7, 15, 31, 63]).flatmap(lambda bits: st.integers(-3, 3).map(lambda each: 2**bits + each)),
    st.sampled_from([7, 15, 31, 63]).flatmap(lambda bits: st.integers(-3, 3).map(lambda each: -(2**bits) + each)),
    st.integers(-(10**40), 10**40),
).map(str)
numbers = st.one_of(
    integers,
    st.builds("{}.{}".format, st.integers(-1000, 1000), digits),
    st.builds(
        "{}.{}".format, integers, st.sampled_from(["0", "00", "5", "000000000000000000000000000000000000000001"])
    ),
    st.builds(
        "{}{}{}{}".format,
        integers,
        st.sampled_from(["", ".5", ".25", ".0"]),
        st.sampled_from("eE"),
        st.integers(-45, 45),
    ),
    st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-400, 400)),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["0.30000000000000004", "9007199254740993", "123456789012345678e1", "3.4028236e38", "-0.0", "1E+2"]
    ),
)
dates = st.builds(
    "{:04}-{:02}-{:02}".format,
    st.one_of(st.integers(1, 9999), st.sampled_from([0, 1, 1582, 1970, 2026, 9999])),
    st.integers(1, 12),
    st.integers(1, 31),
)
times = st.builds(
    "{}{}{:02}:{:02}{}{}".format,
    dates,
    st.sampled_from(["T", " ", "t", "", "  "]),
    st.integers(0, 24),
    st.integers(0, 60),
    st.one_of(
        st.just(""),
        st.builds(
            ":{:02}{}".format,
            st.integers(0, 60),
            st.one_of(st.just(""), digits.map(".{}".format), digits.map(",{}".format)),
        ),
    ),
    st.sampled_from(
        ["", "", "Z", "z", "+01:00", "-0330", "+14", "+18:01", "-18:00", "+01:60", " Z", "+1:00", "UTC", "x"]
    ),
)
texts = st.one_of(
    dates,
    times,
    numbers,
    st.text(max_size=5),
    st.binary(max_size=7).map(lambda data: base64.b64encode(data).decode()),
    st.text("AQgw=+/ \n", max_size=8),
    st.sampled_from(
        ["", "true", "null", "NaN", "Infinity", "1,5", "+1", ".5", "1.", "007", "{}", "[1]", '"Infinity"', "1.5e3", "-"]
    ),
)
strings = st.builds(json.dumps, texts, ensure_ascii=st.booleans())
scalars = st.one_of(numbers, numbers, strings, strings, st.sampled_from(["true", "false", "null"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(st.sampled_from(["x", "y", "z", "a b"]), inner, max_size=3).map(
            lambda items: "{" + ", ".join(f'"{key}": {value}' for key, value in items.items()) + "}"
        ),
    ),
    max_leaves=5,
)
by_kind = {
    "DATE": dates.map(json.dumps),
    "TIMESTAMP": times.map(json.dumps),
    "TIMESTAMP_NTZ": times.map(json.dumps),
    "BINARY": strings,
    "STRING": values,
    "BOOLEAN": scalars,
    "ARRAY<INT>": st.lists(integers | scalars, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
    "MAP<STRING, INT>": st.dictionaries(st.sampled_from("abc"), integers | scalars, max_size=3).map(
        lambda items: "{" + ", ".join(f'"{key}": {value}' for key, value in items.items()) + "}"
    ),
    "STRUCT<x: INT, y: STRUCT<z: STRING>>": values,
}


class Number(str):
    """A number of JSON as it was written."""


NUMBERS = {"parse_int": Number, "parse_float": Number}


def same_json(found, value):
    """Whether parsed JSON is the same, numbers by value: as doubles, if they came with an exponent."""
    match value:
        case Number():
            by_value = Decimal(found) == Decimal(value)
            return by_value or ("e" in value.lower() and float(found) == float(value))
        case dict():
            return found.keys() == value.keys() and all(same_json(found[key], each) for key, each in value.items())
        case list():
            return len(found) == len(value) and all(map(same_json, found, value))
    return found == value


def is_right(found, value, kind):
    """Whether a value is what JSON says. Written for this test alone, from the table of right values."""
    if value is None or found is None:
        return value is None and found is None
    match kind:
        case "STRING":
            return found == value if type(value) is str else same_json(json.loads(found, **NUMBERS), value)
        case "BOOLEAN":
            return found is value
        case "FLOAT":
            (bits,) = struct.unpack("i", struct.pack("f", found))
            beside = struct.unpack("2f", struct.pack("2i", max(bits - 1, 0), bits + 1))
            return all(abs(Decimal(found) - Decimal(value)) <= abs(Decimal(each) - Decimal(value)) for each in beside)
        case "DOUBLE":
            return found == float(value)
        case "DATE":
            return found.isoformat() == value
        case "BINARY":
            return base64.b64encode(found).decode() == value
        case "TIMESTAMP" | "TIMESTAMP_NTZ":
            text = re.sub(r"[,.](\d{1,6})\d*", r".\1", value.upper().replace(" ", "T"))
            moment = dt.datetime.fromisoformat(text)
            return found == (moment if kind == "TIMESTAMP_NTZ" or moment.tzinfo else moment.replace(tzinfo=dt.UTC))
        case "ARRAY<INT>":
            return [None if each is None else int(Decimal(each)) for each in value] == found
        case "MAP<STRING, INT>":
            return {key: each if each is None else int(Decimal(each)) for key, each in value.items()} == dict(found)
        case "STRUCT<x: INT, y: STRUCT<z: STRING>>":
            x, y = value.get("x"), value.get("y")
            return found["x"] == (None if x is None else int(Decimal(x))) and (
                found["y"] is y is None or is_right(found["y"]["z"], y.get("z"), "STRING")
            )
    return Decimal(found) == Decimal(value)


fields = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.tuples(st.just(kind), values | by_kind.get(kind, numbers))
)


GIVEN = [*((kind, text) for kind, text, _ in VALUES), *OTHERS]


@pytest.fixture(scope="module")
def parsed_values(messages):
    """Values that are given, then those that are drawn, and the events of three kinds of bodies, by one plan: of all
    values, of those that are drawn alone, and of these with the next ones to them."""
    lone = [*drawn(fields, 400), ("DOUBLE", "-0.0"), ("BINARY", "1e-5"), ("FLOAT", "-0.00"), ("BINARY", "1e-5")]
    cases = [*GIVEN, *lone]
    # Beside those that are drawn, a number that a double does not hold, or a string that looks like one.
    more = itertools.chain(["0"] * len(GIVEN), itertools.cycle(["0", "1.2345678901234567e-5", '"sha256:7e823"']))
    bodies = [
        f'{{"{KINDS[kind]}": {text}, "other": {other}}}' for (kind, text), other in zip(cases, more, strict=False)
    ]
    alone = [f'{{"{KINDS[kind]}": {text}}}' for kind, text in lone]
    neighbours = [(lone + lone)[index + 1 : index + 2 + index % 3] for index in range(len(lone))]
    beside = [
        "{" + ", ".join(f'"{KINDS[each]}": {value}' for each, value in {**dict(others), kind: text}.items()) + "}"
        for (kind, text), others in zip(lone, neighbours, strict=True)
    ]
    events = plan(messages(*bodies, *alone, *beside), table(schema=SCHEMA, mismatch="rescue"))
    return events, cases, rows(events.frame)


@pytest.mark.hypothesis
def test_each_type_takes_its_right_values_and_spark_and_python_agree_on_what_fits(parsed_values):
    events, cases, found = parsed_values
    found = found[: len(cases)]

    assert [(kind, text, row[KINDS[kind]]) for row, (kind, text, _) in zip(found, VALUES, strict=False)] == VALUES
    wrong = found[len(VALUES) : len(GIVEN)]
    assert [each for row, each in zip(wrong, OTHERS, strict=True) if not row["_misfit"]] == []
    assert all(re.match(r"c\d+.* is not [A-Z a-z]", explain(row["_body"], Wrong.TYPE, events.shape)) for row in wrong)
    differences = []
    for row, (kind, text) in zip(found, cases, strict=True):
        misfit = rescued(row["_body"], events.shape)
        if row["_wrong"] is not None or row["_misfit"] != (misfit is not None):
            differences.append((kind, text, row["_wrong"], row["_misfit"], misfit))
        elif misfit is None:
            value = json.loads(text, **NUMBERS)
            if not is_right(row[KINDS[kind]], value, kind):
                differences.append((kind, text, row[KINDS[kind]]))
    assert sorted(differences, key=lambda each: len(each[1]))[:20] == []


def is_same(one, other, kind):
    if kind.startswith("MAP"):
        one, other = one and dict(one), other and dict(other)
    if kind in ("FLOAT", "DOUBLE"):
        return repr(one) == repr(other)  # with the sign of a zero
    if kind != "STRING" or None in (one, other):
        return one == other
    try:
        return same_json(json.loads(one, **NUMBERS), json.loads(other, **NUMBERS))
    except ValueError:
        return one == other


@pytest.mark.hypothesis
def test_whether_a_value_fits_and_what_it_becomes_does_not_depend_on_others(parsed_values):
    _, cases, found = parsed_values
    cases, found = cases[len(GIVEN) :], found[len(cases) :]

    pairs = zip(cases, found[: len(cases)], found[len(cases) :], strict=True)
    assert [
        (kind, text, one[KINDS[kind]], other[KINDS[kind]], other["_body"])
        for (kind, text), one, other in pairs
        if not is_same(one[KINDS[kind]], other[KINDS[kind]], kind)
    ] == []


# Bodies, paths, required fields

NO_OBJECTS = [
    *(b"", b" ", b"x", b"null", b"5", b'"a"', b'[{"ms": 1}]', b'{"ms": 1}}', b'{"ms": 1}]', b'{"ms": 1} {"ms": 2}'),
    *(b'{"ms": 1},{"ms": 2}', b'{"ms": 1', b"{'ms': 1}", b"{ms: 1}", b'{"ms": 01}', b'{"lat": NaN}', b'{"ms": 1,}'),
    *(
        b"{1e5: 1}",
        b'{"ms": 01e5}',
        b'{"ms": 1e5x}',
        b'{"ms": 1.e5}',
        b'{"ms": 1e}',
        b'{"ms": --1e5}',
        b'{"ms": 1e5 1e5}',
    ),
    *(b'{"user": "\xff"}', b'\xef\xbb\xbf{"ms": 1}', '{"ms": 1}'.encode("utf-16"), b'{"user": "\xed\xa0\xbd"}'),
    *(b'{"user": "\\ud83d"}', b'{"other": ["\\uDE00\\ud83d"]}', b'{"user": "\\\\\\ud83d"}', b'{"user": "a\nb"}'),
    *(b'{"other": ' + 600 * b"[" + 600 * b"]" + b"}", b'{"%s": 1}' % (60_000 * b"k"), b'{"ms": %s}' % (2_000 * b"1")),
]


UNUSUAL = {
    b' {"user" : "\\ud83d\\ude00 \\\\ud83d"}\n': ("😀 \\ud83d", None),
    '{"user": "größe", "ms": 1, "ms": 2}'.encode(): ("größe", 2),
    b'{"USER": "a", "ms": null}': (None, None),
    b"{}": (None, None),
    b'{"x": ' + 490 * b"[" + 490 * b"]" + b"}": (None, None),
    # A number beside a text that is written anew, which a double does not hold, or a string that looks like one.
    '{"user": {"a": [1, "é\\""]}, "other": "sha256:7e823"}'.encode(): ('{"a":[1,"é\\""]}', None),
    b'{"user": {"a": [1, 2]}, "other": 1.2345678901234567e-5}': ('{"a":[1,2]}', None),
    b'{"user": {"a": 0.5}, "other": "1"}': ('{"a":0.5}', None),
    # Numbers as they came, and strings that look like some.
    b'{"user": {"a": [1e400, -2.5e-3], "b": "c: 1e5", "c": "[1E5]\\"1e5"}, "ms": 120e-1}': (
        '{"a":[1e400,-2.5e-3],"b":"c: 1e5","c":"[1E5]\\"1e5"}',
        12,
    ),
}


def test_only_one_json_object_is_an_event_and_unusual_ones_are(run):
    found = run(*UNUSUAL, *NO_OBJECTS, schema="user STRING, ms INT, lat DOUBLE")

    right, wrong = found[: len(UNUSUAL)], found[len(UNUSUAL) :]
    assert [row["reason"] for row in right] == [None] * len(UNUSUAL)
    assert [(row["user"], row["ms"]) for row in right] == list(UNUSUAL.values())
    assert [row["_body"] for row in wrong if row["_wrong"] != Wrong.BODY] == []
    assert "body is beyond a limit of Spark's JSON parser" not in {row["reason"] for row in wrong}


def test_columns_come_from_paths(run):
    body = (
        '{"geo": {"lat": 1, "lon": 2.5}, "at": [3, "x"], "headers": {"user-agent": "a", "x.y z": {"@": 5}}, "A": 1, '
        '"a": "b"}'
    )
    [right, other] = run(
        body,
        '{"geo": 5, "at": 5, "headers": ["user-agent"]}',
        schema="lat DOUBLE, lon DOUBLE, place STRUCT<lat: INT>, at0 INT, agent STRING, at_sign INT, a STRING, up INT",
        columns={
            "lat": "$.geo.lat",
            "lon": "$.geo.lon",
            "place": "$.geo",
            "at0": "$.at[0]",
            "up": "$.A",
            "agent": "$.headers['user-agent']",
            "at_sign": '$.headers["x.y z"].@',
        },
        mismatch="rescue",
    )

    names = ("lat", "lon", "place", "at0", "agent", "at_sign", "a", "up")
    assert [right[name] for name in names] == [1.0, 2.5, {"lat": 1}, 3, "a", 5, "b", 1]
    assert (right["_misfit"], right["_time"]) == (False, PUBLISHED)
    # A path that leads nowhere gives null, while a STRUCT that is a number does not fit.
    assert [other[name] for name in names] == len(names) * [None]
    assert other["_misfit"] is True


REQUIRED = "user STRING NOT NULL, ms INT, items ARRAY<STRUCT<sku: STRING, price: INT NOT NULL>>"


def test_what_is_not_null_must_be_there_and_fit(run):
    bodies = (
        '{"user": "a"}',
        '{"user": null}',
        '{"user": "a", "items": [null, {"price": 1}, {"sku": "b"}]}',
        '{"user": "a", "ms": "x"}',
        '{"user": "a", "items": [{"price": "x"}]}',
    )
    dead = run(*bodies, schema=REQUIRED)
    rescued_rows = run(*bodies, schema=REQUIRED, mismatch="rescue")

    reasons = [None, "user is missing or null", "items[2].price is missing or null"]
    price = 'items[0].price "x" is not INT'
    assert [row["reason"] for row in dead] == [*reasons, 'ms "x" is not INT', price]
    assert [row["reason"] for row in rescued_rows] == [*reasons, None, price]
    assert [row["_misfit"] for row in rescued_rows] == [False, False, False, True, True]


# Time, where, select


def after(**time):
    return PUBLISHED + dt.timedelta(**time)


# Of each expression: body, what is wrong, time.
TIMES = {
    "at": [
        ('{"at": "2026-11-20T09:00:00Z"}', None, after(hours=-1)),
        ("{}", None, PUBLISHED),
        # It does not fit, and would be rescued.
        ('{"at": 1700000000}', Wrong.TIME, PUBLISHED),
        ('{"at": "2026-11-20T10:10:00Z"}', None, after(minutes=10)),
        ('{"at": "2026-11-20T10:10:01Z"}', Wrong.AHEAD, PUBLISHED),
    ],
    "IF(text IS NULL, timestamp_millis(ts), try_to_timestamp(text))": [
        ('{"ts": 1000}', None, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        # Beyond all years; and where Spark's function raises.
        ('{"ts": 1000000000000000}', Wrong.TIME, PUBLISHED),
        ('{"ts": 9223372036854775807}', Wrong.TIME, PUBLISHED),
        ('{"text": "soon"}', Wrong.TIME, PUBLISHED),
        ('{"other": 5}', None, PUBLISHED),
    ],
}


@pytest.mark.parametrize("time", TIMES, ids=["column", "expression"])
def test_the_time_of_an_event(run, time):
    bodies, *_ = zip(*TIMES[time], strict=True)
    schema = {"schema": "at TIMESTAMP", "mismatch": "rescue"}
    columns = schema if time == "at" else {"parse": parsed("ts BIGINT, text STRING")}

    found = run(*bodies, time=time, **columns)

    assert [(body, row["_wrong"], row["_time"]) for body, row in zip(bodies, found, strict=True)] == TIMES[time]


def test_where_drops_events_and_select_makes_columns(messages):
    given = table(
        schema="user STRING NOT NULL, ms INT, _x INT",
        where="ms < 10 AND _topic = 'clicks'",
        select=("* EXCEPT (user)", "upper(user) AS name", "_message_id AS id"),
    )
    bodies = ('{"user": "a", "ms": 1}', '{"user": "b", "ms": 10}', '{"user": "c"}', '{"ms": 11}')
    events = plan(messages(*bodies), given)

    assert events.columns.simpleString() == "struct<ms:int,_x:int,name:string,id:string>"
    assert events.frame.columns == [
        *("ms", "_x", "name", "id", "_message_id", "_nsqd", "_topic", "_attempts", "_published_at", "_time", "_body"),
        "_wrong",
    ]
    # What is malformed stays, whatever the condition says; a condition that is null drops.
    assert [(row["name"], row["_wrong"]) for row in rows(events.frame)] == [("A", None), (None, Wrong.MISSING)]


NULLS = ["ts DIV 0", "array(ts)[7]", "CAST('x' AS INT) + ts", "map('a', ts)['b']"]
RAISING = [
    "timestamp_millis(ts * CAST(1e17 AS BIGINT))",
    "element_at(array(ts), 0)",
    "CAST(raise_error(string(ts)) AS INT)",
    "to_timestamp('x', 'bad pattern')",
    "'a' RLIKE '(['",
]


def test_an_expression_without_a_value_is_null_and_an_event_of_which_one_raises_is_a_dead_letter(run):
    # Each raises for one event. Spark computes what two expressions share before both.
    columns = [f"CASE WHEN ts = {100 + i} THEN {sql} END AS x{i}" for i, sql in enumerate(RAISING)]
    shared = [column.replace("CASE", "array(CASE").replace(" AS x", ") AS y") for column in columns]
    nulls = [f"{sql} AS z{i}" for i, sql in enumerate(NULLS)]
    bodies = [f'{{"ts": {100 + i}}}' for i in range(len(RAISING) + 1)]

    found = run(*bodies, parse=parsed("ts BIGINT"), select=("ts", *nulls, *columns, *shared))

    assert [row["reason"] for row in found] == [*(f"select can't be computed: {column}" for column in columns), None]
    assert [row["ts"] for row in found] == [100 + i for i in range(len(bodies))]
    assert [found[-1][f"z{i}"] for i in range(len(NULLS))] == len(NULLS) * [None]


def test_an_event_for_which_a_function_of_setup_raises_is_a_dead_letter(spark, run):
    register = SetupSession(spark).udf.register
    register("half", lambda number: 10 // number, "INT")
    register("shout", udf(lambda text: {"text": text.upper()}, "text STRING"))
    register("unzipped", lambda text: bz2.decompress(b"?") if text == "zip" else text)
    columns = ["half(ms) AS h", "shout(user).text AS u", "half(HALF(ms)) AS hh", "unzipped(user) AS z"]
    where, time = "half(IFNULL(least, 2)) > 1", "timestamp_seconds(half(IFNULL(ts, 2)))"
    reasons = {
        '{"user": "a", "ms": 2}': None,
        '{"user": "a", "ms": 0}': f"select can't be computed: {columns[0]}",
        '{"ms": 2}': f"select can't be computed: {columns[1]}",
        '{"user": "a", "ms": 20}': f"select can't be computed: {columns[2]}",
        '{"user": "zip", "ms": 2}': f"select can't be computed: {columns[3]}",
        '{"user": "a", "ms": 2, "least": 0}': f"where can't be computed: {where}",
        '{"user": "a", "ms": 2, "ts": 0}': f"{time} gives no time of the years 1 to 9999",
    }
    left_out = '{"user": "a", "ms": 2, "least": 20}'
    schema = parsed("user STRING, ms INT, least INT, ts INT")

    select = [*columns, "IF(ms > 0, half(ms), -1) AS taken"]
    found = run(*reasons, left_out, parse=schema, where=where, time=time, select=select)
    [event, wrong] = run("5", "0", parse="named_struct('n', half(int(string(body))))")

    assert [row["reason"] for row in found] == list(reasons.values())
    assert [found[0][name] for name in ("h", "u", "hh", "z", "taken")] == [5, "A", 2, "a", 5]
    assert (event["n"], event["_wrong"], wrong["_wrong"]) == (2, None, Wrong.PARSE)


def test_a_function_of_setup_that_fails_by_no_fault_of_the_event_fails_the_batch(spark, run):
    errors = {"a": ConnectionResetError, "b": MemoryError, "c": ssl.SSLCertVerificationError}

    def look_up(text):
        if text in errors:
            raise errors[text]("not now")

    registered = SetupSession(spark).udf.register("look_up", look_up)

    for text, error in errors.items():
        with pytest.raises(error, match="not now"):
            registered.func(text)
    with pytest.raises(PythonException, match="not now"):
        run('{"user": "a"}', parse=parsed("user STRING"), select=("look_up(user) AS found",))


# Of constants, which Spark computes when it plans.
CONDITION = f"CASE _attempts WHEN 1 THEN concat('', {RAISING[-1]}) ELSE 'x' END <> 'x'"


def test_an_event_of_which_the_condition_can_not_be_computed_is_a_dead_letter(run):
    [row] = run("{}", parse=parsed("ts BIGINT"), where=CONDITION)

    assert row["reason"] == f"where can't be computed: {CONDITION}"


def test_sql_may_parse_and_what_it_can_not_take_is_malformed(run):
    text = "IF(body = X'01', raise_error('not this'), CAST(body AS STRING))"
    parse = f"IF(topic = 'clicks' AND body <> X'00', from_csv({text}, 'user STRING, ms INT'), NULL)"
    found = run("a,5", b"\x00", b"\x01", parse=parse, select=("user", "ms * 2 AS twice"))

    no_event = (None, None, "parse gives null, or can't be computed")
    assert [(row["user"], row["twice"], row["reason"]) for row in found] == [("a", 10, None), no_event, no_event]


def test_raw_events_are_never_wrong(run):
    time = "try_to_timestamp(CAST(_body AS STRING))"
    bodies = b"\xff", "2026-11-20 09:00:00", "2099-01-01 00:00:00"
    found = run(*bodies, format="raw", time=time, where=CONDITION)

    hour_before = PUBLISHED - dt.timedelta(hours=1)
    assert [(row["_wrong"], row["_time"]) for row in found] == [
        (None, PUBLISHED),
        (None, hour_before),
        (None, PUBLISHED),
    ]


REFUSALS = [
    ({"schema": "a inty"}, 'schema: [UNSUPPORTED_DATATYPE] Unsupported data type "INTY".'),
    ({"schema": "_time INT"}, "schema: _time is a column of the job's own"),
    ({"columns": {"nope": "$.a"}}, "columns: nope is no column of the schema"),
    ({"parse": "topic"}, "parse: gives STRING, and a STRUCT is due"),
    ({"time": "ms"}, "time: gives INT, and a TIMESTAMP is due, such as timestamp_millis(ts)"),
    ({"where": "ms >"}, "where: [PARSE_SYNTAX_ERROR]"),
    ({"where": "max(ms) > 1"}, "where: aggregates rows"),
    (
        {"where": "page RLIKE '(['"},
        "where: fails for each event that was tried: ",
    ),
    (
        {"time": "to_timestamp(page, 'EEE yyyy')"},
        "Fail to recognize 'EEE yyyy' pattern in the DateTimeFormatter",
    ),
    ({"where": "ms IN (SELECT 1)"}, "where: has a query within"),
    ({"where": "EXISTS (SELECT 1)"}, "where: has a query within"),
    ({"where": "rand() < 0.5"}, "gives something else when it is computed again"),
    ({"select": ("now() AS at",)}, "gives something else when it is computed again"),
    ({"select": ("explode(array(ms)) AS x",)}, "select: makes several rows"),
    ({"select": ("row_number() OVER (ORDER BY ms) AS x",)}, "select: needs other rows"),
    ({"select": ("ms", "MS")}, "select: MS and ms differ only by case"),
    ({"select": ("ms + 1",)}, "select: '(ms + 1)' can't be the name"),
    ({"select": ("ms AS _body",)}, "select: _body is a column of the job's own"),
    ({"select": ("struct(*) AS x",)}, "select: struct(*) AS x has * within"),
    ({"select": ("parse_json(page) AS x",)}, "select: x is VARIANT"),
]


@pytest.mark.parametrize(("given", "reason"), REFUSALS, ids=str)
def test_a_setting_that_can_not_be_used_is_told_in_one_line(empty, given, reason):
    columns = (
        {} if {"schema", "columns", "parse"} & set(given) else {"parse": parsed("user STRING, page STRING, ms INT")}
    )
    with pytest.raises(SettingError) as failure:
        plan(empty, table(**columns, **given))

    text = str(failure.value)
    assert text.startswith("[tables.clicks] ")
    assert "\n" not in text
    assert reason in text


def test_a_function_that_gets_times_which_python_does_not_have_is_refused(spark, empty):
    # PySpark fails for 0001-01-01, in any time zone, and then so does each batch with such an event.
    SetupSession(spark).udf.register("shown", str)
    columns = parsed("at TIMESTAMP, d DATE, local TIMESTAMP_NTZ, n BIGINT, p STRUCT<TIMESTAMP: STRING>")
    right = ("shown(d) AS d", "shown(local) AS l", "shown(unix_micros(at)) AS at", "shown(p) AS p")

    plan(empty, table(parse=columns, select=right))
    words = r"select: shown gets a TIMESTAMP, .* give it unix_micros\(\) of the time"
    for given in ("at", "timestamp_millis(n)", "array(named_struct('a', at))"):
        with pytest.raises(SettingError, match=words):
            plan(empty, table(parse=columns, select=("n", f"shown({given}) AS y")))


def test_a_stream_is_planned_and_checked(spark):
    columns = "CAST('{}' AS BINARY) AS body", "'a' AS message_id", "'t' AS topic", "'n' AS nsqd", "1 AS attempts"
    stream = spark.readStream.format("rate").load().selectExpr(*columns, "timestamp AS published_at")
    events = plan(deduplicated(stream, 60), table(schema="at TIMESTAMP", time="at", where="at IS NULL"))

    check_streaming(events.frame, "tables.clicks")
    with pytest.raises(SettingError, match=r"^\[tables.clicks\] Sorting is not supported on streaming"):
        check_streaming(events.frame.orderBy("_time"), "tables.clicks")
