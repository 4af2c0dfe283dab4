"""The plot of the page "Outage or poison": measured with an emulated nsqd, an hour of manual time without a database.

``python -m tests.docs.outage`` writes the picture again.
"""

import functools
import logging
from dataclasses import dataclass, field
from pathlib import Path

import gevent

from fakensqd import FakeNsqd
from fakensqd.clock import ManualClock
from gnsq import Consumer

PICTURE = Path(__file__).parents[2] / "docs/pages/pictures/outage.svg"
STEP = 10.0  # seconds between two samples
BEGIN, END = 600.0, 4200.0  # of the outage
LAST = 4800.0  # time of the last message
MINUTES = 90


@dataclass
class Run:
    """Measured: the times of the failures, and after each step the messages that wait and the dead letters."""

    tries: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    letters: list[int] = field(default_factory=list)
    published: int = 0
    handled: int = 0

    @property
    def minutes_after(self):
        """Minutes from the end of the outage until no message waited any more."""
        last = max((step for step, count in enumerate(self.waiting, 2) if count), default=0)
        return round(max(last * STEP - END, 0.0) / 60)


@functools.cache
def measure(every, **options):
    """Run a consumer that fails during the outage. The pauses are not random, so that each run gives the same.

    Args:
        every: Seconds between two messages.
    """
    clock, run = ManualClock(), Run()

    def handle(consumer, message):
        if BEGIN <= clock.monotonic() < END:
            run.tries.append(clock.monotonic())
            raise OSError("the database is away")
        run.handled += 1

    with FakeNsqd(clock=clock) as nsqd:
        options |= {
            "dead_letter_topic": "dead",
            "backoff": lambda failures: 2.0 ** (failures - 2) if failures > 1 else 0,
        }
        consumer = Consumer(
            "t", "c", nsqd.tcp_address, message_handler=handle, max_in_flight=10, clock=clock, **options
        )
        consumer.start(block=False)
        clock.advance(0.0)
        for _ in range(int(MINUTES * 60 / STEP)):
            if clock.monotonic() < LAST and clock.monotonic() % every == 0:
                nsqd.publish("t", b"x")
                run.published += 1
            clock.advance(STEP)
            letters = consumer.stats().given_up
            run.waiting.append(run.published - run.handled - letters)
            run.letters.append(letters)
        gevent.spawn(consumer.close)
        clock.advance(60.0)
    return run


# --- the picture ------------------------------------------------------------------------------------------------------

LEFT, RIGHT, HEIGHT, MOST = 70.0, 870.0, 130.0, 400
TITLE = "Messages that wait and dead letters in a run with an hour without a database, with backoff and without it"
STYLE = """
svg{color:#17212b;background:#f7f9fb}
text{font:14px Helvetica,Arial,sans-serif;fill:currentColor}.b{font-weight:bold}.c{text-anchor:middle}
.e{text-anchor:end}.x{stroke:currentColor;opacity:.5}.o{fill:currentColor;opacity:.1}.t{stroke:currentColor;opacity:.8}
.w{fill:none;stroke:#3b82d6;stroke-width:2.5}.d{fill:none;stroke:#d9534f;stroke-width:2.5;stroke-dasharray:7 4}
"""
LEGEND = """<path class="w" d="M70 455H100"/><text x="108" y="460">messages that wait</text>
<path class="d" d="M270 455H300"/><text x="308" y="460">dead letters</text>
<path class="t" d="M430 451v8"/><text x="440" y="460">a try that fails</text>
<rect class="o" x="580" y="446" width="30" height="16"/><text x="618" y="460">the database is away</text>
<text x="70" y="487">A message comes every 10 s; max_tries is 5. Values of a run with an emulated nsqd.</text>"""


def x_of(seconds):
    return LEFT + (RIGHT - LEFT) * seconds / (MINUTES * 60)


def line_of(values, bottom):
    """Return the path of a line with a point for each minute."""
    points = [(minute * 60, values[int(minute * 60 / STEP) - 1]) for minute in range(1, MINUTES + 1)]
    return "M" + "L".join(f"{x_of(time):.0f} {bottom - HEIGHT * value / MOST:.0f}" for time, value in points)


def panel(run, name, top):
    bottom = top + 150.0
    left, right = x_of(BEGIN), x_of(END)
    text = f"{len(run.tries):,} tries fail, {run.letters[-1]} of {run.published} messages become dead letters"
    ticks = "".join(f"M{x_of(time):.1f} {bottom + 4:g}v8" for time in run.tries)
    if len(run.tries) > 100:
        ticks = f"M{left:.0f} {bottom + 8:g}H{right:.0f}"
    parts = [
        f'<text class="b" x="{LEFT:g}" y="{top:g}">{name}: {text}</text>',
        f'<rect class="o" x="{left:.0f}" y="{top + 10:g}" width="{right - left:.0f}" height="140"/>',
        f'<path class="x" d="M{LEFT:g} {bottom:g}H{RIGHT:g}"/>',
    ]
    for count in (0, MOST // 2, MOST):
        parts.append(f'<text class="e" x="{LEFT - 8:g}" y="{bottom - HEIGHT * count / MOST + 5:.0f}">{count}</text>')
    for kind, path in (("w", line_of(run.waiting, bottom)), ("d", line_of(run.letters, bottom)), ("t", ticks)):
        parts.append(f'<path class="{kind}" d="{path}"/>')
    return "\n".join(parts)


def picture():
    """Measure both runs, and return the SVG."""
    labels = [
        f'<text class="c" x="{x_of(minute * 60):.0f}" y="425">{minute} min</text>'
        for minute in range(0, MINUTES + 1, 10)
    ]
    size = 'viewBox="0 0 900 500" width="900" height="500"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{TITLE}">',
        f"<title>{TITLE}</title>",
        f"<style>{STYLE}</style>",
        panel(measure(10), "Defaults", 30.0),
        panel(measure(10, max_backoff_duration=0), "Without backoff", 225.0),
        "".join(labels),
        LEGEND,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    PICTURE.write_text(picture())
