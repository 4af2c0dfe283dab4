"""Options are fields of frozen dataclasses. Each option has a default and a description; some have bounds and a unit.

The checks of values and the tables of the documentation are derived from the fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypedDict

from gnsq.texts import duration_text, nearest, shown_argument

if TYPE_CHECKING:
    import ssl

__all__ = [
    "ConnectionOptions",
    "ConnectionOptionsDict",
    "Milliseconds",
    "MoreConnectionOptionsDict",
    "Options",
    "Seconds",
    "TlsOptionsDict",
    "USER_AGENT",
    "VERSION",
    "check_flag",
    "check_unix",
    "checked_value",
    "option",
    "parameters_of",
]

VERSION = "2.0.0rc1"
USER_AGENT = f"gnsq/{VERSION}"

# Durations in arguments of methods.
Seconds = float | timedelta
Milliseconds = int | timedelta

# Seconds. nsqd reads intervals as 32-bit numbers of milliseconds.
MAX_INTERVAL = 2_147_483
# Bytes of the path of a unix socket. Linux takes 108 with the zero at the end; see unix(7).
MAX_UNIX_PATH = 107
_UNITS = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1)}


def option(
    default: Any,  # Any: the field's annotation has the type, dataclasses.field() does not know it either
    meaning: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    special: tuple[float, ...] = (),
    secret: bool = False,
    none: Any = dataclasses.MISSING,
    choices: tuple[str, ...] = (),
    common: bool = False,
    receives: bool = False,
    form: str = "",
) -> Any:
    """Declare an option.

    Args:
        special: Values that are valid although they are not between minimum and maximum.
        secret: Error texts do not show the value.
        none: Value that None stands for if the type does not have None; default: the default.
        choices: All texts that are valid.
        common: Stands in the first table of the documentation, for options that many programs set.
        receives: Of all connections, but it means nothing to a Producer, which receives no messages.
        form: What a text must be, for the help of programs: HOST:PORT, NAME, or FILE for the path of an existing file.
    """
    none = default if none is dataclasses.MISSING else none
    metadata = {name: value for name, value in locals().items() if name not in ("default", "secret")}
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of options: the constructor checks the bounds of each field, and the type if _TYPES has it.

    As in gnsq 1.0, None is the default, a number may be text or a float without a fraction, and a secret may be text. A
    duration may be a timedelta.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            value = checked_value(field, given)
            if value is not given:
                object.__setattr__(self, field.name, value)  # the dataclass is frozen

    @classmethod
    def from_keywords(cls, owner: type | str, values: Mapping[str, Any], *beside: type[Options]) -> Self:
        """Make options from keyword arguments of a public constructor.

        Args:
            owner: For error texts: the class of the constructor, or the name of a parameter that takes options.
            values: Values by the names of options. Any: each option has its own type.
            beside: Further classes of options that the owner takes. The error text lists these options, too.

        Raises:
            TypeError: If a name is not an option (the text has similar ones, then all), or a value has the wrong type.
            ValueError: If a value is out of bounds.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            names.update(*({field.name for field in dataclasses.fields(other)} for other in beside))
            if isinstance(owner, type):
                names.update(parameters_of(owner))
                owner = owner.__name__
            text = f"{owner} has no option {', '.join(unknown)}{nearest(unknown, sorted(names), 'options are')}"
            raise TypeError(text)
        return cls(**values)  # __post_init__ checks the values

    @classmethod
    def split_keywords(cls, values: dict[str, Any]) -> Self:  # Any: each option has its own type
        """Make options from those values whose names are options of this class, and remove these values."""
        names = [field.name for field in dataclasses.fields(cls) if field.name in values]
        return cls(**{name: values.pop(name) for name in names})


def checked_value(
    field: dataclasses.Field[Any],  # Any: each option has its own type
    given: object,
    written: object = None,
) -> Any:
    """Return the value of an option in the form of its type.

    Args:
        written: What the user wrote, for errors; default: the given value.

    Raises:
        TypeError, ValueError: If it has another type, or is out of bounds. The text begins with the name of the field.
    """
    value = _converted(field, given)
    _check_type(field, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_bounds(field, value, given if written is None else written)
    choices = field.metadata.get("choices")
    if choices and isinstance(value, str) and value not in choices:
        raise ValueError(f"{field.name} {value!r} must be one of {', '.join(choices)}")
    return value


def _converted(field: dataclasses.Field[Any], value: Any) -> Any:  # Any: each option has its own type
    """Return the value of an option that was given in another form."""
    if isinstance(value, timedelta) and field.metadata.get("unit") in _UNITS:
        value /= _UNITS[field.metadata["unit"]]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    types = str(field.type).split(" | ")
    if value is None and "None" not in types:
        return field.metadata.get("none")
    if types == ["tuple[str, ...]"] and isinstance(value, Sequence):
        return (value,) if isinstance(value, str) else tuple(value)
    if isinstance(value, str) and "str" not in types:
        if "bytes" in types:
            return _encoded(field.name, value)
        if {"int", "float", "Delay"} & {*types}:
            with contextlib.suppress(ValueError):
                return int(value) if value.strip().isdigit() else _converted(field, float(value))
    if isinstance(value, float) and "int" in types and "float" not in types and value.is_integer():
        return int(value)
    return value


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # its text has the value, which may be a secret
        raise ValueError(f"{name} has characters that UTF-8 can't encode") from None


def _check_bounds(field: dataclasses.Field[Any], value: float, written: object) -> None:
    """Raise ValueError if a number is not within the bounds of its option, if it has any. nan never is.

    The error has the value as it was written. Bounds of a duration that was written with a unit have units, too.
    """
    if field.metadata.get("minimum") is None:
        return
    low, high, special, unit = (field.metadata[key] for key in ("minimum", "maximum", "special", "unit"))
    # The largest float: math.isfinite() can't tell about an int that is larger.
    if value in special or low <= value <= (sys.float_info.max if high is None else high):
        return
    shown, texts = written, [str(number) for number in (low, high, *special)]
    if isinstance(written, timedelta):
        shown = f"timedelta(seconds={written.total_seconds():g})"
    if unit in _UNITS and (isinstance(written, timedelta) or (isinstance(written, str) and written[-1:].isalpha())):
        texts = [duration_text(number * _UNITS[unit].total_seconds()) for number in (low, high or 0, *special)]
        unit = ""
    bounds = f"at least {texts[0]}" if high is None else f"within {texts[0]} to {texts[1]}"
    if high is None and value > low:
        bounds = f"finite, and {bounds}"
    also = "".join(f" or {text}" for text in texts[2:])
    if bounds + also == "at least 1" and unit not in _UNITS:
        unit = unit.removesuffix("s")
    raise ValueError(f"{field.name} {shown} must be {bounds}{also} {unit}".rstrip())


def check_flag(name: str, value: object) -> None:
    """Raise TypeError if an argument of a call is neither True nor False."""
    if value not in (True, False):
        raise TypeError(f"{name} must be True or False, not {shown_argument(value)}")


def _instance_of(*types: type) -> Callable[[Any], bool]:
    # A bool is an int in Python, but no number here.
    return lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _maps_texts(value: Any) -> bool:  # Any: a value of any type
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


def _are_exceptions(value: Any) -> bool:  # Any: a value of any type
    kinds = value if isinstance(value, tuple) else (value,)
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


_is_number = _instance_of(int, float)
# By the name of a type in an annotation: what a value must be, and a test of it. Options with other types are not
# checked here; their class may check them.
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("bool", _instance_of(bool)),
    "bytes": ("bytes", _instance_of(bytes)),
    "float": ("float", _is_number),
    "int": ("int", _instance_of(int)),
    "None": ("None", _instance_of(type(None))),
    "str": ("str", _instance_of(str)),
    "tuple[str, ...]": (
        "a str or several",
        lambda value: isinstance(value, tuple) and all(isinstance(text, str) for text in value),
    ),
    "Exceptions": ("a class of exceptions or a tuple of them", _are_exceptions),
    "Mapping[str, str]": ("a dict of str to str", _maps_texts),
    "TlsOptionsDict": ("a dict", _instance_of(Mapping)),
    "ssl.SSLContext": ("an ssl.SSLContext", lambda value: hasattr(value, "wrap_bio")),
    "Delay": (
        "a number of seconds, a timedelta, a function of a count",
        lambda value: callable(value) or _is_number(value),
    ),
    "Callable[[str, int], tuple[str, int]]": ("callable", callable),
}


def _check_type(field: dataclasses.Field[Any], value: object) -> None:
    names = str(field.type).split(" | ")
    if all(name in _TYPES for name in names) and not any(_TYPES[name][1](value) for name in names):
        kinds = [_TYPES[name][0] for name in names]
        if names[0] != "Delay" and (unit := field.metadata.get("unit")) in _UNITS:
            kinds[:1] = [f"{kinds[0]} ({'seconds' if unit == 's' else 'milliseconds'})", "a timedelta"]
        shown = _shown(value) if field.repr else f"a {type(value).__name__}"
        raise TypeError(f"{field.name} must be {' or '.join(kinds)}, not {shown}")


def _shown(value: object) -> str:
    """Write a value of a wrong type. "not tuple" would not tell what is wrong with a tuple: its items do."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, BaseException):
        return f"an instance of {type(value).__name__}"
    items = [item for pair in value.items() for item in pair] if isinstance(value, Mapping) else value
    if not isinstance(items, (list, tuple)) or not items:
        return shown_argument(value)
    kinds = (_shown(item) if isinstance(item, (type, BaseException)) else type(item).__name__ for item in items)
    return f"a {type(value).__name__} with {', '.join(dict.fromkeys(kinds))}"


def parameters_of(owner: type) -> set[str]:
    """Return the names of a constructor's parameters, except ``*args`` and ``**options``."""
    parameters = inspect.signature(owner).parameters.values()
    return {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


class TlsOptionsDict(TypedDict, total=False):
    """Keys of the option tls_options: the keys of gnsq 1.0, and check_hostname and key_password."""

    keyfile: str | None
    certfile: str | None
    cert_reqs: int
    ca_certs: str | None
    ssl_version: int
    check_hostname: bool
    key_password: str | bytes | None


class MoreConnectionOptionsDict(TypedDict, total=False):
    """Typed keywords for those options of ConnectionOptions that gnsq 1.0 did not have."""

    tls_context: ssl.SSLContext | None
    server_hostname: str | None
    msg_timeout: float | timedelta | None
    address_resolver: Callable[[str, int], tuple[str, int]] | None


class ConnectionOptionsDict(MoreConnectionOptionsDict, total=False):
    """Typed keywords for the options of ConnectionOptions."""

    timeout: float | timedelta
    client_id: str | None
    hostname: str | None
    heartbeat_interval: float | timedelta
    output_buffer_size: int
    output_buffer_timeout: int | timedelta
    tls_v1: bool | None
    tls_options: TlsOptionsDict | None
    snappy: bool
    deflate: bool
    deflate_level: int
    sample_rate: int
    auth_secret: bytes | None
    user_agent: str


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(Options):
    """Options of a connection to nsqd's TCP port. Source of the bounds: nsqd client_v2.go, Set*().

    nsqd itself checks the upper bounds that its flags set. output_buffer_timeout is in milliseconds, as in gnsq 1.0.
    """

    timeout: float = option(
        60.0, "limit of connecting with the handshake, of each request, and of each send", unit="s", minimum=0.001
    )
    client_id: str | None = option(None, "name of this client in nsqd's statistics; default: first label of hostname")
    hostname: str | None = option(None, "host name of this client in nsqd's statistics; default: the name of this host")
    heartbeat_interval: float = option(
        30,
        "time between two heartbeats of nsqd; -1: no heartbeats, but nsqd then refuses the SUB of a Consumer",
        unit="s",
        minimum=1,
        maximum=MAX_INTERVAL,
        special=(-1,),
    )
    output_buffer_size: int = option(
        16384, "size of nsqd's write buffer; -1: no buffer; 0: its default", unit="bytes", minimum=64, special=(-1, 0)
    )
    output_buffer_timeout: int = option(
        250, "limit of the time in this buffer; -1: no limit; 0: its default", unit="ms", minimum=1, special=(-1, 0)
    )
    tls_v1: bool | None = option(
        None,
        "encrypt the connection; a server without TLS is refused; False: clear text, whatever else is given; "
        "default: only with tls_context",
        common=True,
    )
    tls_options: TlsOptionsDict | None = option(
        None,
        "options of TLS: `ca_certs`, `certfile`, `keyfile` (paths), `cert_reqs`, `ssl_version` (constants of `ssl`), "
        "`check_hostname`, `key_password`; default: check the certificate with the system's CAs, and the host name",
        secret=True,
        common=True,
    )
    snappy: bool = option(False, "compress with snappy, if the server offers it")
    deflate: bool = option(False, "compress with deflate, if the server offers it")
    deflate_level: int = option(6, "1 fastest, 9 smallest; nsqd cuts it to its max-deflate-level", minimum=1, maximum=9)
    sample_rate: int = option(0, "part of the messages that nsqd delivers; 0: all", unit="%", minimum=0, maximum=99)
    auth_secret: bytes | None = option(
        None, "secret for AUTH; sent only to a server that requires AUTH", secret=True, common=True
    )
    user_agent: str = option(USER_AGENT, "name of this software in nsqd's statistics")
    tls_context: ssl.SSLContext | None = option(None, "an `ssl.SSLContext` in place of tls_options", secret=True)
    server_hostname: str | None = option(None, "name that nsqd's certificate must have; default: the host")
    msg_timeout: float | None = option(
        None,
        "time to answer a message, then nsqd requeues it; default: nsqd's",
        unit="s",
        minimum=1,
        maximum=MAX_INTERVAL,
        common=True,
        receives=True,
    )
    address_resolver: Callable[[str, int], tuple[str, int]] | None = option(
        None, "called with host and port before connecting; returns those to connect to (TLS checks the first host)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.snappy and self.deflate:
            raise ValueError("snappy and deflate are both asked for; nsqd does one of them")
        if self.auth_secret == b"":
            raise ValueError("auth_secret is empty; nsqd wants at least 1 byte")
        if self.server_hostname == "":
            raise ValueError("server_hostname is empty; without it, the host is checked")
        if self.tls_context is not None and self.tls_options is not None:
            raise ValueError("tls_context and tls_options are both given; the context has all these options")
        if self.tls_v1 is None and self.tls_context is None:
            # Whoever gives them believes that the connection is encrypted.
            for name in ("tls_options", "server_hostname"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is given without tls_v1: give tls_v1=True, or tls_v1=False for clear text"
                    )

    @property
    def wants_tls(self) -> bool:
        """True if the connection must be encrypted."""
        return self.tls_context is not None if self.tls_v1 is None else self.tls_v1


def check_unix(path: str) -> None:
    """Raise ValueError if a path is longer than that of a unix socket may be: the system's error would not say so."""
    if (size := len(os.fsencode(path))) > MAX_UNIX_PATH:
        raise ValueError(
            f"the path of the unix socket {shown_argument(path)} has {size} bytes, more than {MAX_UNIX_PATH}: give a "
            "shorter one, such as through a symbolic link to its folder"
        )
