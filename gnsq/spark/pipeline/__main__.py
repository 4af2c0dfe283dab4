"""The job's command line."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gnsq.errors import NSQException
from gnsq.spark.errors import JobFailed, JobStopped
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.loading import load_config, setting_options
from gnsq.spark.pipeline.report import Batch
from gnsq.texts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gnsq.spark.pipeline.session import OpenSession

__all__ = ["main", "run_job"]


@click.command(context_settings={"auto_envvar_prefix": "GNSQ_PIPELINE", "show_default": False})
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    envvar="GNSQ_PIPELINE_CONFIG",
    help="TOML file with any of these settings.",
)
@setting_options
@click.option("--once", is_flag=True, help="End when what is in the channels now has been worked off; for cron.")
@click.option("--new-topic", is_flag=True, help="Start although no nsqd has the topic yet.")
@click.option(
    "--take-over",
    is_flag=True,
    help="Go on with tables that belong to another checkpoint, such as one that is lost. That job must not run.",
)
@click.option("--status", is_flag=True, help="Tell where the queries stand, and end. Starts no Spark.")
@click.argument("action", required=False, type=click.Choice(["maintain"]))
@click.pass_obj
def main(
    session: OpenSession | None,
    /,
    config_file: str | None,
    once: bool,
    new_topic: bool,
    take_over: bool,
    status: bool,
    action: str | None,
    **settings: object,
) -> None:
    """Archive events from NSQ in a Delta table, and count them by window and key. Stop it with Ctrl-C or SIGTERM.

    A terminal shows the queries live; other output gets a line for each batch.

    maintain: only merge small files of the tables and delete files that are not needed any more, now; for cron, also
    while the job runs.

    Each setting may be given here, as environment variable GNSQ_PIPELINE_SETTING, or in a TOML file, by its name with
    underscores; what is given here wins.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    _quiet_py4j()
    try:
        config = load_config(config_file, settings)
        if once and not config.nsqd_http_addresses and not config.lookupd_http_addresses:
            raise ValueError("--once needs nsqd_http_addresses or lookupd_http_addresses, to know when all is read")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if status:
        from gnsq.spark.pipeline.status import status_lines  # loads pyarrow

        for line in status_lines(config, dt.datetime.now(dt.UTC)):
            click.echo(line)
        return
    try:
        if action == "maintain":
            _maintain(config)
            return
        finished = run_job(config, session, once=once, new_topic=new_topic, take_over=take_over)
    except (NSQException, OSError, ValueError) as error:
        raise _failure(config, str(error)) from error
    except Exception as error:
        _note(config.log)
        raise _failure(config, f"unexpected {type(error).__name__}: {error}") from error
    click.echo("drained" if finished else "stopped in order; the next start goes on where this one ended")


def _maintain(config: PipelineConfig) -> None:
    from gnsq.spark.pipeline.layout import maintained  # loads pyarrow
    from gnsq.spark.pipeline.maintenance import maintain_tables
    from gnsq.spark.pipeline.preflight import check_work

    check_work(config)
    locations, retention = maintained(config)
    merged, troubles = maintain_tables(locations, retention=retention, is_forced=True)
    if troubles:
        raise JobFailed(f"maintenance: {'; '.join(troubles)}")
    click.echo(f"maintained: {counted(merged, 'file', spec=',')} merged")


def _failure(config: PipelineConfig, reason: str) -> click.ClickException:
    # Name the log only if this run has loaded Spark: otherwise an earlier run has written the log.
    where = f"\nSpark's messages are in {config.log}" if "pyspark" in sys.modules and config.log.exists() else ""
    # Show the first line only: errors of some libraries fill pages.
    return click.ClickException(reason.partition("\n")[0] + where)


def _quiet_py4j() -> None:
    """Keep py4j from logging each connection that is lost by a stop, a second Ctrl-C or the end of the JVM.

    py4j also logs errors to the root logger. The filter removes those that end in "while sending command.".
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: not str(record.msg).endswith(" while sending command."))


def _note(log: Path) -> None:
    """Append the traceback of an unexpected exception to the log file."""
    with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as file:
        traceback.print_exc(file=file)


def run_job(
    config: PipelineConfig,
    session: OpenSession | None = None,
    *,
    once: bool,
    new_topic: bool = False,
    take_over: bool = False,
    observe: Callable[[Batch], object] | None = None,
) -> bool:
    """Start Spark and run the job until its queries end, or until SIGINT or SIGTERM. Return False after a signal.

    Args:
        session: Makes the Spark session; None: open_session().
        observe: Called with each progress of a query, also of an idle one.

    Raises:
        JobStopped: With once, if a signal has stopped the job before it has read all.
        NSQException, OSError, ValueError: If the job can't start, or fails.
    """
    # Import these slow modules here: --help and errors in the settings do not need them.
    from gnsq.running import StopSignals
    from gnsq.spark.pipeline.runner import run_queries

    with StopSignals(before_end=_kill_java) as stop:
        summary = run_queries(
            config,
            lambda: _started(config, session),
            stop=stop,
            report=click.echo,
            log=str(config.log),
            once=once,
            new_topic=new_topic,
            take_over=take_over,
            observe=observe,
            has_view=True,
        )
    if once and not summary.finished:
        raise JobStopped(f"stopped before all was read ({summary.progress() or 'nothing yet'}): start again")
    return summary.finished


@contextlib.contextmanager
def _started(config: PipelineConfig, session: OpenSession | None) -> Iterator[SparkSession]:
    from gnsq.spark.pipeline.session import is_submitted, open_session  # loads pyspark

    click.echo("starting" if is_submitted() else f"starting Spark; its messages go to {config.log}")
    master = {"spark.master": config.master} if config.master else {}
    with (session or open_session)("gnsq-pipeline", settings={**master, **config.spark}, log=config.log) as spark:
        yield spark


def _kill_java() -> None:
    # The second signal ends this process at once: leave neither a JVM nor a hidden cursor behind.
    if "gnsq.spark.pipeline.session" in sys.modules:
        sys.modules["gnsq.spark.pipeline.session"].kill_java()
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")


if __name__ == "__main__":
    main()
