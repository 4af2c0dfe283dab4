"""The ``fakensqd`` program: dispatches to the two daemons at once, and to the rest of the command line."""

from __future__ import annotations

import sys

from fakensqd.program import PROGRAMS, run

__all__ = ["main"]


def main() -> None:
    """Run the program that the first word names, and exit."""
    words = sys.argv[1:]
    if words and words[0] in PROGRAMS:
        # They have the flags of Go, and are to listen before click has been imported.
        sys.exit(run(words[0], words[1:]))
    try:
        from fakensqd.cli import command_line
    except ImportError as error:
        sys.exit(f"fakensqd's command line needs click: pip install 'gnsq[fakensqd]' ({error})")
    command_line(prog_name="fakensqd")


if __name__ == "__main__":
    main()
