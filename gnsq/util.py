"""Functions for addresses, by the names of gnsq 1.0."""

from __future__ import annotations

from gnsq.addresses import format_address, parse_address, parse_addresses
from gnsq.discovery import parse_lookupds

__all__ = ["normalize_nsqd_address", "parse_lookupds", "parse_nsqds"]


def normalize_nsqd_address(address: str) -> str:
    """Return an address as ``host:port``; raises as parse_address()."""
    return format_address(*parse_address(address))


parse_nsqds = parse_addresses
