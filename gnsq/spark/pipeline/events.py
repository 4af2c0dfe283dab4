"""Spark's expressions from messages to events: parse, what does not fit, time, where, select, and our own columns.

from_json is fast, and bends some values: see _wire(). So it parses types that it does not bend, and cheap conditions
say whether a row can be trusted ("is sure"). The other rows, few unless bodies are wrong, are parsed once more, as
variants, which tell a number from a string: see _exact(). Both are Spark's expressions only, so a batch that runs again
gives the same rows. Which JSON values a type takes stands in types.py, in Python: a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from gnsq.spark.errors import root_cause
from gnsq.spark.pipeline.expressions import class_of, computed, elements, java_class, nodes, parsed
from gnsq.spark.pipeline.settings import SettingError, TableSettings
from gnsq.spark.pipeline.types import (
    BASE64,
    DATE,
    LONE_SURROGATE,
    LONG_NUMBER,
    MAX_DEPTH,
    NUMBER,
    PAIR_OR_ESCAPE,
    QUOTED,
    TIMESTAMP,
    ZONE,
    EventColumn,
    Shape,
    Step,
    Wrong,
    check_type,
    json_path,
    type_text,
)

__all__ = ["Events", "OWN", "RESERVED", "SESSION", "check_streaming", "deduplicated", "plan"]

# Settings of Spark's session that the expressions need.
SESSION = {
    # Most expressions that can't be computed are null; computed() does the same for the others.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # A row with a value that does not fit is null as a whole, so it is parsed once more.
    "spark.sql.json.enablePartialResults": "false",
    # Of a key that is there twice, the last one counts, as in from_json and in Python.
    "spark.sql.variant.allowDuplicateKeys": "true",
}

# Columns that every table has beside those of the event.
OWN = ("_message_id", "_nsqd", "_topic", "_attempts", "_published_at", "_time")
# Names that no column of an event may have.
RESERVED = frozenset(
    {
        *OWN,
        *("_body", "_rescued", "_wrong", "_misfit", "_day", "_hour", "_month"),
        *("_window_start", "_window_end", "_epoch", "_version"),
    }
)
# Columns of the source that the setting parse may name.
SOURCE = ("body", "topic", "nsqd", "message_id", "attempts", "published_at")

_JSON = {
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
    # Bodies are parsed inside of an array.
    "maxNestingDepth": str(MAX_DEPTH + 1),
}
# Qualifier of the event's columns, so that * is not those of our own.
_EVENT = "_event"
# Step of a path for each element of an array.
_ELEMENT = object()
# A body with a number that may differ from its nearest double, or be beyond all doubles; others are plain.
_NOT_PLAIN = r"[\[:,\s]-?(?:(?=[0-9.]{17})[0-9]+\.|[0-9.]+[eE]|[0-9]{39})"
# Of STRINGs, each after \x01: an object, an array, or a number that Spark may write as the nearest double.
_WRITTEN = r'\x01(?:[\[{"]|-?[0-9]+\.|-?[0-9]{39})'
# JSON as Spark writes it, without fractions and numbers that were infinite, which it writes as "Infinity".
_WHOLE = r'^(?:[^".EI]|"(?:(?!Infinity)(?:[^"\\]|\\.))*+")*+$'
_USUAL_TIMESTAMP = DATE + r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
_USUAL_ZONE = r"(?:Z|[+-][0-9]{2}:[0-9]{2})"


@dataclass(frozen=True)
class Events:
    """Rows of events, right and malformed ones.

    Attributes:
        frame: The columns of select, OWN, _body, _wrong (types.Wrong, null if the event is right) and, with mismatch
            rescue, _misfit: whether a value did not fit.
        columns: Those of select alone.
        shape: For explain() and rescued() of types.py.
    """

    frame: DataFrame
    columns: T.StructType
    shape: Shape


def deduplicated(messages: DataFrame, within: float) -> DataFrame:
    """Remove messages that the same nsqd delivered in the ``within`` seconds before. For a query without aggregation.

    The watermark is on the time of the batch, which Spark keeps in its offset log. So no row is too late unless the
    driver's clock is set back by more than ``within``, and a batch that runs again removes the same messages.
    """
    delay = f"{round(within * 1e6)} microseconds"
    timed = messages.withColumn("_seen_at", F.current_timestamp()).withWatermark("_seen_at", delay)
    # An nsqd gives the same id to messages of several topics.
    return timed.dropDuplicatesWithinWatermark(["nsqd", "topic", "message_id"]).drop("_seen_at")


def plan(messages: DataFrame, table: TableSettings) -> Events:
    """Make events of messages: parse, what does not fit, time, where, select, and the columns of our own.

    Args:
        messages: Rows of the nsq source, of a batch or of a stream.

    Raises:
        SettingError: A setting can't be used; the text has Spark's own error, in one line.
    """
    return _Plan(messages, table).events()


def check_streaming(frame: DataFrame, section: str, output_mode: str = "append") -> None:
    """Refuse what Spark can't run as a streaming query.

    Raises:
        SettingError: Of this section of the settings.
    """
    spark = frame.sparkSession
    mode = getattr(java_class(spark, "sql.streaming.OutputMode"), output_mode.title())()
    checker = java_class(spark, "sql.catalyst.analysis.UnsupportedOperationChecker")
    try:
        checker.checkForStreaming(_analyzed(frame), mode)
    except PySparkException as error:
        raise SettingError(_one_line(error), section) from error


class _Plan:
    """The plan of one table. The frame of each step has the columns of the event, and _BESIDE."""

    def __init__(self, messages: DataFrame, table: TableSettings) -> None:
        self._messages = messages
        self._table = table

    def events(self) -> Events:
        table = self._table
        columns: tuple[EventColumn, ...] = ()
        if table.format == "raw":
            parsed = self._messages.select(*_own(), *_states())
        elif table.parse:
            parsed = self._parsed_by_sql()
        else:
            columns = self._columns()
            parsed = self._parsed_by_schema(columns)
        events = self._with_names(self._timed(parsed, [column.name for column in columns]))
        if table.where:
            events = self._filtered(events)
        return self._selected(events, Shape(columns, table.time, table.max_ahead))

    def _error(self, setting: str, text: object) -> SettingError:
        return SettingError(f"{setting}: {text}", f"tables.{self._table.name}")

    def _with(self, frame: DataFrame, setting: str, *columns: str) -> DataFrame:
        """Select expressions of a setting alone, to check them: one row for each row, and always the same."""
        try:
            result = frame.select(*map(F.expr, columns))
            _check_rows(result, frame)
        except (PySparkException, ValueError) as error:
            raise self._error(setting, _one_line(error)) from error
        return result

    # Parse

    def _columns(self) -> tuple[EventColumn, ...]:
        table = self._table
        try:
            # Spark's own parser, for which it takes the active session.
            schema = T.StructType.fromDDL(table.schema)
            check_type(schema)
            _check_names(schema.names)
        except (PySparkException, ValueError) as error:
            raise self._error("schema", _one_line(error)) from error
        paths: dict[str, tuple[Step, ...]] = {}
        for name, path in table.columns.items():
            if name not in schema.names:
                raise self._error("columns", f"{name} is no column of the schema")
            try:
                paths[name] = json_path(path)
            except ValueError as error:
                raise self._error("columns", f"{name}: {error}") from error
        return tuple(
            EventColumn(field.name, paths.get(field.name, (field.name,)), field.dataType, not field.nullable)
            for field in schema.fields
        )

    def _parsed_by_sql(self) -> DataFrame:
        names = SOURCE if self._messages.columns else ()
        kind = self._with(self._messages.select(*names), "parse", self._table.parse).schema[0].dataType
        if not isinstance(kind, T.StructType):
            raise self._error("parse", f"gives {type_text(kind)}, and a STRUCT is due")
        try:
            check_type(kind, is_json=False)
            _check_names(kind.names)
        except ValueError as error:
            raise self._error("parse", error) from error
        parsed = self._messages.select(*_own(), computed(self._table.parse).alias("our event"))
        event = F.col("our event")
        wrong = F.when(event.isNull(), F.lit(Wrong.PARSE.value))
        return parsed.select(*(event.getField(name).alias(name) for name in kind.names), *_BESIDE, *_states(wrong))

    def _parsed_by_schema(self, columns: tuple[EventColumn, ...]) -> DataFrame:
        wires, layers = _wires(columns)
        text = F.col("_body").cast("string")
        # Spark's parser stops after the first value, unless that is in an array. No body has the end of that array, and
        # another null before it.
        array = F.concat(F.lit("["), text, F.lit("\n,null]"))
        parsed = self._messages.select(*_own()).select(
            *_BESIDE, *(F.from_json(array, T.ArrayType(wire), _JSON).alias(f"json {i}") for i, wire in enumerate(wires))
        )
        is_text = F.is_valid_utf8(text) & ~_has_lone_surrogate(text)
        sure = [is_text]
        for layer in range(len(wires)):
            json = F.col(f"json {layer}")
            sure += [F.size(json) == 2, F.get(json, F.lit(0)).isNotNull(), F.get(json, F.lit(1)).isNull()]
        wired = [
            _at(F.get(F.col(f"json {layer}"), F.lit(0)), each.path) for each, layer in zip(columns, layers, strict=True)
        ]
        names = [f"fast {index}" for index in range(len(columns))]
        fast = [_fast(each.type, wire).alias(name) for each, wire, name in zip(columns, wired, names, strict=True)]
        kinds = [each.type for each in columns]
        leaves = [leaf for found in zip(kinds, wired, map(F.col, names), strict=True) for leaf in _leaves(*found)]
        sure += _guards(leaves, text)
        trusted = parsed.select("*", *fast).select(
            *_BESIDE, *names, F.coalesce(_all(sure), F.lit(False)).alias("is sure")
        )
        is_sure = F.col("is sure")
        variants = F.from_json(array, T.ArrayType(T.VariantType()), _JSON)
        exact = _let(variants, lambda found: _exact_body(columns, found, text))
        both = trusted.select("*", F.when(~is_sure & is_text, exact).alias("exact"))
        chosen = both.select(
            *_BESIDE,
            *(
                F.when(is_sure, F.col(f"fast {index}")).otherwise(F.col(f"exact.value {index}")).alias(f"value {index}")
                for index in range(len(columns))
            ),
            (~is_sure & F.col("exact").isNull()).alias("is no body"),
            F.col("exact.misfits").alias("our misfits"),
        )
        missing = [_missing(each.type, F.col(f"value {i}"), each.is_required) for i, each in enumerate(columns)]
        misfit = F.coalesce(F.array_contains("our misfits", True), F.lit(False))
        wrong = F.when(F.col("is no body"), F.lit(Wrong.BODY.value))
        if self._table.mismatch == "dead":
            wrong = wrong.when(misfit, F.lit(Wrong.TYPE.value))
        wrong = wrong.when(_any([each for each in missing if each is not None]), F.lit(Wrong.MISSING.value))
        named = [F.col(f"value {index}").alias(column.name) for index, column in enumerate(columns)]
        return chosen.select(*named, *_BESIDE, *_states(wrong, F.col("our misfits")))

    # Time, where, select

    def _timed(self, events: DataFrame, columns: list[str]) -> DataFrame:
        """Add _time, and say in _wrong where it is none. Columns are those whose misfits are known."""
        published, wrong = F.col("_published_at"), F.col("_wrong")
        if not self._table.time:
            return events.withColumn("_time", published)
        checked = self._with(events, "time", self._table.time)
        kind = checked.schema[0].dataType
        if not isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
            raise self._error(
                "time",
                f"gives {type_text(kind)}, and a TIMESTAMP is due, such as timestamp_millis(ts) or "
                "timestamp_seconds(ts) of a number",
            )
        # Null is the time of publishing, but not if there was something that gave no time.
        given = []
        for name, sql in _inputs(elements(_analyzed(checked).expressions())):
            if name not in (*OWN, "_body"):
                given.append(computed(sql).isNotNull())
            if name in columns:
                given.append(F.coalesce(F.get("our misfits", F.lit(columns.index(name))), F.lit(False)))
        timed = events.select("*", computed(self._table.time).cast("timestamp").alias("our time"))
        time = F.col("our time")
        is_time = _in_years(time)
        ahead = F.unix_micros(time) - F.unix_micros(published) > round(self._table.max_ahead * 1e6)
        if self._table.format == "raw":
            return timed.withColumn("_time", F.when(is_time & ~ahead, time).otherwise(published))
        return timed.withColumn(
            "_wrong",
            F.coalesce(
                wrong,
                F.when(~is_time | (time.isNull() & _any(given)), F.lit(Wrong.TIME.value))
                .when(ahead, F.lit(Wrong.AHEAD.value))
                .cast("tinyint"),
            ),
        ).withColumn("_time", F.when(wrong.isNull() & time.isNotNull(), time).otherwise(published))

    def _with_names(self, events: DataFrame) -> DataFrame:
        """Let * be the columns of the event alone, while expressions may name our own."""
        ours = [*OWN, *_BESIDE[len(OWN) - 1 :], *_STATES]
        theirs = [name for name in events.columns if name not in (*ours, "our time")]
        return events.alias(_EVENT).select(
            *(F.col(f"{_EVENT}.{_quoted(name)}") for name in theirs),
            # An alias has no qualifier.
            *(F.col(name).alias(name) for name in ours),
        )

    def _filtered(self, events: DataFrame) -> DataFrame:
        where = self._table.where
        kind = self._with(events, "where", where).schema[0].dataType
        if not isinstance(kind, T.BooleanType):
            raise self._error("where", f"gives {type_text(kind)}, and a condition is due")
        # As a column of its own, since in a condition Spark would simplify what computed() needs.
        found = events.select("*", computed(where).alias("our where"))
        return found.where((F.col("_wrong").isNotNull() | F.col("our where")) & (F.col("our partition") >= 0))

    def _selected(self, events: DataFrame, shape: Shape) -> Events:
        # Raw bodies have no columns for * to be.
        default = () if self._table.format == "raw" else ("*",)
        items = [self._item(events.sparkSession, text.strip()) for text in self._table.select or default]
        columns = self._with(events, "select", *items).schema if items else T.StructType()
        try:
            if items:
                check_type(columns, is_json=False)
            _check_names(columns.names)
        except ValueError as error:
            raise self._error("select", error) from error
        misfit = F.coalesce(F.array_contains("our misfits", True), F.lit(False)).alias("_misfit")
        others = [*OWN, "_body", "_wrong", *([misfit] if self._table.mismatch == "rescue" else [])]
        # An item without a name is a column or a part of one: another one's name is refused above.
        chosen = [
            computed(item) if class_of(parsed(events.sparkSession, item)) == "Alias" else F.expr(item) for item in items
        ]
        return Events(events.select(*chosen, *others), _nullable(columns), shape)

    def _item(self, spark: SparkSession, text: str) -> str:
        try:
            root = parsed(spark, text)
        except PySparkException as error:
            raise self._error("select", _one_line(error)) from error
        if text.startswith("*"):
            return f"{_EVENT}.{text}"
        if any("UnresolvedStar" in class_of(each) for each in nodes(root)):
            raise self._error("select", f"{text} has * within: name the columns")
        return text


# Columns of our own in the frame of each step, and what is known of a row.
_BESIDE = ("_message_id", "_nsqd", "_topic", "_attempts", "_published_at", "_body", "our partition")
_STATES = ("_wrong", "our misfits")


def _own() -> list[Column]:
    names = [F.col(name[1:]).alias(name) for name in _BESIDE[:-1]]
    # Spark pushes a condition below the columns that it is on, and would parse each body twice, unless those columns
    # come from a projection that is not deterministic. Spark 4.2 and later do not. The condition must name the column.
    return [*names, F.spark_partition_id().alias(_BESIDE[-1])]


def _states(wrong: Column | None = None, misfits: Column | None = None) -> list[Column]:
    no_wrong, no_misfits = F.lit(None), F.lit(None)
    return [
        (no_wrong if wrong is None else wrong).cast("tinyint").alias("_wrong"),
        (no_misfits if misfits is None else misfits).cast("array<boolean>").alias("our misfits"),
    ]


# From JSON: fast, with conditions; and exact, from variants


def _wires(columns: Sequence[EventColumn]) -> tuple[list[T.StructType], list[int]]:
    """Return types for from_json, and which of them has each column.

    One is enough, unless columns take parts of what another column takes as a whole, or keys that differ by case only.
    """
    trees: list[dict[Any, Any]] = []
    layers = []
    for column in columns:
        wire = _wire(column.type)
        layer = next((index for index, tree in enumerate(trees) if _insert(tree, column.path, wire)), len(trees))
        if layer == len(trees):
            trees.append({})
            _insert(trees[layer], column.path, wire)
        layers.append(layer)
    return [_tree_type(tree) for tree in trees], layers


def _insert(tree: dict[Any, Any], path: Sequence[Step], wire: T.DataType) -> bool:
    """Put a type into a tree of objects and arrays. Return whether it has a place there."""
    step: Any = _ELEMENT if isinstance(path[0], int) else path[0]
    if step in tree:
        inner = tree[step]
        if isinstance(inner, dict):
            return len(path) > 1 and _insert(inner, path[1:], wire)
        return len(path) == 1 and bool(inner == wire)
    if any(step is _ELEMENT or other is _ELEMENT or step.lower() == other.lower() for other in tree):
        return False
    tree[step] = {} if len(path) > 1 else wire
    return len(path) == 1 or _insert(tree[step], path[1:], wire)


def _tree_type(tree: Any) -> Any:
    if isinstance(tree, T.DataType):
        return tree
    if _ELEMENT in tree:
        return T.ArrayType(_tree_type(tree[_ELEMENT]))
    return T.StructType([T.StructField(name, _tree_type(inner)) for name, inner in tree.items()])


def _at(value: Column, path: Sequence[Step]) -> Column:
    for step in path:
        value = F.get(value, F.lit(step)) if isinstance(step, int) else value.getField(step)
    return value


def _variant_at(variant: Column, path: Sequence[Step]) -> Column:
    steps = [f"[{step}]" if isinstance(step, int) else _variant_step(step) for step in path]
    return F.try_variant_get(variant, "$" + "".join(steps), "variant")


def _variant_step(key: str) -> str:
    return f'["{key}"]' if "'" in key else f"['{key}']"


def _wire(kind: T.DataType) -> T.DataType:
    """Return the type as which from_json parses a type, so that nothing is bent that _fast() does not see."""
    match kind:
        case T.StructType():
            return T.StructType([T.StructField(field.name, _wire(field.dataType)) for field in kind.fields])
        case T.ArrayType():
            return T.ArrayType(_wire(kind.elementType))
        case T.MapType():
            return T.MapType(T.StringType(), _wire(kind.valueType))
        case T.ByteType():
            return T.ShortType()  # 200 would be -56
        case T.DateType() | T.TimestampType() | T.TimestampNTZType():
            return T.StringType()  # of "2026-11-20 extra" the date would be taken; a number would be seconds
        case T.DecimalType() | T.BinaryType():
            return T.VariantType()  # 0.125 would be rounded, "1,5" be 15, and lost bits of base64 be dropped
    return kind


def _is_cast(kind: T.DataType) -> bool:
    """Say whether the value of what from_json gave is a cast of it, which is exact if the cast back gives the same."""
    match kind:
        case T.StructType():
            return all(_is_cast(field.dataType) for field in kind.fields)
        case T.ArrayType():
            return _is_cast(kind.elementType)
    return isinstance(kind, T.ByteType) or _wire(kind) == kind


def _fast(kind: T.DataType, wire: Column) -> Column:
    """Return the value of what from_json gave; it is right if the guards say so."""
    if _wire(kind) == _nullable(kind):
        return wire
    if _is_cast(kind):
        return wire.cast(_nullable(kind))
    match kind:
        case T.ArrayType():
            return F.transform(wire, lambda each: _fast(kind.elementType, each))
        case T.MapType():
            return F.transform_values(wire, lambda _, each: _fast(kind.valueType, each))
        case T.StructType():
            fields = [_fast(each.dataType, wire.getField(each.name)).alias(each.name) for each in kind.fields]
            return F.when(wire.isNotNull(), F.struct(*fields))
        case T.DateType():
            return _date(wire)
        case T.DecimalType():
            # A number that is a DOUBLE may not be the one that came.
            return F.when(_kind(wire) != "DOUBLE", _plain_decimal(F.try_variant_get(wire, "$", "string"), kind))
        case T.BinaryType():
            return _let(wire, lambda node: _exact(kind, node, F.lit(True))).getField("value")
    return _moment(wire, kind, wire, _USUAL_TIMESTAMP, _USUAL_ZONE)


def _guards(leaves: Sequence[_Leaf], text: Column) -> list[Column]:
    """Return the conditions under which _fast() is right."""
    guards = [guard for leaf in leaves if (guard := leaf.guard()) is not None]
    exact = [finite for leaf in leaves if (finite := leaf.is_finite()) is not None]
    strings = [leaf.wire for leaf in leaves if isinstance(leaf.kind, T.StringType)]
    if strings:
        exact.append(~F.concat_ws("\x01", F.lit(""), *strings).rlike(_WRITTEN))
    # In most bodies the values alone vouch that no number was read as another one. To look through a body costs as much
    # as to parse half of it.
    return [*guards, _all(exact) | ~text.rlike(_NOT_PLAIN)] if exact else guards


@dataclass(frozen=True)
class _Leaf:
    """Values of a scalar type, or a map: one, or, from within arrays and maps, an array.

    Attributes:
        wire: As from_json gave them.
        value: As _fast() made them of that.
    """

    kind: T.DataType
    wire: Column
    value: Column
    is_array: bool

    def guard(self) -> Column | None:
        """Return the condition under which _fast() is right; None if it is in any case."""
        kind, wire = self.kind, self.wire
        if isinstance(kind, T.MapType):
            # A map that from_json gives has a key twice if the JSON has.
            def is_map(each: Column) -> Column:
                return each.isNull() | (F.size(F.array_distinct(F.map_keys(each))) == F.size(each))

            return F.coalesce(F.forall(wire, is_map), F.lit(True)) if self.is_array else is_map(wire)
        if _wire(kind) == kind:
            return None
        if not _is_cast(kind):
            # _fast() makes null of a text or a variant that is not right.
            if self.is_array:
                return F.size(F.filter(wire, self._is_there)) == F.size(F.filter(self.value, F.isnotnull))
            return ~self._is_there(wire) | self.value.isNotNull()
        there, back = (T.ArrayType(kind), T.ArrayType(_wire(kind))) if self.is_array else (kind, _wire(kind))
        return wire.cast(there).cast(back).eqNullSafe(wire)

    def _is_there(self, wire: Column) -> Column:
        is_variant = isinstance(_wire(self.kind), T.VariantType)
        return wire.isNotNull() & ~F.is_variant_null(wire) if is_variant else wire.isNotNull()

    def is_finite(self) -> Column | None:
        """Return the condition under which floats are no other numbers; None for other types."""
        if not isinstance(self.kind, T.FloatType | T.DoubleType):
            return None
        low, high = (F.array_min(self.wire), F.array_max(self.wire)) if self.is_array else (self.wire, self.wire)
        return F.coalesce((low > float("-inf")) & (high < float("inf")), F.lit(True))


def _leaves(kind: T.DataType, wire: Column, value: Column, is_array: bool = False) -> Iterator[_Leaf]:
    match kind:
        case T.StructType():
            for field in kind.fields:
                yield from _leaves(field.dataType, wire.getField(field.name), value.getField(field.name), is_array)
        case T.ArrayType():
            inner = (_flat(wire), _flat(value)) if is_array else (wire, value)
            yield from _leaves(kind.elementType, *inner, True)
        case T.MapType():
            yield _Leaf(kind, wire, value, is_array)
            inner = (_map_values(wire), _map_values(value)) if is_array else (F.map_values(wire), F.map_values(value))
            yield from _leaves(kind.valueType, *inner, True)
        case _:
            yield _Leaf(kind, wire, value, is_array)


def _map_values(maps: Column) -> Column:
    return _flat(F.transform(maps, F.map_values))


def _flat(arrays: Column) -> Column:
    # flatten() is null if an array within is.
    return F.flatten(F.filter(arrays, F.isnotnull))


def _let(value: Column, function: Callable[[Column], Column]) -> Column:
    """Compute a value once for an expression that has it several times.

    Spark compiles no code of it. Compiled, the expressions of _exact() would be a method that is too large for Java to
    compile it further, and rows that do not need them would cost twice as much.
    """
    return F.get(F.transform(F.array(value), function), F.lit(0))


def _exact_body(columns: Sequence[EventColumn], variants: Column, text: Column) -> Column:
    root, end = F.get(variants, F.lit(0)), F.get(variants, F.lit(1))
    is_object = (F.size(variants) == 2) & F.is_variant_null(end) & _kind(root).startswith("OBJECT<")
    return F.when(is_object, _exact_columns(columns, root, text))


def _exact_columns(columns: Sequence[EventColumn], root: Column, text: Column) -> Column:
    """Return a struct with "value 0", "value 1", ... and misfits, an array that says which columns do not fit."""

    def chosen(found: Sequence[Column]) -> Column:
        values = [each.getField("value").alias(f"value {index}") for index, each in enumerate(found)]
        return F.struct(*values, F.array(*(each.getField("misfit") for each in found)).alias("misfits"))

    def exact(given: Column) -> Column:
        variants = [_variant_at(given.getField("root"), each.path) for each in columns]
        return _exact_all([each.type for each in columns], variants, given.getField("long"), chosen)

    long = F.regexp_replace(text, QUOTED, "").rlike(LONG_NUMBER)
    return _let(F.struct(root.alias("root"), long.alias("long")), exact)


def _exact_all(
    kinds: Sequence[T.DataType], variants: Sequence[Column], long: Column, chosen: Callable[[list[Column]], Column]
) -> Column:
    """Apply chosen() to the results of _exact(). Those of a type are computed by one expression, since Spark plans all
    expressions anew for each batch."""
    types = list(dict.fromkeys(kinds))
    groups = [[index for index, kind in enumerate(kinds) if kind == each] for each in types]

    def result(found: Column, index: int) -> Column:
        group = types.index(kinds[index])
        return F.get(found.getField(str(group)), F.lit(groups[group].index(index)))

    def exact(kind: T.DataType, group: Sequence[int]) -> Column:
        return F.transform(F.array(*(variants[index] for index in group)), lambda node: _exact(kind, node, long))

    arrays = [exact(kind, group).alias(str(i)) for i, (kind, group) in enumerate(zip(types, groups, strict=True))]
    return _let(F.struct(*arrays), lambda found: chosen([result(found, index) for index in range(len(kinds))]))


def _exact(kind: T.DataType, node: Column, long: Column) -> Column:
    """Return a struct of a variant's value, with null for what does not fit, and misfit: whether something does not.

    Args:
        node: The variant: a variable of a lambda, since it is used several times.
        long: Whether the body has a number that a double does not hold.
    """
    is_there = node.isNotNull() & ~F.is_variant_null(node)

    # The parameters of a lambda are those of Spark's function: result() alone would be one of two.
    def result(value: Column, misfits: Column | None = None) -> Column:
        inner = F.lit(False) if misfits is None else F.array_contains(misfits, True)
        misfit = F.coalesce(is_there & (value.isNull() | inner), F.lit(False))
        return F.struct(value.alias("value"), misfit.alias("misfit"))

    def struct(found: Sequence[Column]) -> Column:
        value = F.struct(
            *(each.getField("value").alias(field.name) for field, each in zip(kind.fields, found, strict=True))
        )
        misfits = F.array(*(each.getField("misfit") for each in found))
        return result(F.when(_kind(node).startswith("OBJECT<"), value), misfits)

    match kind:
        case T.ArrayType():
            items = F.transform(
                F.try_variant_get(node, "$", "array<variant>"), lambda each: _exact(kind.elementType, each, long)
            )
            return _let(items, lambda found: result(found.getField("value"), found.getField("misfit")))
        case T.MapType():
            entries = F.transform_values(
                F.try_variant_get(node, "$", "map<string,variant>"),
                lambda _, each: _exact(kind.valueType, each, long),
            )
            return _let(
                entries,
                lambda found: result(
                    F.transform_values(found, lambda _, each: each.getField("value")),
                    F.map_values(found).getField("misfit"),
                ),
            )
        case T.StructType():
            variants = [_variant_at(node, [each.name]) for each in kind.fields]
            return _exact_all([each.dataType for each in kind.fields], variants, long, struct)
    told = F.struct(
        F.try_variant_get(node, "$", "string").alias("text"),
        F.try_variant_get(node, "$", "double").alias("double"),
        _kind(node).alias("kind"),
    )
    return _let(_let(told, lambda node: _exact_scalar(kind, node, long)), lambda value: result(value))


def _exact_scalar(kind: T.DataType, node: Column, long: Column) -> Column:
    text, name = node.getField("text"), node.getField("kind")
    is_string = name == "STRING"
    match kind:
        case T.StringType():
            return F.when(name.rlike("^(?:STRING|DECIMAL)") | ~long | text.rlike(_WHOLE), text)
        case T.BooleanType():
            return F.when(name == "BOOLEAN", text == "true")
        case T.BinaryType():
            is_base64 = is_string & (F.length(text) % 4 == 0) & text.rlike(f"^{BASE64}$")
            return F.when(is_base64, F.unbase64(text))
        case T.DateType():
            return F.when(is_string, _date(text))
        case T.TimestampType() | T.TimestampNTZType():
            # As Spark needs it: letters in upper case, a decimal point, seconds before a zone, a zone with minutes.
            usual = F.regexp_replace(F.translate(text, "tz,", "TZ."), r"^(.{16})(?=[Z+-]|$)", "$1:00")
            usual = F.regexp_replace(usual, r"([+-][0-9]{2})([0-9]{2})$", "$1:$2")
            usual = F.regexp_replace(usual, r"([+-][0-9]{2})$", "$1:00")
            return F.when(is_string, _moment(text, kind, usual, TIMESTAMP, ZONE))
    is_double = name == "DOUBLE"
    is_number = is_double | name.rlike("^(?:BIGINT|DECIMAL)")
    if isinstance(kind, T.FloatType | T.DoubleType):
        nearest = text.cast(kind)
        return F.when(is_number & (F.abs(nearest) < float("inf")), nearest)
    # A double has at most 15 digits here. Java before 19 writes some of them with more.
    digits = F.format_string("%.14e", node.getField("double"))
    number = F.when(is_double & ~long, digits).when(is_number & ~is_double, text)
    if isinstance(kind, T.DecimalType):
        number = number.when(is_string & text.rlike(f"^{NUMBER}$"), text)
        return _let(number, lambda number: _decimal(number, kind))
    return _let(number, lambda number: _decimal(number, T.DecimalType(20, 0))).try_cast(kind)


def _decimal(number: Column, kind: T.DecimalType) -> Column:
    value = number.cast(kind)
    # Of at most 15 digits: if two such decimals differ, so do their doubles.
    is_same = number.contains("e") & (value.cast("double") == number.cast("double"))
    return F.coalesce(_plain_decimal(number, kind), F.when(is_same, value))


def _plain_decimal(number: Column, kind: T.DecimalType) -> Column:
    has_digits = number.rlike(rf"^-?(?:0|[1-9][0-9]*)(?:\.(?=[0-9])[0-9]{{0,{kind.scale}}}0*)?$")
    return F.when(has_digits, number.cast(kind))


def _date(text: Column) -> Column:
    date = text.cast("date")
    return F.when(text.rlike(f"^{DATE}$") & (date >= F.lit("0001-01-01").cast("date")), date)


def _moment(text: Column, kind: T.DataType, usual: Column, form: str, zone: str) -> Column:
    moment = usual.cast(kind)
    zone = f"(?:{zone})?" if isinstance(kind, T.TimestampType) else ""
    return F.when(text.rlike(f"^{form}{zone}$") & _in_years(moment), moment)


def _in_years(moment: Column) -> Column:
    """True for the years 1 to 9999, which Python can name; null for null."""
    # Of a TIMESTAMP_NTZ the comparison is in the session's time zone, UTC.
    first, end = F.lit("0001-01-01T00:00:00Z").cast("timestamp"), F.lit("+10000-01-01T00:00:00Z").cast("timestamp")
    return (moment >= first) & (moment < end)


def _missing(kind: T.DataType, value: Column, is_required: bool) -> Column | None:
    """Return whether a value that is NOT NULL is null, here or within; None if there is no such type."""
    inner: Column | None = None
    match kind:
        case T.StructType():
            fields = [_missing(each.dataType, value.getField(each.name), not each.nullable) for each in kind.fields]
            found = [each for each in fields if each is not None]
            inner = value.isNotNull() & _any(found) if found else None
        case T.ArrayType() if _missing(kind.elementType, F.lit(None), False) is not None:
            inner = F.exists(value, lambda each: _present(_missing(kind.elementType, each, False)))
        case T.MapType() if _missing(kind.valueType, F.lit(None), False) is not None:
            inner = F.exists(F.map_values(value), lambda each: _present(_missing(kind.valueType, each, False)))
    if inner is None:
        return value.isNull() if is_required else None
    inner = F.coalesce(inner, F.lit(False))
    return value.isNull() | inner if is_required else inner


def _present(column: Column | None) -> Column:
    assert column is not None
    return column


def _kind(variant: Column) -> Column:
    return F.schema_of_variant(variant)


def _has_lone_surrogate(text: Column) -> Column:
    return F.contains(text, F.lit("\\u")) & F.regexp_replace(text, PAIR_OR_ESCAPE, " ").rlike(LONE_SURROGATE)


def _all(conditions: Sequence[Column]) -> Column:
    return _balanced(Column.__and__, conditions) if conditions else F.lit(True)


def _any(conditions: Sequence[Column]) -> Column:
    return _balanced(Column.__or__, conditions) if conditions else F.lit(False)


def _balanced(operator: Callable[[Column, Column], Column], columns: Sequence[Column]) -> Column:
    # One after the other, a thousand would be too deep for Java's stack.
    if len(columns) == 1:
        return columns[0]
    half = len(columns) // 2
    return operator(_balanced(operator, columns[:half]), _balanced(operator, columns[half:]))


# Types, names, and Spark's plans


def _nullable(kind: Any) -> Any:
    """Return a type in which nothing is NOT NULL."""
    match kind:
        case T.StructType():
            return T.StructType([T.StructField(each.name, _nullable(each.dataType)) for each in kind.fields])
        case T.ArrayType():
            return T.ArrayType(_nullable(kind.elementType))
        case T.MapType():
            return T.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _check_names(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in RESERVED or name.startswith("our "):
            raise ValueError(f"{name} is a column of the job's own: give it another name")
        if set(name) & set(" ,;{}()\n\t="):
            raise ValueError(
                f"{name!r} can't be the name of a column in a table: give it another one, by AS or columns"
            )
        other = seen.setdefault(name.lower(), name)
        if seen[name.lower()] is not name:
            raise ValueError(f"{name} and {other} differ only by case or not at all, and Spark can't tell them apart")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _one_line(error: Exception) -> str:
    text = getattr(error, "_desc", None) or str(error)
    return root_cause(text)


def _analyzed(frame: DataFrame) -> Any:  # Any: Java
    return frame._jdf.queryExecution().analyzed()


_REFUSED = {
    "Generate": "makes several rows or none of one, so that an event would be in the table twice or not at all",
    "Window": "needs other rows, which Spark does not have in a stream",
    "Aggregate": "aggregates rows: this is what metrics are for",
}


def _check_rows(result: DataFrame, frame: DataFrame) -> None:
    """Refuse expressions that do not give one value for each row, always the same one.

    Raises:
        ValueError: The text says why.
    """
    base, plan = _analyzed(frame), _analyzed(result)
    while not plan.fastEquals(base):
        name = class_of(plan)
        if name != "Project":
            raise ValueError(_REFUSED.get(name, f"needs Spark's {name}, which is not computed row by row"))
        for expression in elements(plan.expressions()):
            for node in nodes(expression):
                if "Subquery" in class_of(node):
                    raise ValueError("has a query within: its rows may differ when a batch runs again")
            if not expression.deterministic():
                raise ValueError(
                    f"{expression.sql()} gives something else when a batch runs again: use the columns of the event"
                )
        plan = plan.children().apply(0)


_PARTS = ("GetStructField", "GetArrayItem", "GetMapValue", "GetArrayStructFields", "ElementAt", "Get")


def _inputs(expressions: Iterable[Any]) -> Iterator[tuple[str, str]]:  # Any: Java
    """Find the columns that expressions are computed of, and parts of columns: name and SQL."""
    for expression in expressions:
        node = expression
        while class_of(node) in _PARTS:
            node = node.children().apply(0)
        if class_of(node) == "AttributeReference":
            yield node.name(), expression.sql()
        else:
            yield from _inputs(elements(expression.children()))
