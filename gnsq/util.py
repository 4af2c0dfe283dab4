"""Functions for addresses, by the names of gnsq 1.0."""

from __future__ import annotations

from gnsq.addresses import Addresses, format_address, parse_address, parse_addresses
from gnsq.discovery import parse_lookupds

__all__ = ["normalize_nsqd_address", "parse_lookupds", "parse_nsqds"]


def normalize_nsqd_address(address: str) -> str:
    """Return an address as ``host:port``. Raises the errors of parse_address()."""
    return format_address(*parse_address(address))


def parse_nsqds(addresses: Addresses) -> set[str]:
    """Return one or several addresses as a set of ``host:port``. Raises the errors of parse_addresses()."""
    return set(parse_addresses(addresses))
