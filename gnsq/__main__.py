"""The ``gnsq`` program, also ``python -m gnsq``. Without click and rich it says what to install."""

from __future__ import annotations

import contextlib
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
    if sys.stdout is None:
        sys.exit("Error: stdout is closed; give the command a file or a pipe to write to")
    try:
        command_line(prog_name="gnsq")
    except OSError as error:  # such as that of a full disk
        # Python would write the rest at its end, and fail again.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
