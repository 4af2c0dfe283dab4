"""``python -m gnsq.spark.receiver``: a receiver as its own process, for the option receivers=external.

Its flags are the fields of ReadOptions that a receiver uses, without the secrets; and those of the process itself. With
--processes it supervises several receivers, which are processes of the same program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gevent
from gevent.event import Event
from gevent.os import make_nonblocking, nb_read
from gevent.util import wrap_errors

from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQException
from gnsq.spark.clients import check_addresses
from gnsq.spark.options import QUERY_ONLY_OPTIONS, ReadOptions, ordered_fields, shown, spark_name
from gnsq.spark.receiver.health import HealthServer, parse_health_address, why_not_live, why_not_ready
from gnsq.spark.receiver.receiver import Receiver, tune_gc
from gnsq.spark.receiver.supervisor import Supervisor
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


def _run(verbose: bool, processes: int, health_address: str, supervised: bool, **values: Any) -> None:  # Any: click's
    """Write the messages of an NSQ channel into a spool that a Spark query reads, until SIGTERM or SIGINT.

    Then it asks for no more messages, writes those that it has into the spool, and ends, within 20 seconds. With
    --processes, a receiver that ends by itself is started again.

    Exit status: 0 if it has stopped in order; 1 if the spool can't be used, a receiver has failed, or one had to be
    killed; 2 if an option is wrong.

    Each option has an environment variable, too, such as GNSQ_RECEIVER_MAX_IN_FLIGHT. Secrets have only a variable:
    GNSQ_RECEIVER_AUTH_SECRET (or --auth-secret-file), GNSQ_RECEIVER_TLS_KEY_PASSWORD.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logger.setLevel(logging.INFO)
    stop = Event()
    signals = [gevent.signal_handler(number, stop.set) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        options = ReadOptions.parse(_spark_options(values))
        if not options.spool:
            raise ValueError("option spool is required")
        check_addresses(options)
        if health_address:
            _check_health_address(health_address)
        spool = Spool(options.spool, options.spool_permissions)
        if processes > 1:
            is_orderly = _supervise(processes, health_address, stop)
        else:
            if supervised:
                spawn("gnsq-stdin", _stop_after_input, stop, on_failure=lambda error: stop.set())
            is_orderly = _receive(options, spool, health_address, stop)
    except (ValueError, TypeError) as error:
        raise click.UsageError(_with_flag_names(str(error))) from error
    except OSError as error:
        location = redact_uri(values["spool"])
        raise click.ClickException(f"spool {location}: {error}: give a directory that can be written") from error
    except NSQException as error:
        raise click.ClickException(str(error)) from error
    for handler in signals:
        handler.cancel()
    sys.exit(0 if is_orderly else 1)


def _check_health_address(address: str) -> None:
    try:
        parse_health_address(address)
    except ValueError as error:
        raise ValueError(f"--health-address: {error}") from error


def _receive(options: ReadOptions, spool: Spool, health_address: str, stop: Event) -> bool:
    """Run one receiver. Return True if it has stopped in order."""
    tune_gc()
    receiver = Receiver(options, spool)
    checks = {"/live": lambda: why_not_live(receiver), "/ready": lambda: why_not_ready(receiver)}
    with _serving(health_address, checks, receiver):
        # The file system may hang. Until it answers, no message is received, and a signal may end the process.
        starting = spawn("gnsq-start", wrap_errors(Exception, receiver.start), on_failure=None)
        gevent.wait([stop, starting], count=1)
        if not starting.ready():
            click.echo("stopped before the spool could be written", err=True)
            return True
        if starting.value is not None:
            raise starting.value
        click.echo(f"receiving {options.source} into {spool.location}/{receiver.id}", err=True)
        _report(receiver, stop)
        receiver.close()
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
    return True


def _supervise(processes: int, health_address: str, stop: Event) -> bool:
    """Run several receivers. Return True if all have stopped in order."""

    def command(health_socket: str) -> list[str]:
        # The last value of a flag is valid.
        own = ["--processes=1", f"--health-address={health_socket}", "--supervised"]
        return [sys.executable, "-m", "gnsq.spark.receiver", *sys.argv[1:], *own]

    supervisor = Supervisor(command, processes)
    # The supervisor itself kills a child that hangs, so it is live as long as it answers.
    with _serving(health_address, {"/live": str, "/ready": supervisor.why_not_ready}, supervisor):
        return supervisor.run(stop)


@contextlib.contextmanager
def _serving(address: str, checks: Mapping[str, Callable[[], str]], measured: Receiver | Supervisor) -> Iterator[None]:
    """Serve the checks, and the metrics of a receiver or a supervisor, during the block; nothing without an address."""
    if not address:
        yield
        return
    checks, pages = dict(checks), {}
    try:
        from gnsq.spark.receiver.metrics import application

        pages["/metrics"] = application(measured)
    except ImportError as error:
        reason = str(error)
        checks["/metrics"] = lambda: reason
    try:
        server = HealthServer(address, checks, pages)
    except OSError as error:
        raise click.ClickException(
            f"--health-address {address}: {error.strerror}: give a free address of this machine"
        ) from error
    try:
        yield
    finally:
        server.close()


def _stop_after_input(stop: Event) -> None:
    """Set stop at the end of standard input, a pipe from the supervisor: the supervisor has ended."""
    make_nonblocking(0)
    while nb_read(0, 1024):
        pass
    stop.set()


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
        click.Option(
            ["--processes"],
            type=click.IntRange(min=1),
            default=1,
            envvar="GNSQ_RECEIVER_PROCESSES",
            metavar="PROCESSES",
            help="receivers to run, each in a process of its own; --max-in-flight is for each of them  [default: 1]",
        ),
        click.Option(
            ["--health-address"],
            default="",
            envvar="GNSQ_RECEIVER_HEALTH_ADDRESS",
            metavar="TEXT",
            help="host:port, or path of a unix socket, at which GET /live and /ready answer 200, or 503 and the "
            "reason, and GET /metrics answers for Prometheus",
        ),
        click.Option(["--supervised"], is_flag=True, hidden=True),
        click.Option(["-v", "--verbose"], is_flag=True, help="Log what connections do."),
    ],
)


if __name__ == "__main__":
    main()
