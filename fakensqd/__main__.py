"""The ``fakensqd`` program: dispatches to the two daemons at once, and to the rest of the command line."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the program that the first word names, and exit."""
    _prefer_the_gnsq_beside_us()
    from fakensqd.cli.program import PROGRAMS, exit_on_signals, run

    exit_on_signals()
    words = sys.argv[1:]
    if words and words[0] in PROGRAMS:
        # They have the flags of Go, and are to listen before click has been imported.
        sys.exit(run(words[0], words[1:]))
    try:
        from fakensqd.cli.main import command_line
    except ImportError as error:
        sys.exit(f"fakensqd's command line needs click: pip install 'gnsq[fakensqd]' ({error})")
    command_line(prog_name="fakensqd")


def _prefer_the_gnsq_beside_us() -> None:
    """Look for gnsq where this package lies: who starts us may have another in the working directory or on PYTHONPATH,
    as gnsq 1.0's own tests do."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = importlib.util.find_spec("gnsq")
    if found is None or found.origin is None or os.path.dirname(os.path.dirname(found.origin)) != home:
        sys.path.insert(0, home)


if __name__ == "__main__":
    main()
