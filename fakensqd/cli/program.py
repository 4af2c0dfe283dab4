"""``fakensqd nsqd`` and ``fakensqd nsqlookupd``: the emulator as programs that take the real ones' place.

Owns the process: flags, configuration file, log, signals, exit status. A client's test-suite waits for the program to
listen: what takes long to import is imported when it is needed. Source: apps/nsqd/main.go, apps/nsqlookupd/main.go.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from fakensqd.golang.flags import Flag, FlagError, HelpWanted, Value, configured, parse, usage

if TYPE_CHECKING:
    from fakensqd.daemon.daemon import Daemon

__all__ = ["PROGRAMS", "leave_on_signals", "run"]

PROGRAMS = ("nsqd", "nsqlookupd")

# Exit status. Source: Go's flag.ExitOnError; nsq's logFatal.
_BAD_FLAGS = 2
_FATAL = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _FatalError(Exception):
    """The program cannot run; the text is for the log."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the command line and the configuration file come to."""

    options: Mapping[str, Value]
    ignored: Sequence[str]
    log_level: str
    log_prefix: str


def run(program: str, words: Sequence[str]) -> int:
    """Be nsqd or nsqlookupd until SIGINT or SIGTERM; give back the exit status."""
    from fakensqd.cli.flags import LOOKUPD_FLAGS, NSQD_FLAGS, faults_flags

    flags = (*(NSQD_FLAGS if program == "nsqd" else LOOKUPD_FLAGS), *faults_flags(program))
    try:
        given = parse(flags, words)
    except HelpWanted:
        sys.stderr.write(_usage(program, flags))
        return 0
    except FlagError as error:
        sys.stderr.write(f"{error}\n{_usage(program, flags)}")
        return _BAD_FLAGS
    if given.get("version"):
        from fakensqd.options import NSQ_VERSION

        print(f"{program} v{NSQ_VERSION} (built w/go1.27.3)")
        return 0
    return _serve(program, flags, given)


def leave_on_signals() -> None:
    """End with status 0 on SIGINT and SIGTERM, until there is a daemon to be stopped."""
    for number in _SIGNALS:
        signal.signal(number, _leave)


def _leave(*_: object) -> NoReturn:
    # Nothing is to be cleaned up yet; and an exception may strike code that drops it, as the callback of a weak
    # reference does, which imports use.
    os._exit(0)


def _usage(program: str, flags: tuple[Flag, ...]) -> str:
    """Say what flags there are, with the defaults that they have on this host."""
    from fakensqd.cli.flags import options_of

    defaults = options_of(flags, {}, hostname=os.uname().nodename)
    return usage(program, [replace(flag, default=defaults.get(flag.field, flag.default)) for flag in flags])


def _serve(program: str, flags: tuple[Flag, ...], given: Mapping[str, Value]) -> int:
    from fakensqd import logs

    prefix = f"[{program}] "
    try:
        settings = _settings(flags, given, prefix)
        prefix = settings.log_prefix
        # Whatever else writes there, gevent's hub for one, must not wait either.
        sys.stderr = logs.configure(settings.log_level, prefix)
        _run_daemon(program, settings)
    except _FatalError as error:
        import logging

        # Whatever the level is.
        logs.configure("fatal", prefix)
        logging.getLogger(__name__).critical("%s", error)
        return _FATAL
    return 0


def _settings(flags: tuple[Flag, ...], given: Mapping[str, Value], prefix: str) -> _Settings:
    from fakensqd.cli.flags import ignored_flags, options_of

    values = {**_configuration(flags, str(given.get("config", ""))), **given}
    return _Settings(
        options=options_of(flags, values, hostname=os.uname().nodename),
        ignored=ignored_flags(flags, values),
        log_level=str(values.get("log-level", "info")),
        log_prefix=str(values.get("log-prefix", prefix)),
    )


def _configuration(flags: tuple[Flag, ...], path: str) -> dict[str, Value]:
    if not path:
        return {}
    import tomllib

    try:
        with open(path, "rb") as file:
            return configured(flags, tomllib.load(file))
    except (OSError, ValueError) as error:
        raise _FatalError(f"failed to load config file {path} - {error}") from error


def _run_daemon(program: str, settings: _Settings) -> None:
    import logging

    logger = logging.getLogger(__name__)
    # Hardly anything of what is made until all is loaded becomes garbage: 8 ms of 120.
    gc.disable()
    try:
        if program == "nsqd":
            from fakensqd.cli.flags import check_start

            check_start(settings.options)
        options = _listening_early(settings.options)
        # 0.1 s; who connects meanwhile waits.
        import gevent
        from gevent.event import Event

        over = Event()
        for number in _SIGNALS:
            gevent.signal_handler(number, over.set)
        daemon = _daemon(program, options)
        daemon.start()
    except (OSError, ValueError, TypeError) as error:
        raise _FatalError(f"failed to instantiate {program} - {error}") from error
    gc.enable()
    if settings.ignored:
        names = ", ".join(f"--{name}" for name in settings.ignored)
        logger.warning("accepted, and without a meaning in this emulator: %s", names)
    listeners = {
        "TCP": daemon.tcp_address,
        "HTTP": daemon.http_address,
        "HTTPS": daemon.https_address,
        "FAULTS": daemon.faults_http_address,
    }
    for kind, address in listeners.items():
        if address:
            logger.info("%s: listening on %s", kind, address)
    try:
        over.wait()  # until a signal comes
    finally:
        daemon.stop()
    logger.info("%s: bye", program)


def _listening_early(options: Mapping[str, Value]) -> dict[str, Any]:  # Any: options are of all types
    """Take the ports; give back the options with what they really are."""
    from fakensqd.addresses import listen_before_start

    found = dict(options)
    names = ["tcp_address", "http_address"]
    if options.get("tls_cert") and options.get("tls_key"):
        names.append("https_address")
    if options.get("faults_over_http"):
        names.append("faults_http_address")
    for name in names:
        address = str(options[name])
        if address or name == "tcp_address":
            try:
                found[name] = listen_before_start(_as_go_means(address))
            except OSError as error:
                raise OSError(f"listen ({address}) failed - {error.strerror or error}") from error
    return found


def _daemon(program: str, options: Mapping[str, Any]) -> Daemon:
    if program == "nsqd":
        from fakensqd.nsqd.server import FakeNsqd

        return FakeNsqd(**options)
    from fakensqd.lookupd.server import FakeLookupd

    return FakeLookupd(**options)


def _as_go_means(address: str) -> str:
    """Listen for IPv6, too, where Go does: on every address of the host. What has no port is a path."""
    import socket

    if ":" not in address and "/" not in address:
        return f"./{address}"
    host, colon, port = address.rpartition(":")
    every = colon and host in ("", "0.0.0.0", "[::]") and socket.has_dualstack_ipv6()
    return f"[::]:{port}" if every else address
