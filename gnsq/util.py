"""Addresses as users write them, under the names of gnsq 1.0."""

from __future__ import annotations

from gnsq.addresses import format_address, parse_address, parse_addresses
from gnsq.discovery import parse_lookupds

__all__ = ["normalize_nsqd_address", "parse_lookupds", "parse_nsqds"]


def normalize_nsqd_address(address: str) -> str:
    """Write an address as ``host:port``.

    Raises:
        TypeError, ValueError: As parse_address().
    """
    return format_address(*parse_address(address))


parse_nsqds = parse_addresses
