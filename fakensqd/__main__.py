"""The ``fakensqd`` program."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys

__all__ = ["exit_on_signals", "main"]


def main() -> None:
    """Run the command that the arguments name, and exit."""
    exit_on_signals()
    _prefer_own_gnsq()
    try:
        from fakensqd.cli.main import command_line
    except ImportError as error:
        sys.exit(f"fakensqd's command line needs click: pip install 'gnsq[fakensqd]' ({error})")
    command_line(prog_name="fakensqd")


def exit_on_signals() -> None:
    """Exit with status 0 on SIGINT and SIGTERM, until a daemon handles them. Called first: imports take time."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)


def _exit(*_: object) -> None:
    # Not sys.exit(): code that drops exceptions could drop its SystemExit. Imports run such code: callbacks of weak
    # references. os._exit() skips all cleanup, but there is nothing to clean up yet.
    os._exit(0)


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
