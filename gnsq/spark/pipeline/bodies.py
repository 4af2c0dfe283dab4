"""Spark's expressions from JSON bodies to the columns of a schema.

A value is *right* for the type of its column, *missing* (absent or null), or a *misfit*. types.py says in Python which
JSON values are right for each type, and a test compares the two. There are two ways to read a body:

    quick   from_json, with types that it does not bend, and conversions of what it gave. Conditions say whether all
            that was read of a row is right.
    exact   as a variant, which tells a number from a string. It says which columns are misfits. A variant has a number
            with an exponent, or with more than 38 digits, as a double, and a zero without its sign: such a number is
            made a string before, with a mark. It costs more, so it reads only the rows for which a condition of the
            quick way does not hold: few, unless bodies are wrong.

Both are Spark's expressions only, so a batch that runs again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from gnsq.spark.pipeline.types import (
    BASE64,
    DATE,
    END,
    LONE_SURROGATE,
    MAX_DEPTH,
    MAX_NUMBER,
    NUMBER,
    PAIR_OR_ESCAPE,
    PARTS,
    TIMESTAMP,
    ZONE,
    EventColumn,
    Step,
    Wrong,
)

__all__ = ["all_of", "any_of", "has_misfit", "in_years", "nullable", "parse_bodies"]

_JSON = {
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
    # Bodies are parsed inside of an array.
    "maxNestingDepth": str(MAX_DEPTH + 1),
}
# Step of a path for each element of an array.
_ELEMENT = object()
# A body with a number that may differ from its nearest double, or be beyond all doubles.
_UNUSUAL_NUMBER = r"[\[:,\s]-?(?:(?=[0-9.]{17})[0-9]+\.|[0-9.]+[eE]|[0-9]{39})"
# Of STRINGs, each after \x01: an object, an array, or a number that Spark may write as the nearest double.
_WRITTEN = r'\x01(?:[\[{"]|-?[0-9]+\.|-?[0-9]{39})'
_TELLING = 40  # characters of a STRING in which it shows
# What is before a number that a variant would have as a double, or before 0.0, and that number. It is one of JSON's
# grammar, within Jackson's limit, and no key: what is no JSON must not become JSON.
_TO_MARK = (
    rf"(?=[0-9.]{{39}}|[0-9.]++[eE]|0\.0++(?![0-9]))(?=(?:[.eE+-]{{0,2}}[0-9]){{1,{MAX_NUMBER}}}+(?![0-9.eE+-]))"
    r"(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+(?![0-9.eE+-]|\s*+:)"
)
_TO_MARKED = (
    r'\G((?:[^"0-9-]|"(?:[^"\\]|\\.)*+"|'
    rf"(?!-?{_TO_MARK})-?[0-9][0-9.eE+-]*+|-(?![0-9]))*+)(-?{_TO_MARK})"
)
# No body has it by chance.
_MARK = "\ue000number c5a86f5e9d1b4d0fa4c6 "
_USUAL_TIMESTAMP = DATE + r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
_USUAL_ZONE = r"(?:Z|[+-][0-9]{2}:[0-9]{2})"


def parse_bodies(messages: DataFrame, columns: Sequence[EventColumn], *, takes_misfits: bool) -> DataFrame:
    """Read bodies, which are in the column _body.

    Args:
        takes_misfits: A misfit is null, and does not make the event malformed.

    Returns:
        The event's columns, those of messages, _wrong, and _misfits: of each column whether it is a misfit or has one,
        null after the quick way.
    """
    beside, indexes = messages.columns, range(len(columns))
    text = F.col("_body").cast("string")
    array = _in_array(text)
    is_text = F.is_valid_utf8(text) & ~_has_lone_surrogate(text)

    # Quick.
    schemas, places = _schemas(columns)
    read = messages.select(
        "*", *(F.from_json(array, T.ArrayType(schema), _JSON).alias(f"json_{i}") for i, schema in enumerate(schemas))
    )
    conditions = [is_text]
    for place in range(len(schemas)):
        json = F.col(f"json_{place}")
        conditions += [F.size(json) == 2, F.get(json, F.lit(0)).isNotNull(), F.get(json, F.lit(1)).isNull()]
    raw = [_at(F.get(F.col(f"json_{place}"), F.lit(0)), each.path) for each, place in zip(columns, places, strict=True)]
    quick = [
        _quick(each.type, value).alias(f"quick_{i}") for i, (each, value) in enumerate(zip(columns, raw, strict=True))
    ]
    leaves = [leaf for i in indexes for leaf in _leaves(columns[i].type, raw[i], F.col(f"quick_{i}"))]
    conditions += _conditions(leaves, text)
    is_right = F.coalesce(all_of(conditions), F.lit(False)).alias("is_right")
    rows = read.select("*", *quick).select(*beside, *(f"quick_{i}" for i in indexes), is_right)

    # Exact.
    marked = F.regexp_replace(text, _TO_MARKED, f'$1"{_MARK}$2"')
    variants = F.from_json(_in_array(marked), T.ArrayType(T.VariantType()), _JSON)
    exact = _let(variants, lambda found: _exact_body(columns, found))
    rows = rows.select("*", F.when(~F.col("is_right") & is_text, exact).alias("exact"))

    values = [
        F.when(F.col("is_right"), F.col(f"quick_{i}")).otherwise(F.col(f"exact.value_{i}")).alias(f"value_{i}")
        for i in indexes
    ]
    is_object = (F.col("is_right") | F.col("exact").isNotNull()).alias("is_object")
    rows = rows.select(*beside, *values, is_object, F.col("exact.misfits").alias("_misfits"))

    wrong = F.when(~F.col("is_object"), F.lit(Wrong.BODY.value))
    if not takes_misfits:
        wrong = wrong.when(has_misfit(), F.lit(Wrong.TYPE.value))
    missing = [each for i in indexes for each in _missing(columns[i].type, F.col(f"value_{i}"), columns[i].is_required)]
    wrong = wrong.when(any_of(missing), F.lit(Wrong.MISSING.value)).cast("tinyint").alias("_wrong")
    return rows.select(*(F.col(f"value_{i}").alias(columns[i].name) for i in indexes), *beside, wrong, "_misfits")


def _in_array(text: Column) -> Column:
    # Spark's parser stops after the first value, unless that is in an array. No body has the end of that array, and
    # another null before it.
    return F.concat(F.lit("["), text, F.lit("\n,null]"))


def has_misfit() -> Column:
    """Say whether a row of parse_bodies() has a misfit."""
    return F.coalesce(F.array_contains("_misfits", True), F.lit(False))


# --- the quick way


def _schemas(columns: Sequence[EventColumn]) -> tuple[list[T.StructType], list[int]]:
    """Return schemas for from_json, and which of them has each column.

    One is enough, unless columns take parts of what another column takes as a whole, or keys that differ by case only.
    """
    trees: list[dict[Any, Any]] = []
    places = []
    for column in columns:
        kind = _raw_type(column.type)
        place = next((index for index, tree in enumerate(trees) if _insert(tree, column.path, kind)), len(trees))
        if place == len(trees):
            trees.append({})
            _insert(trees[place], column.path, kind)
        places.append(place)
    return [_tree_type(tree) for tree in trees], places


def _insert(tree: dict[Any, Any], path: Sequence[Step], kind: T.DataType) -> bool:
    """Put a type into a tree of objects and arrays. Return whether it has a place there."""
    step: Any = _ELEMENT if isinstance(path[0], int) else path[0]
    if step in tree:
        inner = tree[step]
        if isinstance(inner, dict):
            return len(path) > 1 and _insert(inner, path[1:], kind)
        return len(path) == 1 and bool(inner == kind)
    if any(step is _ELEMENT or other is _ELEMENT or step.lower() == other.lower() for other in tree):
        return False
    tree[step] = {} if len(path) > 1 else kind
    return len(path) == 1 or _insert(tree[step], path[1:], kind)


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


def _scalar(kind: T.DataType) -> tuple[T.DataType, Callable[[Column], Column] | None]:
    """Return how a scalar type is read: as which type by from_json, and the conversion of what that gave.

    The result of a conversion is null for a misfit. None: there is nothing to convert.
    """
    match kind:
        # 1. TINYINT: 200 would be -56.
        case T.ByteType():
            return T.ShortType(), lambda raw: F.when(raw.between(-128, 127), raw.cast(kind))
        # 2. Times: of "2026-11-20 extra" the date would be taken, and a number would be seconds.
        case T.DateType():
            return T.StringType(), _date
        case T.TimestampType() | T.TimestampNTZType():
            return T.StringType(), lambda raw: _moment(raw, kind, raw, _USUAL_TIMESTAMP, _USUAL_ZONE)
        # 3. DECIMAL: 0.125 would be rounded, and "1,5" be 15. A number that is a DOUBLE may not be the one that came.
        case T.DecimalType():
            return T.VariantType(), lambda raw: F.when(
                _kind(raw) != "DOUBLE", _plain_decimal(F.try_variant_get(raw, "$", "string"), kind)
            )
        # 4. BINARY: lost bits of base64 would be dropped.
        case T.BinaryType():
            return T.VariantType(), lambda raw: _let(raw, lambda node: _exact(kind, node)).getField("value")
    # 5. Others: of a misfit from_json gives no row at all, or _conditions() finds it: STRING, FLOAT, DOUBLE.
    return kind, None


def _raw_type(kind: T.DataType) -> T.DataType:
    """Return the type as which from_json reads a type."""
    match kind:
        case T.StructType():
            return T.StructType([T.StructField(field.name, _raw_type(field.dataType)) for field in kind.fields])
        case T.ArrayType():
            return T.ArrayType(_raw_type(kind.elementType))
        case T.MapType():
            return T.MapType(T.StringType(), _raw_type(kind.valueType))
    return _scalar(kind)[0]


def _quick(kind: T.DataType, raw: Column) -> Column:
    """Convert what from_json gave."""
    if _raw_type(kind) == nullable(kind):
        return raw
    match kind:
        case T.ArrayType():
            return F.transform(raw, lambda each: _quick(kind.elementType, each))
        case T.MapType():
            return F.transform_values(raw, lambda _, each: _quick(kind.valueType, each))
        case T.StructType():
            fields = [_quick(each.dataType, raw.getField(each.name)).alias(each.name) for each in kind.fields]
            return F.when(raw.isNotNull(), F.struct(*fields))
    _, convert = _scalar(kind)
    assert convert is not None  # otherwise the types are equal
    return convert(raw)


class _Leaf(NamedTuple):
    """Values of a scalar type, or a map: one, or, from within arrays and maps, an array.

    Attributes:
        raw: As from_json gave them.
        value: As _quick() made them of that.
    """

    kind: T.DataType
    raw: Column
    value: Column
    is_array: bool


def _leaves(kind: T.DataType, raw: Column, value: Column, is_array: bool = False) -> Iterator[_Leaf]:
    match kind:
        case T.StructType():
            for field in kind.fields:
                yield from _leaves(field.dataType, raw.getField(field.name), value.getField(field.name), is_array)
        case T.ArrayType():
            inner = (_flat(raw), _flat(value)) if is_array else (raw, value)
            yield from _leaves(kind.elementType, *inner, True)
        case T.MapType():
            yield _Leaf(kind, raw, value, is_array)
            inner = (_map_values(raw), _map_values(value)) if is_array else (F.map_values(raw), F.map_values(value))
            yield from _leaves(kind.valueType, *inner, True)
        case _:
            yield _Leaf(kind, raw, value, is_array)


def _map_values(maps: Column) -> Column:
    return _flat(F.transform(maps, F.map_values))


def _flat(arrays: Column) -> Column:
    # flatten() is null if an array within is.
    return F.flatten(F.filter(arrays, F.isnotnull))


def _conditions(leaves: Sequence[_Leaf], text: Column) -> list[Column]:
    """Return the conditions under which all that the quick way has read is right."""
    conditions, of_numbers, strings = [], [], []
    for leaf in leaves:
        match leaf.kind:
            # 1. A map that from_json gives has a key twice if the JSON has.
            case T.MapType():
                is_map = F.forall(leaf.raw, _has_keys_once) if leaf.is_array else _has_keys_once(leaf.raw)
                conditions.append(F.coalesce(is_map, F.lit(True)))
            # 2. In a body with an unusual number, floats must not be infinite.
            case T.FloatType() | T.DoubleType():
                low, high = (F.array_min(leaf.raw), F.array_max(leaf.raw)) if leaf.is_array else (leaf.raw, leaf.raw)
                of_numbers.append(F.coalesce((low > float("-inf")) & (high < float("inf")), F.lit(True)))
            # 3. There, no STRING may be JSON that Spark has written anew: its begin tells.
            case T.StringType():
                strings.append(leaf.raw if leaf.is_array else F.substring(leaf.raw, 1, _TELLING))
            # 4. All that was there has been converted.
            case kind if _scalar(kind)[1] is not None:
                conditions.append(_is_converted(leaf))
    if strings:
        of_numbers.append(~F.concat_ws("\x01", F.lit(""), *strings).rlike(_WRITTEN))
    if of_numbers:
        # The values first: in most bodies they alone tell that no number was read as another one. To look through a
        # body costs as much as to parse half of it.
        conditions.append(all_of(of_numbers) | ~text.rlike(_UNUSUAL_NUMBER))
    return conditions


def _has_keys_once(found: Column) -> Column:
    return found.isNull() | (F.size(F.array_distinct(F.map_keys(found))) == F.size(found))


def _is_converted(leaf: _Leaf) -> Column:
    is_variant = isinstance(_raw_type(leaf.kind), T.VariantType)

    def is_there(raw: Column) -> Column:
        return raw.isNotNull() & ~F.is_variant_null(raw) if is_variant else raw.isNotNull()

    if leaf.is_array:
        return F.size(F.filter(leaf.raw, is_there)) == F.size(F.filter(leaf.value, F.isnotnull))
    return ~is_there(leaf.raw) | leaf.value.isNotNull()


# --- the exact way


def _exact_body(columns: Sequence[EventColumn], variants: Column) -> Column:
    """Return a struct with value_0, value_1, ... and misfits, an array that says which columns are misfits.

    Args:
        variants: The body, and the null after it.
    """
    root, end = F.get(variants, F.lit(0)), F.get(variants, F.lit(1))
    is_object = (F.size(variants) == 2) & F.is_variant_null(end) & _kind(root).startswith("OBJECT<")

    def chosen(found: Sequence[Column]) -> Column:
        values = [each.getField("value").alias(f"value_{index}") for index, each in enumerate(found)]
        return F.struct(*values, F.array(*(each.getField("misfit") for each in found)).alias("misfits"))

    def exact(root: Column) -> Column:
        return _exact_all([each.type for each in columns], [_variant_at(root, each.path) for each in columns], chosen)

    return F.when(is_object, _let(root, exact))


def _exact_all(
    kinds: Sequence[T.DataType], variants: Sequence[Column], chosen: Callable[[list[Column]], Column]
) -> Column:
    """Apply chosen() to the results of _exact(). Those of a type are computed by one expression, since Spark plans all
    expressions anew for each batch."""
    types = list(dict.fromkeys(kinds))
    groups = [[index for index, kind in enumerate(kinds) if kind == each] for each in types]

    def result(found: Column, index: int) -> Column:
        group = types.index(kinds[index])
        return F.get(found.getField(str(group)), F.lit(groups[group].index(index)))

    def exact(kind: T.DataType, group: Sequence[int]) -> Column:
        return F.transform(F.array(*(variants[index] for index in group)), lambda node: _exact(kind, node))

    arrays = [exact(kind, group).alias(str(i)) for i, (kind, group) in enumerate(zip(types, groups, strict=True))]
    return _let(F.struct(*arrays), lambda found: chosen([result(found, index) for index in range(len(kinds))]))


def _exact(kind: T.DataType, node: Column) -> Column:
    """Return a struct of a variant's value, with null for a misfit, and misfit: whether there is one.

    Args:
        node: The variant: a variable of a lambda, since it is used several times.
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
                F.try_variant_get(node, "$", "array<variant>"), lambda each: _exact(kind.elementType, each)
            )
            return _let(items, lambda found: result(found.getField("value"), found.getField("misfit")))
        case T.MapType():
            entries = F.transform_values(
                F.try_variant_get(node, "$", "map<string,variant>"),
                lambda _, each: _exact(kind.valueType, each),
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
            return _exact_all([each.dataType for each in kind.fields], variants, struct)
    told = F.struct(F.try_variant_get(node, "$", "string").alias("text"), _kind(node).alias("kind"))
    return _let(_let(told, lambda node: _exact_scalar(kind, node)), lambda value: result(value))


def _exact_scalar(kind: T.DataType, node: Column) -> Column:
    text, name = node.getField("text"), node.getField("kind")
    is_string = name == "STRING"
    is_marked, number = is_string & text.startswith(_MARK), F.substring(text, len(_MARK) + 1, 2 * MAX_NUMBER)
    match kind:
        case T.StringType():
            written = F.regexp_replace(text, f'"{_MARK}([^"]*)"', "$1")
            return F.when(is_marked, number).when(is_string, text).otherwise(written)
        case T.BooleanType():
            return F.when(name == "BOOLEAN", text == "true")
        case T.BinaryType():
            is_base64 = is_string & (F.length(text) % 4 == 0) & text.rlike(f"^{BASE64}{END}")
            return F.when(is_base64, F.unbase64(text))
        case T.DateType():
            return F.when(is_string, _date(text))
        case T.TimestampType() | T.TimestampNTZType():
            # As Spark needs it: letters in upper case, a decimal point, seconds before a zone, a zone with minutes.
            usual = F.regexp_replace(F.translate(text, "tz,", "TZ."), r"^(.{16})(?=[Z+-]|$)", "$1:00")
            usual = F.regexp_replace(usual, r"([+-][0-9]{2})([0-9]{2})$", "$1:$2")
            usual = F.regexp_replace(usual, r"([+-][0-9]{2})$", "$1:00")
            return F.when(is_string, _moment(text, kind, usual, TIMESTAMP, ZONE))
    number = F.when(is_marked, number).when(name.rlike("^(?:BIGINT|DECIMAL)"), text)
    if isinstance(kind, T.FloatType | T.DoubleType):
        nearest = number.cast(kind)
        return F.when(F.abs(nearest) < float("inf"), nearest)
    if isinstance(kind, T.DecimalType):
        number = number.when(is_string & (F.length(text) <= MAX_NUMBER) & text.rlike(f"^{NUMBER}{END}"), text)
        return _let(number, lambda number: _decimal(number, kind))
    return _let(number, lambda number: _decimal(number, T.DecimalType(20, 0))).try_cast(kind)


def _decimal(number: Column, kind: T.DecimalType) -> Column:
    """Read a number as it was written; null if it has more places than the type, or an exponent of five digits."""
    whole, fraction, exponent = (F.regexp_extract(number, f"^{PARTS}{END}", index) for index in (1, 2, 3))
    digits = F.concat(whole, fraction)
    significant = F.rtrim(digits, F.lit("0"))
    zeros = F.length(digits) - F.length(significant)
    places = F.length(fraction) - zeros - F.coalesce(exponent.try_cast("int"), F.lit(0))
    is_zero = (significant == "") & (digits != "")
    # Of 0e400, Spark's cast gives null.
    return F.when(is_zero, F.lit(0).cast(kind)).when((digits != "") & (places <= kind.scale), number.try_cast(kind))


def _plain_decimal(number: Column, kind: T.DecimalType) -> Column:
    has_digits = number.rlike(rf"^-?(?:0|[1-9][0-9]*)(?:\.(?=[0-9])[0-9]{{0,{kind.scale}}}0*)?{END}")
    # Java reads digits in quadratic time.
    return F.when((F.length(number) <= MAX_NUMBER) & has_digits, number.cast(kind))


def _date(text: Column) -> Column:
    date = text.cast("date")
    return F.when(text.rlike(f"^{DATE}{END}") & (date >= F.lit("0001-01-01").cast("date")), date)


def _moment(text: Column, kind: T.DataType, usual: Column, form: str, zone: str) -> Column:
    moment = usual.cast(kind)
    zone = f"(?:{zone})?" if isinstance(kind, T.TimestampType) else ""
    return F.when(text.rlike(f"^{form}{zone}{END}") & in_years(moment), moment)


def in_years(moment: Column) -> Column:
    """True for the years 1 to 9999, which Python can name; null for null."""
    # Of a TIMESTAMP_NTZ the comparison is in the session's time zone, UTC.
    first, end = F.lit("0001-01-01T00:00:00Z").cast("timestamp"), F.lit("+10000-01-01T00:00:00Z").cast("timestamp")
    return (moment >= first) & (moment < end)


def _variant_at(variant: Column, path: Sequence[Step]) -> Column:
    steps = [f"[{step}]" if isinstance(step, int) else _variant_step(step) for step in path]
    return F.try_variant_get(variant, "$" + "".join(steps), "variant")


def _variant_step(key: str) -> str:
    return f'["{key}"]' if "'" in key else f"['{key}']"


# --- missing


def _missing(kind: T.DataType, value: Column, is_required: bool) -> list[Column]:
    """Return the conditions under which something that is NOT NULL is missing, here or within."""
    found = [value.isNull()] if is_required else []
    match kind:
        case T.StructType():
            fields = [_missing(each.dataType, value.getField(each.name), not each.nullable) for each in kind.fields]
            inner = [each for conditions in fields for each in conditions]
            return [*found, value.isNotNull() & any_of(inner)] if inner else found
        case T.ArrayType():
            items, item = value, kind.elementType
        case T.MapType():
            items, item = F.map_values(value), kind.valueType
        case _:
            return found
    if _missing(item, F.lit(None), False):
        found.append(F.coalesce(F.exists(items, lambda each: any_of(_missing(item, each, False))), F.lit(False)))
    return found


# --- parts of both


def _let(value: Column, function: Callable[[Column], Column]) -> Column:
    """Compute a value once for an expression that has it several times.

    Spark compiles no code of it. Compiled, the expressions of _exact() would be a method that is too large for Java to
    compile it further, and rows that do not need them would cost twice as much.
    """
    return F.get(F.transform(F.array(value), function), F.lit(0))


def _kind(variant: Column) -> Column:
    return F.schema_of_variant(variant)


def _has_lone_surrogate(text: Column) -> Column:
    return F.contains(text, F.lit("\\u")) & F.regexp_replace(text, PAIR_OR_ESCAPE, " ").rlike(LONE_SURROGATE)


def all_of(conditions: Sequence[Column]) -> Column:
    return _balanced(Column.__and__, conditions) if conditions else F.lit(True)


def any_of(conditions: Sequence[Column]) -> Column:
    return _balanced(Column.__or__, conditions) if conditions else F.lit(False)


def _balanced(operator: Callable[[Column, Column], Column], columns: Sequence[Column]) -> Column:
    # One after the other, a thousand would be too deep for Java's stack.
    if len(columns) == 1:
        return columns[0]
    half = len(columns) // 2
    return operator(_balanced(operator, columns[:half]), _balanced(operator, columns[half:]))


def nullable(kind: Any) -> Any:
    """Return a type in which nothing is NOT NULL."""
    match kind:
        case T.StructType():
            return T.StructType([T.StructField(each.name, nullable(each.dataType)) for each in kind.fields])
        case T.ArrayType():
            return T.ArrayType(nullable(kind.elementType))
        case T.MapType():
            return T.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind
