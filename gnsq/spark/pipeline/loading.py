"""Reads the settings from a TOML file, environment variables and the command line, and makes a PipelineConfig."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from gnsq.spark.pipeline.config import GONE, PipelineConfig
from gnsq.spark.pipeline.topics import TopicSettings
from gnsq.spark.pipeline.windows import Metric
from gnsq.texts import nearest

__all__ = ["load_config", "setting_options"]

_PAIRS = {"nsq": "NAME=VALUE", "spark": "NAME=VALUE", "fields": "NAME=TYPE", "metrics": "NAME=VALUE"}

# Fields that have no flag: a table of tables is for the file alone, and layout is no setting.
_NO_FLAG = frozenset({"topics", "layout"})
# Type of a setting -> types of its values, and what these are in words.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
}


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:  # Any: click's own
    """Add one option for each setting to a click command. The parameter has the name of the setting."""
    for field in reversed(dataclasses.fields(PipelineConfig)):
        if field.name not in _NO_FLAG:
            command = _click_option(field)(command)
    for name in GONE:
        # Settings of earlier releases. load_config() refuses them, also if they come from environment variables.
        command = click.option(f"--{name.replace('_', '-')}", name, hidden=True)(command)
    return command


def _click_option(field: dataclasses.Field[Any]) -> Callable[..., Any]:
    kind, meaning = _kind(field), field.metadata["meaning"]
    if kind.startswith(("tuple", "Mapping")):
        flag = {"fields": "field", "required_fields": "required-field"}.get(field.name, field.name.removesuffix("es"))
        return click.option(
            f"--{flag.replace('_', '-')}",
            field.name,
            multiple=True,
            metavar=_PAIRS.get(field.name),
            help=f"{_sentence(meaning)} Repeat.",
        )
    if kind == "bool":
        flag = field.name.replace("_", "-")
        return click.option(f"--{flag}/--no-{flag}", field.name, default=None, help=_sentence(meaning))
    unit = f" {field.metadata['unit']}" if field.metadata["unit"] else ""
    default = f" Default: {field.default}{unit}." if field.default not in ("", None) else ""
    type_ = {"int": int, "float": float}.get(kind, str)
    return click.option(f"--{field.name.replace('_', '-')}", field.name, type=type_, help=_sentence(meaning) + default)


def _kind(field: dataclasses.Field[Any]) -> str:
    return str(field.type).removesuffix(" | None")


def _sentence(meaning: str) -> str:
    return meaning[0].upper() + meaning[1:] + "."


def load_config(path: str | None, overrides: Mapping[str, object] = MappingProxyType({})) -> PipelineConfig:
    """Read a TOML file, if any. Overrides (command line, environment) win over the file. Mappings are merged.

    Raises:
        ValueError: If the file can't be read, has an unknown setting, or a setting has the wrong type or value.
    """
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"configuration {path}: {error}") from error
    fields = {field.name: field for field in dataclasses.fields(PipelineConfig) if field.name != "layout"}
    for name in (*values, *(name for name, value in overrides.items() if value is not None)):
        if name in GONE:
            raise ValueError(f"setting {name} is gone: {GONE[name]}")
        if name not in fields:
            raise ValueError(f"configuration {path}: setting {name} is unknown{nearest([name], fields)}")
    for name, value in overrides.items():
        if value in (None, (), {}):
            continue
        before = values.get(name)
        given = _pairs(name, value) if name in _PAIRS and isinstance(value, tuple) else value
        if name == "metrics" and isinstance(before, list) and len(before) == 1:
            [before] = before
        values[name] = {**before, **given} if isinstance(before, dict) and isinstance(given, dict) else given
    # _typed() checks the type of each value, which mypy can't see.
    return PipelineConfig(**{name: _typed(name, _kind(fields[name]), value) for name, value in values.items()})  # type: ignore[arg-type]


def _pairs(name: str, items: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            # Do not show the item: it may be a secret.
            raise ValueError(f"setting {name} has an item without a name or '=': {_PAIRS[name]} was due")
        pairs[key.strip()] = value.strip()
    return pairs


def _typed(name: str, kind: str, value: object) -> object:
    if name == "metrics":
        return _metrics(value)
    if name == "topics":
        return _topics(value)
    if kind.startswith("tuple"):
        items = [value] if isinstance(value, str) else value
        if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
            return tuple(items)
        what = "a string or a list of strings"
    elif kind.startswith("Mapping"):
        if isinstance(value, Mapping):
            return {str(key): _text(name, str(key), item) for key, item in value.items()}
        what = "a table"
    else:
        types, what = _TYPES[kind]
        # isinstance() takes True for an int.
        if isinstance(value, types) and isinstance(value, bool) == (kind == "bool"):
            return value
    raise ValueError(f"setting {name} {value!r} is not {what}")


def _topics(value: object) -> dict[str, TopicSettings]:
    """Convert the tables [topics.NAME]."""
    if not isinstance(value, Mapping) or not all(isinstance(table, Mapping) for table in value.values()):
        raise ValueError(f"setting topics {value!r} is not a table of tables: write [topics.NAME]")
    fields = {field.name: field for field in dataclasses.fields(TopicSettings)}
    found = {}
    for topic, table in value.items():
        for name in table:
            if name not in fields:
                hint = (
                    f'; or quote a name with dots: [topics."{topic}.{name}"]' if isinstance(table[name], dict) else ""
                )
                raise ValueError(f"setting topics.{topic}: {name} is unknown{nearest([name], fields)}{hint}")
        try:
            given = {name: _typed(name, _kind(fields[name]), each) for name, each in table.items()}
        except ValueError as error:
            raise ValueError(f"setting topics.{topic}: {str(error).removeprefix('setting ')}") from error
        # _typed() checks the type of each value, which mypy can't see.
        found[topic] = TopicSettings(**given)  # type: ignore[arg-type]
    return found


def _metrics(value: object) -> tuple[Metric, ...]:
    tables = [value] if isinstance(value, Mapping) else value
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError(f"setting metrics {value!r} is not a list of tables: write [[metrics]]")
    try:
        return tuple(map(Metric.parse, tables))
    except ValueError as error:
        raise ValueError(f"setting metrics: {error}") from error


def _text(name: str, key: str, value: object) -> str:
    """Format a value of a TOML table as the string that a Spark option needs."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(f"setting {name}: {key} is a {type(value).__name__}; a string or a number was due")
