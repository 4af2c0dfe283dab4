"""``python -m gnsq.spark.receiver``: a receiver as its own process, for the option receivers=external.

Its flags are the fields of ReadOptions that a receiver uses, without the secrets; and --verbose.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import signal
import sys
from typing import Any

import gevent
from gevent.event import Event
from gevent.util import wrap_errors

from gnsq.errors import NSQException
from gnsq.spark.clients import check_addresses
from gnsq.spark.options import QUERY_ONLY_OPTIONS, ReadOptions, ordered_fields, shown, spark_name
from gnsq.spark.receiver.receiver import Receiver, tune_gc
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

try:
    import click

    from gnsq.spark.spool.spool import Spool
except ImportError as error:
    raise SystemExit(f"gnsq.spark.receiver needs click and pyarrow: pip install 'gnsq[spark]' ({error})") from None

__all__ = ["main"]

logger = logging.getLogger("gnsq.spark.receiver")

# Seconds between reports in the log.
STATUS_INTERVAL = 10.0
_FIELDS = [field for field in ordered_fields(ReadOptions) if field.name not in QUERY_ONLY_OPTIONS]


# --- fields as flags

Field = dataclasses.Field[Any]  # Any: each option has its own type


def _is_secret(field: Field) -> bool:
    """Return True for an option that has an environment variable but no flag: every user can read a command line."""
    return not field.repr and field.type == "str"


def _is_list(field: Field) -> bool:
    return str(field.type).startswith("tuple")


def _variable(field: Field) -> str:
    return f"GNSQ_RECEIVER_{field.name.upper()}"


def _flag(field: Field) -> str:
    name = field.name.replace("_", "-")
    return "--" + (name.removesuffix("es") if _is_list(field) else name)


def _with_flag_names(text: str) -> str:
    """Replace Spark's names of options in a text by the names of flags and environment variables."""
    for field in _FIELDS:
        name = spark_name(field)
        before = r"options? " if name.islower() else r"(?:options? )?"
        text = re.sub(rf"\b{before}{name}\b", _variable(field) if _is_secret(field) else _flag(field), text)
    return text


def _click_option(field: Field) -> click.Option:
    flag, is_bool, default = _flag(field), field.type == "bool", shown(field.default)
    return click.Option(
        [f"{flag}/--no-{flag.removeprefix('--')}" if is_bool else flag, field.name],
        multiple=_is_list(field),
        default=None,
        type=None if is_bool else str,
        metavar=None if is_bool else (field.metadata["unit"] or "TEXT").upper(),
        envvar=_variable(field),
        help=_with_flag_names(field.metadata["meaning"])
        + (" (may be given again)" if _is_list(field) else "")
        + (f"  [default: {default}]" if default else ""),
    )


def _spark_options(values: dict[str, Any]) -> dict[str, str]:  # Any: as click passes them
    texts: dict[str, str] = {}
    for field in _FIELDS:
        value = os.environ.get(_variable(field)) if _is_secret(field) else values[field.name]
        if value not in (None, ()):
            texts[spark_name(field)] = ",".join(value) if isinstance(value, tuple) else str(value)
    return texts


# --- the program


def _run(verbose: bool, **values: Any) -> None:  # Any: as click passes them
    """Write the messages of an NSQ channel into a spool that a Spark query reads, until SIGTERM or SIGINT.

    Each option has an environment variable, too, such as GNSQ_RECEIVER_MAX_IN_FLIGHT. Secrets have only a variable:
    GNSQ_RECEIVER_AUTH_SECRET (or --auth-secret-file), GNSQ_RECEIVER_TLS_KEY_PASSWORD.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logger.setLevel(logging.INFO)
    tune_gc()
    stop = Event()
    signals = [gevent.signal_handler(number, stop.set) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        options = ReadOptions.parse(_spark_options(values))
        if not options.spool:
            raise ValueError("option spool is required")
        check_addresses(options)
        spool = Spool(options.spool, options.spool_permissions)
        receiver = Receiver(options, spool)
        # The file system may hang. Until it answers, no message is received, and a signal may end the process.
        starting = gevent.spawn(wrap_errors(Exception, receiver.start))
        gevent.wait([stop, starting], count=1)
        if not starting.ready():
            click.echo("stopped before the spool could be written", err=True)
            sys.exit(0)
        if starting.value is not None:
            raise starting.value
    except (ValueError, TypeError) as error:
        raise click.UsageError(_with_flag_names(str(error))) from error
    except OSError as error:
        location = redact_uri(values["spool"])
        raise click.ClickException(f"spool {location}: {error}: give a directory that can be written") from error
    except NSQException as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"receiving {options.source} into {spool.location}/{receiver.id}", err=True)
    _report(receiver, stop)
    receiver.close()
    for handler in signals:
        handler.cancel()
    total = f"{counted(receiver.rows, 'row')} in {counted(receiver.segments, 'segment')}"
    if receiver.error is not None:
        raise click.ClickException(
            f"nothing can be written any more: {receiver.error!r}; its traceback is in the log. {total} are in the "
            "spool; other received messages are requeued at nsqd"
        )
    click.echo(f"stopped in order: {total}", err=True)
    if receiver.is_stuck:
        # With sys.exit(), pyarrow would wait half a minute for its last request.
        os._exit(0)
    sys.exit(0)


def _report(receiver: Receiver, stop: Event, interval: float = STATUS_INTERVAL) -> None:
    """Log rows and failures regularly, until stop is set or the receiver fails."""
    before = receiver.rows
    while not stop.is_set() and receiver.error is None:
        gevent.wait([stop, receiver.finished], timeout=interval, count=1)
        nsqds, failures = receiver.subscriptions.nsqds, receiver.subscriptions.failures()
        logger.info(
            "%s in %s, %d of them since the last report; connected nsqds: %d",
            counted(receiver.rows, "row"),
            counted(receiver.segments, "segment"),
            receiver.rows - before,
            nsqds,
        )
        before = receiver.rows
        for address, failure in failures.items():
            logger.warning("%s: not connected: %s", address, failure)
        if not nsqds and not failures:
            topics = ", ".join(receiver.subscriptions.topics) or "any topic that matches"
            logger.warning("nothing to connect to: no nsqlookupd names an nsqd for %s", topics)


main = click.Command(
    "gnsq.spark.receiver",
    callback=_run,
    help=_run.__doc__,
    params=[
        *(_click_option(field) for field in _FIELDS if not _is_secret(field)),
        click.Option(["-v", "--verbose"], is_flag=True, help="Log what connections do."),
    ],
)


if __name__ == "__main__":
    main()
