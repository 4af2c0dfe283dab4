"""The ``gnsq`` program, also ``python -m gnsq``. Without click and rich it says what to install."""

from __future__ import annotations

import sys

from gnsq.startup import EndingAtSignals, ignore_signals

TYPE_CHECKING = False  # see gnsq/__init__.py
if TYPE_CHECKING:
    from typing import TextIO

    import click

    from gnsq.running import StopSignals

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and exit."""
    with EndingAtSignals():
        try:
            import rich  # noqa: F401  # most commands load it later

            from gnsq.cli.group import program
            from gnsq.cli.main import command_line
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("click", "rich"):
                raise
            sys.exit(f"gnsq's command line needs click and rich: pip install 'gnsq[cli]' ({error})")
        if sys.stdout is None:
            sys.exit("Error: stdout is closed; give the command a file or a pipe to write to")
        with program() as stop:
            status = _run(command_line, stop)
            ignore_signals()
    sys.exit(status)


def _run(command_line: click.Group, stop: StopSignals) -> int:
    """Run the command, write what is left of its output, and return its status."""
    import contextlib  # loaded by now; before main() it would take time

    status: int | str | None
    try:
        status = command_line(prog_name="gnsq", obj=stop)
    except SystemExit as ended:
        status = ended.code
    except OSError as error:  # such as that of a full disk
        status = f"Error: {error}"
    # click wraps both if a reader has ended. At its end Python flushes both; if it can't, the status is 120.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    if (failure := _flush(sys.stdout)) is not None and status in (None, 0, 1):
        status = 1 if isinstance(failure, BrokenPipeError) else f"Error: {failure}"
    if isinstance(status, str):
        if sys.stderr is not None:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{status}\n")
        status = 1
    _flush(sys.stderr)
    return status or 0


def _flush(stream: TextIO | None) -> OSError | None:
    """Write what a stream has buffered. If that fails, close the stream, and return the error."""
    if stream is None or stream.closed:
        return None
    import contextlib

    try:
        stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            stream.close()
        return error
    return None


if __name__ == "__main__":
    main()
