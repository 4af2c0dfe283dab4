"""Expressions of users, as Spark's parser has them: Java objects, before Spark resolves names."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]  # py4j has no types
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from gnsq.spark.errors import root_cause
from gnsq.spark.pipeline.functions import guarded_names

__all__ = [
    "KnownClass",
    *(
        "class_of",
        "column_of",
        "computed",
        "computed_node",
        "elements",
        "failure",
        "in_backticks",
        "java_class",
        "nodes",
        "parsed",
    ),
    *("quoted", "sequence", "sql_column", "tried_node", "with_children"),
]


def quoted(name: str) -> str:
    """Write the name of a column as SQL needs it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def in_backticks(sql: str, names: Iterable[str]) -> str:
    """Say which of these columns an expression names as SQL can't read them; empty if it does not."""
    odd = [name for name in names if len(name) > 1 and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is None]
    found = [quoted(name) for name in odd if name in sql]
    missing = [name for name in found if name not in sql]
    return f"; write the name of a column with other characters than a-z, 0-9 and _ as {missing[0]}" if missing else ""


def computed(sql: str) -> Column:
    """Return the column of a user's SQL expression, null where the expression raises an error.

    Some do without ANSI: timestamp_millis() of a large number, element_at(x, 0), raise_error(). An event with such a
    value would end each batch that it is in.
    """
    spark = SparkSession.active()
    return computed_node(spark, parsed(spark, sql))


def tried_node(spark: SparkSession, node: Any) -> Column:  # Any: Java
    """Return a struct with the value of an expression, null where the expression raises an error."""
    struct = java_class(spark, "sql.catalyst.expressions.CreateNamedStruct")
    return computed_node(spark, struct(sequence(spark, [parsed(spark, "'value'"), node])))


def computed_node(spark: SparkSession, node: Any) -> Column:  # Any: Java
    """Return the column of an expression, as computed() does."""
    if class_of(node) == "UnresolvedAttribute":
        return column_of(spark, node)
    tried = column_of(spark, java_class(spark, "sql.catalyst.expressions.TryEval")(node))
    # Spark computes what several expressions share before all of them, outside of TryEval, unless it is in a branch of
    # a condition. This condition is always true, which Spark does not know.
    return F.when(F.spark_partition_id() >= 0, tried)


# Texts, numbers and times of which values are made up.
_MADE_UP = (
    ("a", "7", "0001-01-01T00:00:00"),
    ("{}", "0", "1970-01-01T00:00:00"),
    ("2026-11-20T10:00:00Z", "1700000000", "2026-11-20T10:00:00"),
)


def failure(
    spark: SparkSession, expressions: Sequence[str], fields: Sequence[T.StructField], *, takes_values: bool = True
) -> str:
    """Compute SQL expressions of made-up rows. Say why they fail for each row with values; empty if not for each.

    Args:
        fields: The columns that they are computed of.
        takes_values: False if they may fail for all values that are made up: then only what also fails for nulls is
            told.
    """
    columns = [sql_column(spark, each) for each in expressions]

    def reason(*rows: tuple[str, str, str] | None) -> str:
        made = [F.struct(*(_made_up(each.dataType, row).alias(each.name) for each in fields)) for row in rows]
        frame = spark.range(1).select(F.inline(F.array(*made))) if fields else spark.range(1)
        try:
            # Not collect(), since Python does not have each value that SQL may give.
            frame.select(*columns)._jdf.queryExecution().executedPlan().executeCollect()
        except (PySparkException, Py4JError) as error:
            text = getattr(error, "_desc", None) or str(error)
            return root_cause(text.replace(":\n", ": ")).rstrip(".")
        return ""

    if takes_values and not reason(None, *_MADE_UP):
        return ""
    # One row that they do not fail for is enough, most often this one.
    found = reason(_MADE_UP[-1] if takes_values else None)
    # A function of Python may well raise for all of these.
    is_constant = found and (takes_values or "[USER_RAISED_EXCEPTION]" not in found)
    others = _MADE_UP[:-1] if takes_values else _MADE_UP
    return found if is_constant and all(map(reason, others)) else ""


def _made_up(kind: T.DataType, row: tuple[str, str, str] | None) -> Column:
    if row is None:
        return F.lit(None).cast(kind)
    text, number, time = row
    match kind:
        case T.StructType():
            return F.struct(*(_made_up(each.dataType, row).alias(each.name) for each in kind.fields))
        case T.ArrayType():
            return F.array(_made_up(kind.elementType, row))
        case T.MapType():
            return F.create_map(_made_up(kind.keyType, row), _made_up(kind.valueType, row))
        case T.NumericType():
            return F.lit(number).cast(kind)
        case T.DateType() | T.TimestampType() | T.TimestampNTZType():
            return F.lit(time).cast(kind)
        case T.BooleanType():
            return F.lit(True)
        case T.StringType() | T.BinaryType():
            return F.lit(text).cast(kind)
    return F.lit(None).cast(kind)


def sql_column(spark: SparkSession, sql: str) -> Column:
    """Return the column of a user's SQL expression."""
    return column_of(spark, parsed(spark, sql))


def column_of(spark: SparkSession, node: Any) -> Column:  # Any: Java
    """Return the column of an expression."""
    return Column(java_class(spark, "sql.classic.ExpressionUtils").column(node))


class KnownClass(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A class of Java that is asked for each of its methods once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        setattr(self, name, found)
        return found


def java_class(spark: SparkSession, name: str) -> Any:  # Any: Java
    """Return a class of Spark's, by its name in org.apache.spark.

    By attributes of _jvm, Java would search all jars for classes of the names of the packages, for each expression.
    """
    jvm, full = spark._jvm, f"org.apache.spark.{name}"
    return jvm.__dict__.setdefault(full, KnownClass(full, jvm._gateway_client))


def parsed(spark: SparkSession, sql: str) -> Any:  # Any: Java
    """Parse an expression. Functions that setup has registered raise in it. Raises PySparkException if it is no SQL."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    node, lower = parser.parseExpression(sql), sql.lower()
    names = {name for name in guarded_names(spark) if name in lower}
    if not names:
        return node

    def of(template: str, **parts: Any) -> Any:  # Any: Java
        """Parse SQL in which calls of these names stand for nodes."""
        return mapped(parser.parseExpression(template), lambda node: parts.get(_function(node), node))

    def mapped(node: Any, change: Callable[[Any], Any]) -> Any:  # Any: Java
        children = [mapped(child, change) for child in elements(node.children())]
        return change(with_children(spark, node, children))

    def raising(node: Any) -> Any:  # Any: Java
        if _function(node) not in names:
            return with_children(spark, node, [raising(child) for child in elements(node.children())])
        # What a function of Python is called with is computed outside of the expression, and must not raise there.
        errors: list[Any] = []

        def value(node: Any) -> Any:  # Any: Java
            if _function(node) not in names:
                return node
            errors.append(of("_call().error", _call=node))
            return of("_call().value", _call=node)

        found = mapped(node, value)
        error = functools.reduce(lambda one, other: of("coalesce(_one(), _other())", _one=one, _other=other), errors)
        return of("IF(_error() IS NULL, _value(), raise_error(_error()))", _error=error, _value=found)

    return raising(node)


def _function(node: Any) -> str:  # Any: Java
    """Return the name of the function that a node calls, in lower case; empty if it is no call."""
    return str(node.nameParts().mkString(".")).lower() if class_of(node) == "UnresolvedFunction" else ""


def class_of(node: Any) -> str:  # Any: Java
    """Return Spark's name of a node, that of its class. To ask for the class itself would be two calls of Java."""
    return str(node.nodeName())


def elements(items: Any) -> Iterator[Any]:  # Any: Java
    """Yield the elements of a sequence of Scala."""
    return (items.apply(index) for index in range(items.size()))


def nodes(node: Any) -> Iterator[Any]:  # Any: Java
    """Yield a node and all below."""
    yield node
    for child in elements(node.children()):
        yield from nodes(child)


def with_children(spark: SparkSession, node: Any, children: Sequence[Any]) -> Any:  # Any: Java
    """Return a node with other children, as many as it has."""
    return node.withNewChildren(sequence(spark, children)) if children else node


def sequence(spark: SparkSession, items: Sequence[Any]) -> Any:  # Any: Java
    """Make a sequence of Scala."""
    return java_class(spark, "api.python.PythonUtils").toSeq(list(items))
