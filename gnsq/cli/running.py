"""Shared by all commands while they run: log to stderr, end in order at a signal, and turn errors into one line."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

import click

from gnsq.errors import NSQException
from gnsq.running import StopSignals

__all__ = ["log_to_stderr", "running", "stop_signals"]


def log_to_stderr(level: int) -> None:
    """Log lines of gnsq from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("gnsq")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)


def stop_signals() -> StopSignals:
    """Receive SIGINT and SIGTERM in a ``with`` block around a whole command, which gets it as click's context object.

    So a signal that comes before the command begins its work, or after it, does not end the process in another way.
    """
    return StopSignals(before_end=_show_cursor)


@contextlib.contextmanager
def running() -> Iterator[StopSignals]:
    """Yield the stop signals; raise click's exception for an expected error, so that it is one line on stderr."""
    stop = click.get_current_context().find_object(StopSignals)
    assert stop is not None  # see stop_signals()
    try:
        yield stop
    except BrokenPipeError:
        # The reader of stdout or stderr, such as head, has ended. Python would write the rest at its end, and fail
        # again.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        sys.exit(1)
    except (NSQException, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _show_cursor() -> None:
    """Show the cursor again, which rich hides while it shows progress."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h")
