"""``python -m gnsq.spark.receiver``: a receiver as a process of its own, for the option receivers=external.

Its flags are ReadOptions' fields, those that a receiver has a use for.
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
from gevent.event import AsyncResult, Event

from gnsq.errors import NSQException
from gnsq.spark.clients import check_addresses
from gnsq.spark.options import ReadOptions, ordered_fields, shown, spark_name
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

STATUS_INTERVAL = 10.0
PREFIX = "GNSQ_RECEIVER_"
# What the query alone does.
_QUERY_ONLY_OPTIONS = {
    *["nsqd_http_addresses", "spool_owner", "receivers", "max_rows_per_batch", "max_bytes_per_batch"],
    *["num_partitions", "max_rows", "idle_timeout"],
}
_FIELDS = [field for field in ordered_fields(ReadOptions) if field.name not in _QUERY_ONLY_OPTIONS]


def _is_hidden(field: dataclasses.Field[Any]) -> bool:
    """Whether it comes by environment alone: a command line can be read by everyone on the host."""
    return not field.repr and field.type == "str"


def _flag(field: dataclasses.Field[Any]) -> str:
    name = field.name.replace("_", "-")
    return "--" + (name.removesuffix("es") if str(field.type).startswith("tuple") else name)


def _variable(field: dataclasses.Field[Any]) -> str:
    return PREFIX + field.name.upper()


def _user_name(field: dataclasses.Field[Any]) -> str:
    """Name an option as users of the command line write it."""
    return _variable(field) if _is_hidden(field) else _flag(field)


def _with_flag_names(text: str) -> str:
    """Put flags in the place of Spark's names of options."""
    for field in _FIELDS:
        name = spark_name(field)
        before = r"options? " if name.islower() else r"(?:options? )?"
        text = re.sub(rf"\b{before}{name}\b", _user_name(field), text)
    return text


def _option(field: dataclasses.Field[Any]) -> click.Option:
    flag, kind, many = _flag(field), str(field.type), str(field.type).startswith("tuple")
    if kind == "bool":
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    meaning = _with_flag_names(field.metadata["meaning"]) + (" (may be given again)" if many else "")
    default = f"  [default: {shown(field.default)}]" if shown(field.default) else ""
    unit = field.metadata["unit"]
    return click.Option(
        [flag, field.name],
        multiple=many,
        default=None,
        type=None if kind == "bool" else str,
        metavar=None if kind == "bool" else (unit or "TEXT").upper(),
        envvar=_variable(field),
        help=meaning + default,
    )


def _spark_options(values: dict[str, Any]) -> dict[str, str]:  # Any: as click gives them
    """Write what was given as Spark's options."""
    texts: dict[str, str] = {}
    for field in _FIELDS:
        value = os.environ.get(_variable(field)) if _is_hidden(field) else values[field.name]
        if value not in (None, ()):
            texts[spark_name(field)] = ",".join(value) if isinstance(value, tuple) else str(value)
    return texts


def _run(verbose: bool, **values: Any) -> None:  # Any: as above
    """Write the messages of an NSQ channel into a spool that a Spark query reads, until SIGTERM or SIGINT.

    Each option has an environment variable, too, such as GNSQ_RECEIVER_MAX_IN_FLIGHT. Secrets have no option but that:
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
        if not _start_unless_stopped(receiver, stop):
            click.echo("stopped before the spool could be written", err=True)
            sys.exit(0)
    except (ValueError, TypeError) as error:
        raise click.UsageError(_with_flag_names(str(error))) from error
    except OSError as error:
        raise click.ClickException(
            f"spool {redact_uri(values['spool'])}: {error}: give a directory that can be written"
        ) from error
    except NSQException as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"receiving {options.source} into {spool.location}/{receiver.id}", err=True)
    _watch(receiver, stop)
    receiver.close()
    for handler in signals:
        handler.cancel()
    total = f"{counted(receiver.rows, 'row')} in {counted(receiver.segments, 'segment')}"
    if receiver.error is not None:
        raise click.ClickException(
            f"nothing can be written any more: {receiver.error!r}; its traceback is in the log. {total} are in the "
            "spool; what was received besides is given back to nsqd"
        )
    click.echo(f"stopped in order: {total}", err=True)
    if receiver.is_stuck:
        # pyarrow would wait for its last request, half a minute.
        os._exit(0)
    sys.exit(0)


def _start_unless_stopped(receiver: Receiver, stop: Event) -> bool:
    """Start; False if told to stop first: a file system may take its time, and nothing is received before it has."""
    started: AsyncResult[None] = AsyncResult()

    def start() -> None:
        try:
            receiver.start()
            started.set(None)
        except Exception as error:  # noqa: BLE001  # raised below, whatever it is
            started.set_exception(error)

    gevent.spawn(start)
    gevent.wait([stop, started], count=1)
    if not started.ready():
        return False
    started.get()
    return True


def _watch(receiver: Receiver, stop: Event) -> None:
    """Report until told to stop, or the writing ends for good."""
    before = receiver.rows
    while not stop.is_set() and receiver.error is None:
        gevent.wait([stop, receiver.finished], timeout=STATUS_INTERVAL, count=1)
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
        *map(_option, (field for field in _FIELDS if not _is_hidden(field))),
        click.Option(["-v", "--verbose"], is_flag=True, help="Say what connections do."),
    ],
)


if __name__ == "__main__":
    main()
