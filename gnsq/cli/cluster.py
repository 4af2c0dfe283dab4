"""The connection options of all commands: from the command line, the environment, or a file with named clusters."""

from __future__ import annotations

import functools
import logging
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gnsq.addresses import parse_addresses
from gnsq.cli.parameters import FILE, setting_option
from gnsq.cli.running import log_to_stderr
from gnsq.consumer import Consumer
from gnsq.discovery import parse_lookupds
from gnsq.errors import NSQException
from gnsq.lookupd import LookupdClient
from gnsq.nsqd import NsqdHTTPClient
from gnsq.options import ConnectionOptions, Options, option
from gnsq.producer import Producer
from gnsq.settings import Field, read_value
from gnsq.texts import nearest

__all__ = ["Cluster", "Command", "cluster_options", "config_path", "target_options"]

CONFIG = "gnsq.toml"
ADDRESSES = ("nsqd", "lookupd")
# A cluster in the file has these addresses, too; they belong to its nsqds.
HTTP_ADDRESSES = "nsqd_http"


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """The servers of a command, and how to connect to them: flags, variables, and keys of a cluster in the file."""

    nsqd: tuple[str, ...] = option((), "TCP address of an nsqd", form="HOST:PORT")
    nsqd_http: tuple[str, ...] = option(
        (), "HTTP address of an nsqd, for statistics; default: the port of --nsqd + 1", form="HOST:PORT"
    )
    lookupd: tuple[str, ...] = option((), "HTTP address of an nsqlookupd", form="HOST:PORT")
    tls: bool = option(False, "encrypt connections to nsqd; any other --tls option implies this")
    tls_ca: str | None = option(None, "CA certificates, for nsqd and https; default: the system's", form="FILE")
    tls_cert: str | None = option(None, "certificate of this client", form="FILE")
    tls_key: str | None = option(None, "private key of this client; default: in --tls-cert", form="FILE")
    tls_server_name: str | None = option(None, "name in nsqd's certificate; default: the host", form="NAME")
    tls_insecure: bool = option(False, "do not check nsqd's certificate")
    auth_secret_file: str | None = option(None, "file with the secret for AUTH", form="FILE")
    compression: str = option("none", "compress connections to nsqd", choices=("none", "snappy", "deflate"))
    timeout: float = option(10.0, "limit of connecting, and of each request", unit="s", minimum=0.001)


_FIELDS = {field.name: field for field in fields(Settings)}
SETTINGS = {name: setting_option(field, "GNSQ_") for name, field in _FIELDS.items()}
_CLUSTER = click.Option(["--cluster"], envvar="GNSQ_CLUSTER", metavar="NAME", help="Use a cluster of the file.")
_CONFIG = click.Option(
    ["--config", "config_file"],
    envvar="GNSQ_CONFIG",
    metavar="FILE",
    type=FILE,
    help=f"File with named clusters. Default: ~/.config/{CONFIG}.",
)
_VERBOSE = click.Option(
    ["-v", "--verbose"], count=True, help="Log connections, too. Twice: also each command and frame."
)
_CONNECTION_OPTIONS = [*SETTINGS.values(), _CLUSTER, _CONFIG, _VERBOSE]
# Levels of the log on stderr, by the number of -v.
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


@dataclass(frozen=True)
class Cluster:
    """The servers of a command, and how to connect to them.

    Attributes:
        nsqds: TCP addresses of nsqds, ``host:port``.
        lookupds: HTTP addresses of nsqlookupds.
        nsqds_http: HTTP addresses of nsqds; empty: those of nsqds, with the next port.
        connection: Options of ConnectionOptions.
        http: Options of HttpOptions.
        timeout: Limit in seconds of connecting, and of each request.
    """

    nsqds: tuple[str, ...]
    # Not shown by repr(): URLs may have a password, and the options have the secret for AUTH.
    lookupds: tuple[str, ...] = field(repr=False)
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)  # Any: each option has its own type
    http: Mapping[str, Any] = field(default_factory=dict, repr=False)  # Any: each option has its own type
    timeout: float = Settings.timeout
    nsqds_http: tuple[str, ...] = field(default=(), repr=False)

    def consumer(
        self,
        topic: str,
        channel: str,
        make: Callable[..., Consumer] = Consumer,
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
        return Producer(self.nsqds, lookupd_http_addresses=self.lookupds, **keywords)

    def lookupd_clients(self) -> list[LookupdClient]:
        """Make a client for each nsqlookupd."""
        return parse_lookupds(self.lookupds, self.http)

    def nsqd_client(self, address: str) -> NsqdHTTPClient:
        """Make a client of an nsqd's HTTP port."""
        return NsqdHTTPClient.from_url(address, **self.http)


class Command(click.Command):
    """A command whose help lists the connection options apart from its own options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two sections."""
        own: list[tuple[str, str]] = []
        connection: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            # click 8.5 has records of arguments, too, which the first line of the help shows.
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                (connection if parameter in _CONNECTION_OPTIONS else own).append(record)
        for title, records in (("Options", own), ("Connection (also GNSQ_... and in the file)", connection)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: a command's function
    """Add the connection options to a command's function, which gets the argument ``cluster`` in their place."""

    @functools.wraps(function)
    def with_cluster(**values: Any) -> Any:
        log_to_stderr(_LEVELS[min(values.pop("verbose"), len(_LEVELS) - 1)])
        given = given_settings(click.get_current_context())
        for name in SETTINGS:
            del values[name]
        return function(cluster=load_cluster(values.pop("cluster"), values.pop("config_file"), given), **values)

    _add_options(with_cluster, _CONNECTION_OPTIONS)
    return with_cluster


def given_settings(context: click.Context) -> dict[str, Any]:  # Any: each setting has its own type
    """Return the settings of the command line and, for the others, of the environment.

    If the command line names servers or a cluster, the addresses in the environment are not used: they may lead to
    another cluster.
    """
    given = {name: context.params.get(name) for name in SETTINGS}
    on_line = {
        name
        for name in (*ADDRESSES, HTTP_ADDRESSES, "cluster")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if not on_line.isdisjoint((*ADDRESSES, "cluster")):
        given |= dict.fromkeys({*ADDRESSES, HTTP_ADDRESSES} - on_line)
    return given


_TARGET_OPTIONS = [
    click.Option(["--to-nsqd"], multiple=True, metavar="HOST:PORT", help="TCP address of a target nsqd. Repeat."),
    click.Option(["--to-lookupd"], multiple=True, metavar="HOST:PORT", help="Publish to all nsqds of an nsqlookupd."),
    click.Option(["--to-cluster"], metavar="NAME", help="Publish to a cluster of the file."),
]


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: a command's function
    """Add options for a second cluster to a command's function, which gets the argument ``target`` in their place.

    To be used above @cluster_options. Without these options, the target is the cluster itself. Of the other options,
    such as those of TLS, the target has those of its cluster in the file, or else those of the first cluster.
    """

    @functools.wraps(function)
    def with_target(**values: Any) -> Any:
        nsqds, lookupds = values.pop("to_nsqd"), values.pop("to_lookupd")
        name, config_file = values.pop("to_cluster"), values["config_file"]
        given: dict[str, Any] = {"nsqd": nsqds, "lookupd": lookupds}
        if name is None:
            others = [setting for setting in SETTINGS if setting not in (*ADDRESSES, HTTP_ADDRESSES)]
            given = {**{setting: values[setting] for setting in others}, **given}
            name = values["cluster"]
        target = None
        if name is not values["cluster"] or nsqds or lookupds:
            target = load_cluster(name, config_file, given)
        return function(target=target, **values)

    _add_options(with_target, _TARGET_OPTIONS)
    return with_target


def _add_options(function: Any, options: list[click.Option]) -> None:  # Any: click stores its options in the function
    # click reads this list backwards, since decorators are called from the last one to the first one.
    function.__click_params__ = [*getattr(function, "__click_params__", []), *reversed(options)]


# --- the file


def config_path() -> Path:
    """Return the path of the default file, which may not exist."""
    # Unlike Path.expanduser(), this raises nothing if the home is unknown, as for a container's user without a name.
    return Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config")) / CONFIG


def load_cluster(name: str | None, config_file: str | None, given: Mapping[str, Any]) -> Cluster:
    """Make a cluster of the settings that are given and, for the others, of those in the file.

    If an address is given, the addresses in the file are not used.

    Args:
        name: Of a cluster in the file; None: the file's default cluster, if it names one.
        given: Settings by name; None or empty: not given.

    Raises:
        click.UsageError: If a setting is not valid, there is no such cluster, or there is no address.
    """
    path = Path(config_file) if config_file else config_path()
    # Unlike Path.exists(), this raises nothing if the directory must not be read.
    stored = _stored(path, name) if config_file or name or os.path.exists(path) else {}
    values = {key: value for key, value in given.items() if value not in (None, (), "")}
    if any(key in values for key in ADDRESSES):
        stored = {key: value for key, value in stored.items() if key not in (*ADDRESSES, HTTP_ADDRESSES)}
    values = {**stored, **values}
    try:
        return _cluster(Settings(**values))
    except (NSQException, OSError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _cluster(settings: Settings) -> Cluster:
    if any("://" in nsqd for nsqd in _split(settings.nsqd)):
        raise click.UsageError("--nsqd takes host:port, of nsqd's TCP port; --lookupd takes the URL of an nsqlookupd")
    nsqds = tuple(parse_addresses(_split(settings.nsqd)))
    lookupds = tuple(_split(settings.lookupd))
    if not nsqds and not lookupds:
        raise click.UsageError(
            "no address: give --nsqd or --lookupd, set GNSQ_NSQD or GNSQ_LOOKUPD, or name a cluster in "
            f"{config_path()} with --cluster"
        )
    timeout = settings.timeout
    connection: dict[str, Any] = {"timeout": timeout, "user_agent": _USER_AGENT}
    if any(getattr(settings, name) for name in SETTINGS if name.startswith("tls")):
        connection |= {"tls_v1": True, "tls_options": _tls(settings), "server_hostname": settings.tls_server_name}
    # For addresses that begin with https.
    http: dict[str, Any] = {"ca_certs": settings.tls_ca, "cert_file": settings.tls_cert, "key_file": settings.tls_key}
    http |= {"timeout": min(timeout, 5.0), "cert_reqs": "CERT_NONE" if settings.tls_insecure else "CERT_REQUIRED"}
    if settings.auth_secret_file:
        connection["auth_secret"] = _secret(settings.auth_secret_file)
    if settings.compression != "none":
        connection[settings.compression] = True
    ConnectionOptions(**connection)  # checks the options
    parse_lookupds(lookupds, http)  # checks the addresses
    cluster = Cluster(nsqds, lookupds, connection, http, timeout, tuple(_split(settings.nsqd_http)))
    for address in cluster.nsqds_http:
        cluster.nsqd_client(address)  # checks the address
    return cluster


_USER_AGENT = ConnectionOptions().user_agent.replace("/", "-cli/", 1)


def _split(addresses: tuple[str, ...]) -> list[str]:
    """Split values with commas or spaces, as an environment variable may have them."""
    return [address for value in addresses for address in re.split(r"[\s,]+", value) if address]


def _tls(settings: Settings) -> dict[str, Any]:
    import ssl

    if settings.tls_key and not settings.tls_cert:
        raise click.UsageError("--tls-key is given without --tls-cert")
    files = {"ca_certs": settings.tls_ca, "certfile": settings.tls_cert, "keyfile": settings.tls_key}
    options: dict[str, Any] = {key: file for key, file in files.items() if file}
    return options | ({"cert_reqs": ssl.CERT_NONE} if settings.tls_insecure else {})


def _secret(path: str) -> bytes:
    secret = Path(path).read_bytes().strip()
    if not secret:
        raise click.UsageError(f"--auth-secret-file {path} is empty")
    return secret


def _stored(path: Path, name: str | None) -> dict[str, Any]:
    """Read the settings of a cluster in a file.

    Raises:
        click.UsageError: If the file can't be read, or something in it is not valid.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also a number or a nesting above Python's limits
        raise click.UsageError(f"{path}: {error}") from error
    if unknown := sorted(set(content) - {"cluster", "clusters"}):
        raise click.UsageError(f"{path}: {unknown[0]} is unknown; known are cluster and the tables [clusters.NAME]")
    clusters = content.get("clusters", {})
    if not isinstance(clusters, dict) or not all(isinstance(table, dict) for table in clusters.values()):
        raise click.UsageError(f"{path}: clusters must be tables [clusters.NAME]")
    if name is None:
        name = content.get("cluster")
        if name is None:
            return {}
    if not isinstance(name, str):
        raise click.UsageError(f"{path}: cluster must be the name of a cluster, not {name!r}")
    if name not in clusters:
        raise click.UsageError(f"{path}: there is no cluster {name!r}{nearest([name], clusters, 'clusters are')}")
    if unknown := sorted(set(clusters[name]) - set(SETTINGS)):
        text = f"clusters.{name}.{unknown[0]} is unknown{nearest(unknown[:1], SETTINGS, 'settings are')}"
        raise click.UsageError(f"{path}: {text}")
    try:
        return {key: _read(_FIELDS[key], value, path.parent) for key, value in clusters[name].items()}
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"{path}: clusters.{name}.{error}") from error


def _read(field: Field, value: object, folder: Path) -> Any:  # Any: each setting has its own type
    checked = read_value(field, value)
    if field.metadata["form"] != "FILE" or not checked:
        return checked
    try:
        return FILE.convert(str(folder / os.path.expanduser(checked)), None, None)
    except click.BadParameter as error:
        raise ValueError(f"{field.name}: {error.message}") from error
