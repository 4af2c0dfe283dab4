"""The ``gnsq`` program, also ``python -m gnsq``. Without click and rich it says what to install."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and exit."""
    try:
        from gnsq.cli.main import command_line
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit(f"gnsq's command line needs click and rich: pip install 'gnsq[cli]' ({error})")
    command_line(prog_name="gnsq")


if __name__ == "__main__":
    main()
