"""The connection options of all commands: from the command line, the environment, or a file with named clusters."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gnsq.addresses import parse_addresses
from gnsq.cli.parameters import FILE, SettingOption, setting_option
from gnsq.errors import NSQException
from gnsq.options import ConnectionOptions, Options, option
from gnsq.settings import Field, read_value
from gnsq.texts import nearest, option_text, reason_of, shown_argument

# Each command loads only the clients that it uses.
if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.lookupd import LookupdClient
    from gnsq.nsqd import NsqdHTTPClient
    from gnsq.producer import Producer

__all__ = [
    *["CONNECTION_OPTIONS", "SETTINGS", "Cluster", "given_settings", "load_cluster", "option_texts", "origins"],
    "target_of",
]

CONFIG = "gnsq.toml"
# The addresses of a cluster belong together. Those of HTTP are not enough to connect.
ADDRESSES = ("nsqd", "lookupd", "nsqd_http")
_USER_AGENT = ConnectionOptions().user_agent.replace("/", "-cli/", 1)


@dataclass(frozen=True, kw_only=True)
class Cluster(Options):
    """The servers of a command, and how to connect to them: flags, variables, and keys of a cluster in the file.

    load_cluster() makes one, and checks what the properties make of the options.
    """

    # repr() does not show what is secret: URLs may have a password.
    nsqd: tuple[str, ...] = option((), "TCP address of an nsqd", form="HOST:PORT")
    nsqd_http: tuple[str, ...] = option(
        (), "HTTP address of an nsqd, for statistics; default: the port of --nsqd + 1", form="HOST:PORT", secret=True
    )
    lookupd: tuple[str, ...] = option((), "HTTP address of an nsqlookupd", form="HOST:PORT", secret=True)
    tls: bool = option(False, "encrypt connections to nsqd; any other --tls option implies this")
    tls_ca: str | None = option(None, "CA certificates, for nsqd and https; default: the system's", form="FILE")
    tls_cert: str | None = option(None, "certificate of this client", form="FILE")
    tls_key: str | None = option(None, "private key of this client; default: in --tls-cert", form="FILE")
    tls_server_name: str | None = option(None, "name in nsqd's certificate; default: the host", form="NAME")
    tls_insecure: bool = option(False, "do not check nsqd's certificate")
    auth_secret_file: str | None = option(None, "file with the secret for AUTH", form="FILE")
    compression: str = option("none", "compress connections to nsqd", choices=("none", "snappy", "deflate"))
    timeout: float = option(10.0, "limit of connecting, and of each request", unit="s", minimum=0.001)

    @functools.cached_property
    def nsqds(self) -> tuple[str, ...]:
        """TCP addresses of nsqds, ``host:port``."""
        return tuple(parse_addresses(_split(self.nsqd)))

    @functools.cached_property
    def lookupds(self) -> tuple[str, ...]:
        """HTTP addresses of nsqlookupds."""
        return tuple(_split(self.lookupd))

    @functools.cached_property
    def nsqds_http(self) -> tuple[str, ...]:
        """HTTP addresses of nsqds; empty: those of nsqds, with the next port."""
        return tuple(_split(self.nsqd_http))

    @functools.cached_property
    def connection(self) -> Mapping[str, Any]:  # Any: each option has its own type
        """Options of ConnectionOptions."""
        options: dict[str, Any] = {"timeout": self.timeout, "user_agent": _USER_AGENT}
        if any(getattr(self, name) for name in SETTINGS if name.startswith("tls")):
            options |= {"tls_v1": True, "tls_options": self._tls_options(), "server_hostname": self.tls_server_name}
        if self.auth_secret_file:
            options["auth_secret"] = Path(self.auth_secret_file).read_bytes().strip()
            if not options["auth_secret"]:
                raise ValueError(f"{option_text('auth_secret')} {self.auth_secret_file} is empty")
        if self.compression != "none":
            options[self.compression] = True
        return options

    def _tls_options(self) -> dict[str, Any]:  # Any: as above
        import ssl

        if self.tls_key and not self.tls_cert:
            raise ValueError(f"{option_text('keyfile')} is given without {option_text('certfile')}")
        files = {"ca_certs": self.tls_ca, "certfile": self.tls_cert, "keyfile": self.tls_key}
        options: dict[str, Any] = {key: file for key, file in files.items() if file}
        return options | ({"cert_reqs": ssl.CERT_NONE} if self.tls_insecure else {})

    @functools.cached_property
    def http(self) -> Mapping[str, Any]:  # Any: as above
        """Options of HttpOptions; those of TLS are for addresses that begin with https."""
        files = {"ca_certs": self.tls_ca, "cert_file": self.tls_cert, "key_file": self.tls_key}
        check = "CERT_NONE" if self.tls_insecure else "CERT_REQUIRED"
        return {**files, "cert_reqs": check, "timeout": min(self.timeout, 5.0)}

    def checked(self, given_as: Mapping[str, str]) -> Cluster:
        """Return this cluster.

        Args:
            given_as: Where each setting comes from, for errors: a flag, a variable, or a place in the file.

        Raises:
            click.UsageError: If a setting is not valid, or there is no address.
        """
        if not _split(self.nsqd) and not _split(self.lookupd):
            raise click.UsageError(
                "no TCP address of an nsqd, and no nsqlookupd: give --nsqd or --lookupd, set GNSQ_NSQD or "
                f"GNSQ_LOOKUPD, or name a cluster in the file ({config_path()}, or --config FILE) with --cluster"
            )
        checks: dict[str, Callable[[], object]] = {
            "": self._check_connection,
            "nsqd": lambda: self.nsqds,
            "lookupd": self.lookupd_clients,
            "nsqd_http": lambda: [self.nsqd_client(address) for address in self.nsqds_http],
        }
        for name, check in checks.items():
            try:
                check()
            except (NSQException, OSError, TypeError, ValueError) as error:
                raise click.UsageError(f"{given_as[name]}: {error}" if name else str(error)) from error
        return self

    def _check_connection(self) -> None:
        options = ConnectionOptions(**self.connection)
        if options.wants_tls or options.snappy:
            from gnsq.nsqd.connect import load_certificates

            load_certificates(options)

    def consumer(
        self,
        topic: str,
        channel: str,
        make: Callable[..., Consumer],
        **options: Any,  # Any: each option has its own type
    ) -> Consumer:
        """Make a consumer of these servers.

        Args:
            make: A function or class with the arguments of Consumer.
        """
        keywords = {"lookupd_options": self.http, **self.connection, **options}
        return make(topic, channel, self.nsqds, self.lookupds, **keywords)

    def producer(self, **options: Any) -> Producer:  # Any: each option has its own type
        """Make a producer to these servers, whose publishes and close() end after ``timeout`` seconds."""
        limits = {"publish_timeout": self.timeout, "close_timeout": self.timeout}
        keywords = {"lookupd_options": self.http, **limits, **self.connection, **options}
        from gnsq.producer import Producer

        return Producer(self.nsqds, lookupd_http_addresses=self.lookupds, **keywords)

    def lookupd_clients(self) -> list[LookupdClient]:
        """Make a client for each nsqlookupd."""
        if not self.lookupds:
            return []
        from gnsq.discovery import parse_lookupds

        return parse_lookupds(self.lookupds, self.http)

    def nsqd_client(self, address: str) -> NsqdHTTPClient:
        """Make a client of an nsqd's HTTP port."""
        from gnsq.nsqd import NsqdHTTPClient

        return NsqdHTTPClient.from_url(address, **self.http)


def _split(addresses: tuple[str, ...]) -> list[str]:
    """Split values with commas or spaces, as an environment variable may have them."""
    return [address for value in addresses for address in re.split(r"[\s,]+", value) if address]


# --- the command line and the environment

_FIELDS = {field.name: field for field in fields(Cluster)}
SETTINGS = {name: setting_option(field, "GNSQ_") for name, field in _FIELDS.items()}
CONNECTION_OPTIONS = [
    *SETTINGS.values(),
    _CLUSTER := SettingOption(["--cluster"], envvar="GNSQ_CLUSTER", metavar="NAME", help="Use a cluster of the file."),
    SettingOption(
        ["--config", "config_file"],
        envvar="GNSQ_CONFIG",
        metavar="FILE",
        type=FILE,
        help=f"File with named clusters. Default: ~/.config/{CONFIG}.",
    ),
]


def given_settings(context: click.Context) -> dict[str, Any]:  # Any: each setting has its own type
    """Return the settings of the command line and, for the others, of the environment.

    If the command line names servers or a cluster, the addresses in the environment are not used: they may lead to
    another cluster.
    """
    given = {name: context.params.get(name) for name in SETTINGS}
    on_line = {
        name for name in (*ADDRESSES, "cluster") if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if on_line - {"nsqd_http"}:
        given |= dict.fromkeys({*ADDRESSES} - on_line)
    return given


def origins(context: click.Context) -> dict[str, str]:
    """Return what has given each setting, and the cluster: its flag, or its variable. Of others, return the flag."""
    return {name: option.given_as(context) for name, option in {**SETTINGS, "cluster": _CLUSTER}.items()}


def option_texts(given_as: Mapping[str, str]) -> dict[str, str]:
    """Return what gnsq's errors call its options, by their names in Python.

    Args:
        given_as: As origins() has returned it.
    """
    certificate_and_key = f"{given_as['tls_cert']} and {given_as['tls_key']}"
    return {
        "auth_secret": given_as["auth_secret_file"],
        "ca_certs": given_as["tls_ca"],
        "ca_certs in tls_options": given_as["tls_ca"],
        "cert_file and key_file": certificate_and_key,
        "cert_reqs='CERT_NONE'": "--tls-insecure",
        "cert_reqs=ssl.CERT_NONE": "--tls-insecure",
        "certfile": given_as["tls_cert"],
        "certfile and keyfile in tls_options": certificate_and_key,
        "keyfile": given_as["tls_key"],
        "lookupd_http_addresses": "--lookupd",
        "server_hostname": given_as["tls_server_name"],
        "tls_options": "TLS",
        "tls_v1=True": "--tls",
    }


def target_of(cluster: Cluster, name: str | None, nsqds: tuple[str, ...], lookupds: tuple[str, ...]) -> Cluster | None:
    """Make the cluster of a command's --to options; None if there are none.

    Of the other options, such as those of TLS, it has those of the cluster with this name in the file, or else those of
    the given cluster.
    """
    if name is not None:
        config_file = click.get_current_context().params["config_file"]
        return load_cluster(name, config_file, {"nsqd": nsqds, "lookupd": lookupds}, _TARGET)
    if not nsqds and not lookupds:
        return None
    return dataclasses.replace(cluster, nsqd=nsqds, lookupd=lookupds, nsqd_http=()).checked(_TARGET)


_FLAGS = {name: option.opts[-1] for name, option in {**SETTINGS, "cluster": _CLUSTER}.items()}
_TARGET = _FLAGS | {name: f"--to-{name}" for name in ("nsqd", "lookupd", "cluster")}


# --- the file


def config_path() -> Path:
    """Return the path of the default file, which may not exist."""
    # Unlike Path.expanduser(), this raises nothing if the home is unknown, as for a container's user without a name.
    return Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config")) / CONFIG


def load_cluster(
    name: str | None, config_file: str | None, given: Mapping[str, Any], given_as: Mapping[str, str] = _FLAGS
) -> Cluster:
    """Make a cluster of the settings that are given and, for the others, of those in the file.

    If an address is given, the addresses in the file are not used.

    Args:
        name: Of a cluster in the file; None: the file's default cluster, if it names one.
        given: Settings by name; None or empty: not given.
        given_as: As origins() has returned it.

    Raises:
        click.UsageError: If a setting is not valid, there is no such cluster, or there is no address.
    """
    path = Path(config_file) if config_file else config_path()
    stored_name, stored = "", dict[str, Any]()
    try:
        # Unlike Path.exists(), this raises nothing if the directory must not be read.
        if config_file or name or os.path.exists(path):
            stored_name, stored = _stored(path, name, given_as["cluster"])
    except OSError as error:
        needed = (
            f"; it would have the cluster {name!r} of {given_as['cluster']}: write it, or give another file with "
            "--config"
            if name
            else ""
        )
        raise click.UsageError(f"{path}: {reason_of(error)}{needed}") from error
    except (TypeError, ValueError, RecursionError) as error:  # also a number or a nesting above Python's limits
        raise click.UsageError(f"{path}: {error}") from error
    stored, given = ({key: value for key, value in values.items() if value not in _EMPTY} for values in (stored, given))
    if "nsqd" in given or "lookupd" in given:
        stored = {key: value for key, value in stored.items() if key not in ADDRESSES}
    in_file = {key: f"{path}: clusters.{stored_name}.{key}" for key in stored.keys() - given.keys()}
    return Cluster(**{**stored, **given}).checked({**given_as, **in_file})


# What counts as a setting that is not given.
_EMPTY = (None, (), "")


def _stored(path: Path, name: str | None, named_by: str) -> tuple[str, dict[str, Any]]:
    """Read the name and the settings of a cluster in a file.

    Args:
        named_by: Whatever gives the name of the cluster.

    Raises:
        TypeError, ValueError: If something in the file is not valid.
    """
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := sorted(set(content) - {"cluster", "clusters"}):
        raise ValueError(f"{unknown[0]} is unknown; known are cluster and the tables [clusters.NAME]")
    if not isinstance(default := content.get("cluster", ""), str):
        raise TypeError(
            f"cluster must be the name of a cluster, and [clusters.NAME] its table, not {shown_argument(default)}"
        )
    clusters = content.get("clusters", {})
    if not isinstance(clusters, dict) or not all(isinstance(table, dict) for table in clusters.values()):
        raise ValueError("clusters must be tables [clusters.NAME]")
    if name is None:
        named_by = "cluster"
        if (name := content.get("cluster")) is None:
            return "", {}
    if name not in clusters:
        known = nearest([name], clusters, "clusters are") if clusters else f", and no table [clusters.{name}]"
        raise ValueError(f"there is no cluster {name!r}, which {named_by} names{known}")
    if unknown := sorted(set(clusters[name]) - set(SETTINGS)):
        text = nearest(unknown[:1], SETTINGS, "settings are")
        raise ValueError(f"clusters.{name}.{unknown[0]} is unknown{text}")
    try:
        return name, {key: _read(_FIELDS[key], value, path.parent) for key, value in clusters[name].items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"clusters.{name}.{error}") from error


def _read(field: Field, value: object, folder: Path) -> Any:  # Any: each setting has its own type
    checked = read_value(field, value)
    if field.metadata["form"] != "FILE" or not checked:
        return checked
    try:
        return FILE.convert(str(folder / os.path.expanduser(checked)), None, None)
    except click.BadParameter as error:
        raise ValueError(f"{field.name}: {error.message}") from error
