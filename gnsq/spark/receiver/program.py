"""The command of ``python -m gnsq.spark.receiver``: a receiver as its own process, for the option receivers=external.

Its flags are the options of connections and the fields of ReadOptions that a receiver uses. Secrets have no flags, but
environment variables: every user of a machine can read a command line.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import click
import gevent
from gevent.event import Event
from gevent.util import wrap_errors

from gnsq.cli.parameters import SettingOption, setting_option, warn_of_unknown_variables
from gnsq.concurrency.greenlets import spawn
from gnsq.contrib.health import Answer, Pages, checked, serve
from gnsq.errors import NSQException
from gnsq.running import StopSignals
from gnsq.spark.clients import check_addresses
from gnsq.spark.options import ConnectOptions, ReadOptions, ordered_fields, spark_name
from gnsq.spark.receiver.health import parse_health_address, why_not_live, why_not_ready
from gnsq.spark.receiver.receiver import Receiver, tune_gc
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted, option_names, reason_of

__all__ = ["command"]

logger = logging.getLogger("gnsq.spark.receiver")

# Seconds between reports in the log.
STATUS_INTERVAL = 10.0
_PREFIX = "GNSQ_RECEIVER_"
# The options of the source that a receiver uses, beside those of connections.
_USED = [
    *["topic", "topic_pattern", "channel", "other_channels", "spool", "spool_mode", "max_in_flight", "segment_time"],
    *["max_spool_bytes", "msg_timeout"],
]
_FIELDS = [
    field for field in ordered_fields(ReadOptions) if field.name in {*_USED, *ConnectOptions.__dataclass_fields__}
]
_SECRETS = [field.name for field in _FIELDS if not field.repr]


def _option_names(context: click.Context) -> dict[str, str]:
    """Return how errors name the options here, by the names for Spark."""
    given_as = {each.name: each.given_as(context) for each in command.params if isinstance(each, SettingOption)}
    return {f"option {spark_name(field)}": given_as.get(field.name, _PREFIX + field.name.upper()) for field in _FIELDS}


def _run(verbose: bool, health_address: str, **values: Any) -> None:  # Any: each option has its own type
    """Write the messages of an NSQ channel into a spool that a Spark query reads, until SIGTERM or SIGINT.

    Then it asks for no more messages, writes those that it has into the spool, and ends, within 20 seconds. A second
    signal ends it at once. Run several for more throughput, each as a process of its own that systemd or Kubernetes
    starts again: they share the channel.

    Exit status: 0 after a graceful shutdown; 1 if the spool can't be used, or the receiver has failed; 2 if an option
    is wrong.

    Each option has an environment variable, too, such as GNSQ_RECEIVER_MAX_IN_FLIGHT. GNSQ_RECEIVER_AUTH_SECRET has no
    flag; another way is --auth-secret-file.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logger.setLevel(logging.INFO)
    warn_of_unknown_variables(_PREFIX, [_PREFIX + name.upper() for name in _SECRETS])
    given = {name: value for name, value in values.items() if value not in (None, ())}
    for name, value in given.items():
        if isinstance(value, tuple):
            given[name] = tuple(part.strip() for text in value for part in text.split(",") if part.strip())
    given |= {name: os.environ[_PREFIX + name.upper()] for name in _SECRETS if _PREFIX + name.upper() in os.environ}
    with option_names(_option_names(click.get_current_context())), StopSignals() as stop:
        try:
            options = ReadOptions(**given)
            if not options.spool:
                raise ValueError("--spool is required")
            check_addresses(options)
            _receive(options, Spool(options.spool, options.spool_permissions), health_address, stop.requested)
        except (ValueError, TypeError) as error:
            raise click.UsageError(str(error)) from error
        except OSError as error:
            location = redact_uri(values["spool"])
            raise click.ClickException(f"spool {location}: {error}: give a directory that can be written") from error
        except NSQException as error:
            raise click.ClickException(str(error)) from error


def _receive(options: ReadOptions, spool: Spool, health_address: str, stop: Event) -> None:
    """Run a receiver until stop is set."""
    tune_gc()
    receiver = Receiver(options, spool)
    with _serving(health_address, receiver):
        # The file system may hang. Until it answers, no message is received, and a signal may end the process.
        starting = spawn("gnsq-start", wrap_errors(Exception, receiver.start), on_failure=None)
        gevent.wait([stop, starting], count=1)
        if not starting.ready():
            click.echo("stopped before the spool could be written", err=True)
            return
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
    click.echo(f"stopped: {total}", err=True)
    if receiver.is_stuck:
        # With sys.exit(), pyarrow would wait half a minute for its last request.
        os._exit(0)


@contextlib.contextmanager
def _serving(address: str, receiver: Receiver) -> Iterator[None]:
    """Serve the checks and metrics of a receiver during the block; nothing without an address."""
    if not address:
        yield
        return
    pages: dict[str, Callable[[], Answer]] = {
        "/live": lambda: checked(why_not_live(receiver)),
        "/ready": lambda: checked(why_not_ready(receiver)),
    }
    try:
        from gnsq.contrib.prometheus import metrics_page
        from gnsq.spark.receiver.exporter import ReceiverCollector

        pages["/metrics"] = metrics_page(ReceiverCollector(receiver))
    except ImportError as error:
        pages["/metrics"] = functools.partial(checked, str(error))
    try:
        server = serve(*parse_health_address(address), Pages(pages))
    except OSError as error:
        raise click.ClickException(
            f"--health-address: {reason_of(error)}: give a free address of this machine"
        ) from error
    try:
        yield
    finally:
        server.stop(timeout=0)


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


def _checked_address(context: click.Context, parameter: click.Parameter, address: str) -> str:
    try:
        if address:
            parse_health_address(address)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return address


command = click.Command(
    "gnsq.spark.receiver",
    callback=_run,
    help=_run.__doc__,
    params=[
        *(setting_option(field, _PREFIX) for field in _FIELDS if field.name not in _SECRETS),
        SettingOption(
            ["--health-address"],
            default="",
            envvar=f"{_PREFIX}HEALTH_ADDRESS",
            metavar="HOST:PORT",
            callback=_checked_address,
            help="Answer GET /live and /ready with 200, or 503 and the reason, and GET /metrics for Prometheus.",
        ),
        SettingOption(["-v", "--verbose"], is_flag=True, envvar=f"{_PREFIX}VERBOSE", help="Log what connections do."),
    ],
)
