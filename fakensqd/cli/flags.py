"""Flags of nsqd and nsqlookupd 1.3.0: their tables, made from the options, and the functions that read flags.

Pure. Uses neither click, which is optional, nor argparse, whose switches that may have a value also take the next
argument as value. Source: nsqd --help, nsqlookupd --help; apps/nsqd/options.go; Go's flag package; go-options Resolve.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fakensqd.golang.text import duration
from fakensqd.options import IGNORED_OPTIONS, LOG_LEVELS, OWN_OPTIONS, TLS_VERSIONS, LookupdOptions, NsqdOptions
from gnsq.options import Options
from gnsq.settings import flag_name, is_list, parse_duration

__all__ = [
    "Flag",
    "FlagError",
    "Value",
    "flags_of",
    "from_config_file",
    "ignored_flags",
    "options_of",
    "parse",
    "usage",
]

Value = str | bool | int | float | tuple[str, ...]


class FlagError(ValueError):
    """A flag is unknown, or its value is missing or not valid."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of a program.

    Attributes:
        read: Converts the text of the flag's value.
        field: The option that the flag sets; empty if the program itself uses the flag, or ignores it.
        default: Value of the option if the flag is not given; None: the option is then not passed on.
        meaning: Text for the usage; empty if the flag is ignored.
        config: The flag's key in a configuration file; default: the flag's name with underscores.
    """

    name: str
    read: Callable[[str], Value]
    field: str = ""
    default: Value | None = None
    meaning: str = ""
    config: str = ""

    @property
    def is_switch(self) -> bool:
        """True if the flag may be given without a value. A value can then only follow an equals sign."""
        return self.read in (_boolean, _tls_required)


# --- values -----------------------------------------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    if text.lower() not in ("1", "t", "true", "0", "f", "false"):
        raise ValueError("not true or false")
    return text.lower() in ("1", "t", "true")


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("not a whole number") from None


def _tls_required(text: str) -> str:
    return "tcp-https" if text.lower() == "tcp-https" else str(_boolean(text)).lower()


def _choice(choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return text.lower()

    return read


_READERS: dict[str, Callable[[str], Value]] = {
    "tls_required": _tls_required,
    "tls_min_version": lambda text: _choice(TLS_VERSIONS)(text or TLS_VERSIONS[0]),
    # The keys above are names of options, the keys below are types of options.
    "bool": _boolean,
    "str": str,
    "int": _integer,
    "float": parse_duration,
    "tuple[str, ...]": lambda text: (text,),
}

# --- tables -----------------------------------------------------------------------------------------------------------

_CONFIG_KEYS = {"node_id": "id", "lookupd_tcp_addresses": "nsqlookupd_tcp_addresses"}


def flags_of(program: str) -> tuple[Flag, ...]:
    """Return the flags of nsqd or nsqlookupd."""
    is_nsqd = program == "nsqd"
    port = 4150 if is_nsqd else 4160
    # Defaults of the real programs. Those that depend on the name of the host are set by options_of().
    defaults: dict[str, Value] = {
        "tcp_address": f"0.0.0.0:{port}",
        "http_address": f"0.0.0.0:{port + 1}",
        "https_address": f"0.0.0.0:{port + 2}",
    }
    flags = [
        Flag("version", _boolean, meaning="print the version and exit"),
        Flag("config", str, meaning="TOML file to read options from; a flag overrides it"),
        Flag("verbose", _boolean),
        Flag("log-prefix", str, default=f"[{program}] ", meaning="begins each line of the log"),
        *_option_flags(NsqdOptions if is_nsqd else LookupdOptions, defaults),
    ]
    if is_nsqd:
        flags += [Flag("worker-id", _boolean), Flag("statsd-prefix", str)]
        flags += [
            Flag(flag_name(name, is_list=value == ()), _boolean if isinstance(value, bool) else str, config=name)
            for name, value in IGNORED_OPTIONS.items()
        ]
    else:
        flags.append(Flag("log-level", _choice(LOG_LEVELS), default="info", meaning=", ".join(LOG_LEVELS)))
    return tuple(flags)


def _option_flags(options: type[Options], defaults: Mapping[str, Value]) -> Iterator[Flag]:
    for option in dataclasses.fields(options):
        field, choices = option.name, option.metadata["choices"]
        if field in OWN_OPTIONS:
            continue
        read = _READERS.get(field) or (_choice(choices) if choices else _READERS[str(option.type)])
        default: Any = defaults.get(field, option.default)  # Any: options are of all types
        name = flag_name(field, is_list=is_list(option))
        yield Flag(name, read, field, default, option.metadata["meaning"], _CONFIG_KEYS.get(field, field))


# --- reading ----------------------------------------------------------------------------------------------------------


def parse(flags: Iterable[Flag], arguments: Sequence[str]) -> dict[str, Value]:
    """Read flags and their values. Stop before the first argument that is neither a flag nor a flag's value.

    Returns:
        Values by the name of the flag; the name of both -h and --help is "help".

    Raises:
        FlagError: If a flag is unknown, or its value is missing or not valid.
    """
    asks_for_help = Flag("help", _boolean)
    known = {flag.name: flag for flag in flags} | {"h": asks_for_help, "help": asks_for_help}
    values: dict[str, Value] = {}
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        flag = known.get(name)
        if flag is None:
            raise FlagError(f"flag provided but not defined: -{name}")
        if not equals:
            if not flag.is_switch and not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            text = "true" if flag.is_switch else rest.pop(0)
        _set(values, flag, text)
    return values


def _set(values: dict[str, Value], flag: Flag, text: str) -> None:
    try:
        value = flag.read(text)
    except ValueError as error:
        raise FlagError(f'invalid value "{text}" for flag -{flag.name}: {error}') from None
    if isinstance(value, tuple):
        value = (*values.get(flag.name, ()), *value)  # type: ignore[misc]  # its earlier value is a tuple, too
    values[flag.name] = value


def from_config_file(flags: Iterable[Flag], document: Mapping[str, object]) -> dict[str, Value]:
    """Return the values in a configuration file, by the name of the flag. Skip keys that belong to no flag.

    Raises:
        FlagError: If a value is not valid for its flag.
    """
    values: dict[str, Value] = {}
    for flag in flags:
        key = flag.config or flag.name.replace("-", "_")
        if key not in document:
            continue
        given = document[key]
        try:
            for item in given if isinstance(given, list) else [given]:
                if not isinstance(item, (str, int, float)):
                    raise FlagError(f"{type(item).__name__} is not the type of a value")
                text = str(item)
                # In a configuration file, a duration without a unit is in milliseconds.
                _set(values, flag, f"{text}ms" if flag.read is parse_duration and text.isdecimal() else text)
        except FlagError as error:
            raise FlagError(f"failed to resolve {key} = {given!r}: {error}") from None
    return values


def options_of(flags: Iterable[Flag], values: Mapping[str, Value], *, hostname: str) -> dict[str, Value]:
    """Turn the values of flags into keyword arguments of FakeNsqd or FakeLookupd, with the programs' defaults."""
    options = {flag.field: values.get(flag.name, flag.default) for flag in flags if flag.field}
    found = {name: value for name, value in options.items() if value is not None}
    if "broadcast-address" not in values:
        found["broadcast_address"] = hostname
    if "node_id" in found and "node-id" not in values:
        # Source: nsqd options.go NewOptions.
        found["node_id"] = zlib.crc32(hashlib.md5(hostname.encode(), usedforsecurity=False).digest()) % 1024
    return found


def ignored_flags(flags: Iterable[Flag], values: Mapping[str, Value]) -> list[str]:
    """List the given flags that this emulator ignores."""
    return [flag.name for flag in flags if flag.name in values and not flag.meaning]


def usage(program: str, flags: Iterable[Flag], *, hostname: str) -> str:
    """Describe the flags, with their defaults on this host."""
    defaults = options_of(flags, {}, hostname=hostname)
    lines = [f"Usage of {program}:"]
    for flag in sorted(flags, key=lambda flag: flag.name):
        value = defaults.get(flag.field, flag.default)
        text = duration(value) if isinstance(value, float) else str(value)
        default = "" if value in (None, "", False, (), 0) else f" (default {text})"
        lines += [f"  -{flag.name}", f"    \t{flag.meaning or 'ignored here'}{default}"]
    return "\n".join(lines) + "\n"
