"""``make demo``: publishes click events to emulated nsqds, runs the job of job.toml on them, and checks that none is
missing. report.py makes a page of what came out.

The emulated nsqds run on other threads, since the main thread blocks natively while it waits for Spark.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fakensqd import FakeCluster
from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.running import StopSignals
from gnsq.spark.errors import JobStopped
from gnsq.spark.java import find_java
from gnsq.spark.pipeline.__main__ import run_job
from gnsq.spark.pipeline.settings import JobSettings, load_settings
from gnsq.spark.pipeline.status import read_status, table_text
from gnsq.texts import reason_of
from integration.demo.events import batches, generate, read_lines
from integration.demo.report import DemoRun, demo_html

if TYPE_CHECKING:
    from gnsq.spark.pipeline.spark_session import OpenSession

SETTINGS = Path(__file__).with_name("job.toml")
# In the working directory.
REPORT = Path("demo/report.html")


def account(published: int, archived: int, dead: int, counted: int) -> dict[str, bool]:
    """Return the conditions that the numbers of events must fulfil: text of a condition -> True if fulfilled."""
    return {
        f"published {published:,} = archived {archived:,} + dead {dead:,}": published == archived + dead,
        f"archived {archived:,} = counted {counted:,}": archived == counted,
    }


@click.command()
@click.option("--file", "file", type=click.Path(path_type=Path), help="Publish the lines of this file instead.")
@click.option("--messages", default=100_000, show_default=True, type=click.IntRange(1), help="Events to generate.")
@click.option("--seed", default=2026, show_default=True, help="The same seed, the same events.")
@click.option("--keep", is_flag=True, help="Keep the output; it is kept anyway if something does not agree.")
@click.pass_obj
def main(session: OpenSession | None, /, file: Path | None, messages: int, seed: int, keep: bool) -> None:
    """Publish click events, run the pipeline on them, and show that none is missing."""
    try:
        total = messages if file is None else sum(1 for _ in read_lines(file))
        java = find_java()
    except OSError as error:
        raise click.UsageError(f"--file {file}: {reason_of(error)}") from error
    except NSQException as error:
        raise click.ClickException(str(error)) from error
    work = Path(tempfile.mkdtemp(prefix="gnsq-demo-"))
    click.echo(f"Java {java.version} from {java.origin}; working in {work}")
    bodies = generate(messages, seed) if file is None else read_lines(file)
    try:
        with StopSignals() as stop:
            run = _demo(stop, work, bodies, total, session, is_kept=keep)
        _write_report(run)
        click.echo(f"took {run.seconds:.0f} s")
        status = 0 if all(run.checks.values()) else 1
    except JobStopped:
        click.echo("stopped")
        status = 130
    except (NSQException, OSError) as error:
        click.echo(f"failed: {error}")
        status = 1
    if keep or status == 1:
        click.echo(f"output and logs are kept in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(status)


def _demo(
    stop: StopSignals, work: Path, bodies: Iterable[bytes], total: int, session: OpenSession | None, *, is_kept: bool
) -> DemoRun:
    """Publish the bodies, run the job, print the account, and describe the run.

    Args:
        session: As in run_job().
        is_kept: True if the output is kept although all agrees.
    """
    started = time.monotonic()
    with FakeCluster(nsqds=2, lookupds=1).in_thread() as cluster:
        nsqds, lookupds = list(cluster.nsqd_tcp_addresses), list(cluster.lookupd_http_addresses)
        click.echo(f"nsqlookupd on {lookupds[0]}, nsqds on {' and '.join(nsqds)}; publishing {total:,} events")
        places = {"work": str(work / "work"), "output": str(work / "output")}
        settings = load_settings(str(SETTINGS), {**places, "lookupd_http_addresses": tuple(lookupds)})
        [topic] = settings.tables["clicks"].topics
        published = 0
        with Producer(nsqds) as producer:
            for batch in batches(bodies):
                if stop.is_set():
                    raise JobStopped
                producer.multipublish(topic, batch)
                published += len(batch)
        run_job(settings, session, once=True)
    return _described(settings, published, time.monotonic() - started, is_kept=is_kept)


def _described(settings: JobSettings, published: int, seconds: float, *, is_kept: bool) -> DemoRun:
    """Read the tables, print and check the account."""
    from deltalake import DeltaTable  # slow to load

    [clicks] = settings.queries
    pages = settings.location_of("pages")
    rows = DeltaTable(pages).to_pyarrow_table(columns=["_window_start", "page", "count"]).to_pylist()
    minutes, by_page = Counter(), Counter()
    for row in rows:
        minutes[row["_window_start"]] += row["count"]
        by_page[row["page"]] += row["count"]
    archived = DeltaTable(clicks.location).to_pyarrow_table(columns=["_time"]).num_rows
    reasons = DeltaTable(clicks.dead_location).to_pyarrow_table(columns=["_reason"]).column("_reason").to_pylist()
    record, counted = read_status(clicks), sum(by_page.values())
    numbers = {
        "published, confirmed by nsqd": published,
        "archived in the table clicks": archived,
        "dead, in the table clicks_dead": len(reasons),
        f"counted in the table pages, in {len(rows):,} windows and pages": counted,
    }
    for name, number in numbers.items():
        click.echo(f"{number:12,} {name}")
    checks = account(published, archived, len(reasons), counted)
    for text, agrees in checks.items():
        click.echo(f"{'agrees' if agrees else 'DOES NOT AGREE'}: {text}")
    meanings = {
        clicks.location: "each event once, by day",
        clicks.dead_location: "malformed bodies, with the reason",
        pages: "counts by minute and page",
    }
    tables = []
    for location, meaning in meanings.items():
        name, columns = Path(location).name, ", ".join(field.name for field in DeltaTable(location).schema().fields)
        tables.append((name, table_text(name, location, time.time()), meaning, columns))
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("gnsq", "pyspark", "pyarrow", "deltalake")]
    return DemoRun(
        seconds=seconds,
        numbers=numbers,
        checks=checks,
        queries=[record],
        minutes=minutes,
        pages=by_page,
        reasons=Counter(reasons),
        tables=tables,
        kept=Path(settings.output) if is_kept or not all(checks.values()) else None,
        settings=SETTINGS.read_text(encoding="utf-8"),
        machine=f"Python {platform.python_version()}, {', '.join(versions)}; {os.cpu_count()} CPUs",
    )


def _write_report(run: DemoRun) -> None:
    """Write the report into the working directory, and print its path, or why there is none."""
    try:
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(demo_html(run), encoding="utf-8")
    except OSError as error:
        click.echo(f"no report: {REPORT} can't be written: {reason_of(error)}")
        return
    click.echo(f"report: {REPORT.resolve()}")


if __name__ == "__main__":
    main()
