"""Spark's expressions from messages to events: parse, what is malformed, time, where, select, and our own columns.

bodies.py reads JSON by a schema. Expressions of users are checked here, tried with rows that are made up, and planned
so that an event for which one raises an error is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from gnsq.spark.errors import root_cause
from gnsq.spark.pipeline.bodies import any_of, has_misfit, in_years, nullable, parse_bodies
from gnsq.spark.pipeline.expressions import (
    class_of,
    computed,
    elements,
    failure,
    in_backticks,
    java_class,
    nodes,
    parsed,
    quoted,
    sql_column,
    tried_node,
)
from gnsq.spark.pipeline.tables import SettingError, TableSettings
from gnsq.spark.pipeline.types import EventColumn, Shape, Step, Wrong, check_type, json_path, type_text

__all__ = ["Events", "OWN", "RESERVED", "check_expressions", "check_streaming", "deduplicated", "plan"]

# Columns that every table has beside those of the event.
OWN = ("_message_id", "_nsqd", "_topic", "_attempts", "_published_at", "_time")
# Names that no column of an event may have.
RESERVED = frozenset(
    {
        *OWN,
        *("_body", "_rescued", "_wrong", "_misfit", "_misfits", "_day", "_hour", "_month"),
        *("_spark_partition", "_given_time", "_tried"),
    }
)
# Columns of the source that the setting parse may name.
SOURCE = ("body", "topic", "nsqd", "message_id", "attempts", "published_at")

# Qualifier of the event's columns, so that * is not those of our own.
_EVENT = "_event"
# Columns of our own in the frame of each step, and what is known of a row: why it is malformed, and for each column of
# the schema whether it is a misfit (null if none is).
_BESIDE = ("_message_id", "_nsqd", "_topic", "_attempts", "_published_at", "_body", "_spark_partition")
_STATES = ("_wrong", "_misfits")


@dataclass(frozen=True)
class Events:
    """Rows of events, right and malformed ones.

    Attributes:
        frame: The columns of select, OWN, _body, _wrong (types.Wrong, null if the event is right) and, with mismatch
            rescue, _misfit: whether a value is one.
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


def check_streaming(frame: DataFrame, section: str) -> None:
    """Refuse what Spark can't run as a streaming query.

    Raises:
        SettingError: Of this section of the settings.
    """
    spark = frame.sparkSession
    mode = java_class(spark, "sql.streaming.OutputMode").Append()
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
            takes_misfits = table.mismatch == "rescue"
            parsed = parse_bodies(self._messages.select(*_own()), columns, takes_misfits=takes_misfits)
        events = self._with_names(self._timed(parsed, [column.name for column in columns]))
        if table.where:
            events = self._filtered(events)
        return self._selected(events, columns)

    def _error(self, setting: str, text: object) -> SettingError:
        return SettingError(f"{setting}: {text}", f"tables.{self._table.name}")

    def _with(self, frame: DataFrame, setting: str, *columns: str) -> DataFrame:
        """Select expressions of a setting alone, to check them: one row for each row, always the same, and no error."""
        try:
            result = frame.select(*(sql_column(frame.sparkSession, each) for each in columns))
            used = _check_rows(result, frame)
        except (PySparkException, ValueError) as error:
            hint = in_backticks(" ".join(columns), frame.columns)
            raise self._error(setting, _one_line(error) + hint) from error
        computed = [each for each in columns if not each.startswith(f"{_EVENT}.*")]
        fields = [each for each in frame.schema if each.name in used]
        # Bodies that are made up may be none that parse takes.
        if reason := failure(frame.sparkSession, computed, fields, takes_values=setting != "parse"):
            raise self._error(
                setting,
                f"fails for each event that was tried: {reason}: correct the expression, or let it be null for what it "
                "can't take",
            )
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
        parsed = self._messages.select(*_own(), computed(self._table.parse).alias("_event"))
        event = F.col("_event")
        wrong = F.when(event.isNull(), F.lit(Wrong.PARSE.value))
        return parsed.select(*(event.getField(name).alias(name) for name in kind.names), *_BESIDE, *_states(wrong))

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
                given.append(F.coalesce(F.get("_misfits", F.lit(columns.index(name))), F.lit(False)))
        timed = events.select("*", computed(self._table.time).cast("timestamp").alias("_given_time"))
        time = F.col("_given_time")
        is_time = in_years(time)
        ahead = F.unix_micros(time) - F.unix_micros(published) > round(self._table.max_ahead * 1e6)
        if self._table.format == "raw":
            return timed.withColumn("_time", F.when(is_time & ~ahead, time).otherwise(published))
        return timed.withColumn(
            "_wrong",
            F.coalesce(
                wrong,
                F.when(~is_time | (time.isNull() & any_of(given)), F.lit(Wrong.TIME.value))
                .when(ahead, F.lit(Wrong.AHEAD.value))
                .cast("tinyint"),
            ),
        ).withColumn("_time", F.when(wrong.isNull() & time.isNotNull(), time).otherwise(published))

    def _with_names(self, events: DataFrame) -> DataFrame:
        """Let * be the columns of the event alone, while expressions may name our own."""
        ours = [*OWN, *_BESIDE[len(OWN) - 1 :], *_STATES]
        theirs = [name for name in events.columns if name not in (*ours, "_given_time")]
        return events.alias(_EVENT).select(
            *(F.col(f"{_EVENT}.{quoted(name)}") for name in theirs),
            # An alias has no qualifier.
            *(F.col(name).alias(name) for name in ours),
        )

    def _filtered(self, events: DataFrame) -> DataFrame:
        where = self._table.where
        kind = self._with(events, "where", where).schema[0].dataType
        if not isinstance(kind, T.BooleanType):
            raise self._error("where", f"gives {type_text(kind)}, and a condition is due")
        # As a column of its own, since in a condition Spark would simplify what computed_node() needs.
        spark, tried = events.sparkSession, F.col("_tried")
        found = events.select("*", tried_node(spark, parsed(spark, where)).alias("_tried"))
        is_kept = F.col("_wrong").isNotNull() | tried.isNull() | tried.getField("value")
        found = found.where(is_kept & (F.col("_spark_partition") >= 0))
        return self._failed(found, F.when(tried.isNull(), F.lit(Wrong.WHERE.value)))

    def _failed(self, events: DataFrame, wrong: Column) -> DataFrame:
        """Say in _wrong which event an expression of a setting can't be computed of. Raw events are never wrong."""
        if self._table.format == "raw":
            return events
        return events.withColumn("_wrong", F.coalesce("_wrong", wrong))

    def _selected(self, events: DataFrame, event_columns: tuple[EventColumn, ...]) -> Events:
        # Raw bodies have no columns for * to be.
        default = () if self._table.format == "raw" else ("*",)
        items = [self._item(events, text.strip()) for text in self._table.select or default]
        columns = self._with(events, "select", *items).schema if items else T.StructType()
        try:
            if items:
                check_type(columns, is_json=False)
            _check_names(columns.names)
        except ValueError as error:
            raise self._error("select", error) from error
        misfit = [has_misfit().alias("_misfit")] if self._table.mismatch == "rescue" else []
        others = [*OWN, "_body", "_wrong", *misfit]
        spark, chosen, tried = events.sparkSession, [], {}
        for index, item in enumerate(items):
            root = parsed(spark, item)
            # An item without a name is a column or a part of one, since another one's name is refused above.
            if class_of(root) == "Alias" and class_of(root.child()) != "UnresolvedAttribute":
                tried[index] = tried_node(spark, root.child()).alias(str(index))
                chosen.append(F.col(f"_tried.{index}.value").alias(root.name()))
            else:
                chosen.append(sql_column(spark, item))
        if tried:
            events = events.drop("_tried").withColumn("_tried", F.struct(*tried.values()))
            failed = [F.when(F.col(f"_tried.{index}").isNull(), F.lit(Wrong.SELECT + index)) for index in tried]
            events = self._failed(events, F.coalesce(*failed))
        shape = Shape(event_columns, self._table.time, self._table.max_ahead, self._table.where, tuple(items))
        return Events(events.select(*chosen, *others), nullable(columns), shape)

    def _item(self, events: DataFrame, text: str) -> str:
        try:
            root = parsed(events.sparkSession, text)
        except PySparkException as error:
            raise self._error("select", _one_line(error) + in_backticks(text, events.columns)) from error
        if text.startswith("*"):
            return f"{_EVENT}.{text}"
        if any("UnresolvedStar" in class_of(each) for each in nodes(root)):
            raise self._error("select", f"{text} has * within: name the columns")
        return text


def _own() -> list[Column]:
    names = [F.col(name[1:]).alias(name) for name in _BESIDE[:-1]]
    # Spark pushes a condition below the columns that it is on, and would parse each body twice, unless those columns
    # come from a projection that is not deterministic. Spark 4.2 and later do not. The condition must name the column.
    return [*names, F.spark_partition_id().alias(_BESIDE[-1])]


def _states(wrong: Column | None = None) -> list[Column]:
    known = F.lit(None) if wrong is None else wrong
    return [known.cast("tinyint").alias("_wrong"), F.lit(None).cast("array<boolean>").alias("_misfits")]


# Names, and Spark's plans


def _check_names(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in RESERVED:
            raise ValueError(f"{name} is a column of the job's own: give it another name")
        if set(name) & set(" ,;{}()\n\t="):
            raise ValueError(
                f"{name!r} can't be the name of a column in a table: give it another one, by AS or columns"
            )
        other = seen.setdefault(name.lower(), name)
        if seen[name.lower()] is not name:
            raise ValueError(f"{name} and {other} differ only by case or not at all, and Spark can't tell them apart")


def _one_line(error: Exception) -> str:
    text = getattr(error, "_desc", None) or str(error)
    return root_cause(text)


def _analyzed(frame: DataFrame) -> Any:  # Any: Java
    return frame._jdf.queryExecution().analyzed()


# Spark computes these once for each batch, and says that they are deterministic.
_CLOCKS = ("CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now")
_REFUSED = {
    "Generate": "makes several rows or none of one, so that an event would be in the table twice or not at all",
    "Window": "needs other rows, which Spark does not have in a stream",
    "Aggregate": "aggregates rows: this is what metrics are for",
}


def _check_rows(result: DataFrame, frame: DataFrame) -> set[str]:
    """Refuse expressions that do not give one value for each row, always the same one. Return the columns they use.

    Raises:
        ValueError: The text says why.
    """
    base, plan, used = _analyzed(frame), _analyzed(result), set()
    while not plan.fastEquals(base):
        name = class_of(plan)
        if name != "Project":
            raise ValueError(_REFUSED.get(name, f"needs Spark's {name}, which is not computed row by row"))
        for expression in elements(plan.expressions()):
            used |= {each.name() for each in elements(expression.references().toSeq())}
        check_expressions(elements(plan.expressions()))
        plan = plan.children().apply(0)
    return used


def check_expressions(expressions: Iterable[Any]) -> None:  # Any: Java
    """Refuse expressions of an analyzed plan that may give another value when they are computed of the same events.

    Raises:
        ValueError: The text says why.
    """
    for expression in expressions:
        for node in nodes(expression):
            name = class_of(node)
            if "Subquery" in name or name == "Exists":
                raise ValueError("has a query within: its rows may differ when a batch runs again")
            if name == "PythonUDF":
                _check_arguments(node)
            if name not in _CLOCKS and node.deterministic():
                continue
            # Of aggregate functions, those that depend on the order of rows are not deterministic by themselves.
            is_own = all(each.deterministic() for each in elements(node.children()))
            is_aggregate = ".aggregate." in node.getClass().getName()
            if name in _CLOCKS or (is_own and not is_aggregate):
                raise ValueError(
                    f"{expression.sql()} gives something else when it is computed again: use the columns of the event"
                )


def _check_arguments(function: Any) -> None:  # Any: Java
    for argument in elements(function.children()):
        # Not in the SQL of the type, which has names and comments of fields.
        if re.search(r'(^|"(type|elementType|keyType|valueType)":)"timestamp"', argument.dataType().json()):
            raise ValueError(
                f"{function.name()} gets a TIMESTAMP, and Python does not have all of these, such as Go's zero time: "
                "give it unix_micros() of the time"
            )


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
