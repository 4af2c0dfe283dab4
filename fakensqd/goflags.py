"""Command-line flags by the rules of Go's flag package, and configuration files by those of go-options.

Pure: words in, values out. The tables of the two programs are in ``flags.py``. Source: Go's flag, strconv and
time.ParseDuration; go-options Resolve.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "Flag",
    "FlagError",
    "HelpWanted",
    "Value",
    "configured",
    "encode_duration",
    "parse",
    "parse_duration",
    "usage",
]

Value = str | bool | int | float | tuple[str, ...] | tuple[float, ...]

_SIGNED_BITS = 63
_INTEGER = re.compile(r"([+-]?)(?:0[xX](?P<x>[0-9a-fA-F]+)|0[bB](?P<b>[01]+)|0[oO]?(?P<o>[0-7]+)|(?P<d>[0-9]+))\Z")
_BASES = {"x": 16, "b": 2, "o": 8, "d": 10}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
_TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")


class FlagError(ValueError):
    """A command line that Go's flag package would refuse; the text is what it says."""


class HelpWanted(Exception):
    """-h or --help was among the words."""


class _BadValue(ValueError):
    """A value that its flag does not take; the text is the reason."""


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
    except _BadValue as error:
        kind, quoted = ("boolean value", _quoted(text)) if flag.boolean else ("value", _quoted(text))
        joint = "for" if flag.boolean else "for flag"
        raise FlagError(f"invalid {kind} {quoted} {joint} -{flag.name}: {error}") from None
    if flag.repeated:
        value = (*values.get(flag.name, ()), *value)  # type: ignore[misc]  # values of repeated flags are tuples
    values[flag.name] = value


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


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
        raise _BadValue("parse error")
    nanoseconds = 0
    while rest:
        match = _DURATION_PART.match(rest)
        if match is None or not (match[1] or match[2]):
            raise _BadValue("parse error")
        unit = _UNITS_NS[match[3]]
        fraction = match[2] or ""
        nanoseconds += int(match[1] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        rest = rest[match.end() :]
    if nanoseconds >= 2**_SIGNED_BITS:
        raise _BadValue("parse error")
    return sign * nanoseconds / 1e9


def encode_duration(seconds: float) -> str:
    """Write a duration as Go does: ``1m30s``, ``250ms``. Source: time.Duration.String."""
    nanoseconds = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 else ""
    if 0 < nanoseconds < _UNITS_NS["s"]:
        unit = next(unit for unit in ("ms", "\u00b5s", "ns") if nanoseconds >= _UNITS_NS[unit])
        return f"{sign}{_decimal(nanoseconds, _UNITS_NS[unit])}{unit}"
    minutes, rest = divmod(nanoseconds, _UNITS_NS["m"])
    hours = f"{minutes // 60}h" if minutes >= 60 else ""
    return f"{sign}{hours}{f'{minutes % 60}m' if minutes else ''}{_decimal(rest, _UNITS_NS['s'])}s"


def _decimal(nanoseconds: int, unit: int) -> str:
    whole, rest = divmod(nanoseconds, unit)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0").rstrip(".")


def _boolean(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _BadValue("parse error")


def _integer(text: str) -> int:
    match = _INTEGER.match(text)
    if match is None:
        raise _BadValue("parse error")
    base = match.lastgroup or "d"
    value = int(match[base], _BASES[base])
    value = -value if match[1] == "-" else value
    if not -(2**_SIGNED_BITS) <= value < 2**_SIGNED_BITS:
        raise _BadValue("value out of range")
    return value


def _floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise _BadValue("parse error") from None


def _log_level(text: str) -> str:
    level = text.lower()
    if level not in _LOG_LEVELS:
        raise _BadValue(f"invalid log level '{text}' ({', '.join(_LOG_LEVELS)})")
    return level


def _tls_required(text: str) -> str:
    text = text.lower()
    if text == "tcp-https":
        return text
    try:
        return "true" if _boolean(text) else "false"
    except _BadValue:
        raise _BadValue(f"strconv.ParseBool: parsing {_quoted(text)}: invalid syntax") from None


def _tls_version(text: str) -> str:
    version = text.lower() or _TLS_VERSIONS[0]
    if version not in _TLS_VERSIONS:
        raise _BadValue(f"unknown tlsVersionOption {_quoted(version)}")
    return version


_READERS: dict[str, Callable[[str], Value]] = {
    "bool": _boolean,
    "string": str,
    "int": _integer,
    "duration": parse_duration,
    "list": lambda text: (text,),
    "floats": _floats,
    "log-level": _log_level,
    "tls-required": _tls_required,
    "tls-min-version": _tls_version,
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
    """Say what flags there are, in the shape that Go gives it."""
    lines = [f"Usage of {program}:"]
    for flag in sorted(flags, key=lambda flag: flag.name):
        kind = "" if flag.boolean else f" {flag.kind}" if flag.kind in ("string", "int", "duration") else " value"
        default = "" if flag.default in (None, "", False, (), 0) else f" (default {_shown_default(flag)})"
        lines += [f"  -{flag.name}{kind}", f"    \t{flag.meaning or 'accepted; no meaning here'}{default}"]
    return "\n".join(lines) + "\n"


def _shown_default(flag: Flag) -> str:
    """Write a default so that the flag takes it back; text stands in quotes."""
    match flag.default:
        case bool():
            return str(flag.default).lower()
        case str() if flag.kind == "string":
            return _quoted(flag.default)
        case float() if flag.kind == "duration":
            return encode_duration(flag.default)
        case _:
            return str(flag.default)
