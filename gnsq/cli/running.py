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
from gnsq.texts import option_names

__all__ = ["log_to_stderr", "program", "running"]


def log_to_stderr(level: int) -> None:
    """Log lines of gnsq from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("gnsq")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    if level >= logging.WARNING:
        # The commands do not block their hub. On a busy machine the warning of a blocked hub says nothing to do.
        logging.getLogger("gnsq.concurrency.hub_monitor").setLevel(logging.ERROR)


# The options that errors of gnsq ask for, by their names in Python.
_OPTIONS = {
    "auth_secret": "--auth-secret-file",
    "ca_certs": "--tls-ca",
    "ca_certs in tls_options": "--tls-ca",
    "cert_file and key_file": "--tls-cert and --tls-key",
    "cert_reqs=CERT_NONE": "--tls-insecure",
    "cert_reqs=ssl.CERT_NONE": "--tls-insecure",
    "certfile and keyfile in tls_options": "--tls-cert and --tls-key",
    "server_hostname": "--tls-server-name",
    "tls_options": "the --tls options",
    "tls_v1=True": "--tls",
}


@contextlib.contextmanager
def program() -> Iterator[StopSignals]:
    """Receive SIGINT and SIGTERM around a whole command, which gets them as click's context object; and let errors name
    the command line's options.

    So a signal that comes before the command begins its work, or after it, does not end the process in another way.
    """
    with option_names(_OPTIONS), StopSignals(before_end=_show_cursor) as stop:
        yield stop


@contextlib.contextmanager
def running(*, says_why: bool = False) -> Iterator[StopSignals]:
    """Yield the stop signals; raise click's exception for an expected error, so that it is one line on stderr.

    Args:
        says_why: True if the command ends at a failure, and says why. Then warnings would say it twice: they are logged
            with -v only.
    """
    logger = logging.getLogger("gnsq")
    if says_why and logger.level == logging.WARNING:
        logger.setLevel(logging.ERROR)
    stop = click.get_current_context().find_object(StopSignals)
    assert stop is not None  # see program()
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
