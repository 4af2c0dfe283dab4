"""``python -m gnsq.spark.receiver``. Says in one line what to install, or that a signal came before the start."""

from __future__ import annotations

import sys

from gnsq.startup import EndingAtSignals

__all__ = ["main"]


def main() -> None:
    """Run a receiver until a signal comes, and exit."""
    try:
        with EndingAtSignals():
            from gnsq.spark.receiver.program import command
    except ImportError as error:
        sys.exit(f"gnsq.spark.receiver needs click and pyarrow: pip install 'gnsq[spark]' ({error})")
    command()


if __name__ == "__main__":
    main()
