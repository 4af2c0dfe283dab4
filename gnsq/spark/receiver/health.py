"""Health of a receiver, for the probes of Kubernetes: what /live and /ready answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq.addresses import is_unix, parse_address

if TYPE_CHECKING:
    from gnsq.spark.receiver.receiver import Receiver

__all__ = ["parse_health_address", "why_not_live", "why_not_ready"]

# Seconds after which a call of the file system counts as hung.
IO_TIMEOUT = 60.0


def why_not_live(receiver: Receiver, io_timeout: float = IO_TIMEOUT) -> str:
    """Return why the process should be killed and started again; "" if it should not."""
    seconds = receiver.io_seconds
    if seconds is not None and seconds >= io_timeout:
        return f"the spool's file system has not answered for {seconds:.0f} s"
    return f"internal error: {receiver.error!r}" if receiver.error is not None else ""


def why_not_ready(receiver: Receiver) -> str:
    """Return why the receiver receives nothing; "" if it receives, or if nsqlookupd names no nsqd.

    A receiver that waits since the spool is full is ready: another one could not write more.
    """
    if not receiver.is_started:
        return "the spool is not open yet"
    if receiver.is_closing:
        return "stopping"
    if receiver.failing:
        return "the spool can't be written, see the log"
    failures = receiver.subscriptions.failures()
    if failures and not receiver.subscriptions.nsqds:
        return "; ".join(f"{address} not connected: {text}" for address, text in failures.items())
    return why_not_live(receiver)


def parse_health_address(address: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        ValueError: If there is no port, or the address is not valid.
    """
    host, port = parse_address(address, 0)
    if not port or is_unix(host):
        raise ValueError(f"address {address!r} has no port: give host:port, such as 0.0.0.0:8080")
    return host, port
