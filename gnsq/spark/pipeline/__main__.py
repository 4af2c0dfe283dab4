"""The job's command line."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gnsq.errors import NSQException
from gnsq.spark.pipeline.config import PipelineConfig, load_config

__all__ = ["main"]


@click.command(context_settings={"auto_envvar_prefix": "GNSQ_PIPELINE", "show_default": False})
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="TOML file with any of these settings.")
@click.option("--topic", help="Topic with the click events.")
@click.option("--output", help="Directory for archive/, metrics/ and late/.")
@click.option("--work", help="Directory for spools, checkpoints and state; always the same for one job.")
@click.option("--nsqd-tcp-address", "nsqd_tcp_addresses", multiple=True, help="host:port of an nsqd; repeat.")
@click.option("--nsqd-http-address", "nsqd_http_addresses", multiple=True, help="Its HTTP address, for the backlog.")
@click.option("--lookupd-http-address", "lookupd_http_addresses", multiple=True, help="URL of an nsqlookupd; repeat.")
@click.option("--publish-address", "publish_addresses", multiple=True, help="nsqd to publish to; default: the same.")
@click.option("--archive-channel", help="Default: archive.")
@click.option("--metrics-channel", help="Default: metrics.")
@click.option("--metrics-topic", help="Default: TOPIC-metrics.")
@click.option("--dead-letter-topic", help="Default: TOPIC-dead.")
@click.option("--watermark-delay", type=float, help="Seconds; events later than that go to late/. Default: 600.")
@click.option("--max-rows-per-batch", type=int, help="Default: 50000.")
@click.option("--trigger-interval", type=float, help="Seconds between batches. Default: 0, as they come.")
@click.option("--master", help="Spark master; default: spark-submit's, else local[*].")
@click.option("--log-file", type=click.Path(dir_okay=False), help="Where Spark's messages go; default: WORK/spark.log.")
@click.option("--until-drained", is_flag=True, help="End when what is in the channels now has been worked off.")
def main(
    config_file: str | None, master: str | None, log_file: str | None, until_drained: bool, **settings: object
) -> None:
    """Archive click events from NSQ as Parquet, and count them by minute and page. Stop it with Ctrl-C or SIGTERM."""
    try:
        config = load_config(config_file, settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    log = Path(log_file) if log_file else Path(config.work) / "spark.log"
    try:
        finished = _run(config, master, log, until_drained)
    except KeyboardInterrupt:
        finished = False
    except (NSQException, OSError) as error:
        raise click.ClickException(f"{error}\nSpark's messages are in {log}") from error
    click.echo("drained" if finished else "stopped in order; the next start goes on where this one ended")
    sys.exit(0)


def _run(config: PipelineConfig, master: str | None, log: Path, until_drained: bool) -> bool:
    # Slow to load: --help and errors in the settings do without.
    from gnsq.spark.pipeline.job import Batch, Job
    from gnsq.spark.pipeline.session import open_session
    from gnsq.spark.pipeline.stopping import StopRequest

    def report(batch: Batch) -> None:
        rate = batch.rows / batch.seconds if batch.seconds else 0.0
        backlog = "" if batch.backlog is None else f", {batch.backlog:,} waiting at nsqd"
        click.echo(f"{batch.query:8} batch {batch.batch_id:6}: {batch.rows:9,} rows, {rate:9,.0f} rows/s{backlog}")

    with StopRequest() as stop:
        click.echo(f"starting Spark; its messages go to {log}")
        with open_session("gnsq-pipeline", master=master, settings=config.spark, log=log) as spark:
            # SparkContext takes SIGINT for itself.
            stop.install()
            job = Job(spark, config, report)
            if stop.is_set:
                return False
            job.start(until_drained=until_drained)
            return job.wait(lambda: stop.is_set)


if __name__ == "__main__":
    main()
