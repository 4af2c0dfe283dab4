"""The pictures of the documentation: small, readable, without anything from other hosts; and a plot that is true."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import groupby
from pathlib import Path

import pytest

from fakensqd import FakeCluster
from fakensqd.clock import ManualClock
from gnsq import Consumer
from tests.docs import outage
from tests.docs.pages import table
from tests.kit import wait_until

pytestmark = pytest.mark.slow

PICTURES = sorted((Path(__file__).parents[2] / "docs/pages/pictures").glob("*.svg"))
MAX_BYTES = 8192
MIN_PIXELS = 13


@pytest.mark.parametrize("picture", PICTURES, ids=[picture.stem for picture in PICTURES])
def test_picture_is_small_has_a_title_loads_nothing_and_its_letters_are_large(picture):
    root, text = ElementTree.parse(picture).getroot(), picture.read_text()

    assert picture.stat().st_size < MAX_BYTES
    assert root.find("{http://www.w3.org/2000/svg}title").text == root.get("aria-label")
    assert re.findall(r"(?:https?:)?//[^\"' )]+", text) == ["http://www.w3.org/2000/svg"]
    sizes = [int(size) for size in re.findall(r"(?:font:|font-size:)(\d+)px", text)]
    assert sizes
    assert min(sizes) >= MIN_PIXELS


def plotted(line):
    """Return the RDY counts of a line of the plot, from left to right; the first one of the plot is 1."""
    heights = [float(point.split()[1]) for point in line.removeprefix("M").split("L")]
    pixels = 6.0  # of one message
    return [round(1 + (heights[0] - height) / pixels) for height, _ in groupby(heights)]


def test_plot_has_the_rdy_counts_of_a_run():
    clock, failing, counts = ManualClock(), [], []

    def handle(consumer, message):
        if failing:
            raise failing.pop()
        clock.sleep(0.2)

    with FakeCluster(lookupds=0, clock=clock) as cluster:
        consumer = Consumer(
            *("t", "c", cluster.nsqd_tcp_addresses),
            message_handler=handle,
            max_in_flight=20,
            backoff=lambda failures: 2.0 ** (failures - 1),
            close_timeout=0.0,
            clock=clock,
        )
        consumer.start(block=False)
        wait_until(lambda: [bool(connection.rdy) for connection in consumer.stats().connections] == [True, True])
        for tenth in range(600):
            rdy = {connection.address: connection.rdy for connection in consumer.stats().connections}
            if consumer.stats().backoff != "probing":
                counts.append([rdy[address] for address in cluster.nsqd_tcp_addresses])
            if tenth == 30:
                cluster.nsqds[0].publish("t", *[b"x"] * 2250)
            if tenth == 150:
                cluster.nsqds[1].publish("t", *[b"x"] * 6000)
            if tenth == 280:
                failing.append(OSError("the database is away"))
            clock.advance(0.1)
        consumer.close()
        clock.advance(10.0)

    plot = (PICTURES[0].parent / "rdy.svg").read_text()
    lines = re.findall(r'class="l" d="(M[^"H]*)"', plot)  # H: the legend
    assert [plotted(line) for line in lines] == [
        [count for count, _ in groupby(each)] for each in zip(*counts, strict=True)
    ]


def test_plot_of_an_outage_is_measured():
    assert outage.PICTURE.read_text() == outage.picture()


OUTAGES = table("guides/dead-letters.md", "An hour without a database", "a message every")


@pytest.mark.parametrize("row", OUTAGES, ids=lambda row: f"{row[0]} {row[1]}")
def test_table_of_outages_is_measured(row):
    every, options, *shown = row
    number, unit = every.split()
    given = "" if options == "the defaults" else options.strip("`")

    run = outage.measure(int(number) * {"s": 1, "min": 60}[unit], **eval(f"dict({given})"))

    letters = f"{run.letters[-1]} of {run.published}"
    assert [f"{len(run.tries):,}", letters, f"{run.minutes_after} min"] == shown
