"""The job's command line."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from gnsq.cli.parameters import FILE, PAUSE, SettingOption, setting_option, warn_of_unknown_variables
from gnsq.errors import NSQException
from gnsq.settings import Field
from gnsq.spark.errors import JobFailed, JobStopped
from gnsq.spark.pipeline.settings import JobSettings, Query, load_settings
from gnsq.spark.pipeline.tables import MetricSettings, SettingError, TableSettings, options_of
from gnsq.texts import counted, nearest, without_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gnsq.spark.pipeline.spark_session import OpenSession

__all__ = ["main", "run_job"]

_PREFIX = "GNSQ_PIPELINE_"
# Actions that need a name -> what it is the name of.
_NAMED = {"rebuild": "metrics", "replay-dead": "tables"}


class _WrongSetting(click.ClickException):
    """A process manager should not start the job again before someone has corrected the setting."""

    exit_code = 2


class _Command(click.Command):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name, settings in (("tables", TableSettings), ("metrics", MetricSettings)):
            with formatter.section(f"Settings of [{name}.NAME], in the TOML file"):
                formatter.write_dl([(name, _described(field)) for name, field in options_of(settings).items()])


def _described(field: Field) -> str:
    default, meaning = field.default, str(field.metadata["meaning"])
    if not default:
        return meaning
    shown = (
        ", ".join(default)
        if isinstance(default, tuple)
        else f"{default:g} s"
        if isinstance(default, float)
        else default
    )
    return f"{meaning}; default: {shown}"


def _setting_options(command: Callable[..., Any]) -> Callable[..., Any]:  # Any: click's own
    """Add one option for each setting to a click command. The parameter has the name of the setting."""
    for field in reversed(options_of(JobSettings).values()):
        if str(field.type).startswith("Mapping"):
            meaning = field.metadata["meaning"]
            text = f"{meaning[0].upper()}{meaning[1:]}. Repeat for several."
            given: dict[str, Any] = {"envvar": _PREFIX + field.name.upper(), "metavar": "NAME=VALUE", "help": text}
            command = click.option(f"--{field.name}", cls=SettingOption, multiple=True, **given)(command)
        else:
            command.__click_params__.append(setting_option(field, _PREFIX))  # type: ignore[attr-defined]
    return command


@click.command(cls=_Command, context_settings={"show_default": False})
@click.option(
    "--config",
    "config_file",
    cls=SettingOption,
    type=FILE,
    envvar=f"{_PREFIX}CONFIG",
    help="TOML file with [tables.NAME], [metrics.NAME], and any of these settings.",
)
@click.option("--once", is_flag=True, help="End when what is in the channels now has been worked off; for cron.")
@click.option("--new-topic", is_flag=True, help="Start although no nsqd has a topic yet.")
@click.option(
    "--take-over",
    is_flag=True,
    help="Go on with tables of another checkpoint, such as one that is lost. Its job must not run.",
)
@click.option("--status", is_flag=True, help="Tell where the queries stand, and end. Starts no Spark.")
@click.option("--watch", metavar="TIME", type=PAUSE, help="With --status: tell it again after each such time.")
@click.argument("action", required=False, type=click.Choice(["maintain", *_NAMED, "receivers"]))
@click.argument("name", required=False)
@_setting_options
@click.pass_obj
def main(
    session: OpenSession | None,
    /,
    config_file: str | None,
    once: bool,
    new_topic: bool,
    take_over: bool,
    status: bool,
    watch: float | None,
    action: str | None,
    name: str | None,
    **flags: object,
) -> None:
    """Write events from NSQ into Delta tables, and count them by window and key. Stop it with Ctrl-C or SIGTERM.

    Each batch and each count prints a line. --status tells where all stand, with --watch again and again.

    maintain: only merge small files of the tables and delete files that are not needed any more, now; for cron, also
    while the job runs.

    rebuild METRIC: count all windows of the metric anew, also while the job runs.

    replay-dead TABLE: take the dead letters of a table through its settings again, after these were corrected, also
    while the job runs.

    receivers: print the command of the receiver of each query, for receivers = "external".

    Each setting but [tables] and [metrics] may be given here, as environment variable GNSQ_PIPELINE_SETTING, or in the
    TOML file, by its name with underscores; what is given here wins.

    Exit status: 0 after a graceful stop; 1 after a failure; 2 if a setting is wrong, before anything is read; 130
    after a second Ctrl-C.
    """
    began = time.time()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    _quiet_py4j()
    warn_of_unknown_variables(_PREFIX)
    try:
        settings = load_settings(config_file, flags)
        if once and not settings.is_asked:
            raise ValueError("--once needs nsqd_http_addresses or lookupd_http_addresses, to know when all is read")
        _check_name(settings, action, name)
        if watch is not None and not status:
            raise ValueError("--watch is for --status alone")
    except ValueError as error:
        raise _wrong_setting(error) from error
    try:
        if status:
            from gnsq.spark.pipeline.status import status_lines  # loads pyarrow

            _print(status_lines(settings, time.time()))
            while watch is not None:  # until Ctrl-C
                time.sleep(watch)
                _print(["", *status_lines(settings, time.time())])
        elif action == "receivers":
            _print(map(_receiver_line, settings.queries))
        elif action == "maintain":
            _print([_maintain(settings)])
        elif action is not None and name is not None:
            _replay(settings, session, action, name)
        else:
            finished = run_job(settings, session, once=once, new_topic=new_topic, take_over=take_over)
            _print(["drained" if finished else "stopped; the next start goes on where this one ended"])
    except SettingError as error:
        raise _wrong_setting(error) from error
    except (NSQException, OSError, ValueError) as error:
        raise _failure(settings, began, str(error)) from error
    except Exception as error:
        # Append the traceback to the log file.
        with contextlib.suppress(OSError), open(settings.log, "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        raise _failure(settings, began, f"unexpected {type(error).__name__}: {error}") from error


def _wrong_setting(error: ValueError) -> click.ClickException:
    """Make the error of a wrong setting. It names the flag or the variable that has given it, if any."""
    text, context = str(error), click.get_current_context()
    if isinstance(error, SettingError) and not error.section:
        for option in context.command.params:
            if isinstance(option, SettingOption) and option.name == error.name and context.params.get(error.name):
                text = option.given_as(context) + error.text.removeprefix(error.name)
    return _WrongSetting(text)


def _check_name(settings: JobSettings, action: str | None, name: str | None) -> None:
    """Check the name after an action."""
    kind = _NAMED.get(action or "")
    if kind is None:
        if name is not None:
            raise ValueError(f"{action} takes no name: leave out {name!r}")
        return
    known = getattr(settings, kind)
    if name is None:
        raise ValueError(f"{action} needs the name of one of [{kind}]: {', '.join(known) or 'there is none'}")
    if name not in known:
        raise ValueError(f"{action} {name}: [{kind}.{name}] is not there{nearest([name], known)}")


def _print(lines: Any) -> None:
    for line in lines:
        click.echo(line)


def _receiver_line(query: Query) -> str:
    """Return the command of a query's receiver, for a shell. Secrets come through the environment."""
    from gnsq.spark.receiver.program import command  # loads pyarrow

    flags = {parameter.name: parameter for parameter in command.params}
    words, secrets = ["python", "-m", "gnsq.spark.receiver"], []
    for name, field in query.read_options.__dataclass_fields__.items():
        value, flag = getattr(query.read_options, name), flags.get(name)
        if value == field.default or (name == "other_channels" and not query.events.topic_pattern):
            continue
        has_secret = name.endswith("http_addresses") and any(without_secrets(each) != each for each in value)
        if flag is None or has_secret:
            secrets += [] if field.repr and not has_secret else [f"GNSQ_RECEIVER_{name.upper()}=..."]
        elif field.type == "bool":
            words.append((flag.opts if value else flag.secondary_opts)[0])
        else:
            words += [f"{flag.opts[0]}={each}" for each in (value if isinstance(value, tuple) else [value])]
    return " ".join([*secrets, *map(shlex.quote, words)])


def _maintain(settings: JobSettings) -> str:
    from gnsq.spark.pipeline.maintenance import DAY, RETENTION, maintain_tables  # loads pyarrow
    from gnsq.spark.pipeline.status import longest_batch, read_status

    # The files of a batch that runs are in no version of a table yet.
    age = longest_batch(map(read_status, settings.queries), time.time())
    merged, troubles = maintain_tables(settings.locations, retention=max(RETENTION, age + DAY), is_forced=True)
    if troubles:
        raise JobFailed(f"maintenance: {'; '.join(troubles)}")
    return f"maintained: {counted(merged, 'file', spec=',')} merged"


def _replay(settings: JobSettings, session: OpenSession | None, action: str, name: str) -> None:
    from gnsq.spark.pipeline.replay import rebuild, replay_dead  # loads pyspark

    # A signal may end both at any moment, so nothing waits for their end.
    replay = rebuild if action == "rebuild" else replay_dead
    replay(settings, name, _opener(settings, session), report=click.echo)


def _failure(settings: JobSettings, began: float, reason: str) -> click.ClickException:
    # Name the log only if this run has written to it.
    is_written = settings.log.exists() and settings.log.stat().st_mtime >= began
    where = f"\nSpark's messages are in {settings.log}" if is_written else ""
    # Show the first line only: errors of some libraries fill pages.
    return click.ClickException(reason.partition("\n")[0] + where)


def _quiet_py4j() -> None:
    """Keep py4j from logging each connection that is lost by a stop, a second Ctrl-C or the end of the JVM.

    py4j also logs errors to the root logger. The filter removes those that end in "while sending command.".
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: not str(record.msg).endswith(" while sending command."))


def run_job(
    settings: JobSettings,
    session: OpenSession | None = None,
    *,
    once: bool,
    new_topic: bool = False,
    take_over: bool = False,
) -> bool:
    """Start Spark and run the job until its queries end, or until SIGINT or SIGTERM. Return False after a signal.

    Args:
        session: Makes the Spark session; None: open_session().

    Raises:
        JobStopped: With once, if a signal has stopped the job before it has read all.
        NSQException, OSError, ValueError: If the job can't start, or fails; SettingError if a setting is wrong.
    """
    # Import these slow modules here: --help and errors in the settings do not need them.
    from gnsq.running import StopSignals
    from gnsq.spark.pipeline.job import run_queries
    from gnsq.spark.pipeline.status import Summary

    with StopSignals(before_end=_kill_java) as stop:

        def while_starting(is_starting: bool) -> None:
            # Nothing is read yet, so a signal need not wait until Java is there and has planned the queries.
            stop.interrupt = _kill_java if is_starting else None

        try:
            summary = run_queries(
                settings,
                _opener(settings, session),
                stop=stop,
                report=click.echo,
                log=str(settings.log),
                once=once,
                new_topic=new_topic,
                take_over=take_over,
                while_starting=while_starting,
            )
        except (KeyboardInterrupt, Exception):  # calls of a Java that was killed fail, too
            if stop.interrupt is None or not stop.is_set():
                raise
            summary = Summary()
    if once and not summary.finished:
        raise JobStopped(f"stopped before all was read ({summary.progress() or 'nothing yet'}): start again")
    return summary.finished


def _opener(settings: JobSettings, session: OpenSession | None) -> Callable[[], AbstractContextManager[SparkSession]]:
    """Return a function that starts Spark."""
    from gnsq.spark.pipeline.spark_session import is_submitted, open_session  # loads pyspark

    @contextlib.contextmanager
    def started() -> Iterator[SparkSession]:
        click.echo("starting" if is_submitted() else f"starting Spark; its messages go to {settings.log}")
        with (session or open_session)("gnsq-pipeline", settings=settings.spark, log=settings.log) as spark:
            yield spark

    return started


def _kill_java() -> None:
    # The second signal ends this process at once: leave neither a JVM nor a hidden cursor behind, and let its words be
    # seen.
    if session := sys.modules.get("gnsq.spark.pipeline.spark_session"):
        session.kill_java()
        session.restore_stderr()
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")


if __name__ == "__main__":
    main()
