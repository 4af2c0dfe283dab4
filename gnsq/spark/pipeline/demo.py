"""``python -m gnsq.spark.pipeline.demo``: runs the job on one machine with emulated nsqds, and checks that no event is
missing. The servers run on threads of their own, since the main thread blocks natively while it waits for Spark.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.spark.java import find_java
from gnsq.spark.pipeline.account import Account, drain_topic, sum_highest_versions
from gnsq.spark.pipeline.clicks import generate, read_lines
from gnsq.spark.pipeline.config import YEAR, PipelineConfig
from gnsq.spark.pipeline.process import StopRequest
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.spark.pipeline.session import OpenSession

__all__ = ["main"]

TOPIC = "clicks"
# Limits of one MPUB: nsqd refuses an MPUB of more than 5 MiB.
MPUB_ROWS, MPUB_BYTES = 500, 1024 * 1024


class _Stopped(Exception):
    """SIGINT or SIGTERM has asked the demo to stop."""


@click.command()
@click.option("--file", "file", type=click.Path(path_type=Path), help="Publish the lines of this file instead.")
@click.option("--messages", default=100_000, show_default=True, type=click.IntRange(0), help="Events to generate.")
@click.option("--seed", default=2026, show_default=True, help="The same seed, the same events.")
@click.option("--keep", is_flag=True, help="Keep the output; it is kept anyway if something does not agree.")
@click.pass_obj
def main(session: OpenSession | None, /, file: Path | None, messages: int, seed: int, keep: bool) -> None:
    """Publish click events, run the pipeline on them, and show that none is missing."""
    console = Console(highlight=False)
    bodies: Iterable[bytes]
    if file is None:
        bodies, total = generate(messages, seed), messages
    else:
        try:
            total = sum(1 for _ in read_lines(file))
        except OSError as error:
            raise click.UsageError(f"--file {file}: {error.strerror}") from error
        bodies = read_lines(file)
    try:
        java = find_java()
    except NSQException as error:
        raise click.ClickException(str(error)) from error
    work = Path(tempfile.mkdtemp(prefix="gnsq-demo-"))
    console.print(f"Java {java.version} from {java.origin}; working in {work}")
    try:
        with StopRequest() as stop:
            status = 0 if _demo(console, stop, work, bodies, total, session) else 1
    except (_Stopped, KeyboardInterrupt):
        console.print("[yellow]stopped[/]")
        status = 130
    except (NSQException, OSError) as error:
        console.print(f"failed: {error}", style="red", markup=False)
        status = 1
    if keep or status == 1:
        console.print(f"output and logs are kept in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(status)


def _demo(
    console: Console, stop: StopRequest, work: Path, bodies: Iterable[bytes], total: int, session: OpenSession | None
) -> bool:
    """Publish, run the job, and show the account; return True if it agrees. Without a session function, open_session()
    is used."""
    from fakensqd import FakeCluster  # the extra fakensqd; the package needs it for nothing else

    started = time.monotonic()
    with FakeCluster(nsqds=2, lookupds=1, threaded=True) as cluster:
        nsqds, lookupds = list(cluster.nsqd_tcp_addresses), list(cluster.lookupd_http_addresses)
        console.print(f"nsqlookupd on {lookupds[0]}, nsqds on {' and '.join(nsqds)}")
        config = PipelineConfig(
            topic=TOPIC,
            output=str(work / "output"),
            work=str(work / "work"),
            lookupd_http_addresses=tuple(lookupds),
            max_rows_per_batch=max(total // 4, 1000),
            # Keep windows for a year, so that all events are counted even if those of a file are in any order.
            keep_windows=YEAR,
        )
        published = _publish(console, stop, nsqds, bodies, total)
        archived, entered, metric_rows = _run_pipeline(console, stop, config, work, published, session)
        dead = drain_topic(config.dead_letters_to, lookupds, published - archived)
        metrics = drain_topic(config.metrics_to, lookupds, metric_rows)
    in_counts, windows = sum_highest_versions(metrics)
    account = Account(published, archived, len(dead), entered, in_counts)
    _show(console, account, windows, len(metrics))
    console.print(f"took {time.monotonic() - started:.0f} s")
    return all(agrees for _, agrees in account.checks())


def _publish(console: Console, stop: StopRequest, nsqds: list[str], bodies: Iterable[bytes], total: int) -> int:
    """Publish all bodies; return the number of those that nsqd has confirmed."""
    confirmed = 0
    with _progress(console) as progress, Producer(nsqds) as producer:
        task = progress.add_task("publishing", total=total)
        for batch in _batches(bodies):
            if stop.is_set:
                raise _Stopped
            producer.multipublish(TOPIC, batch)
            confirmed += len(batch)
            progress.update(task, completed=confirmed)
    return confirmed


def _run_pipeline(
    console: Console,
    stop: StopRequest,
    config: PipelineConfig,
    work: Path,
    published: int,
    session: OpenSession | None,
) -> tuple[int, int, int]:
    """Run the job until both channels are drained.

    Returns:
        Numbers of events in the archive, of events that have entered the aggregation, and of rows of the metrics table.
    """
    from gnsq.spark.pipeline.job import Job
    from gnsq.spark.pipeline.layout import ENTERED, archive_tables, metrics_table  # slow to load, as the others
    from gnsq.spark.pipeline.preflight import create_channels
    from gnsq.spark.pipeline.report import Batch
    from gnsq.spark.pipeline.session import open_session

    with _progress(console) as progress:
        starting = progress.add_task("starting Spark", total=None)
        with (session or open_session)("gnsq-demo", master="local[2]", log=work / "spark.log") as spark:
            # Install the signal handlers again: SparkContext has replaced the one of SIGINT.
            stop.install()
            progress.remove_task(starting)
            tasks = {name: progress.add_task(name, total=published) for name in ("archive", "metrics")}

            def report(batch: Batch) -> None:
                progress.advance(tasks[batch.query], batch.rows)

            create_channels(config, once=True, wait=stop.wait)
            job = Job(spark, config, report)
            if stop.is_set:
                raise _Stopped
            job.start(once=True)
            try:
                if not job.wait(lambda: stop.is_set):
                    raise _Stopped
            finally:
                job.close()
    archive, _ = archive_tables(config)
    archived = archive.status().rows if archive.exists() else 0
    metrics = metrics_table(config)
    if not metrics.exists():
        return archived, 0, 0
    status = metrics.status()
    return archived, int(status.facts.get(ENTERED, 0)), status.rows


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Divide bodies into lists that each fit into one MPUB."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) == MPUB_ROWS or size + len(body) > MPUB_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


def _show(console: Console, account: Account, windows: int, rows: int) -> None:
    table = Table(title="account", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_row("published, confirmed by nsqd", f"{account.published:,}")
    table.add_row("archived in a table, by day", f"{account.archived:,}")
    table.add_row("dead-lettered, with the reason", f"{account.dead_lettered:,}")
    table.add_row(
        f"counted in {windows:,} windows and pages ({counted(rows, 'row', spec=',')} read back)",
        f"{account.counted:,}",
    )
    console.print(table)
    for text, agrees in account.checks():
        console.print(f"[green]agrees:[/] {text}" if agrees else f"[red]DOES NOT AGREE:[/] {text}")


if __name__ == "__main__":
    main()
