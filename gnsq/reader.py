"""Import path of Reader in gnsq 1.0."""

from gnsq.deprecated import Reader

__all__ = ["Reader"]
