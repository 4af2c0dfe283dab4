"""``fakensqd nsqd`` and ``fakensqd nsqlookupd``: programs that replace the real ones.

Owns the process: log, signals, exit status. The test suite of a client waits until the program listens, so modules that
take long to import are imported at their first use.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fakensqd import logs
from fakensqd.addresses import listen_before_start
from gnsq.texts import reason_of

if TYPE_CHECKING:
    from fakensqd.daemon.daemon import Daemon

__all__ = ["run"]

logger = logging.getLogger(__name__)

# Hosts that mean all addresses of this machine.
_EVERYWHERE = ("", "0.0.0.0", "[::]")


def run(program: str, options: Mapping[str, Any], ignored: Sequence[str]) -> int:  # Any: options are of all types
    """Run nsqd or nsqlookupd until SIGINT or SIGTERM; return the exit status.

    Args:
        ignored: Flags that were given and have no effect.
    """
    # Other code that writes to stderr, such as gevent's hub, must not block either, so stderr is the log's handler.
    sys.stderr = logs.configure(options.get("log_level", "info"))
    # The start takes 247 ms without garbage collection, 259 ms with it: loading modules makes little garbage.
    gc.disable()
    try:
        listening = _listen({"broadcast_address": _broadcast_address(options["tcp_address"]), **options})
        # This import takes 0.1 s. The ports listen already, so clients that connect meanwhile wait and are not refused.
        import gevent
        from gevent.event import Event

        stopping = Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            gevent.signal_handler(number, stopping.set)
        daemon = _make_daemon(program, listening)
        daemon.start()
    except (OSError, ValueError, TypeError) as error:
        # The log shows this line at every level.
        logger.critical("cannot start %s: %s", program, error)
        return 1
    gc.enable()
    if ignored:
        logger.warning("flags that this emulator ignores: %s", ", ".join(ignored))
    # Programs read these lines.
    for kind, address in (("TCP", daemon.tcp_address), ("HTTP", daemon.http_address), ("HTTPS", daemon.https_address)):
        if address:
            logger.info("%s: listening on %s", kind, address)
    try:
        stopping.wait()  # until a signal comes
    finally:
        daemon.stop()
    return 0


def _listen(options: Mapping[str, Any]) -> dict[str, Any]:
    """Listen on the ports that the options ask for; return the options with the real addresses of these ports."""
    found = dict(options)
    names = ["tcp_address", "http_address"]
    if options.get("tls_cert") and options.get("tls_key"):
        names.append("https_address")
    for name in names:
        address = options[name]
        if address or name == "tcp_address":
            try:
                found[name] = listen_before_start(_go_listen_address(address))
            except OSError as error:
                raise OSError(f"cannot listen on {address}: {reason_of(error)}") from error
    return found


def _broadcast_address(tcp_address: str) -> str:
    """Return the address under which clients reach a server; the name of this machine if it listens on all of them."""
    host, colon, _ = tcp_address.rpartition(":")
    return os.uname().nodename if not colon or host in _EVERYWHERE else host.strip("[]")


def _go_listen_address(address: str) -> str:
    """Convert an address as Go does: an empty host or 0.0.0.0 includes IPv6; an address without a port is a path."""
    if address and ":" not in address and "/" not in address:
        return f"./{address}"
    host, colon, port = address.rpartition(":")
    every = colon and host in _EVERYWHERE and socket.has_dualstack_ipv6()
    return f"[::]:{port}" if every else address


def _make_daemon(program: str, options: Mapping[str, Any]) -> Daemon:
    import fakensqd

    if program == "nsqd":
        return fakensqd.FakeNsqd(**options)
    return fakensqd.FakeLookupd(**{name: value for name, value in options.items() if name != "log_level"})
