"""``fakensqd nsqd`` and ``fakensqd nsqlookupd``: programs that replace the real ones.

Owns the process: flags, configuration file, log, signals, exit status. The test suite of a client waits until the
program listens, so modules that take long to import are imported at their first use. Source: apps/nsqd/main.go,
apps/nsqlookupd/main.go.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fakensqd.cli.flags import Flag, Value
    from fakensqd.daemon.daemon import Daemon

__all__ = ["PROGRAMS", "run"]

PROGRAMS = ("nsqd", "nsqlookupd")

# Exit status. Source: Go's flag.ExitOnError; nsq's logFatal.
_BAD_FLAGS = 2
_FATAL = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _FatalError(Exception):
    """The program cannot run; the text is for the log."""


def run(program: str, arguments: Sequence[str]) -> int:
    """Run nsqd or nsqlookupd until SIGINT or SIGTERM, or print its help or version; return the exit status."""
    from fakensqd.cli.flags import FlagError, flags_of, ignored_flags, options_of, parse, usage

    flags, hostname = flags_of(program), os.uname().nodename
    try:
        given = parse(flags, arguments)
    except FlagError as error:
        sys.stderr.write(f"{error}\n{usage(program, flags, hostname=hostname)}")
        return _BAD_FLAGS
    if given.get("help"):
        sys.stderr.write(usage(program, flags, hostname=hostname))
        return 0
    if given.get("version"):
        from fakensqd.options import NSQ_VERSION

        print(f"{program} v{NSQ_VERSION} (built w/go1.27.3)")
        return 0

    import logging

    from fakensqd import logs

    prefix = f"[{program}] "
    try:
        values = {**_read_config_file(flags, str(given.get("config", ""))), **given}
        prefix = str(values.get("log-prefix", prefix))
        # Other code that writes to stderr, such as gevent's hub, must not block either, so stderr is the log's handler.
        sys.stderr = logs.configure(str(values.get("log-level", "info")), prefix)
        _run_daemon(program, options_of(flags, values, hostname=hostname), ignored_flags(flags, values))
    except _FatalError as error:
        # The log shows this text at every log level.
        logs.configure("fatal", prefix)
        logging.getLogger(__name__).critical("%s", error)
        return _FATAL
    return 0


def _read_config_file(flags: tuple[Flag, ...], path: str) -> dict[str, Value]:
    if not path:
        return {}
    import tomllib

    from fakensqd.cli.flags import from_config_file

    try:
        with open(path, "rb") as file:
            return from_config_file(flags, tomllib.load(file))
    except (OSError, ValueError, RecursionError) as error:
        raise _FatalError(f"failed to load config file {path} - {error}") from error


def _run_daemon(program: str, options: Mapping[str, Value], ignored: Sequence[str]) -> None:
    import logging

    logger = logging.getLogger(__name__)
    # The start takes 112 ms without garbage collection, 120 ms with it: loading modules makes little garbage.
    gc.disable()
    try:
        listening = _listen(options)
        # This import takes 0.1 s. The ports listen already, so clients that connect meanwhile wait and are not refused.
        import gevent
        from gevent.event import Event

        stopping = Event()
        for number in _SIGNALS:
            gevent.signal_handler(number, stopping.set)
        daemon = _make_daemon(program, listening)
        daemon.start()
    except (OSError, ValueError, TypeError) as error:
        raise _FatalError(f"failed to instantiate {program} - {error}") from error
    gc.enable()
    if ignored:
        logger.warning("flags that this emulator ignores: %s", ", ".join(f"--{name}" for name in ignored))
    listeners = {
        "TCP": daemon.tcp_address,
        "HTTP": daemon.http_address,
        "HTTPS": daemon.https_address,
    }
    for kind, address in listeners.items():
        if address:
            logger.info("%s: listening on %s", kind, address)
    try:
        stopping.wait()  # until a signal comes
    finally:
        daemon.stop()
    logger.info("%s: bye", program)


def _listen(options: Mapping[str, Value]) -> dict[str, Any]:  # Any: options are of all types
    """Listen on the ports that the options ask for; return the options with the real addresses of these ports."""
    from fakensqd.addresses import listen_before_start

    found = dict(options)
    names = ["tcp_address", "http_address"]
    if options.get("tls_cert") and options.get("tls_key"):
        names.append("https_address")
    for name in names:
        address = str(options[name])
        if address or name == "tcp_address":
            try:
                found[name] = listen_before_start(_go_listen_address(address))
            except OSError as error:
                raise OSError(f"listen ({address}) failed - {error.strerror or error}") from error
    return found


def _go_listen_address(address: str) -> str:
    """Convert an address as Go does: an empty host or 0.0.0.0 includes IPv6; an address without a port is a path."""
    import socket

    if address and ":" not in address and "/" not in address:
        return f"./{address}"
    host, colon, port = address.rpartition(":")
    every = colon and host in ("", "0.0.0.0", "[::]") and socket.has_dualstack_ipv6()
    return f"[::]:{port}" if every else address


def _make_daemon(program: str, options: Mapping[str, Any]) -> Daemon:
    import fakensqd

    return fakensqd.FakeNsqd(**options) if program == "nsqd" else fakensqd.FakeLookupd(**options)
