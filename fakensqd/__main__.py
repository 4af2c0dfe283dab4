"""The ``fakensqd`` program. Runs ``nsqd`` and ``nsqlookupd`` without click, other commands with click."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the program or command that the arguments name, and exit."""
    _prefer_own_gnsq()
    from fakensqd.cli.program import PROGRAMS, exit_on_signals, run

    exit_on_signals()
    arguments = sys.argv[1:]
    if arguments and arguments[0] in PROGRAMS:
        # nsqd and nsqlookupd read Go's flags without click: they start faster, because click is not imported.
        sys.exit(run(arguments[0], arguments[1:]))
    try:
        from fakensqd.cli.main import command_line
    except ImportError as error:
        sys.exit(f"fakensqd's command line needs click: pip install 'gnsq[fakensqd]' ({error})")
    command_line(prog_name="fakensqd")


def _prefer_own_gnsq() -> None:
    """Let later imports find the gnsq beside the fakensqd package, even if PYTHONPATH or the working directory has one.

    The tests of gnsq 1.0 run the program in such a directory.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = importlib.util.find_spec("gnsq")
    if found is None or found.origin is None or os.path.dirname(os.path.dirname(found.origin)) != home:
        sys.path.insert(0, home)


if __name__ == "__main__":
    main()
