"""Expressions of users, as Spark's parser has them: Java objects, before Spark resolves names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

__all__ = [
    *(
        "class_of",
        "column_of",
        "computed",
        "computed_node",
        "elements",
        "in_backticks",
        "java_class",
        "nodes",
        "parsed",
    ),
    *("quoted", "sequence", "with_children"),
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
    node = parsed(spark, sql)
    if class_of(node) == "Alias":
        return computed_node(spark, node.child()).alias(node.name())
    return computed_node(spark, node)


def computed_node(spark: SparkSession, node: Any) -> Column:  # Any: Java
    """Return the column of an expression, as computed() does."""
    if class_of(node) == "UnresolvedAttribute":
        return column_of(spark, node)
    tried = column_of(spark, java_class(spark, "sql.catalyst.expressions.TryEval")(node))
    # Spark computes what several expressions share before all of them, outside of TryEval, unless it is in a branch of
    # a condition. This condition is always true, which Spark does not know.
    return F.when(F.spark_partition_id() >= 0, tried)


def column_of(spark: SparkSession, node: Any) -> Column:  # Any: Java
    """Return the column of an expression."""
    return Column(java_class(spark, "sql.classic.ExpressionUtils").column(node))


def java_class(spark: SparkSession, name: str) -> Any:  # Any: Java
    """Return a class of Spark's, by its name in org.apache.spark.

    By attributes of _jvm, Java would search all jars for classes of the names of the packages, for each expression.
    """
    return JavaClass(f"org.apache.spark.{name}", spark._jvm._gateway_client)


def parsed(spark: SparkSession, sql: str) -> Any:  # Any: Java
    """Parse an expression. Raises PySparkException if it is no SQL."""
    return spark._jsparkSession.sessionState().sqlParser().parseExpression(sql)


def class_of(node: Any) -> str:  # Any: Java
    """Return the name of a node's class."""
    return str(node.getClass().getSimpleName())


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
