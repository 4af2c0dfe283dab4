"""Options made from fields, options that several commands have, and types: paths, rates, sizes and durations."""

from __future__ import annotations

import codecs
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.core import ParameterSource

from gnsq.options import option
from gnsq.settings import Field, flag_name, form_text, help_text, is_list, read_value
from gnsq.texts import nearest

__all__ = [
    *("COUNT", "DELIMITER", "DURATION", "FILE", "FilePath", "IDLE", "PAUSE", "Parsed", "RATE", "SIZE"),
    *("SettingOption", "setting_option", "warn_of_unknown_variables"),
]

logger = logging.getLogger(__name__)


class FilePath(click.Path):
    """A path. What the system refuses as a path, such as a NUL in it, is a wrong argument like any other."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # Any: click's
        try:
            return super().convert(value, param, ctx)
        except (OSError, ValueError) as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class Parsed(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """What a function makes of a text, whose TypeError or ValueError is the error of the argument."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # Any: click's
        try:
            return self._parse(value) if isinstance(value, str) else value  # click may ask twice
        except (TypeError, ValueError) as error:
            self.fail(str(error), param, ctx)


def _byte(text: str) -> bytes:
    """Read a character of one byte, or an escape of one, such as ``\\t``, ``\\0`` or ``\\x1e``."""
    found: bytes = b""
    with contextlib.suppress(ValueError):
        found = codecs.escape_decode(os.fsencode(text))[0]
    if len(found) != 1:
        raise ValueError(f"{text!r} is not one byte, such as ',', '\\t', '\\0' or '\\x1e'")
    return found


def _number(name: str, unit: str, minimum: float = 0) -> Parsed:
    field = option(0.0, "", unit=unit, minimum=minimum)
    field.name, field.type = name, "float"
    return Parsed(name, functools.partial(read_value, field))


FILE = FilePath(exists=True, dir_okay=False)
SIZE = _number("size", "bytes")
DURATION = _number("time", "s")
# Time without a message that ends a command, or between two polls: servers need some time to answer.
PAUSE = _number("time", "s", 0.1)
RATE = click.option(
    "--rate",
    metavar="N",
    type=_number("rate", "messages a second", 0.001),
    help="Limit of messages a second.",
)
DELIMITER = click.option(
    "--delimiter",
    metavar="BYTE",
    type=Parsed("byte", _byte),
    help="The byte after each message in place of a newline, such as '\\0', '\\t' or '\\x1e'.",
)
IDLE = click.option(
    "--idle", metavar="TIME", type=PAUSE, help="End when no message has come for this time: 10s, 10m or 2h."
)
COUNT = click.option("-n", "--count", metavar="N", type=click.IntRange(min=1), help="End after N messages.")


class SettingOption(click.Option):
    """An option with an environment variable. An error names whichever of both has given the value."""

    def given_as(self, context: click.Context) -> str:
        """Return the name of the variable if the value came from there, else that of the flag."""
        is_variable = context.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT
        return str(self.envvar) if is_variable else self.opts[-1]

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return what click's errors call the option."""
        name = self.opts[-1] if ctx is None else self.given_as(ctx)
        return f"'{name}'" if name in self.opts else f"the environment variable {name}"


def setting_option(field: Field, prefix: str) -> SettingOption:
    """Make a flag, with an environment variable, of the field of a setting. If neither is given, the value is None.

    Args:
        prefix: What the names of all variables of the program begin with, such as ``GNSQ_``.
    """
    name, default, choices = field.name, field.default, field.metadata["choices"]
    is_switch = field.type == "bool"
    flag = flag_name(name, is_list=is_list(field))
    return SettingOption(
        [f"--{flag}/--no-{flag}" if default is True else f"--{flag}", name],
        envvar=prefix + name.upper(),
        default=None,
        multiple=is_list(field),
        is_flag=is_switch,
        type=_type(field),
        metavar=None if is_switch or choices else form_text(field),
        help=help_text(field, default),
    )


def warn_of_unknown_variables(prefix: str, others: Iterable[str] = ()) -> None:
    """Log a warning for each environment variable with this prefix that no option of the running command has.

    It is no error: Kubernetes makes such variables, too, if a service is called as the program.

    Args:
        others: Names of variables that have no option.
    """
    options = [option for option in click.get_current_context().command.params if isinstance(option, click.Option)]
    known = [*(str(option.envvar) for option in options if option.envvar), *others]
    for name in sorted(os.environ):
        if name.startswith(prefix) and name not in known:
            logger.warning("the environment has %s, which is unknown%s", name, nearest([name], known))


def _type(field: Field) -> Any:  # Any: click's
    if field.metadata["form"] == "FILE":
        return FILE
    if field.metadata["choices"]:
        return click.Choice(field.metadata["choices"])
    return (
        bool
        if field.type == "bool"
        else str
        if is_list(field)
        else Parsed(field.name, functools.partial(read_value, field))
    )
