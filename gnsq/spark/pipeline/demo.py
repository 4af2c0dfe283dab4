"""``python -m gnsq.spark.pipeline.demo``: runs the job on one machine with emulated nsqds, and checks that no event is
missing. The emulated nsqds run on other threads, since the main thread blocks natively while it waits for Spark.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.spark.java import find_java
from gnsq.spark.pipeline.__main__ import run_job
from gnsq.spark.pipeline.config import YEAR, PipelineConfig
from gnsq.spark.pipeline.process import JobStopped, StopRequest
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.spark.pipeline.session import OpenSession

__all__ = ["account", "generate", "main", "read_lines"]

TOPIC = "clicks"
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
        with StopRequest() as stop:
            bodies = generate(messages, seed) if file is None else read_lines(file)
            status = 0 if _demo(stop, work, bodies, total, session) else 1
    except (JobStopped, KeyboardInterrupt):
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


def _demo(stop: StopRequest, work: Path, bodies: Iterable[bytes], total: int, session: OpenSession | None) -> bool:
    """Publish the bodies, run the job, and print what account() returns; return True if all its conditions are
    fulfilled. session: as in run_job()."""
    from fakensqd import FakeCluster  # from the extra fakensqd, which only the demo needs

    started = time.monotonic()
    with FakeCluster(nsqds=2, lookupds=1, threaded=True) as cluster:
        nsqds, lookupds = list(cluster.nsqd_tcp_addresses), list(cluster.lookupd_http_addresses)
        click.echo(f"nsqlookupd on {lookupds[0]}, nsqds on {' and '.join(nsqds)}; publishing {total:,} events")
        config = PipelineConfig(
            topic=TOPIC,
            output=str(work / "output"),
            work=str(work / "work"),
            lookupd_http_addresses=tuple(lookupds),
            max_rows_per_batch=max(total // 4, 1000),
            # Keep windows for a year, so that all events are counted even if those of a file are in any order.
            keep_windows=YEAR,
            master="local[2]",
        )
        published = 0
        with Producer(nsqds) as producer:
            for batch in _batches(bodies):
                if stop.asked.is_set():
                    raise JobStopped
                producer.multipublish(TOPIC, batch)
                published += len(batch)
        run_job(config, session, once=True)
        letters = cluster.depth(config.entries[0].dead_letters_to(TOPIC))
        changes = cluster.depth(config.metrics_to("metrics"))
    archived, entered, in_counts, windows = _results(config)
    changed = counted(changes, "change", spec=",")
    click.echo(f"{published:12,} published, confirmed by nsqd")
    click.echo(f"{archived:12,} archived in a table, by day")
    click.echo(f"{letters:12,} dead-lettered, with the reason")
    click.echo(f"{in_counts:12,} counted in {windows:,} windows and pages ({changed} published)")
    checks = account(published, archived, letters, entered, in_counts)
    for text, agrees in checks.items():
        click.echo(f"{'agrees' if agrees else 'DOES NOT AGREE'}: {text}")
    click.echo(f"took {time.monotonic() - started:.0f} s")
    return all(checks.values())


def _results(config: PipelineConfig) -> tuple[int, int, int, int]:
    """Read four numbers from the tables: events in the archive, events that have entered the aggregation, the sum of
    all counts, the number of counts."""
    from deltalake import DeltaTable  # imports in this function load slowly

    from gnsq.spark.pipeline.layout import archive_tables, metrics_table
    from gnsq.spark.pipeline.windows import true_counts

    metrics, metric = metrics_table(config, "metrics"), config.metric_queries["metrics"]
    counts = true_counts(DeltaTable(metrics.location).to_pyarrow_table(), metric).column("count").to_pylist()
    entered = metrics.status().entered or 0
    return archive_tables(config, TOPIC)[0].status().rows or 0, entered, sum(counts), len(counts)


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
