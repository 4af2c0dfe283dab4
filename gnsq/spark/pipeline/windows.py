"""Metric: one ``[[metrics]]`` of the settings, the columns of its table, and the true counts. Knows no Spark.

A batch that changes the aggregates of a window and its keys appends a row to the metric's table. Of the rows of such a
group in an epoch, the row with the highest version is valid. A new checkpoint begins a new epoch without aggregates, so
the true counts combine the valid rows of all epochs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnsq.spark.pipeline.schema import plain_type
from gnsq.texts import nearest

__all__ = ["Aggregate", "Metric", "counts_view", "true_counts", "value_type", "version_of"]

DAY = 86_400
# Limit of the windows that one event is in: the event is copied for each window.
MAX_WINDOWS = 100
# Number of the lower bits of a version, which have the batch's number. 23 bits are left for the epoch.
EPOCH_BITS = 40
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL = re.compile(r"([a-z_]+)\(\s*([A-Za-z_][A-Za-z0-9_]*)\s*\)")
_FUNCTIONS = ("count", "sum", "min", "max", "mean", "approx_distinct")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_OWN_COLUMNS = ("window", "window_start", "window_end", "epoch", "version", "day", "count")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of a field's values; null values are left out."""

    function: str
    field: str

    @property
    def column(self) -> str:
        """Name of the column with the result."""
        return f"{self.function}_{self.field}"


@dataclass(frozen=True, slots=True)
class Metric:
    """Aggregation by window and keys.

    Args:
        topic: Topic with the events; "": the job's only topic.
        window, slide: Seconds; windows begin at whole multiples of slide since 1970.
        keys: Fields; may be none.
        aggregates: Besides the count of events, which is always there. A mean needs the count of its field, too, by
            which readers weight the mean; parse() adds that count.
        channel: Channel of the topic; "": the job chooses.
        output_topic: Topic that changes are published to; "": the job chooses.
        keep_windows: Seconds for which windows are kept after their end; None: as the job's setting says.

    Raises:
        ValueError: If a value can't be used; the text names it.
    """

    name: str = "counts"
    window: int = 60
    slide: int = 60
    keys: tuple[str, ...] = ("page",)
    aggregates: tuple[Aggregate, ...] = ()
    topic: str = ""
    channel: str = ""
    output_topic: str = ""
    keep_windows: float | None = None

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(f"name {self.name!r} is not made of 1 to 64 letters, digits, hyphens and underscores")
        for name, value, maximum in (("window", self.window, DAY), ("slide", self.slide, self.window)):
            if not 1 <= value <= maximum:
                raise ValueError(f"{name} {value} must be within 1 to {maximum} s")
        if self.window % self.slide or self.windows > MAX_WINDOWS:
            raise ValueError(
                f"window {self.window} s must be a whole multiple of slide {self.slide} s, at most {MAX_WINDOWS} of it"
            )
        columns = [name.lower() for name in (*_OWN_COLUMNS, *self.keys, *(each.column for each in self.aggregates))]
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} would be there twice among the columns of its table")

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Metric:
        """Make a Metric of values from a file or the command line. On the command line a list is a text with commas.

        Raises:
            ValueError: As the constructor, and for an unknown name or a value of a wrong type.
        """
        known = ("name", "topic", "window", "slide", "keys", "aggregates", "keep_windows", "channel", "output_topic")
        for name in values:
            if name not in known:
                raise ValueError(f"{name} is unknown{nearest([name], known)}")
        given: dict[str, Any] = dict(values)  # Any: checked below, and by the constructor
        for name in ("window", "slide"):
            if name in given:
                given[name] = _whole_number(name, given[name])
        for name in ("keys", "aggregates"):
            if name in given:
                given[name] = _texts(name, given[name])
        if "keep_windows" in given:
            given["keep_windows"] = _number("keep_windows", given["keep_windows"])
        for name in ("name", "topic", "channel", "output_topic"):
            if not isinstance(given.get(name, ""), str):
                raise ValueError(f"{name} {given[name]!r} is not a string")
        if "window" in given:
            given.setdefault("slide", given["window"])
        calls = [call for call in given.pop("aggregates", ()) if call != "count"]
        return cls(**given, aggregates=_aggregates(calls))

    def check(self, fields: Mapping[str, str]) -> None:
        """Check that the metric fits the fields of events (name -> type).

        Raises:
            ValueError: If a field is missing, or must be a number and is not.
        """
        for name in (*self.keys, *(aggregate.field for aggregate in self.aggregates)):
            if name not in fields:
                raise ValueError(f"{name!r} is none of fields: {', '.join(fields)}")
        for aggregate in self.aggregates:
            kind = plain_type(fields[aggregate.field])
            if aggregate.function not in ("count", "approx_distinct") and not kind.startswith(_NUMBERS):
                raise ValueError(f"{aggregate.function}({aggregate.field}) needs a number, the field is a {kind}")

    def schema(self, fields: Mapping[str, str]) -> Any:  # Any: pyarrow has no types
        """Build the schema of the table, for these types of fields."""
        import pyarrow as pa  # slow to load, and --help does not need it

        time = pa.timestamp("us", tz="UTC")
        return pa.schema(
            [
                ("window_start", time),
                ("window_end", time),
                *((key, pa.string()) for key in self.keys),
                ("count", pa.int64()),
                *((each.column, _result_type(each.function, fields[each.field])) for each in self.aggregates),
                ("epoch", pa.int64()),
                ("version", pa.int64()),
            ]
        )

    @property
    def id(self) -> str:
        """Topic and name, which tell the metrics of a job apart."""
        return f"{self.topic}/{self.name}"

    @property
    def windows(self) -> int:
        """Number of windows that each event is in."""
        return self.window // self.slide

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Columns of the table that tell groups apart."""
        return ("window_start", "window_end", *self.keys)

    def describe(self) -> dict[str, object]:
        """Return the values that must stay the same as long as a checkpoint is used."""
        calls = [f"{each.function}({each.field})" for each in self.aggregates]
        described = {"name": self.name, "window": self.window, "slide": self.slide}
        return {**described, "keys": list(self.keys), "aggregates": calls}


def _whole_number(name: str, value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} {value!r} is not a whole number")


def _number(name: str, value: object) -> float:
    try:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return float(value)
    except ValueError:
        pass
    raise ValueError(f"{name} {value!r} is not a number")


def _texts(name: str, value: object) -> tuple[str, ...]:
    items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
    if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
        return tuple(items)
    raise ValueError(f"{name} {value!r} is not a list of strings")


def _aggregates(calls: list[str]) -> tuple[Aggregate, ...]:
    made: dict[Aggregate, None] = {}
    for call in calls:
        match = _CALL.fullmatch(call.strip())
        if match is None or match[1] not in _FUNCTIONS or match[1] == "count":
            forms = ", ".join(f"{name}(FIELD)" for name in _FUNCTIONS[1:])
            raise ValueError(f"aggregate {call!r} is none of count, {forms}")
        if match[1] == "mean":
            made[Aggregate("count", match[2])] = None
        made[Aggregate(match[1], match[2])] = None
    return tuple(made)


def value_type(kind: str) -> str:
    """Return bigint for whole numbers, double for float and double, and any other type, also decimal, as it is."""
    kind = plain_type(kind)
    if kind in ("float", "double"):
        return "double"
    return "bigint" if kind in _NUMBERS else kind


def _result_type(function: str, kind: str) -> Any:  # Any: pyarrow has no types
    import pyarrow as pa  # slow to load, and --help does not need it

    decimal = _DECIMAL.fullmatch(plain_type(kind))
    if function in ("sum", "min", "max") and decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        # As Spark's sum().
        return pa.decimal128(min(precision + 10, 38) if function == "sum" else precision, scale)
    is_whole = function in ("count", "approx_distinct") or (function != "mean" and value_type(kind) == "bigint")
    return pa.int64() if is_whole else pa.float64()


def version_of(epoch: int, batch_id: int) -> int:
    """Compute the version of the rows of a batch: it grows with each batch and with each epoch."""
    return (epoch << EPOCH_BITS) + batch_id


def true_counts(rows: Any, metric: Metric) -> Any:  # Any: pyarrow has no types
    """Compute the valid aggregates of each window and its keys from rows of the metric's table.

    Over all epochs, counts and sums are added, means are weighted by counts, minima and maxima are taken. Of
    approx_distinct the largest is taken, since it is unknown how many values two epochs have in common.

    Args:
        rows: A pyarrow.Table.

    Returns:
        A pyarrow.Table without epoch and version, in no order.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    groups = list(metric.group_columns)
    values = ["count", *(aggregate.column for aggregate in metric.aggregates)]
    ordered = rows.sort_by("version")
    # The column's name has a blank, so no field has this name.
    ordered = ordered.append_column("the row", pa.array(range(ordered.num_rows), pa.int64()))
    newest = ordered.group_by([*groups, "epoch"]).aggregate([("the row", "max")]).column("the row_max")
    valid = ordered.take(newest).select([*groups, *values])
    for aggregate in metric.aggregates:
        if aggregate.function == "mean":
            index = valid.column_names.index(aggregate.column)
            weighted = pc.multiply(valid.column(index).cast(pa.float64()), valid.column(f"count_{aggregate.field}"))
            valid = valid.set_column(index, aggregate.column, weighted)
    ways = {"min": "min", "max": "max", "approx_distinct": "max"}
    merged = valid.group_by(groups).aggregate(
        [("count", "sum"), *((each.column, ways.get(each.function, "sum")) for each in metric.aggregates)]
    )
    merged = merged.rename_columns([*groups, *values])
    for aggregate in metric.aggregates:
        if aggregate.function == "mean":
            index = merged.column_names.index(aggregate.column)
            mean = pc.divide(merged.column(index), merged.column(f"count_{aggregate.field}"))
            merged = merged.set_column(index, aggregate.column, mean)
    return merged


def counts_view(metric: Metric, table: str, quote: str = '"') -> str:
    """Return a query in SQL, for a view, that computes the same as true_counts().

    Args:
        table: Name of the table in the SQL engine, or a call that reads the table, such as ``delta_scan('...')``.
        quote: Character that the SQL engine has around names: in Spark a backtick.
    """

    def named(name: str) -> str:
        return f"{quote}{name}{quote}"

    def merged(aggregate: Aggregate) -> str:
        column = named(aggregate.column)
        weight = named(f"count_{aggregate.field}")
        if aggregate.function == "mean":
            return f"SUM({column} * {weight}) / NULLIF(SUM({weight}), 0) AS {column}"
        way = {"min": "MIN", "max": "MAX", "approx_distinct": "MAX"}.get(aggregate.function, "SUM")
        return f"{way}({column}) AS {column}"

    groups = ", ".join(map(named, metric.group_columns))
    columns = ", ".join([groups, f"SUM({named('count')}) AS {named('count')}", *map(merged, metric.aggregates)])
    order = f"PARTITION BY {groups}, {named('epoch')} ORDER BY {named('version')} DESC"
    # The column's name has a blank, so no field has this name.
    place = named("the place")
    rows = f"SELECT *, ROW_NUMBER() OVER ({order}) AS {place} FROM {table}"
    return f"SELECT {columns} FROM ({rows}) AS versions WHERE {place} = 1 GROUP BY {groups}"
