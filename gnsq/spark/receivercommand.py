"""``python -m gnsq.spark.receiver``: a receiver as a process of its own, for the option receivers=external."""

from __future__ import annotations

import logging
import signal
import sys

import click
import gevent
from gevent.event import Event

from gnsq.spark.receiver import Receiver, ReceiverOptions
from gnsq.spark.spool import Spool

__all__ = ["main"]

STATUS_INTERVAL = 10.0


@click.command()
@click.option("--topic", required=True, help="Topic to receive.")
@click.option("--channel", required=True, help="Channel to receive; it is created if it does not exist.")
@click.option("--spool", "location", required=True, help="Directory of the spool, a path or a URI.")
@click.option("--nsqd-tcp-address", "nsqds", multiple=True, help="host:port of an nsqd; may be given again.")
@click.option("--lookupd-http-address", "lookupds", multiple=True, help="URL of an nsqlookupd; may be given again.")
@click.option("--max-in-flight", default=5000, show_default=True, type=click.IntRange(1))
@click.option("--segment-rows", default=10_000, show_default=True, type=click.IntRange(1))
@click.option("--segment-bytes", default=8 * 1024 * 1024, show_default=True, type=click.IntRange(1))
@click.option("--segment-time", default=0.1, show_default=True, type=click.FloatRange(0.001), help="Seconds.")
@click.option("--max-spool-bytes", default=1024 * 1024 * 1024, show_default=True, type=click.IntRange(1))
@click.option("-v", "--verbose", is_flag=True, help="Say what is going on.")
def main(
    topic: str,
    channel: str,
    location: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    max_in_flight: int,
    segment_rows: int,
    segment_bytes: int,
    segment_time: float,
    max_spool_bytes: int,
    verbose: bool,
) -> None:
    """Write the messages of an NSQ channel into a spool that a Spark query reads, until SIGTERM or SIGINT."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        options = ReceiverOptions(
            topic=topic,
            channel=channel,
            nsqd_tcp_addresses=nsqds,
            lookupd_http_addresses=lookupds,
            max_in_flight=max_in_flight,
            segment_rows=segment_rows,
            segment_bytes=segment_bytes,
            segment_time=segment_time,
            max_spool_bytes=max_spool_bytes,
        )
        receiver = Receiver(options, Spool(location))
        stop = Event()
        signals = [gevent.signal_handler(number, stop.set) for number in (signal.SIGTERM, signal.SIGINT)]
        receiver.start()
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"spool {location}: {error}: give a directory that can be written") from error
    click.echo(f"receiving {topic}/{channel} into {location}/{receiver.id}", err=True)
    while not stop.wait(STATUS_INTERVAL):
        logging.getLogger(__name__).info("%d rows in %d segments", receiver.rows, receiver.segments)
    receiver.close()
    for handler in signals:
        handler.cancel()
    click.echo(f"stopped in order: {receiver.rows} rows in {receiver.segments} segments", err=True)
    sys.exit(0)
