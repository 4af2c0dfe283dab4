"""Command-line flags as real nsqd takes them (``-name=value``, ``--name value``), and its configuration files.

Pure: words in, values out. The tables of the two programs are in ``flags.py``. Not click: it is optional, and a daemon
listens before it would be imported. Source: Go's flag and time.ParseDuration; go-options Resolve.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fakensqd.golang.text import duration

__all__ = [
    "Flag",
    "FlagError",
    "HelpWanted",
    "Value",
    "configured",
    "parse",
    "parse_duration",
    "usage",
]

Value = str | bool | int | float | tuple[str, ...] | tuple[float, ...]

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_UNITS_NS = {"ns": 1, "us": 10**3, "\u00b5s": 10**3, "\u03bcs": 10**3, "ms": 10**6, "s": 10**9}
_UNITS_NS |= {"m": 60 * 10**9, "h": 3600 * 10**9}
_MAX_INT = 2**63
_LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
_TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")


class FlagError(ValueError):
    """A command line that Go's flag package would refuse; the text is what it says."""


class HelpWanted(Exception):
    """-h or --help was among the words."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: a row of a program's table.

    Attributes:
        kind: bool, string, int, duration, list, floats, log-level, tls-required or tls-min-version.
        field: The option that it sets; empty if the program itself uses it, or nothing does.
        default: What the option is without the flag; None: the option's own default.
        meaning: For the usage; empty if the flag is accepted without a meaning.
        config: Its name in a configuration file, where that is not the name with underscores.
    """

    name: str
    kind: str
    field: str = ""
    default: Value | None = None
    meaning: str = ""
    config: str = ""

    @property
    def config_name(self) -> str:
        """What it is called in a configuration file."""
        return self.config or self.name.replace("-", "_")

    @property
    def repeated(self) -> bool:
        """Whether each further use adds to it."""
        return self.kind in ("list", "floats")

    @property
    def boolean(self) -> bool:
        """Whether it may stand without a value, and never takes the next word for one."""
        return self.kind in ("bool", "tls-required")


def parse(flags: Iterable[Flag], words: Sequence[str]) -> dict[str, Value]:
    """Read flags up to the first word that is none; give back the values of those that are there, by name.

    Raises:
        FlagError: If a flag is unknown or its value bad.
        HelpWanted: If help is asked for.
    """
    known = {flag.name: flag for flag in flags}
    values: dict[str, Value] = {}
    rest = list(words)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise FlagError(f"bad flag syntax: {word}")
        flag = known.get(name)
        if flag is None:
            if name in ("h", "help"):
                raise HelpWanted
            raise FlagError(f"flag provided but not defined: -{name}")
        if not equals:
            if flag.boolean:
                text = "true"
            elif not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            else:
                text = rest.pop(0)
        _set(values, flag, text)
    return values


def _set(values: dict[str, Value], flag: Flag, text: str) -> None:
    try:
        value = _READERS[flag.kind](text)
    except ValueError as error:
        raise FlagError(f'invalid value "{text}" for flag -{flag.name}: {error}') from None
    if flag.repeated:
        value = (*values.get(flag.name, ()), *value)  # type: ignore[misc]  # values of repeated flags are tuples
    values[flag.name] = value


# --- values -----------------------------------------------------------------------------------------------------------


def parse_duration(text: str) -> float:
    """Read a duration such as ``1m30s`` or ``250ms``; seconds.

    Raises:
        ValueError: If there is a number without a unit, or no number.
    """
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0.0
    if not rest:
        raise ValueError("parse error")
    nanoseconds = 0
    while rest:
        match = _DURATION_PART.match(rest)
        if match is None or not (match[1] or match[2]):
            raise ValueError("parse error")
        unit = _UNITS_NS[match[3]]
        fraction = match[2] or ""
        nanoseconds += int(match[1] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        rest = rest[match.end() :]
    if nanoseconds >= _MAX_INT:
        raise ValueError("parse error")
    return sign * nanoseconds / 1e9


def _boolean(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise ValueError("parse error")
    return text in _TRUE


def _integer(text: str) -> int:
    value = int(text, 0)
    if not -_MAX_INT <= value < _MAX_INT:
        raise ValueError("value out of range")
    return value


def _tls_required(text: str) -> str:
    return "tcp-https" if text.lower() == "tcp-https" else str(_boolean(text)).lower()


def _one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text.lower()

    return read


_READERS: dict[str, Callable[[str], Value]] = {
    "bool": _boolean,
    "string": str,
    "int": _integer,
    "duration": parse_duration,
    "list": lambda text: (text,),
    "floats": lambda text: tuple(map(float, text.split(","))),
    "log-level": _one_of(_LOG_LEVELS),
    "tls-required": _tls_required,
    "tls-min-version": lambda text: _one_of(_TLS_VERSIONS)(text or _TLS_VERSIONS[0]),
}


# --- configuration files ----------------------------------------------------------------------------------------------


def configured(flags: Iterable[Flag], document: Mapping[str, object]) -> dict[str, Value]:
    """Read what a configuration file says, by flag name; keys that belong to no flag are skipped.

    Raises:
        FlagError: If a value is not of the flag's kind.
    """
    values: dict[str, Value] = {}
    for flag in flags:
        if flag.config_name not in document:
            continue
        given = document[flag.config_name]
        items = given if isinstance(given, list) and flag.repeated else [given]
        try:
            for item in items:
                _set(values, flag, _config_text(flag, item))
        except (FlagError, TypeError):
            raise FlagError(f"failed to resolve {flag.config_name} = {given!r}") from None
    return values


def _config_text(flag: Flag, item: object) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if not isinstance(item, (str, int, float)):
        raise TypeError(item)
    text = str(item)
    # A duration without a unit is one of milliseconds here, other than on the command line.
    return f"{text}ms" if flag.kind == "duration" and text.isdecimal() else text


# --- usage ------------------------------------------------------------------------------------------------------------


def usage(program: str, flags: Iterable[Flag]) -> str:
    """Write what flags there are, with their defaults, in the shape that Go gives it."""
    lines = [f"Usage of {program}:"]
    for flag in sorted(flags, key=lambda flag: flag.name):
        kind = "" if flag.boolean else f" {flag.kind}" if flag.kind in ("string", "int", "duration") else " value"
        default = "" if flag.default in (None, "", False, (), 0) else f" (default {_default(flag)})"
        lines += [f"  -{flag.name}{kind}", f"    \t{flag.meaning or 'accepted; no meaning here'}{default}"]
    return "\n".join(lines) + "\n"


def _default(flag: Flag) -> str:
    """Write a default so that the flag takes it back; text stands in quotes."""
    if flag.kind == "duration" and isinstance(flag.default, (int, float)):
        return duration(flag.default)
    return f'"{flag.default}"' if flag.kind == "string" else str(flag.default).lower()
