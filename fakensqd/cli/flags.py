"""The flags of nsqd and nsqlookupd as options of click, made from the fields of their options.

Source of the names: nsqd --help, nsqlookupd --help.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fakensqd.options import IGNORED_OPTIONS, NSQ_VERSION, OWN_OPTIONS, LookupdOptions, NsqdOptions
from gnsq.options import Options
from gnsq.settings import Field, flag_name, form_text, help_text, is_list, read_value

__all__ = ["HOST_OR_NAME", "Program", "default_host", "programs"]

# The default of the option broadcast_address.
HOST_OR_NAME = "the host; with 0.0.0.0, the name of this machine"
# Flags that are no options and have no effect, of both programs and of nsqd, with values of their types.
_IGNORED: Mapping[str, object] = {"verbose": False, "log_prefix": ""}
_IGNORED_BY_NSQD: Mapping[str, object] = {"worker_id": False, "statsd_prefix": "", **IGNORED_OPTIONS}


class Program(click.Command):
    """A command whose options may begin with one dash, as in Go: ``-tcp-address``.

    Attributes:
        ignored: Those that have no effect.
    """

    ignored: Sequence[click.Option]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        known = {name for option in self.get_params(ctx) for name in option.opts}
        return super().parse_args(ctx, [f"-{word}" if f"-{word.partition('=')[0]}" in known else word for word in args])


class _Value(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """The value of an option in the form of its type."""

    def __init__(self, field: Field) -> None:
        self.name = field.name
        self._field = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # Any: click's
        try:
            return read_value(self._field, value)
        except (TypeError, ValueError) as error:
            self.fail(str(error), param, ctx)


def default_host() -> str:
    """Return where servers listen if nothing says it: what the variable FAKENSQD_HOST says, which the image sets."""
    return os.environ.get("FAKENSQD_HOST") or "127.0.0.1"


def programs() -> tuple[Program, Program]:
    """Make nsqd and nsqlookupd, without the functions that run them."""
    nsqd = _program("nsqd", NsqdOptions, 4150, {**_IGNORED, **_IGNORED_BY_NSQD})
    nsqlookupd = _program("nsqlookupd", LookupdOptions, 4160, _IGNORED)
    nsqlookupd.params += [option for option in nsqd.params if option.name == "log_level"]
    return nsqd, nsqlookupd


def _program(name: str, options: type[Options], port: int, ignored: Mapping[str, object]) -> Program:
    # The ports of the real programs, which listen on all addresses.
    host = default_host()
    defaults = {f"{kind}_address": f"{host}:{port + at}" for at, kind in enumerate(("tcp", "http", "https"))}
    made = Program(
        name,
        help=f"Run as {name} {NSQ_VERSION}, with its flags. One dash will do: -tcp-address.",
        short_help=f"Run as {name} {NSQ_VERSION}, with its flags.",
    )
    made.ignored = [
        _option(each, "Ignored here.", is_switch=isinstance(value, bool), multiple=value == ())
        for each, value in ignored.items()
    ]
    fields = [field for field in dataclasses.fields(options) if field.name not in OWN_OPTIONS]
    made.params += [*(_field_option(field, defaults) for field in fields), *made.ignored]
    made.params.append(
        _option("config", "Refused: there is no configuration file.", callback=_refuse, expose_value=False)
    )
    # Programs that start nsqd read this line.
    return click.version_option(NSQ_VERSION, message=f"{name} v%(version)s (built w/go1.27.3)")(made)


def _field_option(field: Field, defaults: Mapping[str, str]) -> click.Option:
    name, choices = field.name, field.metadata["choices"]
    default = defaults.get(name, field.default)
    text = help_text(field, HOST_OR_NAME if name == "broadcast_address" else default)
    settings: dict[str, Any] = {"default": defaults.get(name), "multiple": is_list(field)}  # Any: click's
    if choices:
        settings["type"] = click.Choice(choices, case_sensitive=False)
    elif field.type != "bool":
        settings |= {"type": str if is_list(field) else _Value(field), "metavar": form_text(field)}
    return _option(name, text, is_switch=field.type == "bool" or name == "tls_required", **settings)


def _option(name: str, text: str, *, is_switch: bool = False, **settings: Any) -> click.Option:  # Any: click's
    """Make an option. A switch is true without a value; a value follows an equals sign."""
    if is_switch:
        settings = {"type": click.BOOL, **settings, "is_flag": False, "flag_value": "true"}
    return click.Option([f"--{flag_name(name, is_list=settings.get('multiple', False))}", name], help=text, **settings)


def _refuse(context: click.Context, option: click.Parameter, value: object) -> None:
    if value is not None:
        raise click.BadParameter("fakensqd reads no configuration file: give its values as flags", context, option)
