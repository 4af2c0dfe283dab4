"""``python -m gnsq.spark.pipeline.demo``: runs the job on one machine with emulated nsqds, and checks that no event is
missing. demoreport.py makes a page of what has happened. The emulated nsqds run on other threads, since the main thread
blocks natively while it waits for Spark.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import itertools
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.running import StopSignals
from gnsq.spark.errors import JobStopped
from gnsq.spark.java import Java, find_java
from gnsq.spark.pipeline.__main__ import run_job
from gnsq.spark.pipeline.config import YEAR, PipelineConfig
from gnsq.spark.pipeline.demoreport import DemoRun, ShownTable, demo_html
from gnsq.spark.pipeline.report import Batch, table_text
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.spark.pipeline.session import OpenSession

__all__ = ["account", "generate", "main", "read_lines", "write_report"]

TOPIC = "clicks"
# In the working directory.
REPORT = Path("demo/report.html")
# Least number of batches of each query, so that the report has curves. Each batch costs some time.
BATCHES = 6
# Limits of one MPUB: nsqd refuses an MPUB of more than 5 MiB.
MPUB_ROWS, MPUB_BYTES = 500, 1024 * 1024

USERS = 5_000
PAGES = ["/", "/search", "/cart", "/checkout", "/login", "/help", *(f"/products/{number}" for number in range(1, 35))]
# Time from the first arrival of an event to the last, in the events' own time. Publishing them all takes seconds.
SPAN = dt.timedelta(hours=2, minutes=30)
START = dt.datetime(2026, 1, 15, 9, 0, tzinfo=dt.UTC)
MALFORMED = 0.004
# Share of events of phones that were offline, and the longest time by which such events come late.
OFFLINE, OFFLINE_DELAY = 0.01, dt.timedelta(minutes=45)


def account(published: int, archived: int, letters: int, entered: int, in_counts: int) -> dict[str, bool]:
    """Return the two conditions that the numbers of events must fulfil: text of a condition -> True if fulfilled."""
    first = f"published {published:,} = archived {archived:,} + dead-lettered {letters:,}"
    second = f"archived {archived:,} = entered the aggregation {entered:,} = counted {in_counts:,}"
    return {first: published == archived + letters, second: archived == entered == in_counts}


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
        raise click.UsageError(f"--file {file}: {error.strerror}") from error
    except NSQException as error:
        raise click.ClickException(str(error)) from error
    work = Path(tempfile.mkdtemp(prefix="gnsq-demo-"))
    click.echo(f"Java {java.version} from {java.origin}; working in {work}")
    try:
        with StopSignals() as stop:
            bodies = generate(messages, seed) if file is None else read_lines(file)
            run = _demo(stop, work, bodies, total, session, java, is_kept=keep)
        write_report(run)
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
    stop: StopSignals,
    work: Path,
    bodies: Iterable[bytes],
    total: int,
    session: OpenSession | None,
    java: Java,
    *,
    is_kept: bool,
) -> DemoRun:
    """Publish the bodies, run the job, print what account() returns, and describe the run.

    Args:
        session: As in run_job().
        is_kept: True if the output is kept although all agrees.
    """
    from fakensqd import FakeCluster  # from the extra fakensqd, which only the demo needs

    started_at, started = dt.datetime.now(dt.UTC), time.monotonic()
    batches: list[tuple[float, Batch]] = []

    def observe(batch: Batch) -> None:
        if batch.rows:
            batches.append((time.monotonic() - started, batch))

    with FakeCluster(nsqds=2, lookupds=1).in_thread() as cluster:
        nsqds, lookupds = list(cluster.nsqd_tcp_addresses), list(cluster.lookupd_http_addresses)
        click.echo(f"nsqlookupd on {lookupds[0]}, nsqds on {' and '.join(nsqds)}; publishing {total:,} events")
        config = PipelineConfig(
            topic=TOPIC,
            output=str(work / "output"),
            work=str(work / "work"),
            lookupd_http_addresses=tuple(lookupds),
            max_rows_per_batch=max(total // BATCHES, 1000),
            # Keep windows for a year, so that all events are counted even if those of a file are in any order.
            keep_windows=YEAR,
            master="local[2]",
        )
        published = 0
        with Producer(nsqds) as producer:
            for batch in _batches(bodies):
                if stop.is_set():
                    raise JobStopped
                producer.multipublish(TOPIC, batch)
                published += len(batch)
        run_job(config, session, once=True, observe=observe)
        letters = cluster.depth(config.entries[0].dead_letters_to(TOPIC))
        changes = cluster.depth(config.metrics_to("metrics"))
    results = _results(config)
    changed = counted(changes, "change", spec=",")
    click.echo(f"{published:12,} published, confirmed by nsqd")
    click.echo(f"{results.archived:12,} archived in a table, by day")
    click.echo(f"{letters:12,} dead-lettered, with the reason")
    click.echo(f"{results.counted:12,} counted in {results.windows:,} windows and pages ({changed} published)")
    checks = account(published, results.archived, letters, results.entered, results.counted)
    for text, agrees in checks.items():
        click.echo(f"{'agrees' if agrees else 'DOES NOT AGREE'}: {text}")
    return DemoRun(
        started_at=started_at,
        seconds=time.monotonic() - started,
        published=published,
        batches=batches,
        account={
            "published, confirmed by nsqd": published,
            "archived in the table archive": results.archived,
            f"dead-lettered, in the table dead and in the topic {config.letters_to(TOPIC)}": letters,
            "have entered the aggregation": results.entered,
            f"counted, in {results.windows:,} windows and pages": results.counted,
            f"changes of counts, published to the topic {config.metrics_to('metrics')}": changes,
        },
        checks=checks,
        minutes=results.minutes,
        pages=results.pages,
        reasons=results.reasons,
        tables=results.tables,
        kept=Path(config.output) if is_kept or not all(checks.values()) else None,
        facts=_facts(config, java),
    )


class Results(NamedTuple):
    """Contents of the tables.

    Attributes:
        archived: Number of events in the archive.
        entered: Number of events that have entered the aggregation.
        counted, windows: Sum of all counts, and how many there are.
        minutes, pages, reasons, tables: As in DemoRun.
    """

    archived: int
    entered: int
    counted: int
    windows: int
    minutes: Counter[dt.datetime]
    pages: Counter[str]
    reasons: Counter[str]
    tables: list[ShownTable]


def _results(config: PipelineConfig) -> Results:
    from deltalake import DeltaTable  # imports in this function load slowly

    from gnsq.spark.pipeline.layout import archive_tables, metrics_table
    from gnsq.spark.pipeline.windows import true_counts

    archive, dead = archive_tables(config, TOPIC)
    metrics, metric = metrics_table(config, "metrics"), config.metric_queries["metrics"]
    counts = true_counts(DeltaTable(metrics.location).to_pyarrow_table(), metric)
    minutes: Counter[dt.datetime] = Counter()
    pages: Counter[str] = Counter()
    columns = [counts.column(name).to_pylist() for name in ("window_start", "page", "count")]
    for minute, page, count in zip(*columns, strict=True):
        minutes[minute] += count
        pages[page] += count
    meanings = {
        archive: "each event once, by day",
        dead: "malformed bodies, with the reason",
        metrics: "counts by minute and page, with a row for each change",
    }
    tables = []
    for table, meaning in meanings.items():
        status, schema = table.status(), DeltaTable(table.location).schema()
        size = table_text(status.rows or 0, status.files or 0, status.size or 0)
        tables.append(ShownTable(table.name, size, [field.name for field in schema.fields], meaning))
    return Results(
        archived=archive.status().rows or 0,
        entered=metrics.status().entered or 0,
        counted=sum(pages.values()),
        windows=len(counts),
        minutes=minutes,
        pages=pages,
        reasons=Counter(DeltaTable(dead.location).to_pyarrow_table(columns=["reason"]).column("reason").to_pylist()),
        tables=tables,
    )


def _facts(config: PipelineConfig, java: Java) -> dict[str, str]:
    packages = ("gnsq", "pyspark", "pyarrow", "deltalake", "gevent")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "versions": ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{name} {importlib.metadata.version(name)}" for name in packages),
            ]
        ),
        "Java": f"{java.version} from {java.origin}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {memory:.1f} GiB of memory",
        "nsqd": "2 nsqds and 1 nsqlookupd of fakensqd, in the process of the demo",
        "Spark": f"master {config.master}, receivers in the driver",
        "max_rows_per_batch": f"{config.max_rows_per_batch:,}",
        "keep_windows": f"{config.keep_windows:,.0f} s",
    }


def write_report(run: DemoRun) -> None:
    """Write the report into the working directory, and print its path, or why there is none."""
    try:
        page = demo_html(run)
    except ImportError as error:
        click.echo(f"no report: it needs matplotlib: pip install matplotlib ({error})")
        return
    try:
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(page, encoding="utf-8")
    except OSError as error:
        click.echo(f"no report: {REPORT} can't be written: {error.strerror}")
        return
    click.echo(f"report: {REPORT.resolve()}")


# --- events


def generate(count: int, seed: int) -> Iterator[bytes]:
    """Yield count click events in the order in which they arrive: the same events for the same seed. A few events are
    malformed, and a few are late."""
    rng = random.Random(seed)
    # Some pages and users are more frequent than others.
    page_weights = list(itertools.accumulate(1 / rank for rank in range(1, len(PAGES) + 1)))
    for number in range(count):
        arrived = START + SPAN * (number / max(count, 1))
        time = arrived - dt.timedelta(seconds=rng.expovariate(1 / 5))
        if rng.random() < OFFLINE:
            time -= OFFLINE_DELAY * rng.random()
        event = {
            "time": time.isoformat(timespec="milliseconds"),
            "user": f"u{int(USERS * rng.random() ** 2):05}",
            "page": rng.choices(PAGES, cum_weights=page_weights)[0],
            "milliseconds": round(rng.lognormvariate(6, 1)),
        }
        body = json.dumps(event, separators=(",", ":")).encode()
        yield rng.choice(_malformed(event, body)) if rng.random() < MALFORMED else body


def _malformed(event: dict[str, object], body: bytes) -> list[bytes]:
    """Make malformed bodies of an event, in ways that occur with real clients."""
    changed = [json.dumps({**event, **change}).encode() for change in ({"time": "yesterday"}, {"page": None})]
    return [body[: len(body) // 2], b"\xff\xfe" + body, b"GET /favicon.ico HTTP/1.1", *changed]


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as bodies. Empty lines are left out, since nsqd refuses empty messages.

    Raises:
        OSError: If the file can't be read.
    """
    with open(path, "rb") as file:
        for line in file:
            body = line.rstrip(b"\r\n")
            if body:
                yield body


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


if __name__ == "__main__":
    main()
