"""Reader, where gnsq 1.0 had it."""

from gnsq.deprecated import Reader

__all__ = ["Reader"]
